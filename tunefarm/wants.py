"""What a contest wants done before it goes on, and what it gets."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.worker import Built
from tunefarm.config import Config
from tunefarm.plan import Call
from tunefarm.schedule.events import OVERDUE
from tunefarm.spec.experiment import Experiment
from tunefarm.trial import FINAL, Failure, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a contest wants done before it goes on.

    Attributes:
        builds: what must be compiled: a config for a call.
        questions: to be measured.
        ahead: what is worth compiling meanwhile; nobody waits for it.
        claim: how much the study expects of it, from 0 to 1: of several that wait for a worker the greatest is served
            first. What is expected is a share of the study's time, weighted by the study's share of all weights; 1
            while nothing is known.
        essential: the builds are wanted though the budget is spent, as for finals.
        on: the worker that is to answer; empty for any that holds the device.
        accused: a worker whose answers are not to be trusted, and the evidence.
    """

    builds: tuple[tuple[Call, Config], ...] = ()
    questions: tuple[Question, ...] = ()
    ahead: tuple[tuple[Call, Config], ...] = ()
    claim: float = 1.0
    essential: bool = False
    on: str = ""
    accused: tuple[str, str] | None = None

    @property
    def is_final(self) -> bool:
        """Whether the study explores no more."""
        return self.essential or any(question.rung == FINAL for question in self.questions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What came of a want.

    Attributes:
        built: in the order wanted.
        answers: by question, in the order wanted; a string says why a question was given up for good.
        workers: by question, who answered; empty where nobody did.
        present: the workers that hold the device now.
        spent: the budget that is spent, or empty; builds and answers may be missing then.
    """

    built: tuple[Built, ...] = ()
    answers: tuple[Answers | str, ...] = ()
    workers: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    spent: str = ""


Steps: TypeAlias = Generator[Want, Got, Any]


def question(experiment: Experiment, call: Call, candidates: Iterable[Candidate], **more: Any) -> Question:
    """A question about candidates of a call, on the experiment's terms.

    Args:
        experiment: whose timer, tolerances and seed apply.
        call: what is launched.
        candidates: to be measured.
        more: the rest of the question.
    """
    accept = experiment.accept
    return Question(
        ref=call.ref, device=call.device, problem=call.problem, variables=call.variables, candidates=tuple(candidates),
        timer=experiment.timer, atol=accept.atol, rtol=accept.rtol, seed=experiment.search.seed, **more,
    )  # fmt: skip


def lost_answer(number: int, reason: str) -> Answer:
    """The answer for a candidate that no process survived, or survived in time."""
    timed_out = OVERDUE in reason
    return Answer(
        number=number, outcome=Outcome.TIMEOUT if timed_out else Outcome.CRASHED,
        failure=Failure(stage="measure", kind="Timeout" if timed_out else "WorkerLost", message=reason),
    )  # fmt: skip
