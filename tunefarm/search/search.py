"""A study's search from the first build to the crown: pure, deterministic, driven from outside.

    wants_builds -> built      which candidates to compile; equal builds become one trial
    ask -> tell, tell, ...     a synchronous batch of measurements; decisions once all of it is told
    finalists -> crown         the last candidates interleaved, and the winner

The same calls with the same answers give the same decisions, however the space was listed and in whatever order the
answers of a batch arrive: resuming a sweep is asking again and answering from the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from tunefarm.config import LIBRARY, Config, counted
from tunefarm.device import Device
from tunefarm.problem import Problem
from tunefarm.search import decisions, stopping
from tunefarm.search.buckets import THRESHOLD, Bucket, cover, group, num_first
from tunefarm.search.crown import crown
from tunefarm.search.decisions import Decision, Request
from tunefarm.search.features import Vectors, features
from tunefarm.search.polish import Neighbourhood, leaders
from tunefarm.search.prior import order
from tunefarm.search.rungs import EXPLORATION, LAST
from tunefarm.search.stopping import MAX_TRIALS, NUM_ALIKE, NUM_ENUMERATED, PATIENCE
from tunefarm.search.transfer import Past, Transfer
from tunefarm.study import WORTHWHILE, Left
from tunefarm.trial import FAILURES, Failure, Measurement, Outcome, Trial, Winner

if TYPE_CHECKING:
    from tunefarm.search.outlook import Outlook
    from tunefarm.search.sampler import StudySampler

Answer: TypeAlias = Measurement | tuple[Outcome, Failure]
"""What became of a request: samples, or how and why it failed."""


class StudySearch:
    """The search of one study.

    Args:
        configs: the candidates, in any order; `trials` holds them by number.
        problem: what they compete for.
        device: where.
        default: the config used without tuning, if it is a candidate. It is built, measured and in the finals first.
            A library's call is no point of the space: it comes after the last, and is in the finals only.
        incumbent: the config that an earlier pack holds for this problem, if it is a candidate. Likewise.
        sampler: name of a sampler: `default`, `tpe`, `gp`, `cmaes`, `random`, `exhaustive`.
        threshold: similarity from which candidates share a bucket.
        batch: new candidates a batch.
        max_trials: candidates measured at most; None for as many as the sampler and the space call for.
        max_finalists: finalists at most, default and incumbent apart.
        stop_gain: exploration ends when no open candidate can plausibly save this fraction of the best time.
        min_gain: fraction by which a config must beat what is in use, to replace it.
        seed: of everything random.
        pasts: what is known of other studies of the kernel; the default sampler learns from it.

    Attributes:
        default: as given.
        ended: why exploration ended, empty while it goes on.
        buckets: candidates by similarity, once formed.
        closed: numbers of the buckets closed so far.
    """

    def __init__(
        self,
        *,
        configs: Sequence[Config],
        problem: Problem,
        device: Device,
        default: Config | None = None,
        incumbent: Config | None = None,
        sampler: str = "default",
        threshold: float = THRESHOLD,
        batch: int = 8,
        max_trials: int | None = None,
        max_finalists: int = 6,
        stop_gain: float = WORTHWHILE,
        min_gain: float = 0.01,
        seed: int = 0,
        pasts: Sequence[Past] = (),
    ) -> None:
        self._configs = sorted(configs, key=lambda config: config.key)
        self._problem, self._device = problem, device
        self.default, self._incumbent = default, incumbent
        self._seeds = [self._configs.index(config) for config in (default, incumbent) if config in self._configs]
        self._sampler_name, self._threshold, self._batch, self._seed = sampler, threshold, batch, seed
        self._max_trials = max_trials
        self._max_finalists, self._stop_gain, self._min_gain = max_finalists, stop_gain, min_gain
        self._transfer = Transfer(pasts=pasts, configs=self._configs, problem=problem, device=device, seed=seed)
        self._trials = [Trial(number=number, config=config) for number, config in enumerate(self._configs)]
        self._guests = [Trial(number=len(self._configs), config=LIBRARY)] if default == LIBRARY else []
        self._order = order(self._configs, problem, device, first=self._seeds)
        self._rank = {number: rank for rank, number in enumerate(self._order)}
        self._points: Vectors | None = None
        self._sampler: StudySampler | None = None
        self._asked: set[int] = set()
        self._pending: dict[int, int] = {}
        self._told: list[int] = []
        self._promoted: list[Request] = []
        self._num_calm = 0
        self._all_built = self._is_limited = False
        self.ended = ""
        self.buckets: tuple[Bucket, ...] = ()
        self.closed: tuple[int, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every candidate's life so far, by number."""
        return (*self._trials, *self._guests)

    @property
    def pending(self) -> list[Request]:
        """Requests of the current batch that are not yet answered."""
        return [Request(number=number, rung=rung) for number, rung in sorted(self._pending.items())]

    @property
    def num_tried(self) -> int:
        """Candidates that went to be measured, whether or not they could be."""
        trials = [self._trials[number] for number in self._asked]
        return sum(bool(t.measurements) or (t.failure is not None and t.failure.stage != "build") for t in trials)

    def wants_builds(self, num: int) -> list[int]:
        """Candidates to compile next: what is asked for, then what is most likely to be.

        Args:
            num: how many at most. Fewer come back while nothing but failures is known, so that a kernel that never
                compiles is given up after `NUM_ALIKE` attempts.

        Returns:
            Numbers, most urgent first; empty when nothing is left to build or exploration has ended.
        """
        if self.ended and not self._pending:
            return []
        if not any(trial.build for trial in self._trials):
            num_failed = sum(trial.outcome in FAILURES for trial in self._trials)
            num = min(num, NUM_ALIKE - num_failed) if num_failed < NUM_ALIKE else num
        left = [n for n in self._order if self._trials[n].outcome is Outcome.OK and self._trials[n].build is None]
        if self._sampler is not None:
            may_be_asked = set(left).intersection(self._sampler.open_numbers)
            left = [n for n in left if n in self._pending] + [n for n in self._hopeful() if n in may_be_asked]
        return left[:num]

    def built(self, trials: Sequence[Trial]) -> list[Decision]:
        """Learns how builds came out, and merges those that the GPU could not tell apart.

        A request of the current batch whose candidate failed to build, or is equal to another, is answered by that:
        it is not among `pending` any more.

        Args:
            trials: numbers with a `build`, or with an outcome and a failure.

        Returns:
            Decisions: `merged`, and those of `tell` when this completed the batch.
        """
        for told in sorted(trials, key=lambda trial: trial.number):
            mine = self._trials[told.number]
            if mine.outcome is Outcome.OK and mine.build is None:
                self._update(replace(mine, build=told.build, outcome=told.outcome, failure=told.failure))
        made = self._merge() if trials else []
        out = [number for number in self._pending if self._trials[number].outcome is not Outcome.OK]
        for number in out:
            del self._pending[number]
        self._end(stopping.hopeless(self._trials))
        return made + (self._settle() if out and not self._pending else [])

    def form_buckets(self) -> tuple[Bucket, ...]:
        """Groups the candidates left; from now on the groups and what similarity is made of stay.

        Registers, spills and shared memory count when every candidate left is built. The first `ask` does this too;
        a plan asks for the buckets alone.
        """
        if self._points is None:
            builds = [trial.build for trial in self._trials]
            live = {trial.number for trial in self._trials if trial.outcome is Outcome.OK}
            self._all_built = bool(live) and all(builds[number] is not None for number in live)
            self._points = features(self._configs, builds if self._all_built else None, self._problem)
            self._order = order(self._configs, self._problem, self._device, builds, first=self._seeds)
            ranked = [number for number in self._order if number in live]
            self.buckets = group(self._points, ranked, self._threshold, builds)
            for bucket in self.buckets:
                for number in bucket.members:
                    self._trials[number] = replace(self._trials[number], bucket=bucket.number)
        return self.buckets

    def ask(self) -> list[Request]:
        """The next batch: promoted trials at their next rung, and new candidates at rung 0.

        Returns:
            Requests, each to be answered by `tell` before the next call; empty when exploration is over.

        Raises:
            RuntimeError: the last batch is not fully told.
        """
        if self._pending:
            raise RuntimeError(f"{len(self._pending)} requests of the last batch are not answered")
        sampler = self._sampler or self._start()
        new: list[int] = []
        if not self.ended:
            new = sampler.ask(self._room())
            if not new and self._look_around():
                new = sampler.ask(self._room())
            if not new:
                self._is_limited = bool(sampler.open_numbers)
                spent = f"budget of {counted(self._max_trials or 0, 'trial')} used" if self._is_limited else ""
                self._end(spent or stopping.exhausted(self.num_tried, len(self.closed)))
        self._asked.update(new)
        requests = self._promoted + [Request(number=number, rung=EXPLORATION[0].number) for number in new]
        self._promoted, self._told = [], []
        self._pending = {request.number: request.rung for request in requests}
        return sorted(requests, key=lambda request: request.number)

    def tell(self, number: int, answer: Answer) -> list[Decision]:
        """Answers a request of the current batch.

        Returns:
            Decisions, once the whole batch is answered: `promoted`, `pruned`, `bucket_closed`. Until then none.

        Raises:
            ValueError: the candidate was not asked for, or measured on another rung.
        """
        if number not in self._pending:
            raise ValueError(f"candidate {number} is not asked for")
        if isinstance(answer, Measurement) and answer.rung != self._pending[number]:
            raise ValueError(f"candidate {number} is asked for at rung {self._pending[number]}, not {answer.rung}")
        self._take(number, answer)
        del self._pending[number]
        self._told.append(number)
        return [] if self._pending else self._settle()

    def finalists(self) -> list[int]:
        """Candidates of the finals: the fastest that were not pruned, and the default and the incumbent if they run."""
        survivors = [t for t in self._trials if t.outcome is Outcome.OK and t.measurements]
        fastest = sorted(survivors, key=lambda trial: (trial.median_ms, trial.number))[: self._max_finalists]
        seeds = [t for t in (self._trials[n] for n in self._seeds) if t.measurements and t.outcome not in FAILURES]
        guests = [trial for trial in self._guests if survivors and trial.outcome is Outcome.OK]
        return sorted({trial.number for trial in (*fastest, *seeds, *guests)})

    def take(self, answers: Mapping[int, Answer]) -> None:
        """Learns of finalists what nobody asked for here: that they are not fit to win after all, or further times."""
        for number, answer in sorted(answers.items()):
            self._take(number, answer)

    def crown(self, finals: Mapping[int, Answer]) -> Winner | None:
        """The winner of the finals, or None when no finalist could be timed.

        Args:
            finals: by candidate, samples in ms of which the i-th was taken in the i-th round of all; or its failure.
        """
        self.take(finals)
        timed = [(n, self.trials[n].config, a.samples_ms) for n, a in finals.items() if isinstance(a, Measurement)]
        return crown(timed, self.default, self._incumbent, self._min_gain, self._seed) if timed else None

    @property
    def expected_gain(self) -> float:
        """Fraction of the best time that the best candidate still open or asked for is expected to save; at first 1."""
        if self._sampler is None or self._sampler.outlook is None:
            return 1.0
        asked = [number for number in self._pending if not self._trials[number].measurements]
        return stopping.expected_gain(self._sampler.outlook, [*asked, *self._sampler.open_numbers])

    def left(self, spent: str = "") -> Left:
        """What stays unmeasured when the study ends here, and what all of its times, the finals' too, promise of that.

        Args:
            spent: the budget of the sweep that ended the exploration, if one did.
        """
        limit = spent if not self.ended else "trials" if self._is_limited else ""
        outlook = self._sampler.foresee(dict(enumerate(self._trials))) if self._sampler is not None else None
        return stopping.left(self._trials, outlook, limit)

    def _take(self, number: int, answer: Answer) -> None:
        lives, place = (self._trials, number) if number < len(self._trials) else (self._guests, 0)
        if isinstance(answer, Measurement):
            lives[place] = replace(lives[place], measurements=(*lives[place].measurements, answer))
        else:
            lives[place] = replace(lives[place], outcome=answer[0], failure=answer[1])

    def _start(self) -> StudySampler:
        # Optuna takes half a second to import, and planning does without it.
        from tunefarm.search.sampler import StudySampler

        buckets = self.form_buckets()
        assert self._points is not None
        num_live = sum(len(bucket.members) for bucket in buckets)
        name = "exhaustive" if num_live <= NUM_ENUMERATED else self._sampler_name
        if self._max_trials is None and name != "exhaustive":
            self._max_trials = MAX_TRIALS
        seeds = [number for number in self._seeds if self._trials[number].outcome is Outcome.OK]
        live = [number for number in self._order if self._trials[number].bucket >= 0]
        points, first = self._points, list[int]()
        if name == "default":
            points, first = self._transfer.apply(points, live, self._trials, with_builds=self._all_built)
            first += cover(self._points, buckets, num_first(len(self._configs)) - len(first))
        self._sampler = StudySampler(
            name=name,
            configs=self._configs,
            points=points,
            order=live,
            first=list(dict.fromkeys([*seeds, *first])),
            seed=self._seed,
        )
        return self._sampler

    def _hopeful(self) -> list[int]:
        """All candidates, most promising first, by what is known so far."""
        outlook = self._sampler.outlook if self._sampler is not None else None
        if outlook is None:
            return self._order
        gains = outlook.improvement()
        return sorted(self._order, key=lambda number: -float(gains[number]))

    def _update(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        if self._sampler is not None and trial.outcome is not Outcome.OK:
            self._sampler.tell(trial)

    def _merge(self) -> list[Decision]:
        """Equal builds become one trial: that of the default, the incumbent, one already asked, the most promising."""
        made = []
        for trial, first in decisions.equals(
            self._trials, lambda t: (t.number not in self._seeds, t.number not in self._asked, self._rank[t.number])
        ):
            self._update(replace(trial, outcome=Outcome.MERGED, merged_into=first.number))
            made.append(decisions.merged(trial, first))
        return made

    def _room(self) -> int:
        """How many new candidates the next batch may hold."""
        room = self._batch
        if self._max_trials is not None:
            room = min(room, self._max_trials - self.num_tried)
        if not any(trial.measurements for trial in self._trials) and self.num_tried < NUM_ALIKE:
            room = min(room, NUM_ALIKE - self.num_tried)
        return max(0, room)

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason

    def _settle(self) -> list[Decision]:
        """Decides what a completed batch means, candidate by candidate: the order of its answers is of no matter."""
        assert self._sampler is not None
        for number in sorted(self._told):
            self._sampler.tell(self._trials[number])
        self._end(stopping.hopeless(self._trials))
        outlook = self._sampler.outlook
        if outlook is None:
            return []
        best_ms = outlook.best_ms
        made = []
        for trial in (self._trials[number] for number in sorted(self._told)):
            if trial.outcome is not Outcome.OK:
                continue
            if self._sampler.judge(trial.number):
                self._update(replace(trial, outcome=Outcome.PRUNED))
                made.append(decisions.pruned(trial, best_ms))
            elif trial.rung < LAST:
                self._promoted.append(Request(number=trial.number, rung=trial.rung + 1))
                made.append(decisions.promoted(trial, best_ms, trial.rung + 1))
        if self._sampler.name != "exhaustive" and self.num_tried >= num_first(len(self._configs)):
            made += self._close_buckets(outlook)
            self._consider_stopping(outlook)
        return made

    def _close_buckets(self, outlook: Outlook) -> list[Decision]:
        assert self._sampler is not None
        made = []
        is_open = set(self._sampler.open_numbers)
        for bucket in self.buckets:
            if bucket.number in self.closed:
                continue  # What the last look around asks of it stays open.
            members = [number for number in bucket.members if number in is_open]
            if members and (decision := decisions.closing(bucket, self._trials, members, outlook)):
                self._sampler.close(members)
                self.closed = (*self.closed, bucket.number)
                made.append(decision)
        return made

    def _consider_stopping(self, outlook: Outlook) -> None:
        assert self._sampler is not None
        gain = stopping.plausible_gain(outlook, self._sampler.open_numbers)
        self._num_calm = self._num_calm + 1 if gain < self._stop_gain else 0
        if self._num_calm >= PATIENCE and not self._look_around():
            self._end(f"no open candidate can plausibly save {self._stop_gain:.1%} (the best of them {gain:.2%})")

    @cached_property
    def _neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(self._configs)

    def _look_around(self) -> bool:
        """Puts what lies beside the leaders next in turn, even from closed buckets; False if all of it was tried."""
        assert self._sampler is not None
        beside = self._neighbourhood.beside(leaders(self._trials))
        untried = [n for n in beside if n not in self._asked and self._trials[n].outcome is Outcome.OK]
        self._sampler.put_first(untried)
        return bool(untried)
