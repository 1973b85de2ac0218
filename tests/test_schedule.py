"""The schedule: rules one by one, then random histories, then a real fleet."""

from __future__ import annotations

import os
import queue
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.schedule.events import (
    Accept,
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
    Withdrawn,
    WorkerJoined,
    WorkerLeft,
)
from tunefarm.schedule.machine import step
from tunefarm.schedule.state import State
from tunefarm.seams import Fleet, Worker

H100, A100 = nominal("sm_90"), nominal("sm_80")


def gpu(name: str = "gpu0", device: Any = H100) -> Worker:
    return Worker(name=name, role="measure", device=device)


def cpu(name: str = "cpu0") -> Worker:
    return Worker(name=name, role="build")


def measure(job_id: str, **more: Any) -> Job:
    return Job(id=job_id, role="measure", **more)


def joined(*workers: Worker, **more: Any) -> State:
    state = State(**more)
    for worker in workers:
        assert step(state, WorkerJoined(worker=worker), 0.0) == []
    return state


def submit(state: State, *jobs: Job, now: float = 0.0) -> list[Start]:
    actions = step(state, Submitted(jobs=jobs), now)
    return [a for a in actions if isinstance(a, Start)]


def finish(state: State, start: Start, now: float = 0.0) -> list[Action]:
    return step(state, Finished(job=start.job.id, attempt=start.attempt, worker=start.worker), now)


def lose(state: State, start: Start, now: float = 0.0, died: bool = True) -> list[Action]:
    event = Lost(job=start.job.id, attempt=start.attempt, worker=start.worker, died=died, reason=f"{start.worker} died")
    return step(state, event, now)


def started(actions: list[Action]) -> Start:
    (start,) = (a for a in actions if isinstance(a, Start))
    return start


def kinds(actions: list[Action]) -> list[type]:
    return [type(a) for a in actions]


def test_longest_first_after_priority_and_two_in_flight() -> None:
    state = joined(gpu())
    starts = submit(
        state, measure("a", cost_s=1), measure("b", cost_s=3), measure("c", cost_s=2), measure("d", priority=1)
    )
    assert [s.job.id for s in starts] == ["d", "b"]
    assert [started(finish(state, s)).job.id for s in starts] == ["c", "a"]


def test_a_build_worker_has_one_job_and_a_batch_spreads_over_workers() -> None:
    state = joined(cpu("cpu0"), cpu("cpu1"), gpu("gpu0"), gpu("gpu1"))
    builds = submit(state, *(Job(id=f"b{i}", role="build") for i in range(4)))
    measures = submit(state, *(measure(f"m{i}") for i in range(3)))
    assert Counter(s.worker for s in builds) == {"cpu0": 1, "cpu1": 1}
    assert [s.worker for s in measures] == ["gpu0", "gpu1", "gpu0"]


def test_a_job_goes_to_its_device_or_arch_only() -> None:
    state = joined(gpu("a", A100), gpu("replay", None))
    assert submit(state, measure("by arch", where="sm_90"), measure("by key", where=H100.key)) == []
    assert {s.job.id: s.worker for s in submit(state, measure("any", where=A100.key))} == {"any": "a"}
    starts = step(state, WorkerJoined(worker=gpu("h", H100)), 1.0)
    assert {s.job.id: s.worker for s in starts if isinstance(s, Start)} == {"by arch": "h", "by key": "h"}


def test_a_result_is_accepted_once_and_only_from_the_lease() -> None:
    state = joined(gpu("gpu0"), gpu("gpu1"))
    (first,) = submit(state, measure("a"))
    second = started(lose(state, first))
    assert second.attempt != first.attempt
    assert kinds(finish(state, first)) == [Late]
    assert kinds(finish(state, second)) == [Accept]
    assert kinds(finish(state, second)) == [Late]
    assert kinds(lose(state, second)) == [Late]
    assert state.num_open == 0


def test_what_a_lost_job_has_left_word_of_is_taken_for_its_result() -> None:
    """It is not done again, and however many die so, no worker is put in quarantine for it."""
    state = joined(gpu("gpu0"), gpu("gpu1"))
    for number in range(2 * state.limits.quarantine):
        (start,) = submit(state, measure(f"{number}"))
        lost = Lost(job=start.job.id, attempt=start.attempt, worker=start.worker, died=True, reason="", told=True)
        assert step(state, lost, 1.0) == [Accept(job=start.job.id, attempt=start.attempt)]
        assert kinds(step(state, lost, 1.0)) == [Late]
    assert state.num_open == 0


def test_attempts_are_unique_even_for_an_id_used_again() -> None:
    state = joined(gpu())
    (first,) = submit(state, measure("a"))
    finish(state, first)
    (again,) = submit(state, measure("a"))
    assert kinds(finish(state, first)) == [Late]
    assert kinds(finish(state, again)) == [Accept]
    submit(state, measure("b"))
    with pytest.raises(ValueError, match="b has not ended"):
        submit(state, measure("b"))


def test_an_expired_lease_kills_and_the_next_in_line_gets_its_full_time() -> None:
    state = joined(gpu())
    hung, behind = submit(state, measure("hung", timeout_s=10, cost_s=2), measure("behind", timeout_s=10))
    assert (hung.deadline_s, behind.deadline_s) == (10, 20)
    assert state.wake_s == 10
    assert step(state, Tick(), 9.9) == []
    kill, again = step(state, Tick(), 12.0)
    assert kill == Kill(worker="gpu0", job="hung", attempt=hung.attempt)
    assert isinstance(again, Start)
    assert again.job.id == "hung"
    assert state.wake_s == 20
    finish(state, behind, 13.0)
    assert state.wake_s == 23
    condemn = step(state, Tick(), 23.0)[-1]
    assert condemn == Condemn(job="hung", reason="gpu0 was killed after 10 s; gpu0 was killed after 10 s")


def test_what_came_in_late_but_before_the_tick_is_accepted() -> None:
    state = joined(gpu())
    (start,) = submit(state, measure("a", timeout_s=10))
    assert kinds(finish(state, start, 11.0)) == [Accept]


def test_a_job_that_costs_two_workers_is_condemned_and_they_are_not_blamed() -> None:
    state = joined(gpu("gpu0"), gpu("gpu1"), limits=Limits(quarantine=2))
    for number in range(4):
        (first,) = submit(state, measure(f"killer {number}"))
        second = started(lose(state, first))
        assert second.worker != first.worker
        assert kinds(lose(state, second)) == [Condemn]


def test_infrastructure_failures_are_retried_elsewhere_then_given_up() -> None:
    state = joined(gpu("gpu0"), gpu("gpu1"), gpu("gpu2"), limits=Limits(attempts=3))
    (start,) = submit(state, measure("a"))
    places = [start.worker]
    while isinstance((last := lose(state, start, died=False)[-1]), Start):
        start = last
        places.append(start.worker)
    assert sorted(places) == ["gpu0", "gpu1", "gpu2"]
    assert isinstance(last, GiveUp)
    assert last.reason.startswith("lost 3 times")


def test_a_worker_that_loses_every_job_is_quarantined_and_others_do_its_work() -> None:
    state = joined(gpu("bad"), limits=Limits(quarantine=3, depth=1))
    starts = submit(state, *(measure(f"{i}", cost_s=-i) for i in range(6)))
    starts += [a for a in step(state, WorkerJoined(worker=gpu("good")), 0.0) if isinstance(a, Start)]
    seen: list[Action] = []
    while starts:
        start = min(starts, key=lambda s: s.worker)  # the bad one first
        starts.remove(start)
        actions = lose(state, start) if start.worker == "bad" else finish(state, start)
        starts += [a for a in actions if isinstance(a, Start)]
        seen += actions
    assert [a for a in seen if isinstance(a, Quarantine)] == [
        Quarantine(worker="bad", reason="lost 3 different jobs in a row")
    ]
    assert Counter(kinds(seen))[Accept] == 6


def test_a_worker_that_finishes_a_job_in_between_is_not_quarantined() -> None:
    state = joined(gpu(), limits=Limits(quarantine=2, deaths=1))
    for number in range(4):
        (start,) = submit(state, measure(f"bad {number}"))
        assert kinds(lose(state, start)) == [Condemn]
        (start,) = submit(state, measure(f"good {number}"))
        finish(state, start)


def test_a_gpu_is_held_from_its_first_job_until_its_worker_leaves() -> None:
    state = joined(gpu("gpu0"), gpu("replay", None))
    step(state, Tick(), 5.0)
    starts = submit(state, measure("a"), measure("b"), now=10.0)
    assert {s.worker for s in starts} == {"gpu0", "replay"}
    for start in starts:
        finish(state, start, 12.0)
    assert state.gpu_held_s == 2
    step(state, WorkerLeft(worker="gpu0"), 14.0)
    step(state, Tick(), 20.0)
    assert state.gpu_held_s == 4


def test_a_job_nobody_can_do_is_given_up_in_words() -> None:
    """TF-104: an endless wait for a device that is not there is no answer."""
    state = joined(gpu("a", A100), limits=Limits(wait_s=30))
    submit(state, measure("a", where="sm_90"), now=5.0)
    assert state.wake_s == 35
    assert step(state, Tick(), 34.0) == []
    assert step(state, Tick(), 35.0) == [GiveUp(job="a", reason="no measure worker on sm_90 for 30 s")]
    submit(state, measure("b", where="sm_90"), now=40.0)
    assert state.wake_s == 70
    assert kinds(step(state, WorkerJoined(worker=gpu("h", H100)), 50.0)) == [Start]
    assert state.wake_s == 650  # the lease
    assert step(state, WorkerLeft(worker="h"), 60.0) == []
    assert state.wake_s == 90
    step(state, Withdrawn(job="b"), 61.0)
    submit(state, measure("c", where="sm_90"), now=80.0)
    assert state.wake_s == 110
    assert kinds(step(state, Tick(), 110.0)) == [GiveUp]


def test_a_worker_that_leaves_gives_back_its_jobs_without_blame() -> None:
    state = joined(gpu("gpu0"), gpu("gpu1"), limits=Limits(deaths=1))
    starts = submit(state, measure("a"), measure("b"), measure("c"), measure("d"))
    again = step(state, WorkerLeft(worker="gpu0"), 1.0)
    assert again == []
    for start in starts:
        again += finish(state, start, 2.0)
    assert Counter(kinds(again)) == {Late: 2, Accept: 2, Start: 2}
    assert {a.worker for a in again if isinstance(a, Start)} == {"gpu1"}


def test_withdrawn_jobs_are_forgotten_and_a_busy_worker_is_left_in_peace() -> None:
    state = joined(gpu())
    busy, behind = submit(state, measure("busy", cost_s=3), measure("behind", cost_s=2), measure("waiting"))
    assert step(state, Withdrawn(job="waiting"), 0.0) == []
    assert step(state, Withdrawn(job="behind"), 0.0) == [Kill(worker="gpu0", job="behind", attempt=behind.attempt)]
    assert step(state, Withdrawn(job="busy"), 0.0) == []
    assert kinds(finish(state, busy)) == [Late]
    assert step(state, Withdrawn(job="busy"), 0.0) == []
    assert state.num_open == 0


@pytest.mark.parametrize(
    ("budget", "name", "until"), [(Budget(wall_s=50), "wall_s", 50.0), (Budget(gpu_held_s=60), "gpu_held_s", 45.0)]
)
def test_a_spent_budget_ends_measuring_but_neither_builds_nor_finals(budget: Budget, name: str, until: float) -> None:
    state = joined(gpu("gpu0"), gpu("gpu1"), budget=budget, limits=Limits(depth=1))
    (first,) = submit(state, measure("a", timeout_s=999), now=10.0)  # gpu0 is held from here
    submit(state, measure("b", timeout_s=999), now=20.0)  # and gpu1 from here
    submit(state, measure("c"), measure("final", essential=True), now=20.0)
    assert state.wake_s == pytest.approx(until)
    actions = step(state, Tick(), state.wake_s)
    assert actions == [BudgetSpent(budget=name), GiveUp(job="c", reason=f"budget {name} is spent")]
    assert kinds(finish(state, first, 60.0)) == [Accept, Start]
    late = step(state, Submitted(jobs=(measure("d"), Job(id="build", role="build"))), 61.0)
    assert late == [GiveUp(job="d", reason=f"budget {name} is spent")]
    assert kinds(step(state, WorkerJoined(worker=cpu()), 62.0)) == [Start]


def test_a_tick_at_the_moment_asked_for_finds_the_budget_spent() -> None:
    """However the sums round: a driver that ticks at `wake_s` would otherwise spin."""
    chance = random.Random(0)
    for _ in range(200):
        state = joined(*(gpu(f"g{i}") for i in range(3)), budget=Budget(gpu_held_s=10 + chance.random()))
        submit(state, measure("a"), measure("b"), measure("c"), now=chance.random() * 1e6)
        for _ in range(9):
            step(state, Tick(), state.now_s + chance.random() / 10)
        assert state.wake_s is not None
        assert step(state, Tick(), state.wake_s) == [BudgetSpent(budget="gpu_held_s")]


def test_a_hundred_thousand_jobs_cost_microseconds_each() -> None:
    state = joined(*(gpu(f"g{i}") for i in range(64)))
    jobs = tuple(measure(f"{i}", cost_s=float(i * 7919 % 1000)) for i in range(100_000))
    begin = time.perf_counter()
    open_starts = submit(state, *jobs)
    assert len(open_starts) == 128
    while open_starts:
        open_starts += [a for a in finish(state, open_starts.pop()) if isinstance(a, Start)]
    assert state.num_open == 0
    assert time.perf_counter() - begin < 20  # about 2 s alone on a laptop core; quadratic would be hours


# ---- with a fleet ----


def drive(state: State, fleet: Fleet, calls: Mapping[str, tuple[Job, Callable[[], Any]]]) -> dict[str, Any]:
    """How a sweep drives the schedule: futures become events in one queue, actions become calls of the fleet."""
    arrivals: queue.SimpleQueue[tuple[Start, Future[Any]]] = queue.SimpleQueue()
    futures: dict[int, Future[Any]] = {}
    ended: dict[str, Any] = {}

    def obey(action: Action) -> None:
        match action:
            case Start(job=job, worker=worker, attempt=attempt):
                futures[attempt] = fleet.submit(calls[job.id][1], worker)
                futures[attempt].add_done_callback(lambda future: arrivals.put((action, future)))
            case Kill(attempt=attempt):
                futures.pop(attempt).cancel()
            case Accept(job=job_id, attempt=attempt):
                ended[job_id] = futures.pop(attempt).result()
            case Late(attempt=attempt):
                futures.pop(attempt, None)
            case Condemn(job=job_id) | GiveUp(job=job_id):
                ended[job_id] = action

    def tell(event: Event) -> None:
        for action in step(state, event, time.monotonic()):
            obey(action)

    for worker in fleet.workers:
        tell(WorkerJoined(worker=worker))
    tell(Submitted(jobs=tuple(job for job, _ in calls.values())))
    while state.num_open:
        try:
            wake = state.wake_s
            start, future = arrivals.get(timeout=None if wake is None else max(0.0, wake - time.monotonic()))
        except queue.Empty:
            tell(Tick())
            continue
        if future.cancelled():
            continue
        error = future.exception()
        attempt = {"job": start.job.id, "attempt": start.attempt, "worker": start.worker}
        if isinstance(error, InfrastructureError):
            futures.pop(start.attempt, None)
            tell(Lost(**attempt, died=isinstance(error, WorkerLost), reason=str(error)))
        else:
            tell(Finished(**attempt))
    return ended


def square(x: int) -> int:
    return x * x


def test_a_real_fleet_crashes_hangs_and_still_every_job_ends() -> None:
    """TF-003: jobs after one that kills its worker are done as if it had not been there."""
    calls: dict[str, tuple[Job, Callable[[], Any]]] = {
        f"{i}": (measure(f"{i}", timeout_s=30.0), partial(square, i)) for i in range(10)
    }
    calls["crash"] = measure("crash", cost_s=9.0), partial(os._exit, 3)
    calls["hang"] = measure("hang", cost_s=8.0, timeout_s=1.0), partial(time.sleep, 60)
    calls["build"] = Job(id="build", role="build"), partial(square, 12)
    fleet = InlineFleet([None, None], num_builders=1)
    try:
        ended = drive(State(), fleet, calls)
    finally:
        fleet.close()
    assert {k: v for k, v in ended.items() if k.isdigit()} == {f"{i}": i * i for i in range(10)}
    assert ended["build"] == 144
    assert isinstance(ended["crash"], Condemn)
    assert "exit code 3" in ended["crash"].reason
    assert isinstance(ended["hang"], Condemn)
    assert "killed after 1 s" in ended["hang"].reason
