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
from tunefarm.noise import Noise, measure_noise
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


def noise(own: InlineFleet, tmp_path: Path, store: Path, answer: Any, num: int = 60) -> Noise:
    resolved = open_experiment(write_experiment(tmp_path, problems=[{"n": [0, 1000], "dtype": "fp32"}]))
    board = BuildBoard(resolved, BuildStore(store / "builds"))
    told: list[tuple[str, int]] = []
    errands = Errands(
        resolved=resolved, dispatch=Dispatch(Pretended(own, answer)), board=board,
        advance=lambda what, count: told.append((what, count)),
    )  # fmt: skip
    (found,) = measure_noise(errands, plan(resolved, [Target(device=GPU, meter="gpu")]), num)
    assert told[-num:] == [("measured", 1)] * num
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


def test_a_default_that_is_wrong_has_no_noise(tmp_path: Path, own: InlineFleet, store: Path) -> None:
    with pytest.raises(UserError, match="cannot be measured: all of it differs"):
        noise(own, tmp_path, store, answer_wrongly, num=1)
