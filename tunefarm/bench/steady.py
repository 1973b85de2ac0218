"""Whether a GPU was itself while it measured: nobody else at work on it, its clocks up, its speed what it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tunefarm.bench import telemetry
from tunefarm.bench.faults import MAX_MESSAGE, first_line, judge
from tunefarm.bench.loaded import Loaded
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.trial import Outcome

MAX_DRIFT, MAX_CAPPED_DRIFT = 0.1, 0.75
"""Share by which the yardstick may be slower than it has been; and where the driver says that the power cap holds the
clocks down. Products of large matrices keep an H200 at its cap, at 1.2 to 1.7 of 2.0 GHz, and the yardstick then takes
up to 1.45 times as long; measuring again finds the same. Half a GPU takes twice as long, whatever the driver says."""
MAX_LOOKING = 0.05
"""Share of its time in which a measuring process may ask the driver about the GPU while candidates wait."""
NUM_READINGS, NUM_WARM_UP = 5, 50
SLOWDOWNS, CAPPED = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}), "power_cap"
"""Throttle reasons that pass, so that measuring again helps; and the one that is part of what a kernel costs."""
WAIT_S = 120.0
"""How long a measuring process waits for another one to leave its GPU."""


@contextlib.contextmanager
def _machines_fault() -> Iterator[None]:
    """Blames the machine for whatever torch raises: nothing of the user's is at work here.

    Raises:
        InfrastructureError: what failed, and the remedy.
    """
    try:
        yield
    except RuntimeError as e:
        words = first_line(e)[:MAX_MESSAGE]
        if judge(e).outcome is Outcome.DEVICE_OOM:
            raise InfrastructureError(
                f"other processes hold the GPU's memory: {words}",
                hint="end them, or give this sweep another GPU by CUDA_VISIBLE_DEVICES",
            ) from None
        raise InfrastructureError(f"the GPU fails at known work: {words}", hint="see `tunefarm doctor`") from None


class Yardstick:
    """A fixed piece of work of the tensor cores and of the memory, timed now and then: it tells drift from difference.

    Long enough (some 0.2 ms each) that starting it does not count, and warmed up before its first reading, when clocks
    are low and libraries are loaded.

    Args:
        work: other pieces of work.
    """

    def __init__(self, work: Iterable[Loaded] = ()) -> None:
        self._work = list(work)
        self._usual_ms: list[float] = []

    @_machines_fault()
    def drift(self) -> float:
        """The greatest ratio of one of its readings to the fastest so far, minus 1.

        A fast reading cannot be wrong, and the first one may be: somebody else was at work then.

        Raises:
            InfrastructureError: the GPU is full or broken.
        """
        if not self._work:
            self._prepare()
        now_ms = [self._read(work, NUM_READINGS) for work in self._work]
        self._usual_ms = list(map(min, now_ms, self._usual_ms or now_ms))
        return max(now / usual - 1 for now, usual in zip(now_ms, self._usual_ms, strict=True))

    def _prepare(self) -> None:
        import torch

        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        out, room = torch.empty_like(a), torch.zeros(256 << 20, dtype=torch.int8, device="cuda")
        made = [
            Loaded(fire=lambda: torch.mm(a, a, out=out), timer="hot"),
            Loaded(fire=lambda: room.bitwise_not_(), timer="hot"),
        ]
        for work in made:
            self._read(work, NUM_WARM_UP)
        self._work = made

    @staticmethod
    def _read(work: Loaded, num: int) -> float:
        for _ in range(num):
            work.sample()
        return statistics.median(work.durations_ms())


class Watch:
    """One GPU as the process that measures on it sees it."""

    def __init__(self) -> None:
        self._yardstick = Yardstick()
        self._lock: IO[str] | None = None
        self._since_s = 0.0
        self._seen: FrozenMap[Any] = FrozenMap()
        self._look_again_s = 0.0

    @_machines_fault()
    def begin(self) -> None:
        """Before a question: takes the GPU, at the first one waiting for it.

        Raises:
            InfrastructureError: there is none, it is full or broken, or another measuring process keeps it.
        """
        telemetry.require_gpu()
        self._lock = self._lock or hold(telemetry.uuid())
        if not self._since_s:
            self._yardstick.drift()
        self._since_s, self._look_again_s = time.time(), 0.0

    def release(self) -> None:
        """Lets another process have the GPU."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def look(self) -> FrozenMap[Any]:
        """Amid a question: what was seen of the GPU since it began, as `end` would say it but for the drift.

        As new as can be had in `MAX_LOOKING` of the time.
        """
        began_s = time.monotonic()
        if began_s >= self._look_again_s:
            self._seen = _marked(telemetry.sample(since_s=self._since_s))
            self._look_again_s = began_s + (time.monotonic() - began_s) / MAX_LOOKING
        return self._seen

    def end(self, *, lost: bool = False) -> FrozenMap[Any]:
        """After a question: what was seen of the GPU, with `disturbed` where its times are not to be trusted.

        Args:
            lost: this process's CUDA context is: the driver can still be asked, but the yardstick not read.

        Raises:
            InfrastructureError: the GPU is full or broken.
        """
        drift = 0.0 if lost else self._yardstick.drift()
        seen = telemetry.sample(since_s=self._since_s)
        return _marked(seen if lost else FrozenMap(seen, drift=round(drift, 4)), drift)


def _marked(seen: FrozenMap[Any], drift: float = 0.0) -> FrozenMap[Any]:
    reason = disturbance(seen, drift)
    return FrozenMap(seen, disturbed=reason) if reason else seen


def disturbance(seen: Mapping[str, Any], drift: float) -> str:
    """Why times taken just now are not to be trusted, for people; empty if they are.

    Args:
        seen: from `telemetry.sample`.
        drift: of the yardstick.
    """
    if seen.get("num_others"):
        return f"contended: {seen['num_others']} other processes computed on the GPU"
    throttle = str(seen.get("throttle", "")).split()
    if slowed := sorted(SLOWDOWNS.intersection(throttle)):
        return f"throttled: {' '.join(slowed)} at {seen.get('sm_mhz')} MHz, {seen.get('temperature_c')} degrees C"
    if drift > (MAX_CAPPED_DRIFT if CAPPED in throttle else MAX_DRIFT):
        return f"drift: a fixed piece of work took {1 + drift:.0%} of its usual time"
    return ""


def hold(uuid: str, wait_s: float = WAIT_S) -> IO[str]:
    """Takes a GPU for measuring, waiting while another measuring process of this machine has it.

    The lock is a file's, so it ends with its process, however that ends.

    Args:
        uuid: of the GPU.
        wait_s: how long to wait.

    Returns:
        The lock; keep it.

    Raises:
        InfrastructureError: another process keeps the GPU, or its lock cannot be taken.
    """
    path = Path(tempfile.gettempdir(), f"tunefarm-{uuid}.lock")
    lock = _open_for_all(path)
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                holder = lock.read().strip() or "unknown"
                lock.close()
                raise InfrastructureError(
                    f"GPU {uuid} is measured on by another sweep (process {holder}) since {wait_s:g} s or longer",
                    hint="wait for it, or give this sweep another GPU by CUDA_VISIBLE_DEVICES",
                ) from None
            time.sleep(0.2)
            continue
        except OSError as e:
            lock.close()
            raise _unlockable(path, e) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock


def _open_for_all(path: Path) -> IO[str]:
    """A lock file that sweeps of other users wait for, too."""
    try:
        try:
            # A file of somebody else may be opened, but in a sticky folder Linux lets nobody offer to create it.
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            with _umask(0):
                lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise _unlockable(path, e) from None
    return os.fdopen(lock, "r+")


def _unlockable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{path}: the lock that keeps other sweeps from the GPU cannot be taken: {error.strerror}",
        hint="remove the file while no sweep runs, or set TMPDIR to a folder on a local disk",
    )


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
