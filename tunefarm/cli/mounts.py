"""Network file systems: folders there are everybody's, and not all keep locks, or what they say they have written."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")

_OBJECTS = frozenset(
    {"s3fs", "gcsfuse", "goofys", "mount-s3", "mountpoint-s3", "rclone", "blobfuse", "blobfuse2", "davfs"}
)
"""Object stores: a file is uploaded as a whole, when it is closed or later."""

_LOCKLESS = frozenset({"9p", "virtiofs", "afs", "sshfs"})
"""Each machine keeps its locks for itself."""

_SHARED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "ceph-fuse", "gpfs", "beegfs", "glusterfs", "juicefs"}
)
"""Locks are the server's, unless a mount's options say otherwise."""

_LOCKS_OFF = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"}, "nfs4": {"local_lock=all", "local_lock=flock"},
    "cifs": {"nobrl", "nolock"}, "smb3": {"nobrl", "nolock"}, "lustre": {"localflock", "noflock"},
}  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """What a folder lies on.

    Attributes:
        kind: of file system, as the kernel calls it, without `fuse.`.
        source: the server's share, or device.
        options: of the mount and of its file system.
    """

    kind: str
    source: str
    options: frozenset[str]

    @property
    def doubt(self) -> str:
        """Why it is not as good as a disk of this machine; empty for one of those, and for what is not known here."""
        where = f"{self.kind} ({self.source})"
        if self.kind in _OBJECTS:
            return f"{where}: object stores have no locks, and what is flushed there is not yet kept"
        if self.kind in _LOCKLESS or self.options & _LOCKS_OFF.get(self.kind, set()):
            return f"{where}: other machines do not see its locks"
        if self.kind in _SHARED:
            return f"{where}: its locks, and what is flushed there, are as good as its server's"
        return ""


def mount_of(path: Path, table: Path | None = None) -> Mount | None:
    """What a path lies on, or its nearest parent that exists; None where the kernel does not tell.

    Args:
        path: there or not.
        table: the mounts, as `/proc/self/mountinfo` has them.
    """
    try:
        lines = (table or TABLE).read_text(errors="surrogateescape").splitlines()
        place = path.resolve()
    except (OSError, RuntimeError):
        return None
    best: tuple[int, Mount] | None = None
    for line in lines:
        # See proc(5): fixed fields, optional ones, a dash, then the file system's own.
        ours, _, theirs = line.partition(" - ")
        fields, (kind, source, *options) = ours.split(" "), theirs.split(" ")
        point = Path(_plain(fields[4]))
        if place.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            said = frozenset(option for word in (fields[5], *options) for option in word.split(","))
            best = len(point.parts), Mount(kind=kind.removeprefix("fuse."), source=_plain(source), options=said)
    return best[1] if best else None


def doubt(path: Path) -> str:
    """Why locks and flushed writes may not be trusted where a path lies; empty if there is nothing to say."""
    mount = mount_of(path)
    return mount.doubt if mount is not None else ""


def say_doubts(what: str, paths: Iterable[Path], remedy: str) -> None:
    """Warns of folders that lie on network file systems, once for each of these.

    Args:
        what: lies there.
        paths: where.
        remedy: what to do.
    """
    for path in paths:
        if said := doubt(path):
            _say(what, said, remedy)


@functools.cache
def _say(what: str, said: str, remedy: str) -> None:
    logger.warning("%s on %s; %s", what, said, remedy)


def _plain(text: str) -> str:
    """A field without the octal escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
