"""A/A: a config against itself. The GPU is made up, the rest is real."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm import GPU, TOOLCHAIN, write_experiment
from rigged import Pretended

from tunefarm.bench.meter import Answer, Answers, Question
from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.dispatch import Dispatch
from tunefarm.errands import Errands
from tunefarm.errors import UserError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.noise import Noise, Unmeasured, measure_noise
from tunefarm.plan import Target, plan
from tunefarm.trial import FINAL, Failure, Measurement, Outcome


@pytest.fixture
def own() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU], num_builders=1)
    yield made
    made.close()


_sittings = np.random.default_rng(1)


def answer_noisily(bias: float, question: Question) -> Any:
    """Samples with 1 % of noise; the second of two equals is slower by a bias."""
    assert question.interleaved
    assert question.fresh
    assert len({candidate.config for candidate in question.candidates}) == 1
    answers = []
    for position, candidate in enumerate(question.candidates):
        samples = (1 + bias * position) * (1 + 0.01 * _sittings.standard_normal(question.num_samples))
        taken = Measurement(samples_ms=tuple(samples), timer="cold", rung=FINAL, source="measured")
        answers.append(Answer(number=candidate.number, measurement=taken))
    return Answers(answers=tuple(answers), toolchain=TOOLCHAIN, notices=("quiet",))


def answer_wrongly(question: Question) -> Any:
    failure = Failure(stage="verify", kind="mismatch", message="all of it differs")
    wrong = Answer(number=question.candidates[0].number, outcome=Outcome.WRONG_RESULT, failure=failure)
    return Answers(answers=(wrong,), toolchain=TOOLCHAIN)


def answer_by_size(question: Question) -> Any:
    """The workload cannot serve 2000, and is wrong at 3000."""
    if question.variables["n"] == 2000:
        raise UserError("no input of 2000")
    return answer_wrongly(question) if question.variables["n"] == 3000 else answer_noisily(0.0, question)


def write_order_seed(roll: Path, question: Question) -> Any:
    with roll.open("a") as file:
        file.write(f"{question.seed}:{question.order_seed}\n")
    return answer_noisily(0.0, question)


def all_noise(
    own: InlineFleet, tmp_path: Path, store: Path, answer: Any, num: int, sizes: list[int]
) -> tuple[list[Noise | Unmeasured], list[tuple[str, int]]]:
    resolved = open_experiment(write_experiment(tmp_path, problems=[{"n": sizes, "dtype": "fp32"}]))
    board = BuildBoard(resolved, BuildStore(store / "builds"))
    told: list[tuple[str, int]] = []
    errands = Errands(
        resolved=resolved, dispatch=Dispatch(Pretended(own, answer)), board=board,
        advance=lambda what, count: told.append((what, count)),
    )  # fmt: skip
    return list(measure_noise(errands, plan(resolved, [Target(device=GPU, meter="gpu")]), num)), told


def noise(own: InlineFleet, tmp_path: Path, store: Path, answer: Any, num: int = 60) -> Noise:
    (found,), told = all_noise(own, tmp_path, store, answer, num, [0, 1000])
    assert told[-num:] == [("measured", 1)] * num
    assert isinstance(found, Noise)
    return found


def test_equals_are_called_equal_and_a_planted_difference_is_found(
    tmp_path: Path, own: InlineFleet, store: Path
) -> None:
    """One claim in a hundred is what 99 % confidence means; 3 % stand far above 1 % of noise."""
    found = noise(own, tmp_path, store, partial(answer_noisily, 0.0))
    assert len(found.comparisons) == 60
    assert found.num_claimed <= 3
    assert found.num_found >= 57
    assert 0.002 < found.floor < 0.02
    assert found.notices == ("quiet",)


def test_a_bias_between_equals_shows(tmp_path: Path, own: InlineFleet, store: Path) -> None:
    found = noise(own, tmp_path, store, partial(answer_noisily, 0.05), num=10)
    assert found.num_claimed == 10
    assert all(comparison.ratio > 1.02 for comparison in found.comparisons)


def test_every_comparison_has_an_order_of_its_own(tmp_path: Path, own: InlineFleet, store: Path) -> None:
    noise(own, tmp_path, store, partial(write_order_seed, tmp_path / "roll"), num=4)
    assert (tmp_path / "roll").read_text().split() == ["0:0", "0:1", "0:2", "0:3"]


def test_a_default_that_cannot_be_measured_costs_no_other_its_noise(
    tmp_path: Path, own: InlineFleet, store: Path
) -> None:
    """Nor is it asked more than once, which would leave jobs to be taken for the next study's."""
    found, told = all_noise(own, tmp_path, store, answer_by_size, 3, [1000, 2000, 3000, 4000])
    first, unserved, wrong, last = found
    assert isinstance(first, Noise)
    assert isinstance(last, Noise)
    assert (len(first.comparisons), len(last.comparisons)) == (3, 3)
    assert isinstance(unserved, Unmeasured)
    assert "no input of 2000" in str(unserved.error)
    assert isinstance(wrong, Unmeasured)
    assert "fill sm_90 3000 fp32 cannot be measured: all of it differs" in str(wrong.error)
    assert told[-6:] == [("measured", 1)] * 6
