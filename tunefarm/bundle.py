"""Bundles: the files that a workload is made of, named by their content, on their way to workers.

The driver gathers them and imports them where they lie. A job carries a bundle's name only; a process that has not
unpacked it raises `Lacking`, is sent the files once, and imports them from a folder of its own named by their hash.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.errors import InfrastructureError, Lacking

Files = tuple[tuple[str, bytes], ...]
"""Names, relative and with `/`, and contents; sorted by name."""

_gathered: dict[tuple[str, str], None] = {}
"""Digests and roots of the bundles that this process has made itself: it imports them where they lie."""

_unpacked: dict[str, Path] = {}
"""Folders of the bundles that this process was sent, by digest."""

_origins: dict[str, str] = {}
"""What people call the folders of unpacked bundles."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files under one root. It is pickled without their contents.

    Attributes:
        digest: SHA-256 of names and contents; where the files lay does not matter to it.
        root: the folder of the driver's machine at which names start.
        files: with contents, in the process that gathered them.
    """

    digest: str
    root: str
    files: Files = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, root: Path, contents: Mapping[str, bytes]) -> Bundle:
        """Some files of this machine.

        Args:
            root: absolute; where names start.
            contents: by name.
        """
        files = tuple(sorted(contents.items()))
        bundle = cls(digest_of(files), str(root), files)
        _gathered.pop((bundle.digest, bundle.root), None)
        _gathered[bundle.digest, bundle.root] = None
        return bundle

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.digest, self.root)

    @property
    def is_away(self) -> bool:
        """Whether the files were gathered in another process."""
        return (self.digest, self.root) not in _gathered

    def folder(self) -> Path:
        """Where the files lie for this process.

        Raises:
            Lacking: it has not been sent them.
        """
        if not self.is_away:
            return Path(self.root)
        if self.digest not in _unpacked:
            raise Lacking(f"the workload's files ({self.digest[:12]}) have not reached this process")
        folder = _unpacked[self.digest]
        _origins[str(folder)] = self.root
        return folder

    def locate(self, path: str | Path) -> Path:
        """Where a file or folder of the driver's machine lies for this process.

        Args:
            path: absolute, under the root.
        """
        return Path(os.path.normpath(self.folder() / os.path.relpath(path, self.root)))


def digest_of(files: Files) -> str:
    """SHA-256, in hexadecimal, of names and contents."""
    found = hashlib.sha256()
    for name, content in files:
        for part in (name.encode("utf-8", "surrogateescape"), content):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
    return found.hexdigest()


def unpack(files: Files, folders: Sequence[Path]) -> str:
    """Makes a bundle's files importable in this process; whoever unpacked them here before has done the work.

    Args:
        files: of the bundle.
        folders: where bundles may be kept, best first.

    Returns:
        What people should know if it was not the best one, or empty.

    Raises:
        InfrastructureError: none of the folders can be written.
    """
    digest = digest_of(files)
    refused: list[str] = []
    for folder in folders:
        try:
            _unpacked[digest] = _settle(files, folder / digest)
        except OSError as e:
            refused.append(f"{folder} ({e.strerror or e})")
            continue
        return f"cannot write to {', '.join(refused)}: workloads are unpacked in {folder}" if refused else ""
    raise InfrastructureError(
        f"a workload's files cannot be unpacked in {', '.join(refused)}",
        hint="set TUNEFARM_CACHE to a folder of the worker's that can be written",
    )


def said(text: str) -> str:
    """A text in which unpacked files have the names under which people know them.

    The process that has unpacked them knows the folder; the driver, who hears the last words of one that died, knows
    the digest at its end.
    """
    for folder, origin in _origins.items():
        text = text.replace(folder, origin)
    for digest, root in reversed(_gathered):  # of equal bundles the last gathered is the one in question
        if digest in text:
            text = re.sub(rf"/[^\s\"']*/{digest}(?=/)", root.replace("\\", r"\\"), text)
    return text


def _settle(files: Files, place: Path) -> Path:
    """The folder `place` with the files in it, whole, whoever else does the same at the same time."""
    _own(place.parent)
    if _holds(place, files):
        return place
    # A file that somebody has cleaned away, or a write that broke off with the machine: all of it is written anew.
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        for name, content in files:
            file = fresh / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if place.exists():
            place.rename(fresh.with_name(f"{fresh.name}-old"))
        with contextlib.suppress(OSError):  # somebody was faster
            fresh.rename(place)
        if not _holds(place, files):
            raise OSError("its files do not stay as they were written")
        return place
    finally:
        for left in (fresh, fresh.with_name(f"{fresh.name}-old")):
            shutil.rmtree(left, ignore_errors=True)


def _own(folder: Path) -> None:
    """Makes a folder that nobody else may write to: what lies in it is imported."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    status, around = folder.lstat(), folder.parent.stat()
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others or status.st_uid != os.getuid() or around.st_uid not in (os.getuid(), 0):
        raise PermissionError(errno.EPERM, "others may write to it")


def _holds(place: Path, files: Files) -> bool:
    try:
        return all((place / name).read_bytes() == content for name, content in files)
    except OSError:
        return False
