"""Dispatch: the schedule's decisions carried out on real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from farm import GPU

from tunefarm.dispatch import Dispatch, Done
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.schedule.events import Budget, Job, Limits
from tunefarm.seams import Fleet, Worker
from tunefarm.will import leave


@pytest.fixture
def own() -> Iterator[InlineFleet]:
    """A worker that builds, and one that holds a GPU, as far as anybody here can tell."""
    made = InlineFleet([GPU], num_builders=1)
    yield made
    made.close()


def build(name: str, **more: Any) -> Job:
    return Job(id=name, role="build", **more)


def measure(name: str, **more: Any) -> Job:
    return Job(id=name, role="measure", **more)


def add(a: int, b: int) -> int:
    return a + b


def refuse() -> None:
    raise SpecError("not like this", hint="like that")


def fail_first(mark: Path) -> str:
    if not mark.exists():
        mark.touch()
        raise InfrastructureError("no disk")
    return "done"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Count:
    """A will: how far a job had come, and how it ended."""

    reached: int
    sure: bool = True

    def execute(self, lost: WorkerLost) -> str:
        return f"{lost.death} at {self.reached}"


def count_and_die(mark: Path, signal_number: int, sure: bool = True) -> None:
    """Notes every process that it costs."""
    leave(Count(reached=7, sure=sure), 60.0)
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    os.kill(os.getpid(), signal_number)


def finish(dispatch: Dispatch) -> dict[str, Done]:
    """All that is open."""
    ended = {}
    while done := dispatch.wait():
        ended |= {each.job: each for each in done}
    return ended


def test_jobs_bring_back_what_they_return_or_raise(fleet: Fleet) -> None:
    dispatch = Dispatch(fleet)
    assert dispatch.wait() == []
    dispatch.submit([(build(f"b{n}"), partial(add, n, 1)) for n in range(5)])
    dispatch.submit([(measure("m"), partial(add, 2, 2)), (build("bad"), refuse)])
    ended = finish(dispatch)
    assert [ended[f"b{n}"].value for n in range(5)] == [1, 2, 3, 4, 5]
    assert ended["m"].value == 4
    assert isinstance(ended["bad"].error, SpecError)
    assert str(ended["bad"].error) == "not like this (like that)"
    assert dispatch.wait() == []
    assert dispatch.notices == []


def test_an_id_is_free_again_once_its_job_has_ended(fleet: Fleet) -> None:
    dispatch = Dispatch(fleet)
    for number in range(2):
        dispatch.submit([(build("again"), partial(add, number, 0))])
        assert finish(dispatch)["again"].value == number


def test_a_fault_of_the_machine_is_tried_again(fleet: Fleet, tmp_path: Path) -> None:
    dispatch = Dispatch(fleet)
    dispatch.submit([(build("b"), partial(fail_first, tmp_path / "mark"))])
    assert finish(dispatch)["b"].value == "done"


def test_a_fault_that_does_not_go_away_is_given_up() -> None:
    closed = InlineFleet([], num_builders=1)
    closed.close()
    dispatch = Dispatch(closed, limits=Limits(attempts=2))
    dispatch.submit([(build("b"), partial(add, 1, 1))])
    ended = finish(dispatch)["b"]
    assert ended.value is None
    assert ended.given_up.startswith("lost 2 times: ")
    assert "the fleet is closed" in ended.given_up


def test_a_job_that_costs_two_processes_is_condemned(own: InlineFleet) -> None:
    dispatch = Dispatch(own)
    dispatch.submit([(measure("deadly"), die), (measure("harmless"), partial(add, 1, 1))])
    ended = finish(dispatch)
    assert ended["deadly"].condemned.count("died of SIGKILL") == 2
    assert ended["harmless"].value == 2


def test_a_job_that_has_left_a_will_costs_one_process(own: InlineFleet, tmp_path: Path) -> None:
    """TF-003: what it leaves behind is what it brings back. If it is not sure, or killed from outside, it costs two."""
    dispatch = Dispatch(own)
    marks = tmp_path / "crash", tmp_path / "kill", tmp_path / "doubt"
    dispatch.submit(
        [
            (measure("crash"), partial(count_and_die, marks[0], signal.SIGSEGV)),
            (measure("kill"), partial(count_and_die, marks[1], signal.SIGKILL)),
            (measure("doubt"), partial(count_and_die, marks[2], signal.SIGABRT, sure=False)),
        ]
    )
    ended = finish(dispatch)
    assert ended["crash"] == Done(job="crash", worker="measure-0", value="SIGSEGV at 7")
    assert ended["kill"].condemned.count("died of SIGKILL") == 2
    assert ended["doubt"] == Done(job="doubt", value="SIGABRT at 7")
    assert [mark.read_text() for mark in marks] == ["x", "xx", "xx"]


def test_a_job_that_takes_too_long_is_killed(own: InlineFleet) -> None:
    dispatch = Dispatch(own)
    dispatch.submit([(build("slow", timeout_s=0.5), partial(time.sleep, 60)), (build("next"), partial(add, 1, 1))])
    ended = finish(dispatch)
    assert ended["slow"].condemned == "build-0 was killed after 0.5 s; build-0 was killed after 0.5 s"
    assert ended["next"].value == 2


@dataclass
class Scripted:
    """A fleet, and the clock of who looks at it, that do as they are told."""

    workers: list[Worker]
    asked: list[Future[Any]]
    now_s: float = 0.0

    def now(self) -> float:
        return self.now_s

    def submit(self, job: Any, where: str) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]

    def close(self) -> None:
        pass


def test_what_is_lost_too_late_while_others_leave_is_tried_again() -> None:
    """Its lease ends while the driver, having heard of the loss, looks who is still there."""
    fleet = Scripted([Worker(name=name, role="build") for name in ("build-0", "build-1")], [])
    dispatch = Dispatch(fleet, clock=fleet)
    dispatch.submit([(build("job", timeout_s=0.5), partial(add, 1, 1))])
    (first,) = fleet.asked
    fleet.workers = fleet.workers[:1]
    fleet.now_s = 0.7
    first.set_exception(InfrastructureError("the network broke"))
    assert dispatch.news() == []
    fleet.asked[-1].set_result("done")
    assert [done.value for done in dispatch.wait()] == ["done"]
    assert len(fleet.asked) == 2


def test_the_last_worker_goes_on_however_much_it_loses(own: InlineFleet) -> None:
    """Many deadly candidates in a row on a farm of one GPU: each is condemned, and the rest is done."""
    dispatch = Dispatch(own, limits=Limits(quarantine=2, wait_s=0.2))
    dispatch.submit([(build(f"deadly{n}"), die) for n in range(3)])
    dispatch.submit([(build("left"), partial(add, 1, 1))])
    ended = finish(dispatch)
    assert dispatch.notices == []
    assert ended["left"].value == 2
    assert all(ended[f"deadly{n}"].condemned for n in range(3))


def test_a_spent_budget_ends_measuring_but_for_what_is_essential(own: InlineFleet) -> None:
    """Builds go on: they hold no GPU; whoever ordered them decides."""
    dispatch = Dispatch(own, budget=Budget(wall_s=0.3))
    dispatch.submit([(measure(f"m{n}"), partial(time.sleep, 0.25)) for n in range(4)])
    dispatch.submit([(measure("finals", essential=True), partial(add, 1, 1)), (build("b"), partial(time.sleep, 0.4))])
    ended = finish(dispatch)
    assert dispatch.spent == "wall_s"
    assert dispatch.notices == ["budget wall_s is spent: no more measuring, finals apart"]
    assert ended["finals"].value == 2
    assert not ended["b"].given_up
    assert ended["m0"].given_up == ""
    assert ended["m3"].given_up == "budget wall_s is spent"
    dispatch.submit([(measure("late"), partial(add, 1, 1))])
    assert finish(dispatch)["late"].given_up == "budget wall_s is spent"


def test_a_gpu_is_held_from_its_first_job_to_its_last(own: InlineFleet, fleet: Fleet) -> None:
    dispatch = Dispatch(own)
    dispatch.submit([(build("b"), partial(time.sleep, 0.3))])
    finish(dispatch)
    assert dispatch.held_s == 0
    dispatch.submit([(measure("one"), partial(time.sleep, 0.1))])
    finish(dispatch)
    time.sleep(0.2)
    dispatch.submit([(measure("two"), partial(time.sleep, 0.1))])
    finish(dispatch)
    assert 0.4 <= dispatch.held_s < 5
    replaying = Dispatch(fleet)
    replaying.submit([(measure("one"), partial(add, 1, 1))])
    finish(replaying)
    assert replaying.held_s == 0


def test_an_interrupt_is_heard_while_waiting(fleet: Fleet) -> None:
    dispatch = Dispatch(fleet)
    dispatch.submit([(build("slow"), partial(time.sleep, 1.0))])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            dispatch.wait()
        assert time.monotonic() - began < 0.9
    finally:
        signal.signal(signal.SIGALRM, before)
