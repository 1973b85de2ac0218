"""The ledger: the append-only record of a sweep, from which a killed sweep goes on.

Format, version 1: one JSON object a line, UTF-8, sorted keys, `{"at_s", "data", "epoch", "event"}`. `at_s` is in unix
seconds; `epoch` counts the drivers that have opened the file. In the data, `study` is a study's key, `config` a
config's key, `rung` a fidelity (-1: before any measurement). What a sweep writes:

| event | data |
|---|---|
| `epoch` | `format`, `version`, `sweep_id`, `identity`, `pid`, `host`: a driver has opened the ledger |
| `changed` | `before`, `after`: the identity, when the same experiment was edited between two drivers |
| `fresh` | nothing: what was measured before is no longer to be used |
| `study` | `study`, `label`, counts, `incumbent`, `eager`, ...: a study begins, on terms that later drivers keep |
| `built` | `study`, `config`, `build` |
| `merged` | `study`, `config`, `into`: equal builds, measured as the config named in `into` |
| `measured` | `study`, `config`, `rung`, `measurement` |
| `failed` | `study`, `config`, `rung`, `outcome`, `failure` |
| `pruned` | `study`, `config`, `rung`, `reason` |
| `promoted` | `study`, `config`, `rung`: goes on to this rung |
| `bucketed` | `study`, `buckets`: once the search is over, of each the configs, the most promising first |
| `bucket_closed` | `study`, `bucket`, `reason` and the evidence |
| `finals` | `study`, `configs`, `measurements`, in the same order; `worker` |
| `replicated` | the same of a second GPU: the winner's and the default's |
| `winner` | `study`, `winner`, `left`: what was not measured, and what that may yet gain |
| `no_winner`, `skipped` | `study`, `status`, `reason`; `left` as above where anything could be measured |
| `export` | `path`, `digest`, `rows` |

Two things keep drivers apart. While one is alive it holds a lock on a side file, and another is refused. Where locks do
not work (some network file systems), or once the side file was replaced, the newest epoch in the side file wins: an
older driver finds it before its next append and is fenced. Readers leave out what an older epoch wrote after a newer
one had begun.

What is written outlives its process at once, and a machine that fails once it is flushed: a driver flushes before it
waits and before it tells anybody, so that all that came while it thought costs the disk once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tunefarm.config import counted
from tunefarm.document import canonical
from tunefarm.errors import Fenced, LedgerError
from tunefarm.record.memo import Memo
from tunefarm.record.scan import FORMAT, VERSION, Scan, unusable

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}

log = logging.getLogger(__name__)


def side_file(path: Path) -> Path:
    """The file beside a ledger that is locked by its driver and names the newest epoch."""
    return path.with_name(path.name + ".lock")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Every event of a ledger, oldest first, whether or not a driver is writing it.

    Raises:
        LedgerError: the file is missing or unreadable.
    """
    yield from Scan(path)


def open_ledger(path: Path, identity: Mapping[str, Any]) -> FileLedger:
    """Opens a ledger for writing, as the only driver, and begins a new epoch in it.

    Args:
        path: the file; it and its folder are made if missing.
        identity: what the sweep is. `experiment`, its name, must not change between drivers. `conditions` is a digest
            of all that makes an old measurement worthless (kernel source, toolchain, timer, measured or replayed):
            `FileLedger.memo` answers only what was recorded under the same. The rest (such as `digest`, of the whole
            experiment) may change and is recorded when it does.

    Raises:
        LedgerError: another driver is at work, the ledger belongs to another experiment, the file is not a ledger,
            or the folder cannot be written to. Nothing was changed then.
    """
    side = _claim(path)
    try:
        return FileLedger(path, side, dict(identity), _look(path, identity))
    except OSError as e:
        os.close(side)
        raise unusable(path, "written", e) from None
    except BaseException:
        os.close(side)
        raise


def check_ledger(path: Path, identity: Mapping[str, Any]) -> None:
    """Raises what `open_ledger` would, before machines are taken; makes nothing but the folder and the lock's file."""
    side = _claim(path)
    try:
        _look(path, identity)
    finally:
        os.close(side)


def _claim(path: Path) -> int:
    """Makes the folder and takes the lock, which is a file handle."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _lock(side_file(path), path)
    except OSError as e:
        raise unusable(path, "written", e) from None


def _look(path: Path, identity: Mapping[str, Any]) -> Scan:
    """Reads what earlier drivers left and judges whether this sweep may go on with it; changes nothing."""
    past = Scan(path)
    if not path.exists():
        return past
    for _ in past:
        pass
    if past.foreign:
        raise LedgerError("is not a tunefarm ledger", file=str(path), hint="name another file for the sweep")
    if past.opening is not None:
        _compare(past.opening, identity, path)
    if past.num_damaged or past.num_stale:
        skipped = (
            f"{counted(past.num_damaged, 'damaged line')} and {past.num_stale} of a driver that had been taken over"
        )
        log.warning("%s: skipped %s", path, skipped)
    return past


def _compare(opening: Mapping[str, Any], identity: Mapping[str, Any], path: Path) -> None:
    if opening.get("version") != VERSION:
        raise LedgerError(
            f"has version {opening.get('version')!r}, this release reads {VERSION}",
            file=str(path),
            hint="update tunefarm",
        )
    name = opening["identity"].get("experiment")
    if name != identity.get("experiment"):
        raise LedgerError(
            f"belongs to experiment {name!r}, not to {identity.get('experiment')!r}",
            file=str(path),
            hint="give this sweep a folder of its own, or rename the experiment",
        )


def _lock(side: Path, path: Path) -> int:
    handle = os.open(side, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _read_side(handle)
        os.close(handle)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since_s"])) if holder else "?"
        who = f"pid {holder['pid']} on {holder['host']} since {since}" if holder else "another driver"
        raise LedgerError(
            f"is being written by {who}",
            file=str(path),
            hint="wait for it or stop it, then give the same command again",
        ) from None
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            os.close(handle)
            raise
        log.warning("%s: its file system has no locks; should two drivers meet, the newer one takes over", path)
    return handle


def _read_side(handle: int) -> dict[str, Any]:
    """What the side file says: `epoch`, `pid`, `host`, `since_s`; empty before its first driver wrote it."""
    try:
        said = json.loads(os.pread(handle, 4096, 0).decode().strip() or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) and {"epoch", "pid", "host", "since_s"} <= said.keys() else {}


class FileLedger:
    """A ledger in a file, held by this process; made by `open_ledger`.

    Attributes:
        path: the file.
        epoch: number of this driver, from 1.
        sweep_id: identity of the sweep, the same for all its drivers.
        num_events: events that earlier drivers left; 0 for a new sweep.
        changed: names of the parts of the identity that differ from the previous driver's.
        conditions: under which this driver records.
    """

    def __init__(self, path: Path, side: int, identity: dict[str, Any], past: Scan) -> None:
        self.path = path
        self.epoch = 1 + max(past.epoch, int(_read_side(side).get("epoch", 0)))
        self.num_events = past.num_events
        before = past.opening or {"identity": identity}
        self.sweep_id: str = before.get("sweep_id") or uuid.uuid4().hex[:12]
        self.changed = tuple(name for name in identity if before["identity"].get(name) != identity[name])
        self.conditions = identity.get("conditions", "")
        self._side = side
        self._size = self._flushed = past.good_bytes
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if past.torn:
                os.ftruncate(self._handle, self._size)
            self._open_epoch(before["identity"], identity)
        except BaseException:
            os.close(self._handle)
            raise

    def _open_epoch(self, before: Mapping[str, Any], identity: dict[str, Any]) -> None:
        host, pid = socket.gethostname(), os.getpid()
        said = canonical({"epoch": self.epoch, "pid": pid, "host": host, "since_s": round(time.time(), 3)})
        # One write of fixed length, in place: the lock lies on this very file, and a reader never sees half of it.
        os.pwrite(self._side, said.ljust(512).encode() + b"\n", 0)
        os.fsync(self._side)
        opening = {"format": FORMAT, "version": VERSION, "sweep_id": self.sweep_id, "identity": identity}
        self.append("epoch", {**opening, "pid": pid, "host": host})
        if self.changed:
            self.append("changed", {"before": before, "after": identity})
        self.flush()
        # A new file is durable only once its folder is.
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, event: str, data: Mapping[str, Any]) -> None:
        """Writes one event; `extend` says more."""
        self.extend([(event, data)])

    def extend(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Writes (event, data), all or none of them. They are on the disk once `flush` returns.

        Raises:
            Fenced: a newer driver has opened this ledger, or somebody has moved or deleted it.
            LedgerError: the disk is full or fails; the file is left as it was before.
            ValueError: data that JSON cannot hold, NaN and infinities among it.
        """
        if self._handle < 0:
            raise LedgerError("is closed", file=str(self.path))
        at_s = round(time.time(), 3)
        lines = [
            canonical({"at_s": at_s, "epoch": self.epoch, "event": event, "data": dict(data)}) + "\n"
            for event, data in events
        ]
        if not lines:
            return
        batch = "".join(lines).encode()
        self._check()
        try:
            written = 0
            while written < len(batch):
                written += os.write(self._handle, batch[written:])
        except OSError as e:
            self._cut(self._size, e)
        self._size += len(batch)

    def flush(self) -> None:
        """Has everything written so far on the disk; costs nothing if it is there already.

        Raises:
            LedgerError: the disk is full or fails; the file is left as it was when it was last flushed.
        """
        if self._flushed == self._size:
            return
        try:
            os.fsync(self._handle)
        except OSError as e:
            # Which of it the disk has after that, nobody knows.
            self._cut(self._flushed, e)
        self._flushed = self._size

    def _cut(self, size: int, e: OSError) -> NoReturn:
        os.ftruncate(self._handle, size)
        self._size = size
        raise unusable(self.path, "written", e) from None

    def _check(self) -> None:
        """Compares what lies at the paths now with what this driver opened."""
        try:
            handle = os.open(side_file(self.path), os.O_RDONLY)
            try:
                holder = _read_side(handle)
            finally:
                os.close(handle)
            here, there = os.fstat(self._handle), self.path.stat()
        except FileNotFoundError:
            self._fence("was moved or deleted while this driver was writing it")
        except OSError as e:
            raise unusable(self.path, "read", e) from None
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            self._fence("was replaced while this driver was writing it")
        if holder.get("epoch", self.epoch) > self.epoch:
            self._fence(f"has been taken over by pid {holder['pid']} on {holder['host']}")

    def _fence(self, why: str) -> NoReturn:
        raise Fenced(f"{self.path}: the ledger {why}", hint="this driver stops and writes nothing more")

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Every event so far, oldest first; each has `event`, `epoch`, `at_s` and `data`."""
        return read_events(self.path)

    def memo(self) -> Memo:
        """What is known already under this driver's conditions."""
        return Memo(self.events(), conditions=self.conditions)

    def close(self) -> None:
        """Flushes it and lets another driver open it; may be called twice.

        Raises:
            LedgerError: as of `flush`; it is closed all the same.
        """
        if self._handle < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._handle)
            os.close(self._side)
            self._handle = self._side = -1
