"""Turns: what a budget is spent on where several studies wait for one worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import GPU, LARGE, check_ledger, measured, play, write_experiment, write_landscape

from tunefarm.bench.meter import Question
from tunefarm.config import Config, Value
from tunefarm.dispatch import Dispatch
from tunefarm.schedule.events import Budget, Job
from tunefarm.seams import Fleet, Worker
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FINAL, Outcome
from tunefarm.turns import NEAR, Turns

TIMES = Callable[[Config, Mapping[str, Value]], "float | Outcome"]


class Hourglass:
    """A fleet, and a clock that moves on by one second with each question that a worker gets, finals apart."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.workers: Sequence[Worker] = fleet.workers
        self.asked: list[Value] = []

    def now(self) -> float:
        return float(len(self.asked))

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        questions = [a for a in job.args if isinstance(a, Question)] if isinstance(job, partial) else []
        self.asked += [question.variables["n"] for question in questions if question.rung != FINAL]
        return self._fleet.submit(job, where)

    def close(self) -> None:
        pass


def problems(*weights: float) -> list[dict[str, Value]]:
    return [{"n": 1000 * (i + 1), "dtype": "fp32", "weight": weight} for i, weight in enumerate(weights)]


def rugged(config: Config, variables: Mapping[str, Value]) -> float:
    """The same in all problems, and of a kind that always leaves something to hope for."""
    return 0.02 * (1 + random.Random(config.key).random())


def flat_at(n: int, config: Config, variables: Mapping[str, Value]) -> float:
    """Nothing to gain in one problem."""
    return 0.03 if variables["n"] == n else rugged(config, variables)


def sweep(
    folder: Path, fleet: Fleet, store: Path, time_ms: TIMES, *weights: float, budget: Budget | None = None
) -> tuple[farm.Played, Hourglass]:
    experiment = write_experiment(folder, problems=problems(*weights), space=LARGE, search={"batch": 3})
    write_landscape(experiment, time_ms)
    hourglass = Hourglass(fleet)
    return play(experiment, hourglass, store, budget=budget, clock=hourglass), hourglass


def halved(
    folder: Path, fleet: Fleet, store: Path, time_ms: TIMES, *weights: float
) -> tuple[list[StudyResult], Hourglass]:
    """A sweep with half of what it would need."""
    _, whole = sweep(folder / "whole", fleet, store, time_ms, *weights)
    budget = Budget(wall_s=whole.now() / 2)
    played, half = sweep(folder / "half", fleet, store, time_ms, *weights, budget=budget)
    check_ledger(played)
    assert half.now() < whole.now()
    assert {result.reason for result in played.results} >= {"budget wall_s is spent"}
    assert [result.status for result in played.results] == [Status.WINNER] * len(weights), "finals are held for all"
    return played.results, half


@pytest.mark.parametrize("weights", [(1, 9), (9, 1)])
def test_of_two_alike_the_heavier_one_gets_more(
    tmp_path: Path, fleet: Fleet, store: Path, weights: tuple[float, float]
) -> None:
    results, hourglass = halved(tmp_path, fleet, store, rugged, *weights)
    assert set(hourglass.asked[:2]) == {1000, 2000}, "a study of which nothing is known goes first, however light"
    light, heavy = sorted(results, key=lambda result: result.study.weight)
    assert 0 < light.num_measured < heavy.num_measured
    assert light.left is not None
    assert light.left.limit == "wall_s"
    assert light.left.is_worthwhile


@pytest.mark.parametrize("flat", [1000, 2000])
def test_of_two_as_heavy_the_one_with_more_to_gain_gets_more(
    tmp_path: Path, fleet: Fleet, store: Path, flat: int
) -> None:
    results, _ = halved(tmp_path, fleet, store, partial(flat_at, flat), 2, 2)
    poor, rich = sorted(results, key=lambda result: result.study.variables["n"] != flat)
    assert 0 < poor.num_measured < rich.num_measured


def test_no_study_decides_otherwise_for_its_weight(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """Nor does one that was cut by a budget and goes on with a larger one."""
    played = [sweep(tmp_path / str(w), fleet, store, rugged, *w)[0] for w in ((1, 1, 1), (1, 9, 5), (90, 1, 30))]
    whole = sweep(tmp_path / "again", fleet, store, rugged, 1, 9, 5, budget=Budget(wall_s=9.0))[0]
    assert any(result.reason == "budget wall_s is spent" for result in whole.results)
    played.append(sweep(tmp_path / "again", fleet, store, rugged, 1, 9, 5)[0])
    calm, *others = ([(r.trials, r.winner, r.left) for r in each.results] for each in played)
    assert all(other == calm for other in others)
    assert {tuple(sorted(measured(each.ledger))) for each in played} == {tuple(sorted(measured(played[0].ledger)))}


# ---- workers that do what they are told, when they are told ----


class Patient:
    """A fleet of GPUs whose jobs end when they are told to."""

    def __init__(self, num: int) -> None:
        self.workers: Sequence[Worker] = [Worker(name=f"g{i}", role="measure", device=GPU) for i in range(num)]
        self.begun: list[tuple[str, Future[Any]]] = []

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        self.begun.append((job(), Future()))
        return self.begun[-1][1]

    def close(self) -> None:
        pass


class Office:
    """Turns over that fleet."""

    def __init__(self, budget: Budget | None, num: int = 1) -> None:
        self.fleet = Patient(num)
        self.dispatch = Dispatch(self.fleet, budget=budget)
        self.turns = Turns(self.dispatch)

    def wait(self, claims: Mapping[str, float], where: str = GPU.key) -> list[str]:
        for name, claim in claims.items():
            job = Job(id=name, role="measure", where=where)
            self.turns.wait([(job, partial(str, name))], claim)
        self.turns.serve()
        return self.begun

    def end(self, name: str) -> list[str]:
        next(future for begun, future in self.fleet.begun if begun == name).set_result(None)
        for done in self.dispatch.wait():
            self.turns.end(done.job)
        self.turns.serve()
        return self.begun

    @property
    def begun(self) -> list[str]:
        return [name for name, _ in self.fleet.begun]


RICH = Budget(gpu_held_s=1e6)


@pytest.mark.parametrize("budget", [None, RICH])
def test_the_greatest_claim_is_first_and_equals_come_as_they_came(budget: Budget | None) -> None:
    office = Office(budget)
    assert office.wait({"a": 0.2, "b": 0.3, "c": 0.3, "d": 0.25}) == ["b", "c"]
    assert office.end("b") == ["b", "c", "d"]
    office.wait({"e": 0.24})
    assert office.end("c") == ["b", "c", "d", "e"]


def test_under_a_budget_a_worker_waits_for_a_claim_that_is_far_greater() -> None:
    office = Office(RICH)
    assert office.wait({"a": 0.8, "b": 0.8 * NEAR - 0.01}) == ["a"]
    assert office.end("a") == ["a", "b"]
    office = Office(RICH)
    assert office.wait({"a": 0.8, "b": 0.8 * NEAR}) == ["a", "b"]
    office = Office(None)
    assert office.wait({"a": 0.8, "b": 0.01}) == ["a", "b"]


def test_a_worker_without_work_takes_what_there_is() -> None:
    office = Office(RICH, num=2)
    assert office.wait({"a": 0.8, "b": 0.1, "c": 0.1, "d": 0.5}) == ["a", "d"]
    assert office.end("a") == ["a", "d", "b"]


def test_places_do_not_wait_for_each_other() -> None:
    office = Office(RICH)
    office.wait({"a": 0.8})
    assert office.wait({"b": 0.1}, where="") == ["a", "b"]


def test_once_a_budget_is_spent_what_waits_is_given_up() -> None:
    office = Office(Budget(wall_s=0.05))
    office.wait({"a": 0.8, "b": 0.1})
    assert office.dispatch.num_measuring(GPU.key) == 1
    while not office.dispatch.spent:
        office.dispatch._advance()
    assert office.end("a") == ["a"]
    (done,) = office.dispatch.wait()
    assert (done.job, done.given_up) == ("b", "budget wall_s is spent")
