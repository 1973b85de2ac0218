"""Dispatch: the one loop between the schedule, which decides, and the fleet, which works."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import open_will
from tunefarm.schedule.events import (
    Accept,
    Accused,
    Action,
    Budget,
    BudgetSpent,
    Condemn,
    Event,
    Finished,
    GiveUp,
    Job,
    Kill,
    Late,
    Limits,
    Lost,
    Quarantine,
    Start,
    Submitted,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from tunefarm.schedule.machine import step
from tunefarm.schedule.standing import Standing, stand
from tunefarm.schedule.state import State
from tunefarm.seams import Clock, Fleet, Inbox, Worker

MEASURE_TIMEOUT_S = 180.0
"""The longest that a measuring worker may take to start and to prepare a problem; a process that goes on to measure is
watched candidate by candidate, and its lease is only for when nobody watches."""

ROLL_CALL_S = 1.0
"""How often the driver looks who is there: workers come and go."""


class WallClock:
    """Real time."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that has ended.

    Attributes:
        job: its id.
        worker: who did it; empty where nobody did.
        value: what it returned, or left behind by its will when its process died of it.
        error: what it raised; the user's fault, since infrastructure faults are retried.
        condemned: why no worker will try it again: it costs them.
        given_up: why it was not done, through no fault of its own.
    """

    job: str
    worker: str = ""
    value: Any = None
    error: Exception | None = None
    condemned: str = ""
    given_up: str = ""


class Dispatch:
    """Submits jobs to a fleet as the schedule says, and hands back what became of them.

    Args:
        fleet: who works.
        budget: what the sweep may cost.
        limits: how patient the schedule is.
        clock: what time it is.
        inbox: where results wait for this driver.
        pulse: called about once a second while somebody waits for results.
    """

    def __init__(
        self, fleet: Fleet, *, budget: Budget | None = None, limits: Limits | None = None, clock: Clock | None = None,
        inbox: Inbox | None = None, pulse: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._fleet = fleet
        self._clock, self._pulse = clock or WallClock(), pulse
        self._state = State(limits=limits or Limits(), budget=budget or Budget())
        self._calls: dict[str, Callable[[], Any]] = {}
        # By attempt, the worker and what it will bring back.
        self._futures: dict[int, tuple[str, Future[Any]]] = {}
        self._arrivals: Inbox = queue.SimpleQueue() if inbox is None else inbox
        self._done: list[Done] = []
        # By job, what its last will left, until it has ended.
        self._left: dict[str, Any] = {}
        self._there: dict[str, Worker] = {}
        self._roll_call_s = 0.0
        self._held: dict[str, list[float]] = {}
        self._holders: dict[str, Device] = {}
        self.num_lost = self.num_quarantines = 0
        """Attempts lost, and workers put into quarantine."""
        self.notices: list[str] = []
        """What people should know: quarantined workers, a spent budget."""
        self._call_roll()

    @property
    def spent(self) -> str:
        """The budget that has been spent (`wall_s`, `gpu_held_s`), or empty."""
        return self._state.spent

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget that may end the measuring."""
        return self._state.budget.is_limited

    @property
    def depth(self) -> int:
        """Jobs that a measuring worker may have in flight."""
        return self._state.limits.depth

    def num_measuring(self, where: str) -> int:
        """Workers that measure on a device, or anywhere if it is empty; those in quarantine do not count."""
        return self._state.roster.size(("measure", where))

    def measuring(self, where: str) -> list[str]:
        """Names of the workers that measure on a device; those in quarantine are left out."""
        return self._state.roster.names(("measure", where))

    def accuse(self, worker: str, reason: str) -> None:
        """Gives a worker no more jobs, if there are others: what it brings back is not to be trusted."""
        self._tell(Accused(worker=worker, reason=reason))

    @property
    def held_s(self) -> float:
        """Seconds that GPUs were held, each from its worker's first job's start to its last job's end.

        A first job that waits until its process has loaded what it needs counts from there, though it holds none yet.
        """
        return sum(last - first for first, last in self._held.values())

    @property
    def held_by_device(self) -> Mapping[Device, float]:
        """The same of the GPUs of each device."""
        held: dict[Device, float] = {}
        for name, (first, last) in self._held.items():
            device = self._holders[name]
            held[device] = held.get(device, 0.0) + last - first
        return held

    @property
    def standing(self) -> Standing:
        """How workers and jobs stand now."""
        return stand(self._state)

    def submit(self, jobs: Iterable[tuple[Job, Callable[[], Any]]]) -> None:
        """Takes jobs; those that come together are ordered before any of them starts."""
        taken = list(jobs)
        self._calls.update({job.id: call for job, call in taken})
        self._tell(Submitted(jobs=tuple(job for job, _ in taken)))

    def wait(self) -> list[Done]:
        """Waits until at least one job has ended.

        Returns:
            All that have ended by then; empty when none is open.
        """
        while not self._done and self._state.num_open:
            self._advance()
        return self.news()

    def news(self) -> list[Done]:
        """The jobs that have ended by now, without waiting for any."""
        while not self._arrivals.empty():
            self._advance()
        done, self._done = self._done, []
        return done

    def _advance(self) -> None:
        now, wake = self._clock.now(), self._state.wake_s
        if now >= self._roll_call_s:
            self._call_roll()
            self._pulse()
        until = self._roll_call_s if wake is None else min(wake, self._roll_call_s)
        try:
            start, future = self._arrivals.get(timeout=max(0.0, until - now))
        except queue.Empty:
            self._tell(Tick())
            return
        if start.worker in self._held:
            self._held[start.worker][1] = self._clock.now()
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, InfrastructureError):
            self._lose(start, error)
        else:
            self._tell(Finished(job=start.job.id, attempt=start.attempt, worker=start.worker))

    def _call_roll(self) -> None:
        """Tells the schedule who has come and who has gone."""
        self._roll_call_s = self._clock.now() + ROLL_CALL_S
        here = {worker.name: worker for worker in self._fleet.workers}
        if here == self._there:
            return
        before, self._there = self._there, here
        for name in before:
            if name not in here:
                self._tell(WorkerLeft(worker=name))
        for name, worker in here.items():
            if before.get(name) != worker:
                self._tell(WorkerJoined(worker=worker))

    def _lose(self, start: Start, error: InfrastructureError) -> None:
        self.num_lost += 1
        died = isinstance(error, WorkerLost)
        # Killed from outside, a job is as good as any: it is done again, elsewhere if it can be.
        will = open_will(error) if isinstance(error, WorkerLost) else None
        told = will is not None and will.sure
        if will is not None and isinstance(error, WorkerLost):
            self._left[start.job.id] = will.execute(error)
        if not told:
            # One that has gone would lose all that it is given until the next look.
            self._call_roll()
        self._tell(
            Lost(
                job=start.job.id, attempt=start.attempt, worker=start.worker, died=died, reason=str(error), told=told
            )
        )  # fmt: skip
        self._futures.pop(start.attempt, None)

    def _tell(self, event: Event) -> None:
        for action in step(self._state, event, self._clock.now()):
            self._obey(action)

    def _obey(self, action: Action) -> None:
        match action:
            case Start(job=job, worker=worker, attempt=attempt):
                self._start(action, job, worker, attempt)
            case Kill(attempt=attempt):
                self._futures.pop(attempt)[1].cancel()
            case Late(attempt=attempt):
                self._futures.pop(attempt, None)
            case Accept(job=job_id, attempt=attempt):
                worker, future = self._futures.pop(attempt)
                error = future.exception()
                if isinstance(error, WorkerLost):
                    self._end(Done(job=job_id, worker=worker, value=self._left[job_id]))
                elif error is None or isinstance(error, Exception):
                    value = None if error else future.result()
                    self._end(Done(job=job_id, worker=worker, value=value, error=error))
                else:
                    raise error
            case Condemn(job=job_id) if job_id in self._left:
                self._end(Done(job=job_id, value=self._left[job_id]))
            case Condemn(job=job_id, reason=reason):
                self._end(Done(job=job_id, condemned=reason))
            case GiveUp(job=job_id, reason=reason):
                self._end(Done(job=job_id, given_up=reason))
            case Quarantine(worker=worker, reason=reason):
                self.num_quarantines += 1
                self.notices.append(f"worker {worker} gets no more work: {reason}")
            case BudgetSpent(budget=budget):
                self.notices.append(f"budget {budget} is spent: no more measuring, finals apart")

    def _start(self, start: Start, job: Job, worker: str, attempt: int) -> None:
        here = self._there.get(worker)
        if here is not None and here.device is not None:
            now = self._clock.now()
            self._held.setdefault(worker, [now, now])
            self._holders[worker] = here.device
        try:
            future = self._fleet.submit(self._calls[job.id], worker)
        except InfrastructureError as e:
            future = Future()
            future.set_exception(e)
        self._futures[attempt] = worker, future
        future.add_done_callback(lambda done: self._arrivals.put((start, done)))

    def _end(self, done: Done) -> None:
        self._left.pop(done.job, None)
        del self._calls[done.job]
        self._done.append(done)
