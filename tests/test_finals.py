"""Finals: who fails a check is out, whoever he takes along is not, and times come from a process of their own."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from farm import GPU, Played, events, play, write_experiment, write_landscape
from rigged import ILLEGAL, Deed, Perilous, Pretended, measure_perilously

from tunefarm.bench import worker
from tunefarm.bench.meter import Answer, Candidate, Question
from tunefarm.config import Config
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.schedule.events import Budget
from tunefarm.seams import Fleet
from tunefarm.study import Status
from tunefarm.trial import FINAL, Failure, Outcome

N, TAIL = 1024, 1023
WRONG = Failure(stage="verify", kind="mismatch", message="output 0: 0.1 % of 1023 elements differ")
SECTIONS: dict[str, Any] = {
    "problems": [{"n": N, "dtype": "fp32"}],
    "devices": ["sm_90"],
    "checks": [{"n": "n - 1"}],
}


def config(block: int, mark: int, warps: int) -> Config:
    return Config(params={"BLOCK": block, "MARK": mark}, options={"num_warps": warps})


BEST, SECOND, DEFAULT = config(128, 0, 2), config(128, 1, 2), config(64, 0, 4)
SPACE = [config(*point) for point in product((64, 128, 256), (0, 1), (1, 2, 4))]


# ---- what candidates do ----


def wrong() -> Failure:
    return WRONG


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def poison() -> None:
    raise RuntimeError(ILLEGAL)


def warm_up() -> None:
    """So that the start of a process is not in a budget of seconds."""
    importlib.import_module("triton")


# ---- a GPU that is made up, and keeps a roll ----


class Signing(Perilous):
    """Writes down what it is asked."""

    def __init__(self, deeds: Mapping[Any, Deed], roll: Path) -> None:
        super().__init__(deeds)
        self._roll = roll

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        asked = {
            "pid": os.getpid(), "n": question.variables["n"], "rung": question.rung, "timed": question.num_samples > 0,
            "configs": [candidate.config.key for candidate in candidates],
            "built_for": [candidate.artifact.specialization for candidate in candidates if candidate.artifact],
            "baselines": [(b.config.key, b.artifact.specialization) for b in (question.baseline,) if b and b.artifact],
        }  # fmt: skip
        with self._roll.open("a") as file:
            file.write(json.dumps(asked) + "\n")
        yield from super().measure(candidates, question)


def measure_and_sign(deeds: Mapping[Any, Deed], folder: Path, question: Question) -> Any:
    worker._meters.setdefault("gpu", Signing(deeds, folder / "roll"))
    return measure_perilously(deeds, folder / "processes", question)


@dataclass
class Hall:
    """Where sweeps of one experiment are held, all with one ledger."""

    folder: Path
    store: Path

    def sweep(self, deeds: Mapping[Any, Deed], *, act: Callable[[], None] = lambda: None, **more: Any) -> Played:
        budget = more.pop("budget", None)
        experiment = write_experiment(self.folder, **{**SECTIONS, **more})
        own = InlineFleet([GPU], num_builders=1)
        try:
            own.submit(warm_up, "measure-0").result()
            fleet = Pretended(own, partial(measure_and_sign, deeds, self.folder))
            targets = [Target(device=GPU, meter="gpu")]
            return play(experiment, fleet, self.store, act=act, budget=budget, targets=targets)
        finally:
            own.close()

    @property
    def roll(self) -> list[dict[str, Any]]:
        """All questions ever asked, in order."""
        path = self.folder / "roll"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def finals(self) -> list[dict[str, Any]]:
        """Those of checks and sittings."""
        return [asked for asked in self.roll if asked["rung"] == FINAL]

    @property
    def probes(self) -> set[int]:
        """Sizes at which it was tried how far a winner may be used."""
        return {asked["n"] for asked in self.roll} - {N, TAIL}


@pytest.fixture
def hall(tmp_path: Path, store: Path) -> Hall:
    return Hall(tmp_path, store)


# ---- checks ----


def test_two_checks_that_need_one_build_hold_nobody_up_twice(hall: Hall) -> None:
    """Sizes of one specialisation share their machine code; who waited for it twice went on without his answers."""
    played = hall.sweep({}, checks=[{"n": "n - 1"}, {"n": "n - 3"}, {"n": 7}])
    assert [result.status for result in played.results] == [Status.WINNER]
    checked = [asked for asked in hall.finals if not asked["timed"]]
    assert [asked["n"] for asked in checked] == [N - 1, N - 3, 7]
    assert all(asked["built_for"] == checked[0]["built_for"] for asked in checked)


def test_who_fails_a_check_gives_his_place_to_the_next(hall: Hall) -> None:
    """TF-034, TF-038: the fastest config is wrong for one element less; the next is right, and a new one checked."""
    best, second = config(64, 0, 2), config(64, 1, 2)
    space = {"BLOCK": [64], "MARK": list(range(8)), "num_warps": [2]}
    played = hall.sweep({(best, TAIL): wrong}, space=space)
    (result,) = played.results
    assert result.winner is not None
    assert result.winner.config == second
    (trial,) = [t for t in result.trials if t.outcome is Outcome.WRONG_RESULT]
    assert trial.config == best
    assert trial.failure is not None
    assert trial.failure.message == f"check n=n - 1: {WRONG.message}"
    (failed,) = events(played.ledger, "failed")
    assert (failed["config"], failed["rung"], failed["outcome"]) == (best.key, FINAL, "wrong_result")
    (finals,) = events(played.ledger, "finals")
    checks = [asked for asked in hall.finals if not asked["timed"]]
    assert [asked["n"] for asked in checks] == [TAIL, TAIL]
    first, late = (set(asked["configs"]) for asked in checks)
    assert {best.key, DEFAULT.key} <= first
    assert len(late - first) == len(late) == 1, "only who took the place is checked then"
    assert set(finals["configs"]) == (first | late) - {best.key}


def test_checks_are_compiled_for_their_own_specialisation(hall: Hall) -> None:
    """TF-046: what was compiled for a size divisible by 16 is of no use for one less."""
    played = hall.sweep({})
    asked = [question for question in hall.finals if question["n"] not in hall.probes]
    built = {each["n"]: dict(zip(each["configs"], each["built_for"], strict=True)) for each in asked}
    assert built.keys() == {N, TAIL}
    assert built[N].keys() == built[TAIL].keys()
    assert not set(built[N].values()) & set(built[TAIL].values())
    assert played.results[0].num_compiled == 0


def test_bits_are_compared_with_the_default_of_the_same_call(hall: Hall) -> None:
    """From the first question on, whoever is asked about, and in checks with the default built for the check."""
    hall.sweep({}, accept={"same_bits": "default"}, search={"sampler": "tpe", "batch": 1})
    built = {}
    for asked in hall.roll:
        ((key, specialization),) = asked["baselines"]
        assert key == DEFAULT.key
        assert built.setdefault(asked["n"], specialization) == specialization
    assert built.keys() - hall.probes == {N, TAIL}
    assert built[N] != built[TAIL]


@pytest.mark.parametrize(
    ("deed", "outcome"),
    [(die, Outcome.CRASHED), (poison, Outcome.ILLEGAL_ACCESS), (partial(time.sleep, 60), Outcome.TIMEOUT)],
    ids=["kills", "poisons", "hangs"],
)
def test_a_check_that_costs_the_process_costs_one_finalist(hall: Hall, deed: Deed, outcome: Outcome) -> None:
    """TF-003."""
    played = hall.sweep({(BEST, TAIL): deed})
    (result,) = played.results
    assert result.winner is not None
    assert result.winner.config == SECOND
    assert {t.config: t.outcome for t in result.trials if t.failure is not None} == {BEST: outcome}
    assert len(events(played.ledger, "finals")) == 1


def test_a_default_that_fails_a_check_is_no_yardstick(hall: Hall) -> None:
    """Its time would say nothing: it has no gain, and people are told why."""
    (result,) = hall.sweep({(DEFAULT, TAIL): wrong}).results
    assert result.winner is not None
    assert result.winner.config == BEST
    assert (result.winner.default, result.winner.default_ms, result.winner.gain) == (DEFAULT, None, None)
    assert result.default_failure is not None
    assert result.default_failure.message.startswith("check n=n - 1: ")


def test_where_all_fail_a_check_nobody_wins(hall: Hall) -> None:
    """TF-008: and the reason is the check, not that nothing could be measured."""
    played = hall.sweep({(each, TAIL): wrong for each in SPACE})
    (result,) = played.results
    assert (result.status, result.winner) == (Status.NO_WINNER, None)
    assert result.num_measured > 0
    assert "no finalist passed" in result.reason
    assert f"check n=n - 1: {WRONG.message}" in result.reason
    assert not events(played.ledger, "finals")
    (told,) = events(played.ledger, "no_winner")
    assert told["reason"] == result.reason


def test_replays_leave_checks_out_and_say_so(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    devices = [{"arch": "sm_90", "landscape": "recording.json.gz"}]
    experiment = write_experiment(tmp_path, **{**SECTIONS, "devices": devices})
    write_landscape(experiment)
    played = play(experiment, fleet, store)
    assert played.results[0].status is Status.WINNER
    assert played.notices == ["replayed: the experiment's checks launch kernels, so they were left out"]


# ---- the ledger ----


def test_a_driver_that_goes_on_repeats_neither_checks_nor_finals(hall: Hall) -> None:
    """TF-057."""
    deeds = {(BEST, TAIL): wrong}
    first = hall.sweep(deeds)
    asked = hall.roll
    again = hall.sweep(deeds)
    assert hall.roll == asked
    assert again.results[0].winner == first.results[0].winner
    assert len(events(again.ledger, "finals")) == 1
    assert len(events(again.ledger, "failed")) == 1


def test_a_driver_that_died_between_check_and_finals_knows_who_failed(hall: Hall) -> None:
    """TF-057: he who costs a process does so once."""

    class Crash(Exception):
        pass

    def crash() -> None:
        if any(event["rung"] == FINAL for event in events(hall.folder / "ledger.jsonl", "failed")):
            raise Crash

    deeds = {(BEST, TAIL): die}
    with pytest.raises(Crash):
        hall.sweep(deeds, act=crash)
    before = len(hall.roll)
    (result,) = hall.sweep(deeds).results
    assert result.winner is not None
    assert result.winner.config == SECOND
    assert not any(BEST.key in asked["configs"] for asked in hall.roll[before:])


# ---- several studies ----


def test_finals_come_after_all_exploration_in_a_fresh_process(hall: Hall) -> None:
    """Neither a warm cache nor a neighbour's exploration is in the times that decide."""
    problems = [{"n": [N, 4096, 5000], "dtype": "fp32"}]
    played = hall.sweep({(BEST, TAIL): wrong}, problems=problems)
    assert [result.status for result in played.results] == [Status.WINNER] * 3
    final = [asked["rung"] == FINAL for asked in hall.roll]
    assert final == sorted(final), "a final was held while a study explored"
    exploring = {asked["pid"] for asked in hall.roll if asked["rung"] != FINAL}
    deciding = {asked["pid"] for asked in hall.finals}
    assert len(exploring) == len(deciding) == 1
    assert not exploring & deciding


def test_a_spent_budget_holds_all_finals_with_their_checks(hall: Hall) -> None:
    """What was measured is decided, rightly: money that is spent does not make a wrong config right."""
    deeds: dict[Any, Deed] = {(each, TAIL): wrong for each in SPACE if each != DEFAULT}
    deeds |= {(each, n): partial(time.sleep, 0.2) for each in SPACE for n in (N, 4096)}
    played = hall.sweep(
        deeds, problems=[{"n": [N, 4096], "dtype": "fp32"}], search={"sampler": "exhaustive", "batch": 2},
        budget=Budget(gpu_held_s=2.0),
    )  # fmt: skip
    one, other = played.results
    for result in played.results:
        assert result.status is Status.WINNER
        assert 0 < result.num_measured < result.num_candidates
        assert "budget gpu_held_s is spent" in result.reason
    assert one.winner is not None
    assert one.winner.config == DEFAULT
    assert other.winner is not None
    assert {asked["n"] for asked in hall.finals if not asked["timed"]} == {TAIL, 4095}
