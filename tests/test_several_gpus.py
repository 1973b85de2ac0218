"""Several GPUs of one kind share a study, though they differ: times are made up, as those of two cards would be."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from farm import GPU, TOOLCHAIN, Played, events, play, smooth, write_experiment
from rigged import Pretended

from tunefarm.bench.meter import Answer, Answers, Question
from tunefarm.config import Config
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.trial import FAILURES, FINAL, Failure, Measurement, Outcome

SPACE = {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]}


def answer(slower: float, twist: float, wrong: bool, question: Question) -> Answers:
    """A bowl; the second GPU takes longer, in finals less for the default, or gets everything wrong."""
    second = os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    answers = []
    for candidate in question.candidates:
        if second and wrong:
            failure = Failure(stage="verify", kind="WrongResult", message="all zeros")
            answers.append(Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=failure))
            continue
        time_ms = smooth(candidate.config, question.variables) * (slower if second else 1.0)
        if second and question.interleaved and candidate.config == DEFAULT:
            time_ms *= twist
        measurement = Measurement(
            samples_ms=tuple(time_ms * (1 + 1e-4 * n) for n in range(question.num_samples)), warmup_ms=(1.0,),
            timer=question.timer, rung=question.rung, source="measured",
        )  # fmt: skip
        answers.append(Answer(number=candidate.number, measurement=measurement))
    return Answers(answers=tuple(answers), toolchain=TOOLCHAIN, reference_ms=0.05, busy_s=0.5)


DEFAULT = Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4})


@pytest.fixture
def two() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU, GPU], num_builders=2)
    yield made
    made.close()


def shared(
    folder: Path, two: InlineFleet, store: Path, *, slower: float = 1.0, twist: float = 1.0, wrong: bool = False
) -> Played:
    """Two studies over two GPUs, each of which measures some of both."""
    experiment = write_experiment(
        folder,
        problems=[{"n": [1000, 4096], "dtype": "fp32"}],
        space=SPACE,
        search={"sampler": "exhaustive", "batch": 4},
    )
    rigged = Pretended(two, partial(answer, slower, twist, wrong))
    return play(experiment, rigged, store, targets=[Target(device=GPU, meter="gpu")])


def test_what_a_gpu_takes_longer_is_taken_out_of_its_times(tmp_path: Path, two: InlineFleet, store: Path) -> None:
    played = shared(tmp_path, two, store, slower=1.03)
    calibrated = [e for e in events(played.ledger, "measured") if "calibration" in e["measurement"]["telemetry"]]
    assert calibrated  # both had a part in some study
    for result in played.results:
        early = {
            t.config: t.measurements[0] for t in result.trials if t.measurements and t.measurements[0].rung != FINAL
        }
        scales = {early[c].median_ms / smooth(c, result.study.variables) for c in early}
        assert max(scales) / min(scales) < 1.005
    assert not played.notices


def test_finals_are_held_again_on_a_second_gpu(tmp_path: Path, two: InlineFleet, store: Path) -> None:
    played = shared(tmp_path, two, store, slower=1.02)
    assert len(events(played.ledger, "replicated")) == 2
    assert all(result.winner and result.winner.config != DEFAULT for result in played.results)
    again = shared(tmp_path, two, store, slower=1.02)
    assert [r.winner for r in again.results] == [r.winner for r in played.results]
    assert len(events(again.ledger, "replicated")) == 2


def test_a_driver_that_died_after_the_finals_is_not_spared_the_second_gpu(
    tmp_path: Path, two: InlineFleet, store: Path
) -> None:
    played = shared(tmp_path, two, store, twist=0.3)
    told = events(played.ledger, "replicated")
    lines = played.ledger.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["event"] not in ("replicated", "winner")]
    assert len(kept) < len(lines)
    played.ledger.write_text("".join(kept))
    again = shared(tmp_path, two, store, twist=0.3)
    assert [r.winner for r in again.results] == [r.winner for r in played.results]
    assert [e["worker"] for e in events(again.ledger, "replicated")] == [e["worker"] for e in told]


def test_a_winner_that_a_second_gpu_does_not_confirm_gives_way_to_the_default(
    tmp_path: Path, two: InlineFleet, store: Path
) -> None:
    played = shared(tmp_path, two, store, twist=0.3)  # there the default is by far the best
    winners = [result.winner for result in played.results if result.winner]
    assert [winner.config for winner in winners] == [DEFAULT, DEFAULT]
    # The finals that were held there needed nobody's word for it.
    assert "not confirmed on a second GPU: default kept" in {winner.reason for winner in winners}
    assert {event["worker"] for event in events(played.ledger, "replicated")} == {"measure-1"}


@pytest.mark.parametrize(
    ("fault", "evidence"), [({"slower": 1.5}, r"1\.50 times as long|0\.67 times as long"), ({"wrong": True}, "wrong")]
)
def test_a_gpu_that_is_broken_gets_no_more_work_and_says_why(
    tmp_path: Path, two: InlineFleet, store: Path, fault: dict[str, float], evidence: str
) -> None:
    played = shared(tmp_path, two, store, **fault)  # type: ignore[arg-type]
    assert any("gets no more work" in notice for notice in played.notices)
    assert any(re.search(evidence, notice) for notice in played.notices)
    # It is the slower one, or the one that alone is wrong, whichever of them came first.
    assert not any("measure-0" in notice for notice in played.notices)
    # Of what it said while nobody knew, nothing is held against a candidate that is right on the other.
    assert not {trial.outcome for result in played.results for trial in result.trials} & FAILURES
    assert not events(played.ledger, "failed")
    assert all(result.winner and result.winner.config != DEFAULT for result in played.results)


def test_the_last_gpu_of_its_kind_stays(tmp_path: Path, store: Path) -> None:
    alone = InlineFleet([GPU], num_builders=1)
    try:
        experiment = write_experiment(tmp_path, space=SPACE)
        rigged = Pretended(alone, partial(answer, 1.0, 1.0, False))
        played = play(experiment, rigged, store, targets=[Target(device=GPU, meter="gpu")])
        played.dispatch.accuse("measure-0", "looks odd")
        assert not played.notices
        assert not events(played.ledger, "replicated")
    finally:
        alone.close()
