"""The landscape meter: real samples of another time, the same for the same question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tunefarm import landscape as landscapes
from tunefarm.bench.meter import Answer, Candidate, Question, answer_from_json, answer_to_json
from tunefarm.bench.replay import LandscapeMeter
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import LandscapeError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.problem import Problem
from tunefarm.search.rungs import EXPLORATION, RUNGS
from tunefarm.spec.workload import WorkloadRef
from tunefarm.trial import FINAL, Failure, Outcome

SMALL, LARGE, OTHER = (Problem(dims=FrozenMap(n=n)) for n in (1, 2, 3))
SAMPLES = tuple(round(1 + n / 100, 2) for n in range(20))
CONFIGS = [Config(params={"BLOCK": size}) for size in (16, 32, 64, 128, 256)]
WHY = Failure(stage="verify", kind="mismatch", message="half of it")


@pytest.fixture
def landscape(tmp_path: Path) -> str:
    entries = (
        Entry(config=CONFIGS[0], outcome=Outcome.OK, samples_ms=SAMPLES, warmup_ms=(9.0, 9.0)),
        Entry(config=CONFIGS[1], outcome=Outcome.WRONG_RESULT, failure=WHY),
        Entry(config=CONFIGS[2], outcome=Outcome.OK),
        Entry(config=CONFIGS[3], outcome=Outcome.TIMEOUT),
    )
    doubled = (Entry(config=CONFIGS[0], outcome=Outcome.OK, samples_ms=tuple(2 * ms for ms in SAMPLES)),)
    made = Landscape(
        kernel="k", source_hash="0", device=nominal("sm_90"),
        problems=(
            Recorded(problem=SMALL, entries=entries, reference_ms=5.0),
            Recorded(problem=LARGE, entries=doubled),
        ),
    )  # fmt: skip
    path = tmp_path / "recording.json.gz"
    landscapes.save(made, path)
    return str(path)


def question(landscape: str, problem: Problem = SMALL, rung: int = 0, num_samples: int = 3) -> Question:
    return Question(
        ref=WorkloadRef(call="", kernel="", object="nowhere.py:nothing"), device=nominal("sm_90"), problem=problem,
        variables=FrozenMap(), candidates=tuple(Candidate(number=n, config=c) for n, c in enumerate(CONFIGS)),
        rung=rung, num_samples=num_samples, landscape=landscape,
    )  # fmt: skip


def asked(meter: LandscapeMeter, asked_for: Question) -> list[Answer]:
    meter.prepare(asked_for)
    return list(meter.measure(asked_for.candidates, asked_for))


def samples(answers: Sequence[Answer]) -> tuple[float, ...]:
    measurement = answers[0].measurement
    assert measurement is not None
    return measurement.samples_ms


def test_the_same_question_has_the_same_answer(landscape):
    first = asked(LandscapeMeter(), question(landscape))
    meter = LandscapeMeter()
    asked(meter, question(landscape, LARGE))
    assert asked(meter, question(landscape)) == first == asked(meter, question(landscape))
    measurement = first[0].measurement
    assert measurement is not None
    assert (measurement.source, measurement.rung, measurement.timer) == ("replayed", 0, "cold")
    assert measurement.busy_s == pytest.approx(sum(SAMPLES[:3]) / 1000)


def test_each_rung_reads_on_where_the_one_before_stopped(landscape):
    meter = LandscapeMeter()
    rungs = [samples(asked(meter, question(landscape, rung=r.number, num_samples=r.num_samples))) for r in EXPLORATION]
    assert rungs == [SAMPLES[:3], SAMPLES[3:13]]
    final = question(landscape, rung=FINAL, num_samples=RUNGS[FINAL].num_samples)
    assert samples(asked(meter, final)) == SAMPLES


def test_a_used_up_recording_starts_again(landscape):
    assert samples(asked(LandscapeMeter(), question(landscape, rung=6, num_samples=5))) == (*SAMPLES[18:], *SAMPLES[:3])
    assert len(samples(asked(LandscapeMeter(), question(landscape, num_samples=100)))) == len(SAMPLES)


def test_failures_and_gaps_are_answers(landscape):
    _, wrong, empty, silent, unknown = asked(LandscapeMeter(), question(landscape))
    assert (wrong.outcome, wrong.failure) == (Outcome.WRONG_RESULT, WHY)
    assert empty.outcome is unknown.outcome is Outcome.SKIPPED
    assert unknown.why.kind == "NotRecorded"
    assert silent.outcome is Outcome.TIMEOUT
    for answer in (wrong, empty, silent, unknown):
        assert answer.measurement is None
        assert answer.failure is not None
        assert answer_from_json(answer.number, answer_to_json(answer)) == answer


def test_the_reference_is_the_recordings(landscape):
    meter = LandscapeMeter()
    asked(meter, question(landscape))
    assert meter.reference_ms == 5.0
    asked(meter, question(landscape, LARGE))
    assert meter.reference_ms is None
    assert samples(asked(meter, question(landscape, LARGE))) == tuple(2 * ms for ms in SAMPLES[:3])
    meter.close()


def test_a_problem_that_was_not_recorded_is_refused(landscape):
    with pytest.raises(LandscapeError, match=r"does not hold problem 3.*it holds 1; 2.*tunefarm record") as caught:
        LandscapeMeter().prepare(question(landscape, OTHER))
    assert caught.value.file == landscape
    with pytest.raises(LandscapeError, match="no such file"):
        LandscapeMeter().prepare(question(landscape + "x"))
