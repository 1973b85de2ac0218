"""Contest: one study's way through the chapters, from its candidates to its winner.

A contest is a generator. It yields what it wants done (a `Want`) and is resumed with what came of it (a `Got`), so the
story of a study reads from top to bottom while a sweep runs many of them side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.worker import Built
from tunefarm.calibration import Calibration
from tunefarm.config import LIBRARY, Config, counted
from tunefarm.finals import Finals
from tunefarm.minutes import UNMEASURED, Minutes
from tunefarm.plan import Call, PlannedStudy
from tunefarm.replaying import recorded_builds
from tunefarm.search.decisions import Request
from tunefarm.search.rungs import FINALS, LAST, RUNGS, Rung
from tunefarm.search.search import StudySearch
from tunefarm.search.stopping import NEGLIGIBLE, NUM_ALIKE
from tunefarm.search.transfer import Past
from tunefarm.spec.experiment import Experiment
from tunefarm.study import Status, StudyResult
from tunefarm.tally import Tally
from tunefarm.trial import PREPARE, Measurement, Outcome, Trial, describe, to_json
from tunefarm.wants import Got, Steps, Want, lost_answer
from tunefarm.wants import question as ask

NUM_SAMPLED = 16
"""Candidates compiled for a device that nobody can measure, where not everything is compiled beforehand."""


@dataclass(slots=True)
class Contest:
    """One study in progress.

    Attributes:
        experiment: whose search, accept and timer apply.
        planned: the study and its candidates.
        minutes: where every step is recorded, and what an earlier driver found out.
        eager: compile every candidate before the first is measured.
        incumbent: the config an earlier pack holds for this problem.
        kernel: name of the kernel.
        compares_with_default: the default config's outputs are the right ones.
        pasts: what is known of its other studies.
        share: of the study's weight in that of all studies of the sweep.
        best_ms: best median after each measured candidate, for people.
        tally: what it costs, and what the meter wants people to know.
        finals: its end, once it is reached.
        search: how its candidates stand, once it has begun.
        show: told how the trials stand after each batch.
    """

    experiment: Experiment
    planned: PlannedStudy
    minutes: Minutes
    eager: bool
    incumbent: Config | None = None
    kernel: str = ""
    compares_with_default: bool = False
    pasts: Sequence[Past] = ()
    share: float = 1.0
    best_ms: list[float] = field(default_factory=list)
    tally: Tally = field(init=False)
    finals: Finals | None = None
    search: StudySearch | None = None
    show: Callable[[Sequence[Trial]], None] = lambda trials: None
    _built: dict[Config, Built] = field(default_factory=dict)
    _spent: str = ""
    _calibration: Calibration | None = None

    def __post_init__(self) -> None:
        self._built |= recorded_builds(self.planned)
        self.tally = Tally(holds_gpu=self.planned.target.meter == "gpu")

    def run_through(self) -> Generator[Want, Got, StudyResult]:
        """The story of the study."""
        planned = self.planned
        self._open()
        if planned.skipped or not planned.candidates:
            return self._without_trials()
        search = self.search = self._search()
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
        self.minutes.bucketed(search.buckets, search.trials)
        self.finals = self._finals(search)
        winner = yield from self.finals.run_through()
        left = search.left(self._spent)
        told = dataclasses.asdict(left)
        if winner is None:
            reason = _failed_late(search.trials) or self._ended(search) or "no candidate could be measured"
            self.minutes.note("no_winner", status=Status.NO_WINNER.value, reason=reason, left=told)
            return dataclasses.replace(self._result(search, Status.NO_WINNER, reason), left=left)
        self.tally.weigh(planned.study.label, winner, self.experiment.timer)
        self.minutes.note("winner", winner=to_json(winner), left=told)
        result = self._result(search, Status.WINNER, self._ended(search))
        return dataclasses.replace(result, winner=winner, left=left)

    def compare(self) -> Generator[Want, Got, dict[Config, Measurement]]:
        """One sitting of all candidates in the place of a search and a winner; those that are not fit are left out."""
        self._open()
        self.finals = self._finals(self._search())
        return (yield from self.finals.sit(self.planned.candidates, "probed"))

    def _open(self) -> None:
        planned = self.planned
        self.minutes.note(
            "study", label=planned.study.label, candidates=len(planned.candidates), points=planned.num_points,
            removed=dict(planned.removed), meter=planned.target.meter, eager=self.eager,
            incumbent=self.incumbent.to_json() if self.incumbent else None, kernel=self.kernel,
            problem=planned.study.problem.to_json(), device=planned.study.device.to_json(),
            num_bytes=planned.num_bytes, flops=planned.flops,
        )  # fmt: skip

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
            pasts=self.pasts,
        )

    # ---- build ----

    def _build(self, search: StudySearch, numbers: Iterable[int], *, essential: bool = False) -> Steps:
        """Compiles candidates, and tells the search of those that cannot run and of those that are equal."""
        trials = search.trials
        points = [n for n in numbers if trials[n].config != LIBRARY]
        wanted = [n for n in points if trials[n].outcome is Outcome.OK and trials[n].build is None]
        unbuilt = [trials[n] for n in wanted if trials[n].config not in self._built]
        if missing := [trial.config for trial in unbuilt if not self._known(trial)]:
            call = self.planned.call
            got = yield Want(builds=tuple((call, config) for config in missing), essential=essential)
            self._spent = got.spent
            for built in got.built:
                self._built[built.config] = built
                self.tally.build_s += built.build.build_s if built.build else 0.0
        told = [self._after_build(trials[n]) for n in wanted if trials[n].config in self._built]
        for trial in told:
            if trial.failure is not None:
                failed = Answer(number=trial.number, outcome=trial.outcome, failure=trial.failure)
                self.minutes.answered([(trial.config, UNMEASURED, failed)])
            elif trial.build is not None and not self.planned.is_recorded:
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
        built = self._built[trial.config]
        if not self.planned.is_recorded:  # A recording tells itself what did not fit.
            built = built.judged(self.planned.study.device)
        return dataclasses.replace(trial, build=built.build, outcome=built.outcome, failure=built.failure)

    @property
    def _num_built(self) -> int:
        return sum(built.build is not None for built in self._built.values())

    # ---- explore ----

    def _explore(self, search: StudySearch) -> Steps:
        """Batch after batch: compile what is asked, measure it on its rung, let the search decide."""
        while not self._spent and (requests := search.ask()):
            yield from self._build(search, sorted({request.number for request in requests} | self._yardsticks(search)))
            answers = yield from self._measure(search, search.pending)
            for request, answer in sorted(answers.items(), key=lambda item: item[0].number):
                if answer.measurement is not None:
                    decisions = search.tell(request.number, answer.measurement)
                    self._watch(search)
                else:
                    assert answer.failure is not None
                    decisions = search.tell(request.number, (answer.outcome, answer.failure))
                self.minutes.decided(decisions, search.trials)
            self.show(search.trials)

    @property
    def _needs_default(self) -> bool:
        return self.experiment.accept.same_bits == "default" or self.compares_with_default

    def _yardsticks(self, search: StudySearch) -> set[int]:
        """Candidates whose outputs the others' are compared with."""
        wanted = self._needs_default
        return {t.number for t in search.trials if wanted and t.config == self.planned.default}

    def _watch(self, search: StudySearch) -> None:
        medians = [t.median_ms for t in search.trials if t.median_ms is not None]
        if len(medians) > len(self.best_ms):
            self.best_ms.append(min(medians))
            self.tally.spent_s.append(sum(m.busy_s for t in search.trials for m in t.measurements))

    def _measure(self, search: StudySearch, requests: Sequence[Request]) -> Generator[Want, Got, dict[Request, Answer]]:
        """Answers to requests: from the ledger where it knows them, else from a meter while the budget lasts."""
        trials = search.trials
        remembered = ((r, self.minutes.remember(r.number, trials[r.number].config, r.rung)) for r in requests)
        answers = {request: answer for request, answer in remembered if answer is not None}
        fresh = [request for request in requests if request not in answers]
        while fresh and not self._spent:
            groups = [[r for r in fresh if r.rung == rung] for rung in sorted({r.rung for r in fresh})]
            found = yield from self._ask(search, groups)
            # What befell the whole problem may not befall it again: a later sweep is to try.
            self.minutes.answered(
                (trials[request.number].config, request.rung, answer)
                for request, answer in found.items()
                if answer.failure is None or answer.failure.stage != PREPARE
            )
            answers |= found
            fresh = [request for request in fresh if request not in answers]
        return answers

    def _ask(
        self, search: StudySearch, groups: Sequence[Sequence[Request]]
    ) -> Generator[Want, Got, dict[Request, Answer]]:
        questions = [
            self._question([self._candidate(search, r.number) for r in group], RUNGS[group[0].rung]) for group in groups
        ]
        # While the GPU measures, the CPUs compile what the search is likely to ask for next. A replay takes no time.
        idle = self.eager or self.planned.target.meter == "replay"
        ahead = () if idle else search.wants_builds(self.experiment.search.batch)
        likely = tuple((self.planned.call, search.trials[n].config) for n in ahead)
        got = yield Want(questions=tuple(questions), ahead=likely, claim=self._claim(search))
        self._spent = got.spent
        found: dict[Request, Answer] = {}
        lost: list[Request] = []
        for group, result, worker in zip(groups, got.answers, got.workers, strict=True):
            if not isinstance(result, str):
                self.tally.count(result)
                by_number = {request.number: request for request in group}
                assert result.answers, "a meter answers at least its first candidate"
                told = yield from self._calibrated(search, result, worker, got)
                found |= {by_number[answer.number]: answer for answer in told.answers}
            elif len(group) > 1:
                lost += group
            elif not self._spent:
                found[group[0]] = lost_answer(group[0].number, result)
        if lost and not self._spent:
            # Each of a lost batch is tried by itself, so that one candidate cannot cost the others.
            found |= yield from self._ask(search, [[request] for request in lost])
        return found

    def _calibrated(self, search: StudySearch, result: Answers, worker: str, got: Got) -> Generator[Want, Got, Answers]:
        if self.planned.target.meter != "gpu":
            return result
        if self._calibration is None:
            self._calibration = Calibration(
                question=lambda candidate: self._question([candidate], RUNGS[LAST]),
                candidate=lambda number: self._candidate(search, number), notices=self.tally.notices,
            )  # fmt: skip
        return (yield from self._calibration.settle(search, result, worker, got.present))

    def _claim(self, search: StudySearch) -> float:
        """See `Want.claim`. A study of which nothing could be timed is not first for longer than it may yet give up."""
        if not self.best_ms and search.num_tried < NUM_ALIKE:
            return 1.0
        gain = search.expected_gain
        return self.share * gain if gain >= NEGLIGIBLE else 0.0

    def _candidate(self, search: StudySearch, number: int) -> Candidate:
        trial = search.trials[number]
        unbuilt = self.planned.target.meter == "replay" or trial.config == LIBRARY
        artifact = None if unbuilt else self._built[trial.config].artifact
        return Candidate(number=number, config=trial.config, build=trial.build, artifact=artifact)

    def _question(
        self, candidates: Sequence[Candidate], rung: Rung, check: Call | None = None, baseline: Candidate | None = None
    ) -> Question:
        """A question about candidates: of a check, to which there is only right and wrong, or of the study's own call.

        Args:
            candidates: to be measured.
            rung: how often.
            check: the call, if it is not the study's own.
            baseline: the default built for the check.
        """
        planned, accept = self.planned, self.experiment.accept
        replay = planned.target.meter == "replay"
        call = check or planned.call
        default = self._built.get(planned.default) if planned.default is not None else None
        if check is None and planned.default == LIBRARY:
            baseline = Candidate(number=-1, config=LIBRARY)
        elif check is None and default is not None and default.artifact is not None and not replay:
            baseline = default.candidate(-1)
        return ask(
            self.experiment, call, candidates,
            rung=rung.number,
            num_samples=0 if check else rung.num_samples,
            max_samples=0 if check else rung.max_samples,
            precision=rung.precision,
            interleaved=rung is FINALS and check is None,
            fresh=rung is FINALS,
            same_bits=accept.same_bits,
            baseline=baseline if self._needs_default else None,
            landscape=str(Path(planned.target.landscape).resolve()) if replay else "",
        )  # fmt: skip

    # ---- finals ----

    def _finals(self, search: StudySearch) -> Finals:
        replay = self.planned.target.meter == "replay"
        if replay and self.planned.checks:
            self.tally.notices["replayed: the experiment's checks launch kernels, so they were left out"] = None

        def question(candidates: Sequence[Candidate], check: Call | None, baseline: Candidate | None) -> Question:
            return self._question(candidates, FINALS, check, baseline)

        return Finals(
            search=search, minutes=self.minutes, tally=self.tally,
            build=lambda numbers: self._build(search, numbers, essential=True),
            candidate=lambda number: self._candidate(search, number), question=question,
            checks=() if replay else self.planned.checks, seed=self.experiment.search.seed,
        )  # fmt: skip

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
            toolchain=self.tally.toolchain,
            timer=self.experiment.timer,
            removed=planned.removed,
            num_points=planned.num_points,
            num_buckets=len(search.buckets),
            closed=search.closed,
            build_s=self.tally.build_s,
            busy_s=self.tally.busy_s,
            held_s=self.tally.held_s,
            num_compiled=self.tally.num_compiled,
            num_bytes=planned.num_bytes,
            flops=planned.flops,
            reference_ms=self.tally.reference_ms,
            recording=planned.target.landscape if planned.is_recorded else "",
        )


def _failed_late(trials: Sequence[Trial]) -> str:
    """What is said where candidates could be measured and none passed checks and finals; empty if none could be."""
    failed = [trial for trial in trials if trial.measurements and trial.failure is not None]
    if not failed:
        return ""
    fastest = min(failed, key=lambda trial: trial.median_ms or 0.0)
    assert fastest.failure is not None
    return (
        f"no finalist passed: of those measured {len(failed)} failed later, the fastest by {describe(fastest.failure)}"
    )


def _no_meter(planned: PlannedStudy, num_built: int) -> str:
    built = f"{num_built} of {counted(len(planned.candidates), 'candidate')} {'was' if num_built == 1 else 'were'}"
    return (
        f"nothing was measured: no {planned.study.device.arch} GPU and no landscape; {built} compiled and checked for "
        "legality"
    )
