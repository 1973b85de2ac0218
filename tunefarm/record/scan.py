"""Reading a ledger: whole lines, damaged ones, a torn end, and what a driver wrote that had been taken over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunefarm.document import parse_json
from tunefarm.errors import DocumentError, LedgerError

FORMAT, VERSION = "tunefarm-ledger", 1
LEDGER = "ledger.jsonl"
"""Its name in the folder of a sweep."""
_LINE_START = b'{"at_s":'


class Scan:
    """One pass over a ledger file: iterate for its good events; the attributes are complete afterwards.

    Whoever iterates again, while a driver is writing, gets what has come since.

    Attributes:
        num_events: good events.
        num_damaged: lines that are no events; they are skipped.
        num_stale: events that a fenced driver still wrote; they are skipped.
        epoch: the newest epoch, 0 before the first.
        opening: data of the newest `epoch` event, or None.
        good_bytes: length of the file up to its last complete line.
        torn: what follows it, the half-written line of a driver that was killed; empty for a clean file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_events = self.num_damaged = self.num_stale = self.epoch = self.good_bytes = 0
        self.opening: dict[str, Any] | None = None
        self.torn = b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self.good_bytes)
                self.torn = b""
                for line in file:
                    if not line.endswith(b"\n"):
                        self.torn = line
                        break
                    self.good_bytes += len(line)
                    event = _parse(line, str(self._path))
                    if event is None:
                        self.num_damaged += 1
                    elif event["epoch"] < self.epoch:
                        self.num_stale += 1
                    else:
                        self._note(event)
                        yield event
        except OSError as e:
            raise unusable(self._path, "read", e) from None

    def _note(self, event: dict[str, Any]) -> None:
        self.num_events += 1
        self.epoch = event["epoch"]
        if event["event"] == "epoch" and event["data"].get("format") == FORMAT:
            self.opening = event["data"]

    @property
    def foreign(self) -> bool:
        """Whether the file is something else than a ledger, or than the very first line of one, torn."""
        if self.num_events or self.num_damaged:
            return self.opening is None
        return self.torn[: len(_LINE_START)] != _LINE_START[: len(self.torn)]


def _parse(line: bytes, where: str) -> dict[str, Any] | None:
    try:
        event = parse_json(line.decode(), where=where)
    except (DocumentError, UnicodeDecodeError):
        return None
    types = {"at_s": float, "data": dict, "epoch": int, "event": str}
    if isinstance(event, dict) and all(isinstance(event.get(name), kind) for name, kind in types.items()):
        return event
    return None


def unusable(path: Path, verb: str, e: OSError) -> LedgerError:
    """What keeps a ledger from being read or written, for people."""
    hints = {
        errno.ENOSPC: "free some space and give the same command again: it goes on where it stopped",
        errno.EDQUOT: "free some space and give the same command again: it goes on where it stopped",
        errno.EROFS: "it must lie in a folder you may write to",
        errno.EACCES: "it must lie in a folder you may write to",
        errno.EPERM: "it must lie in a folder you may write to",
    }
    if verb == "written":
        hints |= dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "it must lie in a folder you may write to")
    return LedgerError(f"cannot be {verb}: {e.strerror}", file=str(path), hint=hints.get(e.errno or 0, ""))
