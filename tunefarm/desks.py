"""Desks: the contests of one or several sweeps side by side; what each waits for, and who does it.

Whatever an experiment's workload, ledger or landscape breaks is its own: its contests are left, the others go on.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tunefarm.bench.meter import Answers
from tunefarm.builds import BuildBoard
from tunefarm.config import Config
from tunefarm.contest import Contest
from tunefarm.dispatch import Dispatch, Done
from tunefarm.errands import measure_job
from tunefarm.errors import InfrastructureError
from tunefarm.plan import Call, located
from tunefarm.schedule.events import Job
from tunefarm.spec.experiment import Experiment
from tunefarm.turns import Turns
from tunefarm.wants import Got, Steps, Want


class Owner(Protocol):
    """Whose contests they are.

    Attributes:
        error: what broke it; its contests are left then.
    """

    error: Exception | None

    @property
    def experiment(self) -> Experiment:
        """What it is about."""
        ...

    def flush(self) -> None:
        """Makes durable what was written of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Steps that a contest has to go through.

    Attributes:
        contest: whose.
        steps: the steps.
        then: is given what they return.
    """

    contest: Contest
    steps: Steps
    then: Callable[[Any], None]


Opening: TypeAlias = tuple[Owner, Callable[[], Sequence[Part]]]
"""Who begins, and what gives its parts when its turn comes: what this takes in time, workers use for those before."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Desk:
    """A part, and what it waits for.

    Attributes:
        explores: it has not ended and may yet want what is no final.
    """

    owner: Owner
    part: Part
    want: Want = field(default_factory=Want)
    waiting: set[str] = field(default_factory=set)
    answers: dict[str, Answers | str] = field(default_factory=dict)
    workers: dict[str, str] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    explores: bool = True

    @property
    def place(self) -> str:
        """Whose GPUs it needs; those that replay share workers, and are one place."""
        planned = self.part.contest.planned
        return planned.study.device.key if planned.target.meter == "gpu" else ""


class Desks:
    """Where contests go on side by side.

    Args:
        dispatch: who works.
        board: what is built.
        moved: called whenever something was built or measured.
    """

    def __init__(self, dispatch: Dispatch, board: BuildBoard, moved: Callable[[], None]) -> None:
        self._dispatch, self._board, self._moved = dispatch, board, moved
        self._turns = Turns(dispatch)
        self._open: list[_Desk] = []
        # By place: of those that want their finals, and of how many others there may be no finals yet.
        self._parked: dict[str, list[_Desk]] = {}
        self._exploring: Counter[str] = Counter()
        self._in_finals: set[str] = set()
        self._by_job: dict[str, list[_Desk]] = {}
        self._building: dict[str, list[Owner]] = {}
        self._num_questions = 0

    def play(self, openings: Iterable[Opening]) -> None:
        """Goes through all parts, until each has ended or its owner is broken.

        Raises:
            InfrastructureError: no worker could do what must be done.
        """
        coming = deque(openings)
        owners = [owner for owner, _ in coming]
        while coming or self._open:
            if coming:
                self._seat(*coming.popleft())
            if not coming:
                self._open_finals()
            self._turns.serve()
            # Once for all that came, when jobs have been handed out: a disk may take as long as a GPU over a candidate.
            for owner in owners:
                with self._guarded(owner):
                    owner.flush()
            if not coming and not self._open:
                break
            done = self._dispatch.news() if coming else self._dispatch.wait()
            if not done:
                if coming:
                    continue
                raise InfrastructureError("the sweep waits for nothing", hint="please report this")
            ready = [desk for each in done for desk in self._arrive(each)]
            if self._dispatch.spent:
                ready += self._leave_unbuilt()
            for desk in ready:
                if desk.owner.error is None:
                    with self._guarded(desk.owner):
                        self._resume(desk, self._got(desk))
            self._moved()

    def _seat(self, owner: Owner, opening: Callable[[], Sequence[Part]]) -> None:
        with self._guarded(owner):
            desks = [_Desk(owner=owner, part=part) for part in opening()]
            self._open += desks
            self._exploring.update(desk.place for desk in desks)
            for desk in desks:
                self._resume(desk, None)

    @contextlib.contextmanager
    def _guarded(self, owner: Owner) -> Iterator[None]:
        try:
            yield
        except Exception as e:  # whatever it is, the others are none the worse for it
            self._leave(owner, e)

    def _leave(self, owner: Owner, error: Exception) -> None:
        owner.error = owner.error or located(error, owner.experiment)
        for desk in self._open:
            if desk.owner is owner:
                self._end_exploring(desk)
        self._open = [desk for desk in self._open if desk.owner is not owner]
        self._parked = {
            place: [desk for desk in parked if desk.owner is not owner] for place, parked in self._parked.items()
        }

    def _end_exploring(self, desk: _Desk) -> None:
        self._exploring[desk.place] -= desk.explores
        desk.explores = False

    def _resume(self, desk: _Desk, got: Got | None) -> None:
        """Lets a contest go on until it waits for somebody, or has ended."""
        steps = desk.part.steps
        while True:
            try:
                desk.want = next(steps) if got is None else steps.send(got)
            except StopIteration as stop:
                self._open.remove(desk)
                self._end_exploring(desk)
                desk.part.then(stop.value)
                return
            if desk.want.is_final and desk.place not in self._in_finals:
                self._parked.setdefault(desk.place, []).append(desk)
                self._end_exploring(desk)
                return
            self._post(desk)
            if desk.waiting:
                return
            got = self._got(desk)

    def _open_finals(self) -> None:
        """Lets finals begin where no study explores any more: all of a GPU are held in one fresh process."""
        for place in [place for place in self._parked if not self._exploring[place]]:
            self._in_finals.add(place)
            for desk in self._parked.pop(place):
                if desk.owner.error is None:
                    with self._guarded(desk.owner):
                        self._post(desk)
                        if not desk.waiting:
                            self._resume(desk, self._got(desk))

    def _post(self, desk: _Desk) -> None:
        """Hands what a contest wants to the dispatch, save what is known or under way."""
        if desk.want.accused:
            self._dispatch.accuse(*desk.want.accused)
        jobs: list[tuple[Job, Callable[[], object]]] = []
        for call, config in desk.want.builds:
            if job_id := self._build_job(desk.owner, call, config, jobs, priority=2):
                self._wait_for(desk, job_id)
        for call, config in desk.want.ahead:
            self._build_job(desk.owner, call, config, jobs, priority=0)
        asked = []
        for question in desk.want.questions:
            self._num_questions += 1
            name = f"measure:{self._num_questions}"
            asked.append(measure_job(name, question, self._dispatch, desk.want.on))
            self._wait_for(desk, asked[-1][0].id)
        desk.questions, desk.answers, desk.workers = tuple(job.id for job, _ in asked), {}, {}
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
        self, owner: Owner, call: Call, config: Config, jobs: list[tuple[Job, Callable[[], object]]], *, priority: int
    ) -> str:
        """The id of the job that builds a config, submitted if it is new; empty if the build is there."""
        slot = self._board.slot(call, config)
        if self._board.find(slot, config) is not None:
            return ""
        job, run = self._board.job(slot, priority=priority)
        owners = self._building.setdefault(job.id, [])
        if not owners:
            jobs.append((job, run))
        if owner not in owners:
            owners.append(owner)
        return job.id

    def _arrive(self, done: Done) -> list[_Desk]:
        """Takes in a finished job; returns the contests that have all they waited for."""
        self._turns.end(done.job)
        builders = self._building.pop(done.job, [])
        desks = [desk for desk in self._by_job.pop(done.job, []) if desk.owner.error is None]
        try:
            if done.error is not None:
                raise done.error
            if builders:
                self._board.take(done)
            elif done.given_up and not (self._dispatch.spent or all(desk.want.on for desk in desks)):
                raise InfrastructureError(f"a measurement was given up: {done.given_up}")
        except Exception as e:
            for owner in dict.fromkeys([*builders, *(desk.owner for desk in desks)]):
                self._leave(owner, e)
            return []
        for desk in desks:
            if not builders:
                desk.answers[done.job] = done.value if done.value is not None else (done.condemned or done.given_up)
                desk.workers[done.job] = done.worker
            desk.waiting.discard(done.job)
        return [desk for desk in desks if not desk.waiting]

    def _leave_unbuilt(self) -> list[_Desk]:
        """Desks that wait for builds which nobody will measure any more, freed of that."""
        left = [desk for desk in self._open if desk.waiting and not desk.questions and not desk.want.essential]
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
            workers=tuple(desk.workers[name] for name in desk.questions),
            present=tuple(self._dispatch.measuring(desk.part.contest.planned.study.device.key)),
            spent=self._dispatch.spent,
        )
