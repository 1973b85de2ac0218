"""Errands: builds and questions without a search, for verbs that want all of them done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tunefarm.bench.faults import CEILING_S
from tunefarm.bench.meter import Answers, Candidate, Question
from tunefarm.bench.worker import Built, measure
from tunefarm.builds import BuildBoard
from tunefarm.config import Config
from tunefarm.dispatch import MEASURE_TIMEOUT_S, Dispatch, Done
from tunefarm.errors import InfrastructureError
from tunefarm.plan import Call, PlannedStudy, located
from tunefarm.schedule.events import Job
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import FINAL

Advance = Callable[[str, int], None]
"""Told of progress: what (`built` or `measured`), and how many more."""


def measure_job(name: str, question: Question, dispatch: Dispatch, on: str = "") -> tuple[Job, Callable[[], object]]:
    """The job that answers a question.

    Args:
        name: of the job, unique among those not yet done.
        question: what to answer; a replay is answered by any measuring worker where none stands for its device.
        dispatch: who works.
        on: the worker that is to answer; empty for any that holds the device.
    """
    anywhere = bool(question.landscape) and not dispatch.num_measuring(question.device.key)
    is_final = question.rung == FINAL
    job = Job(
        id=name,
        role="measure",
        where="" if anywhere else question.device.key,
        on=on,
        cost_s=0.02 * len(question.candidates),
        priority=1 if is_final else 0,
        timeout_s=MEASURE_TIMEOUT_S + CEILING_S * len(question.candidates),
        essential=is_final,
    )
    return job, functools.partial(measure, question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errands:
    """Who runs them.

    Attributes:
        resolved: the experiment.
        dispatch: who works.
        board: what is built.
        advance: told of progress.
    """

    resolved: Resolved
    dispatch: Dispatch
    board: BuildBoard
    advance: Advance

    def build(self, wanted: Iterable[tuple[Call, Config]]) -> None:
        """Compiles what is not built yet.

        Raises:
            UserError: the workload cannot serve a problem.
            InfrastructureError: no worker could do it.
        """
        jobs = {}
        for call, config in wanted:
            slot = self.board.slot(call, config)
            if self.board.find(slot, config) is None:
                job, run = self.board.job(slot)
                jobs[job.id] = job, run
        for done in self._run(list(jobs.values())):
            self.board.take(done)
            self.advance("built", 1)

    def built(self, call: Call, config: Config) -> Built:
        """What became of a build, with the verdict of the call's device."""
        built = self.board.find(self.board.slot(call, config), config)
        assert built is not None
        return built.judged(call.device)

    def candidate(self, call: Call, number: int, config: Config) -> Candidate:
        """A config that was built, as a meter needs it."""
        return self.built(call, config).candidate(number)

    def baseline(self, study: PlannedStudy) -> Candidate | None:
        """The default config, which was built, where its outputs are the right ones; None elsewhere, or if it fails."""
        if not self.resolved.workload.compares_with_default or study.default is None or study.target.meter != "gpu":
            return None
        built = self.built(study.call, study.default)
        return built.candidate(-1) if built.failure is None else None

    def ask(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answers | str]]:
        """Answers to questions as they come; a string says why there is none.

        Raises:
            UserError: the workload cannot serve a problem.
            InfrastructureError: no worker could do it.
        """
        asked = {f"measure:{number}": question for number, question in enumerate(questions)}
        for done in self._run([measure_job(name, question, self.dispatch) for name, question in asked.items()]):
            yield asked[done.job], done.value if isinstance(done.value, Answers) else done.condemned or str(done.value)

    def _run(self, jobs: Sequence[tuple[Job, Callable[[], object]]]) -> Iterator[Done]:
        self.dispatch.submit(jobs)
        left = len(jobs)
        while left:
            done = self.dispatch.wait()
            if not done:
                raise InfrastructureError("jobs wait for nothing", hint="please report this")
            for each in done:
                if each.error is not None:
                    raise located(each.error, self.resolved.experiment)
                if each.given_up:
                    raise InfrastructureError(f"a job was given up: {each.given_up}")
                left -= 1
                yield each
