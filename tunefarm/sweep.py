"""The sweep: the story of design from an experiment to its pack. It wires the chapters and decides nothing.

plan       studies and candidates                       plan.py
contests   build, explore, finals, crown: one a study   contest.py and finals.py, over bench and search; unify.py
dispatch   who works on what, and whose turn it is      dispatch.py and turns.py, over schedule and fleet
record     every step in the ledger; MLflow mirrors     record
           it, and an Optuna storage its trials         search.mirror
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tunefarm.bench.meter import Answers
from tunefarm.builds import BUILD_S, BuildBoard
from tunefarm.config import Config
from tunefarm.contest import Contest
from tunefarm.dispatch import Dispatch, Done
from tunefarm.errands import measure_job
from tunefarm.errors import InfrastructureError
from tunefarm.minutes import Minutes
from tunefarm.plan import Call, PlannedStudy, located
from tunefarm.record.memo import Memo
from tunefarm.record.tracking import Tracker
from tunefarm.schedule.events import Job
from tunefarm.seams import Ledger, Mirror, NullMirror
from tunefarm.search.transfer import Past
from tunefarm.spec.experiment import Resolved
from tunefarm.study import StudyResult
from tunefarm.turns import Turns
from tunefarm.unify import families, unify
from tunefarm.wants import Got, Steps, Want

EAGER_S = 45.0
"""Everything is compiled beforehand if that is expected to take no longer than this."""


class Watcher(Protocol):
    """Who is told how the sweep goes, for people."""

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        """The sweep begins; `num_builds` is the number of compilations known to be ahead, 0 if it is open."""
        ...

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        """Something was built or measured."""
        ...

    def ended(self, result: StudyResult) -> None:
        """A study has ended."""
        ...


@dataclass(slots=True, eq=False)
class _Desk:
    """A contest, and what it waits for."""

    contest: Contest
    steps: Steps
    want: Want = field(default_factory=Want)
    waiting: set[str] = field(default_factory=set)
    answers: dict[str, Answers | str] = field(default_factory=dict)
    questions: tuple[str, ...] = ()


class Sweep:
    """One sweep in progress.

    Args:
        resolved: the experiment.
        planned: its studies.
        dispatch: who works.
        board: what is built.
        ledger: where everything is recorded.
        memo: what the ledger knew when it was opened.
        tracker: its mirror for people.
        watcher: who is told.
        num_builders: build workers, to judge whether all can be compiled beforehand.
        incumbents: configs of an earlier pack, by study key.
        pasts: what is known of the kernel from elsewhere.
        mirror: where people see the trials of a study as it goes on.
    """

    def __init__(
        self,
        resolved: Resolved,
        planned: Sequence[PlannedStudy],
        *,
        dispatch: Dispatch,
        board: BuildBoard,
        ledger: Ledger,
        memo: Memo,
        tracker: Tracker,
        watcher: Watcher,
        num_builders: int,
        incumbents: dict[str, Config] | None = None,
        pasts: Sequence[Past] = (),
        mirror: Mirror = NullMirror(),  # noqa: B008 (it has no state)
    ) -> None:
        self._mirror = mirror
        self._dispatch, self._board, self._tracker, self._watcher = dispatch, board, tracker, watcher
        self._experiment = resolved.experiment
        self._turns = Turns(dispatch)
        missing = self._missing(planned)
        self._num_builds = missing if missing * BUILD_S / max(1, num_builders) <= EAGER_S else 0
        eager = not missing or self._num_builds > 0
        weight = sum(study.study.weight for study in planned)
        self.contests = [
            _contest(
                resolved,
                study,
                Minutes(study=study.study.key, ledger=ledger, memo=memo),
                eager,
                incumbents or {},
                pasts,
                study.study.weight / weight,
            )
            for study in planned
        ]
        for contest in self.contests:
            contest.show = partial(mirror.show, contest.planned.study)
        self._desks: list[_Desk] = []
        self._parked: list[_Desk] = []
        self._in_finals = False
        self._by_job: dict[str, list[_Desk]] = {}
        self._building: set[str] = set()
        self._num_questions = 0

    @property
    def notices(self) -> list[str]:
        """What people should know of how it went, each once."""
        told = (notice for contest in self.contests for notice in contest.tally.notices)
        return list(dict.fromkeys((*self._dispatch.notices, *told)))

    def _missing(self, planned: Sequence[PlannedStudy]) -> int:
        """Compilations that building every candidate would take."""
        keys = set()
        for study in planned:
            for config in study.candidates:
                slot = self._board.slot(study.call, config)
                if self._board.find(slot, config) is None:
                    keys.add(slot.key)
        return len(keys)

    def run_through(self) -> list[StudyResult]:
        """Runs all contests side by side.

        Returns:
            Their results, in the order of the plan.

        Raises:
            UserError: the workload, a landscape or the ledger cannot serve the sweep.
            InfrastructureError: no worker could do what must be done.
        """
        self._watcher.began(self.contests, self._num_builds)
        results: list[StudyResult] = self._play([(contest, contest.run_through()) for contest in self.contests])
        if over := self._experiment.accept.one_config_over:
            results = self._agree(results, over)
        return results

    def _agree(self, results: Sequence[StudyResult], over: tuple[str, ...]) -> list[StudyResult]:
        """The results once studies that are to share one config do."""
        by_contest = dict(zip(map(id, self.contests), results, strict=True))
        groups = families(list(zip(self.contests, results, strict=True)), over)
        agreed = self._play([(family[0][0], unify(family, over)) for family in groups])
        for family, shared in zip(groups, agreed, strict=True):
            by_contest |= {id(contest): result for (contest, _), result in zip(family, shared, strict=True)}
        for contest in self.contests:
            self._tell(contest, by_contest[id(contest)])
        return [by_contest[id(contest)] for contest in self.contests]

    def _tell(self, contest: Contest, result: StudyResult) -> None:
        self._tracker.study(result, contest.best_ms)
        if result.source:
            self._mirror.show(result.study, result.trials, result.winner)
        self._watcher.ended(result)

    def _play(self, parts: Sequence[tuple[Contest, Steps]]) -> list[Any]:
        """Goes through all steps side by side; what they return, in order."""
        self._desks = [_Desk(contest=contest, steps=steps) for contest, steps in parts]
        ended: dict[int, Any] = {}
        for desk in self._desks:
            self._resume(desk, None, ended)
        self._open_finals(ended)
        self._turns.serve()
        while len(ended) < len(self._desks):
            done = self._dispatch.wait()
            if not done:
                raise InfrastructureError("the sweep waits for nothing", hint="please report this")
            ready = [desk for each in done for desk in self._arrive(each)]
            if self._dispatch.spent:
                ready += self._leave_unbuilt()
            for desk in ready:
                self._resume(desk, self._got(desk), ended)
            self._open_finals(ended)
            self._turns.serve()
            self._watcher.moved(self._board, self.contests)
        return [ended[id(desk)] for desk in self._desks]

    def _resume(self, desk: _Desk, got: Got | None, ended: dict[int, Any]) -> None:
        """Lets a contest go on until it waits for somebody, or has ended."""
        while True:
            try:
                desk.want = next(desk.steps) if got is None else desk.steps.send(got)
            except StopIteration as stop:
                ended[id(desk)] = stop.value
                if not self._experiment.accept.one_config_over:
                    self._tell(desk.contest, stop.value)
                return
            if desk.want.is_final and not self._in_finals:
                self._parked.append(desk)
                return
            self._post(desk)
            if desk.waiting:
                return
            got = self._got(desk)

    def _open_finals(self, ended: dict[int, Any]) -> None:
        """Lets the finals begin once no study explores any more: they all are held in one fresh process a GPU."""
        if not self._parked or len(self._parked) + len(ended) < len(self._desks):
            return
        self._in_finals = True
        parked, self._parked = self._parked, []
        for desk in parked:
            self._post(desk)
            if not desk.waiting:
                self._resume(desk, self._got(desk), ended)

    def _post(self, desk: _Desk) -> None:
        """Hands what a contest wants to the dispatch, save what is known or under way."""
        jobs: list[tuple[Job, Callable[[], object]]] = []
        for call, config in desk.want.builds:
            if job_id := self._build_job(call, config, jobs, priority=2):
                self._wait_for(desk, job_id)
        for call, config in desk.want.ahead:
            self._build_job(call, config, jobs, priority=0)
        asked = []
        for question in desk.want.questions:
            self._num_questions += 1
            asked.append(measure_job(f"measure:{self._num_questions}", question))
            self._wait_for(desk, asked[-1][0].id)
        desk.questions, desk.answers = tuple(job.id for job, _ in asked), {}
        if asked and not desk.want.is_final:
            self._turns.wait(asked, desk.want.claim)
        else:
            jobs += asked
        if jobs:
            self._dispatch.submit(jobs)

    def _wait_for(self, desk: _Desk, job_id: str) -> None:
        # Two checks may need the same build: who is called back twice for it would go on before it has its answers.
        if job_id not in desk.waiting:
            desk.waiting.add(job_id)
            self._by_job.setdefault(job_id, []).append(desk)

    def _build_job(
        self, call: Call, config: Config, jobs: list[tuple[Job, Callable[[], object]]], *, priority: int
    ) -> str:
        """The id of the job that builds a config, submitted if it is new; empty if the build is there."""
        slot = self._board.slot(call, config)
        if self._board.find(slot, config) is not None:
            return ""
        job, run = self._board.job(slot, priority=priority)
        if job.id not in self._building:
            self._building.add(job.id)
            jobs.append((job, run))
        return job.id

    def _arrive(self, done: Done) -> list[_Desk]:
        """Takes in a finished job; returns the contests that have all they waited for."""
        if done.error is not None:
            raise located(done.error, self._experiment)
        self._turns.end(done.job)
        desks = self._by_job.pop(done.job, [])
        if done.job in self._building:
            self._building.discard(done.job)
            self._board.take(done)
        else:
            value = done.value if done.value is not None else (done.condemned or done.given_up)
            if done.given_up and not self._dispatch.spent:
                raise InfrastructureError(f"a measurement was given up: {done.given_up}")
            for desk in desks:
                desk.answers[done.job] = value
        for desk in desks:
            desk.waiting.discard(done.job)
        return [desk for desk in desks if not desk.waiting]

    def _leave_unbuilt(self) -> list[_Desk]:
        """Desks that wait for builds which nobody will measure any more, freed of that."""
        left = [desk for desk in self._desks if desk.waiting and not desk.questions and not desk.want.essential]
        for desk in left:
            for job_id in desk.waiting:
                self._by_job[job_id].remove(desk)
            desk.waiting.clear()
        return left

    def _got(self, desk: _Desk) -> Got:
        found = [self._board.find(self._board.slot(call, config), config) for call, config in desk.want.builds]
        return Got(
            built=tuple(built for built in found if built is not None),
            answers=tuple(desk.answers[name] for name in desk.questions),
            spent=self._dispatch.spent,
        )


def _contest(
    resolved: Resolved, planned: PlannedStudy, minutes: Minutes, eager: bool, incumbents: dict[str, Config],
    pasts: Sequence[Past], share: float,
) -> Contest:  # fmt: skip
    """A contest on the terms under which it was first begun, if the ledger knows them: they decide what it asks."""
    incumbent = incumbents.get(minutes.study)
    begun = minutes.memo.study(minutes.study)
    if begun is not None:
        eager = begun["eager"]
        incumbent = Config.from_json(begun["incumbent"]) if begun["incumbent"] else None
        incumbent = incumbent if incumbent in planned.candidates else None
    return Contest(
        experiment=resolved.experiment, planned=planned, minutes=minutes, eager=eager, incumbent=incumbent,
        kernel=resolved.workload.signature.kernel, compares_with_default=resolved.workload.compares_with_default,
        pasts=pasts, share=share,
    )  # fmt: skip
