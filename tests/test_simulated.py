"""A fleet on a virtual clock: it keeps the schedule's promises through whatever happens, and its books add up."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import GPU, play, write_experiment, write_landscape

from tunefarm.dispatch import Dispatch, Done
from tunefarm.errors import InfrastructureError
from tunefarm.fleet.simulated import Habits, SimulatedFleet, Stay
from tunefarm.fleet.virtual import VirtualTime
from tunefarm.schedule.events import Budget, Job, Limits
from tunefarm.seams import Fleet, Worker

LENGTH_S = 1.0


def gpus(num: int, **stay: Any) -> list[Stay]:
    return [Stay(worker=Worker(name=f"g{n}", role="measure", device=GPU), **stay) for n in range(num)]


@dataclass
class World:
    """A dispatch over a simulated fleet; each decision costs the driver `decision_s`."""

    stays: list[Stay]
    habits: Habits = field(default_factory=Habits)
    decision_s: float | None = 0.0
    limits: Limits | None = None
    budget: Budget | None = None
    endings: list[tuple[float, Done]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = VirtualTime(decision_s=self.decision_s)
        self.fleet = SimulatedFleet(self.stays, self.time, length_s=lambda job: LENGTH_S, habits=self.habits)
        self.dispatch = Dispatch(
            self.fleet, clock=self.time, inbox=self.time, limits=self.limits, budget=self.budget
        )  # fmt: skip

    def submit(self, num: int, **more: Any) -> None:
        jobs = [Job(id=f"j{n}", role="measure", where=GPU.key, **more) for n in range(num)]
        self.dispatch.submit([(job, partial(abs, -n)) for n, job in enumerate(jobs)])

    def finish(self) -> dict[str, Done]:
        while done := self.dispatch.wait():
            self.endings += [(self.time.now(), each) for each in done]
        ended = {each.job: each for _, each in self.endings}
        assert len(ended) == len(self.endings), "every job ends once"
        return ended

    def play(self, num: int, **more: Any) -> dict[str, Done]:
        self.submit(num, **more)
        return self.finish()


def check_books(world: World) -> None:
    hours = world.fleet.hours
    assert hours.busy_s + hours.lost_s + hours.restart_s + hours.idle_s == pytest.approx(hours.present_s)
    now = world.time.now()
    there = [min(now, stay.leaves_s) - stay.joins_s for stay in world.stays if stay.joins_s < now]
    assert hours.present_s == pytest.approx(sum(there))


def test_a_fleet_without_mishaps_is_busy_all_the_time() -> None:
    world = World(gpus(4))
    ended = world.play(40)
    assert [ended[f"j{n}"].value for n in range(40)] == list(range(40))
    assert world.time.now() == pytest.approx(10.0)
    hours = world.fleet.hours
    assert (hours.busy_s, hours.present_s) == (pytest.approx(40.0), pytest.approx(40.0))
    assert world.dispatch.held_s == pytest.approx(40.0)
    check_books(world)


@pytest.mark.parametrize(("depth", "seconds"), [(1, 10 * 1.2), (2, 10 * 1.0 + 0.2)])
def test_the_way_of_a_job_costs_nothing_where_another_waits_at_its_worker(depth: int, seconds: float) -> None:
    world = World(gpus(1), Habits(latency_s=0.1), limits=Limits(depth=depth))
    world.play(10)
    assert world.time.now() == pytest.approx(seconds)
    check_books(world)


@pytest.mark.parametrize("transport_s", [0.0, 0.25])
def test_while_the_driver_decides_results_wait_at_its_door(transport_s: float) -> None:
    """Sixteen workers bring sixteen results a second, and it takes in four, or two."""
    world = World(gpus(16), Habits(transport_s=transport_s), decision_s=0.25)
    world.play(64)
    cost_s = 0.25 + transport_s
    assert 64 * cost_s <= world.time.now() <= 64 * cost_s + 2
    assert world.time.driver_s >= 64 * cost_s
    assert world.fleet.hours.busy_s == pytest.approx(64.0)
    check_books(world)


def test_what_the_driver_really_thinks_is_charged_and_what_its_workers_do_is_not() -> None:
    clock = VirtualTime()
    fleet = SimulatedFleet(gpus(1), clock, length_s=lambda job: 1000.0)
    began = clock.now()
    time.sleep(0.05)
    assert clock.now() - began >= 0.05
    fleet.submit(partial(time.sleep, 0.2), "g0").result()
    assert clock.now() >= 1000.05
    assert 0.05 <= clock.driver_s < 0.2


MISHAPS = Habits(
    latency_s=0.05, spread=0.3, stragglers=0.02, straggle=20.0, failures=0.05, deaths=0.03, restart_s=3.0, seed=7
)


def tumult(seed: int) -> World:
    """Six workers, one of them slow; one leaves and comes back, one leaves for good, one comes later."""
    steady, (gone, back), (early,), (late,) = gpus(3), gpus(2), gpus(1), gpus(1)
    named = [
        *steady[:2],
        dataclasses.replace(steady[2], pace=4.0),
        dataclasses.replace(gone, worker=dataclasses.replace(gone.worker, name="g3"), leaves_s=12.3),
        dataclasses.replace(back, worker=dataclasses.replace(back.worker, name="g3"), joins_s=20.0),
        dataclasses.replace(early, worker=dataclasses.replace(early.worker, name="g4"), leaves_s=17.0),
        dataclasses.replace(late, worker=dataclasses.replace(late.worker, name="g5"), joins_s=9.0),
    ]
    return World(named, dataclasses.replace(MISHAPS, seed=seed), decision_s=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_through_all_mishaps_every_job_ends_once_and_the_books_add_up(seed: int) -> None:
    world = tumult(seed)
    ended = world.play(300, timeout_s=15.0)
    assert set(ended) == {f"j{n}" for n in range(300)}
    ways = Counter("condemned" if d.condemned else "given up" if d.given_up else "done" for d in ended.values())
    assert sum(ways.values()) == 300
    assert ways["done"] >= 290
    assert all(d.value == int(d.job[1:]) for d in ended.values() if not d.condemned and not d.given_up)
    check_books(world)
    hours = world.fleet.hours
    assert min(hours.lost_s, hours.restart_s, hours.idle_s) > 0


def test_a_fixed_cost_makes_a_simulation_repeat_itself() -> None:
    runs = []
    for seed in (1, 1, 2):
        world = tumult(seed)
        world.play(200, timeout_s=15.0)
        runs.append((world.endings, world.fleet.hours))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_what_a_worker_has_as_it_leaves_is_done_by_others() -> None:
    leaving, staying = gpus(2)
    world = World([dataclasses.replace(leaving, leaves_s=2.5), staying])
    ended = world.play(10)
    assert {done.value for done in ended.values()} == set(range(10))
    assert world.fleet.hours.lost_s == pytest.approx(0.5)
    assert world.time.now() == pytest.approx(8.0)
    check_books(world)


def test_a_worker_that_comes_later_gets_work() -> None:
    first, second = gpus(2)
    world = World([first, dataclasses.replace(second, joins_s=3.0)])
    world.play(10)
    # Whoever comes is seen at the next roll call.
    assert 6.0 < world.time.now() < 8.0
    check_books(world)


@pytest.mark.parametrize("returns_s", [50.0, 500.0])
def test_without_any_worker_jobs_wait_only_so_long(returns_s: float) -> None:
    (worker,) = gpus(1)
    stays = [dataclasses.replace(worker, leaves_s=1.5), dataclasses.replace(worker, joins_s=returns_s)]
    world = World(stays, limits=Limits(wait_s=100.0))
    ended = world.play(3)
    assert ended["j0"].value == 0
    for name in ("j1", "j2"):
        if returns_s == 50.0:
            assert not ended[name].given_up
        else:
            assert ended[name].given_up == f"no measure worker on {GPU.key} for 100 s"
    check_books(world)


def test_an_attempt_that_takes_too_long_is_killed_and_the_job_tried_elsewhere() -> None:
    slow, quick = gpus(2)
    world = World([dataclasses.replace(slow, pace=100.0), quick], Habits(restart_s=2.0))
    ended = world.play(2, timeout_s=10.0)
    assert [ended[name].value for name in ("j0", "j1")] == [0, 1]
    assert world.time.now() == pytest.approx(11.0)
    hours = world.fleet.hours
    assert (hours.lost_s, hours.busy_s) == (pytest.approx(10.0), pytest.approx(2.0))
    check_books(world)


def test_a_job_that_costs_every_worker_is_condemned() -> None:
    world = World(gpus(2), Habits(deaths=1.0))
    ended = world.play(3)
    assert all(done.condemned.count("dies, as simulated") == 2 for done in ended.values())
    assert world.fleet.hours.busy_s == 0
    check_books(world)


def test_a_budget_is_kept_on_the_virtual_clock() -> None:
    world = World(gpus(2), budget=Budget(gpu_held_s=10.0))
    ended = world.play(40)
    assert world.dispatch.spent == "gpu_held_s"
    assert sum(not done.given_up for done in ended.values()) in range(10, 15)
    assert world.time.now() < 8


def test_a_driver_that_waits_for_nothing_is_told() -> None:
    world = World(gpus(1))
    with pytest.raises(InfrastructureError, match="nothing happens any more"):
        world.time.get(timeout=None)


def test_a_whole_sweep_decides_the_same_on_a_simulated_fleet(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """The loop, the turns and the contests are those of real sweeps: only time is not."""
    experiment = write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}])
    write_landscape(experiment)
    real = play(experiment, fleet, store)
    clock = VirtualTime(decision_s=1e-3)
    workers = [Worker(name=f"measure-{n}", role="measure") for n in range(3)]
    workers.append(Worker(name="build-0", role="build"))
    simulated = SimulatedFleet(
        [Stay(worker=worker) for worker in workers], clock, length_s=lambda job: 5.0,
        habits=Habits(latency_s=0.1, failures=0.1, seed=3),
    )  # fmt: skip
    again = play(experiment, simulated, store, ledger=tmp_path / "again.jsonl", clock=clock, inbox=clock)

    def told(played: farm.Played) -> list[Any]:
        """All but who measured it."""
        return [
            [r.winner, r.left, [(t.config, t.outcome, [m.samples_ms for m in t.measurements]) for t in r.trials]]
            for r in played.results
        ]

    assert told(again) == told(real)
    assert simulated.hours.busy_s > 0
