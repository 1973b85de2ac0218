"""Contest: one study's way through the chapters, from its candidates to its winner.

A contest is a generator. It yields what it wants done (a `Want`) and is resumed with what came of it (a `Got`), so the
story of a study reads from top to bottom while a sweep runs many of them side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tunefarm.bench.meter import Answer, Answers, Candidate, Question, answer_from_json, answer_to_json
from tunefarm.bench.worker import Built
from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.minutes import UNMEASURED, Minutes
from tunefarm.plan import PlannedStudy
from tunefarm.search.decisions import Request
from tunefarm.search.rungs import RUNGS
from tunefarm.search.search import StudySearch
from tunefarm.spec.experiment import Experiment
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FINAL, PREPARE, Failure, Outcome, Trial, to_json

NUM_SAMPLED = 16
"""Candidates compiled for a device that nobody can measure, where not everything is compiled beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a contest wants done before it goes on.

    Attributes:
        builds: configs that must be compiled.
        questions: to be measured.
        ahead: configs worth compiling meanwhile; nobody waits for them.
        essential: the builds are wanted though the budget is spent, as for finals.
    """

    builds: tuple[Config, ...] = ()
    questions: tuple[Question, ...] = ()
    ahead: tuple[Config, ...] = ()
    essential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What came of a want.

    Attributes:
        built: by config, in the order wanted.
        answers: by question, in the order wanted; a string says why a question was given up for good.
        spent: the budget that is spent, or empty; builds and answers may be missing then.
    """

    built: tuple[Built, ...] = ()
    answers: tuple[Answers | str, ...] = ()
    spent: str = ""


Steps: TypeAlias = Generator[Want, Got, Any]


@dataclass(slots=True)
class _Costs:
    build_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    num_compiled: int = 0
    startup_s: float = 0.0


@dataclass(slots=True)
class Contest:
    """One study in progress.

    Attributes:
        experiment: whose search, accept and timer apply.
        planned: the study and its candidates.
        minutes: where every step is recorded, and what an earlier driver found out.
        eager: compile every candidate before the first is measured.
        incumbent: the config an earlier pack holds for this problem.
        best_ms: best median after each measured candidate, for people.
        notices: what the meter wants people to know, each once.
    """

    experiment: Experiment
    planned: PlannedStudy
    minutes: Minutes
    eager: bool
    incumbent: Config | None = None
    best_ms: list[float] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)
    _built: dict[Config, Built] = field(default_factory=dict)
    _costs: _Costs = field(default_factory=_Costs)
    _toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    _reference_ms: float | None = None
    _spent: str = ""

    def run_through(self) -> Generator[Want, Got, StudyResult]:
        """The story of the study."""
        planned = self.planned
        self.minutes.note(
            "study", label=planned.study.label, candidates=len(planned.candidates), points=planned.num_points,
            removed=dict(planned.removed), meter=planned.target.meter, eager=self.eager,
            incumbent=self.incumbent.to_json() if self.incumbent else None,
        )  # fmt: skip
        if planned.skipped or not planned.candidates:
            return self._without_trials()
        search = self._search()
        if self.eager:
            # A kernel that never compiles is given up after a few attempts, so there may be more than one round.
            while not self._spent and (numbers := search.wants_builds(len(search.trials))):
                yield from self._build(search, numbers)
        if not planned.target.meter and not search.ended:
            if not self.eager:
                leaders = [bucket.representatives[0] for bucket in search.form_buckets()][:NUM_SAMPLED]
                yield from self._build(search, leaders)
            search.form_buckets()
            return self._result(search, Status.NOT_MEASURED, _no_meter(planned, self._num_built))
        yield from self._explore(search)
        winner = yield from self._finals(search)
        if winner is None:
            reason = self._ended(search) or "no candidate could be measured"
            self.minutes.note("no_winner", status=Status.NO_WINNER.value, reason=reason)
            return self._result(search, Status.NO_WINNER, reason)
        self.minutes.note("winner", winner=to_json(winner))
        return dataclasses.replace(self._result(search, Status.WINNER, self._ended(search)), winner=winner)

    def _ended(self, search: StudySearch) -> str:
        return search.ended or (f"budget {self._spent} is spent" if self._spent else "")

    def _search(self) -> StudySearch:
        experiment, planned = self.experiment, self.planned
        return StudySearch(
            configs=planned.candidates,
            problem=planned.study.problem,
            device=planned.study.device,
            default=planned.default,
            incumbent=self.incumbent,
            sampler=experiment.search.sampler,
            threshold=experiment.search.threshold,
            batch=experiment.search.batch,
            max_trials=experiment.budget.trials,
            min_gain=experiment.accept.min_gain,
            seed=experiment.search.seed,
        )

    @property
    def startup_s(self) -> float:
        """Seconds that measuring processes took to start, as far as this study met them first."""
        return self._costs.startup_s

    # ---- build ----

    def _build(self, search: StudySearch, numbers: Iterable[int], *, essential: bool = False) -> Steps:
        """Compiles candidates, and tells the search of those that cannot run and of those that are equal."""
        trials = search.trials
        wanted = [n for n in numbers if trials[n].outcome is Outcome.OK and trials[n].build is None]
        unbuilt = [trials[n] for n in wanted if trials[n].config not in self._built]
        if missing := [trial.config for trial in unbuilt if not self._known(trial)]:
            got = yield Want(builds=tuple(missing), essential=essential)
            self._spent = got.spent
            for built in got.built:
                self._built[built.config] = built
                self._costs.build_s += built.build.build_s if built.build else 0.0
        told = [self._after_build(trials[n]) for n in wanted if trials[n].config in self._built]
        for trial in told:
            if trial.failure is not None:
                failed = Answer(number=trial.number, outcome=trial.outcome, failure=trial.failure)
                self.minutes.answered(trial.config, UNMEASURED, failed)
            elif trial.build is not None:
                self.minutes.built(trial.config, trial.build)
        self.minutes.decided(search.built(told), search.trials)

    def _known(self, trial: Trial) -> bool:
        """Whether the ledger says that a candidate cannot be built; the good builds are in the store."""
        known = self.minutes.remember(trial.number, trial.config, UNMEASURED)
        if known is None:
            return False
        self._built[trial.config] = Built(config=trial.config, outcome=known.outcome, failure=known.why)
        return True

    def _after_build(self, trial: Trial) -> Trial:
        built = self._built[trial.config].judged(self.planned.study.device)
        return dataclasses.replace(trial, build=built.build, outcome=built.outcome, failure=built.failure)

    @property
    def _num_built(self) -> int:
        return sum(built.build is not None for built in self._built.values())

    # ---- explore ----

    def _explore(self, search: StudySearch) -> Steps:
        """Batch after batch: compile what is asked, measure it on its rung, let the search decide."""
        while not self._spent and (requests := search.ask()):
            yield from self._build(search, sorted({request.number for request in requests}))
            answers = yield from self._measure(search, search.pending)
            for request, answer in sorted(answers.items(), key=lambda item: item[0].number):
                if answer.measurement is not None:
                    decisions = search.tell(request.number, answer.measurement)
                    self._watch(search)
                else:
                    assert answer.failure is not None
                    decisions = search.tell(request.number, (answer.outcome, answer.failure))
                self.minutes.decided(decisions, search.trials)

    def _watch(self, search: StudySearch) -> None:
        medians = [t.median_ms for t in search.trials if t.median_ms is not None]
        if len(medians) > len(self.best_ms):
            self.best_ms.append(min(medians))

    def _measure(self, search: StudySearch, requests: Sequence[Request]) -> Generator[Want, Got, dict[Request, Answer]]:
        """Answers to requests: from the ledger where it knows them, else from a meter while the budget lasts."""
        trials = search.trials
        remembered = ((r, self.minutes.remember(r.number, trials[r.number].config, r.rung)) for r in requests)
        answers = {request: answer for request, answer in remembered if answer is not None}
        fresh = [request for request in requests if request not in answers]
        while fresh and not self._spent:
            groups = [[r for r in fresh if r.rung == rung] for rung in sorted({r.rung for r in fresh})]
            found = yield from self._ask(search, groups)
            assert found or self._spent, "a meter answers at least its first candidate"
            for request, answer in found.items():
                # What befell the whole problem may not befall it again: a later sweep is to try.
                if answer.failure is None or answer.failure.stage != PREPARE:
                    self.minutes.answered(trials[request.number].config, request.rung, answer)
            answers |= found
            fresh = [request for request in fresh if request not in answers]
        return answers

    def _ask(
        self, search: StudySearch, groups: Sequence[Sequence[Request]]
    ) -> Generator[Want, Got, dict[Request, Answer]]:
        questions = [self._question(search, [r.number for r in group], group[0].rung) for group in groups]
        # While the GPU measures, the CPUs compile what the search is likely to ask for next. A replay takes no time.
        idle = self.eager or self.planned.target.meter == "replay"
        ahead = () if idle else search.wants_builds(self.experiment.search.batch)
        got = yield Want(questions=tuple(questions), ahead=tuple(search.trials[n].config for n in ahead))
        self._spent = got.spent
        found: dict[Request, Answer] = {}
        lost: list[Request] = []
        for group, result in zip(groups, got.answers, strict=True):
            if not isinstance(result, str):
                self._count(result)
                by_number = {request.number: request for request in group}
                found |= {by_number[answer.number]: answer for answer in result.answers}
            elif len(group) > 1:
                lost += group
            elif not self._spent:
                found[group[0]] = lost_answer(group[0].number, result)
        if lost and not self._spent:
            # Each of a lost batch is tried by itself, so that one candidate cannot cost the others.
            found |= yield from self._ask(search, [[request] for request in lost])
        return found

    def _question(self, search: StudySearch, numbers: Sequence[int], rung: int) -> Question:
        planned, accept = self.planned, self.experiment.accept
        trials = search.trials
        replay = planned.target.meter == "replay"
        return Question(
            ref=self.experiment.ref,
            device=planned.study.device,
            problem=planned.study.problem,
            variables=planned.study.variables,
            candidates=tuple(
                Candidate(
                    number=n, config=trials[n].config, build=trials[n].build,
                    artifact=None if replay else self._built[trials[n].config].artifact,
                )
                for n in numbers
            ),
            rung=rung,
            num_samples=RUNGS[rung].num_samples,
            interleaved=rung == FINAL,
            timer=self.experiment.timer,
            atol=accept.atol,
            rtol=accept.rtol,
            seed=self.experiment.search.seed,
            landscape=str(Path(planned.target.landscape).resolve()) if replay else "",
        )  # fmt: skip

    def _count(self, answers: Answers) -> None:
        if self.planned.target.meter == "gpu":
            self._costs.held_s += answers.busy_s
            self._costs.busy_s += sum(a.measurement.busy_s for a in answers.answers if a.measurement)
            self._costs.startup_s += answers.startup_s
        self._costs.num_compiled += answers.num_compiled
        if answers.num_compiled:
            self.notices["measuring processes compiled kernels: the call launches others than the tuned one"] = None
        self._toolchain = answers.toolchain
        self.notices.update(dict.fromkeys(answers.notices))
        if answers.reference_ms is not None:
            self._reference_ms = answers.reference_ms

    # ---- finals ----

    def _finals(self, search: StudySearch) -> Steps:
        """The finalists and the default, interleaved on one GPU in one sitting."""
        numbers = search.finalists()
        if not numbers:
            return None
        known = self.minutes.memo.finals(self.minutes.study)
        configs = [search.trials[n].config.key for n in numbers]
        if known is not None and known["configs"] == configs:
            self._toolchain = FrozenMap(known["toolchain"])
            self._reference_ms = known["reference_ms"]
            told = [answer_from_json(n, data) for n, data in zip(numbers, known["measurements"], strict=True)]
        else:
            yield from self._build(search, numbers, essential=True)
            told = yield from self._hold_finals(search, numbers)
            self.minutes.note(
                "finals", configs=configs, measurements=[answer_to_json(a) for a in told],
                toolchain=dict(self._toolchain), reference_ms=self._reference_ms,
            )  # fmt: skip
        return search.crown({a.number: a.measurement or (a.outcome, a.why) for a in told})

    def _hold_finals(self, search: StudySearch, numbers: Sequence[int]) -> Generator[Want, Got, list[Answer]]:
        """Finals, held again without those that break them: only times of one sitting can be compared."""
        told: dict[int, Answer] = {}
        while left := [number for number in numbers if number not in told]:
            found = yield from self._sit(search, [left])
            whole = len(found) == len(left)
            if not found:
                # The process died, of whom nobody knows: each sits alone, and who does not survive that is out.
                found = yield from self._sit(search, [[number] for number in left])
                whole = all(answer.measurement for answer in found.values())
            broken = {number: answer for number, answer in found.items() if answer.measurement is None}
            assert whole or broken, "a sitting that ends early says who broke it"
            told |= found if whole else broken
        return [told[number] for number in numbers]

    def _sit(self, search: StudySearch, groups: Sequence[Sequence[int]]) -> Generator[Want, Got, dict[int, Answer]]:
        got = yield Want(questions=tuple(self._question(search, group, FINAL) for group in groups))
        found: dict[int, Answer] = {}
        for group, result in zip(groups, got.answers, strict=True):
            if not isinstance(result, str):
                self._count(result)
                found |= {answer.number: answer for answer in result.answers}
            elif len(group) == 1:
                found[group[0]] = lost_answer(group[0], result)
        return found

    def _without_trials(self) -> StudyResult:
        planned = self.planned
        skipped = bool(planned.skipped)
        status = Status.SKIPPED if skipped else Status.NO_WINNER
        reason = planned.skipped or "no point of the space is legal here: " + "; ".join(
            f"{count} removed by {rule}" for rule, count in planned.removed.items()
        )
        self.minutes.note("skipped" if skipped else "no_winner", status=status.value, reason=reason)
        return StudyResult(
            study=planned.study, status=status, reason=reason, removed=planned.removed, num_points=planned.num_points
        )

    def _result(self, search: StudySearch, status: Status, reason: str) -> StudyResult:
        planned = self.planned
        trials = search.trials
        measured = [m for t in trials for m in t.measurements]
        return StudyResult(
            study=planned.study,
            status=status,
            reason=reason,
            trials=trials,
            source=measured[-1].source if measured else "",
            toolchain=self._toolchain,
            timer=self.experiment.timer,
            removed=planned.removed,
            num_points=planned.num_points,
            num_buckets=len(search.buckets),
            closed=search.closed,
            build_s=self._costs.build_s,
            busy_s=self._costs.busy_s,
            held_s=self._costs.held_s,
            num_compiled=self._costs.num_compiled,
            num_bytes=planned.num_bytes,
            flops=planned.flops,
            reference_ms=self._reference_ms,
        )


def _no_meter(planned: PlannedStudy, num_built: int) -> str:
    return (
        f"nothing was measured: no {planned.study.device.arch} GPU and no landscape; {num_built} of "
        f"{len(planned.candidates)} candidates were compiled and checked for legality"
    )


def lost_answer(number: int, reason: str) -> Answer:
    """The answer for a candidate that no process survived, or survived in time."""
    timed_out = "killed after" in reason
    return Answer(
        number=number, outcome=Outcome.TIMEOUT if timed_out else Outcome.CRASHED,
        failure=Failure(stage="measure", kind="Timeout" if timed_out else "WorkerLost", message=reason),
    )  # fmt: skip
