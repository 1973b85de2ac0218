"""Calibration: several GPUs of one kind share a study, though none is as fast as the other.

Cards of one kind were seen to differ by some percent on the same configs, and not by one factor for all kernels. So
the first GPU of a study sets its scale, and each other one measures the best candidate so far before its first answers
count: what it takes longer or shorter is taken out of everything that it measures for this study. Finals are held on
one GPU, so they need none of it. A GPU that is slower by more than cards differ, or gets wrong what is right elsewhere,
is accused: it throttles, is shared, or is broken. What it has answered and the search does not know yet is asked anew.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Generator, Sequence
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
        scale: the worker whose times are the study's, once there is one.
    """

    question: Callable[[Candidate], Question]
    candidate: Callable[[int], Candidate]
    notices: dict[str, None]
    factors: dict[str, float] = field(default_factory=dict)
    scale: str = ""
    _has_asked_others: bool = False

    def settle(
        self, search: StudySearch, answers: Answers, worker: str, present: Sequence[str]
    ) -> Generator[Want, Got, Answers]:
        """Answers as the study's first GPU would have given them; none of one that gets no more work.

        Args:
            search: of the study, which does not know these answers yet.
            answers: what came back.
            worker: from whom.
            present: who may be given work.
        """
        if worker and worker in present and worker not in self.factors:
            present = yield from self._meet(search, answers, worker, present)
        if worker and worker not in present:
            return dataclasses.replace(answers, answers=())  # Whoever measures them again is to be trusted.
        factor = self.factors.get(worker, 1.0)
        if factor == 1.0:
            return answers
        return dataclasses.replace(answers, answers=tuple(_scaled(answer, factor) for answer in answers.answers))

    def _meet(
        self, search: StudySearch, answers: Answers, worker: str, present: Sequence[str]
    ) -> Generator[Want, Got, Sequence[str]]:
        """Learns how a worker differs from the first; who is left to work, once it has been heard."""
        yardstick = _best(search.trials)
        if yardstick is None:
            if not any(answer.measurement for answer in answers.answers):
                return (yield from self._doubt(answers, worker, present))
            self.factors[worker], self.scale = 1.0, worker
            return present
        got, answer = yield from self._ask(yardstick.number, worker)
        if answer is None:
            return got.present
        if answer.outcome is Outcome.WRONG_RESULT:
            return (yield from self._accuse(worker, f"got {yardstick.config} wrong, which was right on another GPU"))
        if answer.measurement is None or yardstick.median_ms is None:
            return got.present
        factor = self.factors[worker] = yardstick.median_ms / statistics.median(answer.measurement.samples_ms)
        # Nothing makes a GPU faster than it is: of two that differ too much the slower one is at fault.
        slower, times = (worker, 1 / factor) if factor < 1 else (self.scale, factor)
        if slower and not 1 - MOST <= factor <= 1 + MOST:
            evidence = f"takes {times:.2f} times as long for {yardstick.config} as another GPU"
            return (yield from self._accuse(slower, evidence))
        return got.present

    def _doubt(self, answers: Answers, worker: str, present: Sequence[str]) -> Generator[Want, Got, Sequence[str]]:
        """Where all is wrong that a first GPU says: once, another one is asked whether it says so too."""
        wrong = next((a.number for a in answers.answers if a.outcome is Outcome.WRONG_RESULT), None)
        other = next((name for name in present if name != worker), "")
        if wrong is None or not other or self._has_asked_others:
            return present
        self._has_asked_others = True
        got, answer = yield from self._ask(wrong, other)
        if answer is None or answer.measurement is None:
            return got.present
        return (yield from self._accuse(worker, f"got {self.candidate(wrong).config} wrong, which another GPU did not"))

    def _ask(self, number: int, worker: str) -> Generator[Want, Got, tuple[Got, Answer | None]]:
        """What one worker says of one candidate; nothing if it has gone, or the budget."""
        got = yield Want(questions=(self.question(self.candidate(number)),), on=worker)
        (result,) = got.answers
        return got, next(iter(() if isinstance(result, str) else result.answers), None)

    def _accuse(self, worker: str, evidence: str) -> Generator[Want, Got, Sequence[str]]:
        """Who is left to work: without the accused, unless it is the last of its kind."""
        self.notices[f"{worker} {evidence}"] = None
        got = yield Want(accused=(worker, evidence))
        return got.present


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
