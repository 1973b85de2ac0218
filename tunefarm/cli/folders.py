"""Folders that outlive a sweep, and whether they can be written."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunefarm.bundle import Files, unpack
from tunefarm.cli.mounts import say_doubts
from tunefarm.document import write_atomic
from tunefarm.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = 1 << 30
"""What a sweep should find free: it keeps builds and records."""


def cache_folder() -> Path:
    """Where things are kept between sweeps: `$TUNEFARM_CACHE`, `$XDG_CACHE_HOME/tunefarm` or `~/.cache/tunefarm`."""
    if named := os.environ.get("TUNEFARM_CACHE"):
        return Path(named)
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "tunefarm"
    except RuntimeError:  # a user without a home
        return _fallback()


def store_folder() -> Path:
    """Where builds are kept: in the cache folder, or in the temporary one where that cannot be written.

    What people should know of it is said: that it is the temporary one, that its disk is nearly full.

    Raises:
        InfrastructureError: neither can be written, or the user's own choice cannot.
    """
    wanted = cache_folder()
    named = "TUNEFARM_CACHE" in os.environ
    for folder in [wanted] if named else [wanted, _fallback()]:
        if _writable(folder / "builds"):
            if folder != wanted:
                logger.warning(
                    "cannot write to %s: builds are kept in %s; TUNEFARM_CACHE may name another", wanted, folder
                )
            say_doubts(
                "builds are kept", [folder], "each is checked when it is read; TUNEFARM_CACHE may name another folder"
            )
            free_bytes = shutil.disk_usage(folder).free
            if free_bytes < MIN_FREE_BYTES:
                logger.warning("%s has only %.1f GiB free: builds may not be kept", folder, free_bytes / (1 << 30))
            return folder / "builds"
    raise InfrastructureError(f"cannot write to {wanted}", hint="set TUNEFARM_CACHE to a folder that can be written")


def unpack_all(bundles: Sequence[Files]) -> str:
    """A worker's job: makes the files of workloads importable in its process.

    Args:
        bundles: the files of each.

    Returns:
        What people should know of where they lie, or empty.

    Raises:
        InfrastructureError: there is no folder to unpack them in.
    """
    own = f"bundles-{os.getuid()}"  # what is imported is nobody else's, even if the cache is everybody's
    folders = dict.fromkeys((cache_folder() / own, _fallback() / own))
    notices = dict.fromkeys(unpack(files, list(folders)) for files in bundles)
    return "; ".join(f"{socket.gethostname()}: {notice}" for notice in notices if notice)


def _fallback() -> Path:
    # The temporary folder is everybody's: machine code is taken from a folder of our own only.
    return Path(tempfile.gettempdir()) / f"tunefarm-{os.getuid()}"


def _writable(folder: Path) -> bool:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True)
        owner = folder.parent.stat().st_uid
    except OSError:
        return False
    return owner in (os.getuid(), 0) and os.access(folder, os.W_OK)


def check_output(path: Path, *, mark: str = "") -> None:
    """Refuses a file that could not be written, before the work; creates nothing.

    Args:
        path: where something is to be written.
        mark: how a file begins that may be written over; any may without.

    Raises:
        UserError: it is a folder, there is no folder to write it into, or something else is there.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    virtual = folder.absolute().parts[1:2] in (("proc",), ("sys",))  # they claim to be writable
    if path.is_dir() or virtual or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError("cannot be written", file=str(path), hint="name a file in a folder you may write to")
    if mark and path.is_file():
        with path.open("rb") as file:
            if file.read(len(mark.encode())) != mark.encode():
                raise UserError(
                    "is there, and something else", file=str(path), hint="name a new file, or remove this one"
                )


def check_new(path: Path, *, beside: Path | None = None) -> None:
    """Refuses to write over a file, before the work.

    Args:
        path: where something is to be written.
        beside: the one file that may be replaced: what is written is its next edition.

    Raises:
        UserError: it is there already, or could not be written.
    """
    check_output(path)
    if path.exists() and not (beside is not None and beside.exists() and path.samefile(beside)):
        raise UserError("is there already", file=str(path), hint="name a new file, or remove this one")


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes texts to files of a folder, by name; those that are there are written over.

    Raises:
        UserError: one cannot be written.
    """
    written = []
    for name, text in texts.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
        except OSError as e:
            hint = "name a folder that you may write to"
            raise UserError(f"cannot be written: {e.strerror}", file=str(path), hint=hint) from None
        written.append(path)
    return written
