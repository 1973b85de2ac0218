"""The command `tunefarm` over a disturbed fleet: jobs take a while, and what they bring comes twice or too late.

How it is disturbed stands in the variable `DISTURBED`, as JSON:

| key | meaning |
|---|---|
| `pause_s` | every measuring job takes this much longer |
| `twice` | every so manieth measuring job's result is delivered twice |
| `late` | numbers of measuring jobs of which the first result comes after its lease has ended |
| `lease_s` | how long the lease of those is |
| `tally` | a file that gets a line for each job given to a worker and each odd delivery |
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefarm.bench.worker import measure
from tunefarm.seams import Fleet, Worker

SECOND_S = 0.3
"""How long after the first a second delivery comes, or a late one after the end of its lease."""


def slowly(job: Callable[[], Any], pause_s: float) -> Any:
    """Does a job, in a worker, after a pause."""
    time.sleep(pause_s)
    return job()


class HeldBack:
    """A job of which the first result is to come late."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.is_first = True


class Twice(Future[Any]):
    """A result that is delivered again some time after it was."""

    def __init__(self, inner: Future[Any], told: Callable[[str], None]) -> None:
        super().__init__()
        self._inner, self._told = inner, told
        inner.add_done_callback(functools.partial(hand_on, self))

    def cancel(self) -> bool:
        return self._inner.cancel()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        super().add_done_callback(fn)
        super().add_done_callback(functools.partial(self._again, fn))

    def _again(self, fn: Callable[[Future[Any]], object], done: Future[Any]) -> None:
        if not done.cancelled():
            self._told("twice")
            after(SECOND_S, fn, done)


class Late(Future[Any]):
    """A result that is under way when its lease ends, and so can no longer be called back."""

    def __init__(self, inner: Future[Any], told: Callable[[str], None]) -> None:
        super().__init__()
        self._inner, self._told = inner, told
        self._called_back = False

    def cancel(self) -> bool:
        if not self._called_back:
            self._called_back = True
            self._told("late")
            after(SECOND_S, self._inner.add_done_callback, functools.partial(hand_on, self))
        return False


def after(seconds: float, act: Callable[..., object], *arguments: Any) -> None:
    timer = threading.Timer(seconds, act, arguments)
    timer.daemon = True
    timer.start()


def hand_on(outer: Future[Any], inner: Future[Any]) -> None:
    """Gives a future what another has got."""
    if inner.cancelled():
        Future.cancel(outer)
    elif (error := inner.exception()) is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


class DisturbedFleet:
    """A fleet whose post is slow, and at times brings a letter twice, or late."""

    def __init__(self, fleet: Fleet, how: Mapping[str, Any]) -> None:
        self._fleet, self._how = fleet, how
        self._measuring = itertools.count(1)

    @property
    def workers(self) -> Sequence[Worker]:
        return self._fleet.workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        self._told("job")
        late = isinstance(job, HeldBack) and job.is_first
        if isinstance(job, HeldBack):
            job.is_first, job = False, job.job
        if getattr(job, "func", None) is not measure:
            return self._fleet.submit(job, where)
        inner = self._fleet.submit(functools.partial(slowly, job, self._how.get("pause_s", 0.0)), where)
        if late:
            return Late(inner, self._told)
        every = self._how.get("twice", 0)
        return Twice(inner, self._told) if every and next(self._measuring) % every == 0 else inner

    def close(self) -> None:
        self._fleet.close()

    def _told(self, what: str) -> None:
        with Path(self._how["tally"]).open("a") as file:
            file.write(f"{what}\n")


def main() -> None:
    """Runs `tunefarm` with the arguments of this process."""
    from tunefarm import desks
    from tunefarm.cli import opening
    from tunefarm.cli.__main__ import main as command

    how = json.loads(os.environ["DISTURBED"])
    open_fleet, measure_job, numbers = opening.open_fleet, desks.measure_job, itertools.count()

    def disturbed_fleet(*arguments: Any, **more: Any) -> DisturbedFleet:
        return DisturbedFleet(open_fleet(*arguments, **more), how)

    def disturbed_job(*arguments: Any) -> tuple[Any, Callable[[], object]]:
        job, call = measure_job(*arguments)
        if next(numbers) not in how.get("late", ()):
            return job, call
        return replace(job, timeout_s=how["lease_s"]), HeldBack(call)  # type: ignore[return-value]

    opening.open_fleet = disturbed_fleet  # type: ignore[assignment]
    desks.measure_job = disturbed_job
    command()
