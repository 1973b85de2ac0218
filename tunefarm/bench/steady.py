"""Whether a GPU was itself while it measured: nobody else at work on it, its clocks up, its speed what it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tunefarm.bench import telemetry
from tunefarm.bench.loaded import Loaded
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap

MAX_DRIFT = 0.1
"""Share by which the yardstick may differ from its first reading. A power cap, which a sweep of matrix products meets
all the time, moves it by less; half the clocks, or half a GPU, by far more."""
NUM_READINGS, NUM_WARM_UP = 5, 50
SLOWDOWNS = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
"""Throttle reasons that pass, so that measuring again helps; a power cap is part of what a kernel costs."""
WAIT_S = 120.0
"""How long a measuring process waits for another one to leave its GPU."""


class Yardstick:
    """A fixed piece of work of the tensor cores and of the memory, timed now and then: it tells drift from difference.

    Long enough (some 0.2 ms each) that starting it does not count, and warmed up before its first reading, when clocks
    are low and libraries are loaded.
    """

    def __init__(self) -> None:
        self._work: list[Loaded] = []
        self._usual_ms: list[float] = []

    def drift(self) -> float:
        """The greatest ratio of one of its readings to the first one, minus 1; negative where the GPU was faster."""
        if not self._work:
            self._prepare()
        now_ms = [self._read(work, NUM_READINGS) for work in self._work]
        self._usual_ms = self._usual_ms or now_ms
        return max((now / usual - 1 for now, usual in zip(now_ms, self._usual_ms, strict=True)), key=abs)

    def _prepare(self) -> None:
        import torch

        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        out, room = torch.empty_like(a), torch.zeros(256 << 20, dtype=torch.int8, device="cuda")
        self._work = [
            Loaded(fire=lambda: torch.mm(a, a, out=out), timer="hot"),
            Loaded(fire=lambda: room.bitwise_not_(), timer="hot"),
        ]
        for work in self._work:
            self._read(work, NUM_WARM_UP)

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

    def begin(self) -> None:
        """Before a question: takes the GPU, at the first one waiting for it.

        Raises:
            InfrastructureError: there is none, or another measuring process keeps it.
        """
        telemetry.require_gpu()
        self._lock = self._lock or hold(telemetry.uuid())
        if not self._since_s:
            self._yardstick.drift()
        self._since_s = time.time()

    def release(self) -> None:
        """Lets another process have the GPU."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def end(self) -> FrozenMap[Any]:
        """After a question: what was seen of the GPU, with `disturbed` where its times are not to be trusted."""
        drift = self._yardstick.drift()
        seen = FrozenMap(telemetry.sample(since_s=self._since_s), drift=round(drift, 4))
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
    if slowed := sorted(SLOWDOWNS.intersection(str(seen.get("throttle", "")).split())):
        return f"throttled: {' '.join(slowed)} at {seen.get('sm_mhz')} MHz, {seen.get('temperature_c')} degrees C"
    if abs(drift) > MAX_DRIFT:
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
        InfrastructureError: another process keeps the GPU.
    """
    path = Path(tempfile.gettempdir(), f"tunefarm-{uuid}.lock")
    with _umask(0):  # sweeps of other users wait for it, too
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
    give_up_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > give_up_s:
                holder = lock.read().strip() or "unknown"
                lock.close()
                raise InfrastructureError(
                    f"GPU {uuid} is measured on by another sweep (process {holder}) since {wait_s:g} s or longer",
                    hint="wait for it, or give this sweep another GPU by CUDA_VISIBLE_DEVICES",
                ) from None
            time.sleep(0.2)
            continue
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
