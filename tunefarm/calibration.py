"""Calibration: several GPUs of one kind share a study, though none is as fast as the other.

Cards of one kind were seen to differ by some percent on the same configs, and not by one factor for all kernels. So
the first GPU of a study sets its scale, and each other one measures the best candidate so far before its first answers
count: what it takes longer or shorter is taken out of everything that it measures for this study. Finals are held on
one GPU, so they need none of it. A GPU that differs by more than cards do, or gets wrong what was right elsewhere, is
accused: it throttles, is shared, or is broken.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.frozen import FrozenMap
from tunefarm.search.search import StudySearch
from tunefarm.trial import FAILURES, Outcome, Trial
from tunefarm.wants import Got, Want

MOST = 0.1
"""By how much GPUs of one kind may differ. Two H200 of one host were seen to differ by 0.8 to 3.1 %; clocks that are
limited to different powers make more of it, and beyond this it is a fault."""


@dataclass(slots=True, kw_only=True)
class Calibration:
    """The GPUs of one study.

    Attributes:
        question: makes the question about the yardstick.
        candidate: a candidate as a meter needs it.
        notices: what people should know, each once.
        factors: by worker, what its times are multiplied by.
    """

    question: Callable[[Candidate], Question]
    candidate: Callable[[int], Candidate]
    notices: dict[str, None]
    factors: dict[str, float] = field(default_factory=dict)

    def settle(self, search: StudySearch, answers: Answers, worker: str) -> Generator[Want, Got, Answers]:
        """Answers as the study's first GPU would have given them; those of an accused one stay as they are.

        Args:
            search: of the study, which does not know these answers yet.
            answers: what came back.
            worker: from whom.
        """
        if worker and worker not in self.factors:
            self.factors[worker] = yield from self._factor(search, worker)
        factor = self.factors.get(worker, 1.0)
        if factor == 1.0:
            return answers
        return dataclasses.replace(answers, answers=tuple(_scaled(answer, factor) for answer in answers.answers))

    def _factor(self, search: StudySearch, worker: str) -> Generator[Want, Got, float]:
        yardstick = _best(search.trials)
        if yardstick is None:
            return 1.0  # The first sets the scale.
        got = yield Want(questions=(self.question(self.candidate(yardstick.number)),), on=worker)
        (result,) = got.answers
        if isinstance(result, str) or not result.answers:
            return 1.0  # It has gone, and brings nothing more.
        (answer,) = result.answers
        if answer.outcome is Outcome.WRONG_RESULT:
            yield from self._accuse(worker, f"got {yardstick.config} wrong, which was right on another GPU")
            return 1.0
        if answer.measurement is None or yardstick.median_ms is None:
            return 1.0
        factor = yardstick.median_ms / statistics.median(answer.measurement.samples_ms)
        if not 1 - MOST <= factor <= 1 + MOST:
            yield from self._accuse(
                worker, f"takes {1 / factor:.2f} times as long for {yardstick.config} as another GPU"
            )
        return factor

    def _accuse(self, worker: str, evidence: str) -> Generator[Want, Got, None]:
        self.notices[f"{worker} {evidence}"] = None
        yield Want(accused=(worker, evidence))


def _best(trials: tuple[Trial, ...]) -> Trial | None:
    timed = [trial for trial in trials if trial.measurements and trial.outcome not in FAILURES]
    return min(timed, key=lambda trial: trial.median_ms or 0.0, default=None)


def _scaled(answer: Answer, factor: float) -> Answer:
    if answer.measurement is None:
        return answer
    measured = answer.measurement
    return dataclasses.replace(
        answer,
        measurement=dataclasses.replace(
            measured, samples_ms=tuple(sample * factor for sample in measured.samples_ms),
            telemetry=FrozenMap(measured.telemetry, calibration=round(factor, 5)),
        ),
    )  # fmt: skip
