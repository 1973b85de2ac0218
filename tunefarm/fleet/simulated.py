"""A simulated fleet: any number of workers that take no machine, on a virtual clock.

Jobs are really done, in this process, and take the virtual time that they are said to. Whatever such a fleet is found
to do is simulated, save what the driver costs: see `tunefarm.fleet.virtual`.
"""

from __future__ import annotations

import functools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import Reply, open_reply, pack, perform
from tunefarm.fleet.process import LocalProcess
from tunefarm.fleet.virtual import VirtualTime
from tunefarm.seams import Worker

_WAYS = ("busy", "lost", "restart", "idle")
"""In which a worker's time goes by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How workers work, all alike. Shares are of jobs, and drawn anew for each attempt.

    Attributes:
        latency_s: of a job's way to its worker, and of the answer's way back.
        spread: of lengths: standard deviation of their logarithm; their mean stays.
        stragglers: share of attempts that take `straggle` times as long.
        straggle: by how much.
        failures: share that bring nothing back because some service fails, somewhere on the way.
        deaths: share that their worker's process dies of, somewhere on the way.
        restart_s: seconds until a process that died, was killed or retired is there again.
        transport_s: what carrying a job there and back costs the driver's own process, beside what is measured.
        seed: of all chance.
    """

    latency_s: float = 0.0
    spread: float = 0.0
    stragglers: float = 0.0
    straggle: float = 10.0
    failures: float = 0.0
    deaths: float = 0.0
    restart_s: float = 5.0
    transport_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """When a worker is there.

    Attributes:
        worker: who.
        joins_s: from when on.
        leaves_s: until when; whatever it has then is lost.
        pace: how much longer than others it takes; 2 for a slow node's.
    """

    worker: Worker
    joins_s: float = 0.0
    leaves_s: float = math.inf
    pace: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """What workers did with their time, in seconds summed over them; the parts add up to `present_s`.

    Attributes:
        present_s: there.
        busy_s: with jobs that brought something back.
        lost_s: with attempts that did not.
        restart_s: with starting a process again.
        idle_s: without anything to do.
    """

    present_s: float
    busy_s: float
    lost_s: float
    restart_s: float
    idle_s: float


class Promise(Future[Any]):
    """A future of a simulated fleet: whoever waits for it lets virtual time pass."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def result(self, timeout: float | None = None) -> Any:
        """See `Future`; `timeout` in virtual seconds."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future`; `timeout` in virtual seconds."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if not self.done():
            until_s = math.inf if timeout is None else self._time.now() + timeout
            with self._time.paused():
                self._time.go_on(self.done, until_s)


@dataclass(slots=True, eq=False)
class _Errand:
    """A job on its way, at work, or on its way back."""

    payload: bytes
    promise: Promise
    length_s: float
    arrives_s: float
    begins_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Post:
    """A worker: what it does, what waits there, and what it has done with its time until `since_s`."""

    stay: Stay
    joined_s: float
    since_s: float
    ready_s: float
    current: _Errand | None = None
    waiting: deque[_Errand] = field(default_factory=deque)
    spent_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_WAYS, 0.0))

    def spend(self, what: str, until_s: float) -> None:
        if until_s > self.since_s:
            self.spent_s[what] += until_s - self.since_s
            self.since_s = until_s

    def rest(self, until_s: float) -> None:
        """Accounts for the time without a job: the process starts again, then waits."""
        self.spend("restart", min(self.ready_s, until_s))
        self.spend("idle", until_s)


class SimulatedFleet:
    """Workers that exist on a clock only; see `tunefarm.seams.Fleet`.

    Args:
        stays: the workers, and when each is there.
        time: the clock and inbox of the driver that uses it.
        length_s: seconds that a job takes an undisturbed worker.
        habits: how they work.
    """

    def __init__(
        self,
        stays: Sequence[Stay],
        time: VirtualTime,
        *,
        length_s: Callable[[Callable[[], Any]], float],
        habits: Habits | None = None,
    ) -> None:
        self._time, self._length_s, self._habits = time, length_s, habits or Habits()
        self._random = random.Random(self._habits.seed)
        self._posts: dict[str, _Post] = {}
        self._gone: list[_Post] = []
        self._workers: tuple[Worker, ...] = ()
        self._closed = False
        for stay in stays:
            if stay.joins_s <= 0:
                self._join(stay, 0.0)
            else:
                time.at(stay.joins_s, functools.partial(self._join, stay))

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers there are now."""
        self._time.catch_up()
        return self._workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        """Runs `job` on the worker named `where`, after what it already has; see `tunefarm.seams.Fleet`.

        Raises:
            InfrastructureError: the job cannot be pickled, the worker is not there, or the fleet is closed.
        """
        payload = pack(job)
        with self._time.paused():
            post = self._posts.get(where)
            if self._closed or post is None:
                raise InfrastructureError(f"{where} takes no jobs: {'the fleet is closed' if self._closed else 'gone'}")
            arrives_s = self._time.now() + self._habits.latency_s
            errand = _Errand(payload, Promise(self._time), self._length_s(job) * post.stay.pace, arrives_s)
            errand.promise.add_done_callback(functools.partial(self._on_done, post, errand))
            post.waiting.append(errand)
            if post.current is None:
                self._begin(post)
        return errand.promise

    def close(self) -> None:
        """Ends all workers; running and waiting jobs are lost. May be called twice."""
        self._closed = True
        self._time.catch_up()
        for post in list(self._posts.values()):
            self._leave(post, self._time.now())
        self._time.catch_up()

    @property
    def hours(self) -> Hours:
        """What workers did with their time so far; a job at work counts as busy."""
        self._time.catch_up()
        now_s = self._time.now()
        for post in self._posts.values():
            post.rest(now_s if post.current is None else min(now_s, post.current.begins_s))
            post.spend("busy", now_s)
        posts = (*self._posts.values(), *self._gone)
        parts = {f"{what}_s": sum(post.spent_s[what] for post in posts) for what in _WAYS}
        return Hours(present_s=sum(post.since_s - post.joined_s for post in posts), **parts)

    # ---- who is there ----

    def _join(self, stay: Stay, at_s: float) -> None:
        if self._closed:
            return
        post = self._posts[stay.worker.name] = _Post(stay, at_s, at_s, at_s)
        self._workers = (*self._workers, stay.worker)
        if not math.isinf(stay.leaves_s):
            self._time.at(stay.leaves_s, functools.partial(self._leave, post))

    def _leave(self, post: _Post, at_s: float) -> None:
        name = post.stay.worker.name
        if self._posts.get(name) is not post:
            return
        del self._posts[name]
        self._gone.append(post)
        self._workers = tuple(worker for worker in self._workers if worker.name != name)
        lost = [*([post.current] if post.current else ()), *post.waiting]
        self._put_down(post, at_s)
        post.rest(at_s)
        post.waiting.clear()
        for errand in (each for each in lost if not each.promise.done()):
            self._send_back(errand, WorkerLost(f"{name} left"), at_s)

    # ---- what happens to a job ----

    def _begin(self, post: _Post) -> None:
        """Lets a worker begin with what waits longest."""
        while post.waiting and post.current is None:
            errand = post.waiting.popleft()
            if errand.promise.cancelled():
                continue
            begins_s = max(post.ready_s, errand.arrives_s)
            post.current, errand.begins_s = errand, begins_s
            fate, length_s = self._draw(errand.length_s)
            self._time.at(begins_s + length_s, functools.partial(self._end, post, errand, fate))

    def _draw(self, length_s: float) -> tuple[str, float]:
        habits, chance = self._habits, self._random
        if habits.spread:
            length_s *= math.exp(habits.spread * chance.gauss(0.0, 1.0) - habits.spread**2 / 2)
        if habits.stragglers and chance.random() < habits.stragglers:
            length_s *= habits.straggle
        draw = chance.random()
        if draw < habits.deaths:
            return "dies", length_s * chance.random()
        if draw < habits.deaths + habits.failures:
            return "fails", length_s * chance.random()
        return "", length_s

    def _end(self, post: _Post, errand: _Errand, fate: str, at_s: float) -> None:
        if post.current is not errand:
            return  # It was killed.
        post.rest(errand.begins_s)
        name = post.stay.worker.name
        answer: Reply | InfrastructureError
        if fate:
            post.spend("lost", at_s)
            kind = WorkerLost if fate == "dies" else InfrastructureError
            answer = kind(f"{name} {fate}, as simulated")
        else:
            post.spend("busy", at_s)
            answer = _perform(name, errand.payload)
        restarts = fate == "dies" or (isinstance(answer, Reply) and answer.retire)
        post.current, post.ready_s = None, at_s + (self._habits.restart_s if restarts else 0.0)
        self._send_back(errand, answer, at_s)
        self._begin(post)

    def _send_back(self, errand: _Errand, answer: Reply | InfrastructureError, at_s: float) -> None:
        back_s = at_s if self._closed else at_s + self._habits.latency_s
        self._time.at(back_s, functools.partial(self._deliver, errand, answer))

    def _deliver(self, errand: _Errand, answer: Reply | InfrastructureError, _: float) -> None:
        """In the driver's process, and at its cost."""
        self._time.resume()
        if errand.promise.set_running_or_notify_cancel():
            value, error = (None, answer) if isinstance(answer, InfrastructureError) else open_reply(answer)
            if error is None:
                errand.promise.set_result(value)
            else:
                errand.promise.set_exception(error)
        self._time.pause()
        self._time.charge(self._habits.transport_s)

    def _on_done(self, post: _Post, errand: _Errand, done: Future[Any]) -> None:
        if not done.cancelled():
            return
        self._time.catch_up()
        if post.current is errand:
            with self._time.paused():
                now_s = self._time.now()
                begun = errand.begins_s <= now_s
                self._put_down(post, now_s)
                if begun:
                    post.ready_s = now_s + self._habits.restart_s
                self._begin(post)

    def _put_down(self, post: _Post, at_s: float) -> None:
        """Takes away from a worker what it is at."""
        if post.current is not None:
            post.rest(min(at_s, post.current.begins_s))
            post.spend("lost", at_s)
            post.current = None


def _perform(name: str, payload: bytes) -> Reply:
    """Does a packed job here; one that wants a fresh process has it done in a real one."""
    reply = perform(payload)
    if not reply.again:
        return reply
    process = LocalProcess(name, {"CUDA_VISIBLE_DEVICES": ""})
    try:
        return process.exchange(payload)
    finally:
        process.kill()
        process.bury()
