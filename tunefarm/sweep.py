"""The sweep: the story of design from an experiment to its pack. It wires the chapters and decides nothing.

plan       studies and candidates                       plan.py
contests   build, explore, finals, crown: one a study   contest.py and finals.py, over bench and search; unify.py
cuts       where winners give way to their neighbours   crossover.py
desks      what each contest waits for; several         desks.py
           experiments go on side by side
dispatch   who works on what, and whose turn it is      dispatch.py and turns.py, over schedule and fleet
record     every step in the ledger; MLflow mirrors     record
           it, and an Optuna storage its trials         search.mirror
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tunefarm.builds import BUILD_S, BuildBoard
from tunefarm.config import Config
from tunefarm.contest import Contest
from tunefarm.crossover import cross, crossings, groups
from tunefarm.desks import Desks, Part
from tunefarm.dispatch import Dispatch
from tunefarm.minutes import Minutes
from tunefarm.plan import PlannedStudy
from tunefarm.ranges import Gap
from tunefarm.record.memo import Memo
from tunefarm.seams import Ledger, Mirror, NullMirror, Tracker
from tunefarm.search.transfer import Past
from tunefarm.spec.experiment import Experiment, Resolved
from tunefarm.study import StudyResult
from tunefarm.unify import families, unify

EAGER_S = 45.0
"""Everything is compiled beforehand if that is expected to take no longer than this, for all sweeps together."""


class Watcher(Protocol):
    """Who is told how the sweeps go, for people."""

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        """A sweep begins; `num_builds` is the number of compilations known to be ahead, 0 if it is open."""
        ...

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        """Something was built or measured."""
        ...

    def ended(self, result: StudyResult, experiment: str) -> None:
        """A study of an experiment of that name has ended."""
        ...


class Watchers:
    """Tells several watchers.

    Args:
        watchers: told in this order.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.began(contests, num_builds)

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.moved(board, contests)

    def ended(self, result: StudyResult, experiment: str) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.ended(result, experiment)


class Sweep:
    """One experiment on its way to winners.

    Attributes:
        contests: of its studies, once it has begun.
        cuts: by device key, where winners were seen to give way to their neighbours.
        error: what broke it, if something did.

    Args:
        resolved: the experiment.
        planned: its studies.
        ledger: where everything is recorded.
        memo: what the ledger knew when it was opened.
        tracker: its mirror for people.
        watcher: who is told.
        incumbents: configs of an earlier pack, by study key.
        pasts: what is known of the kernel from elsewhere.
        mirror: where people see the trials of a study as it goes on.
    """

    def __init__(
        self,
        resolved: Resolved,
        planned: Sequence[PlannedStudy],
        *,
        ledger: Ledger,
        memo: Memo,
        tracker: Tracker,
        watcher: Watcher,
        incumbents: dict[str, Config] | None = None,
        pasts: Sequence[Past] = (),
        mirror: Mirror = NullMirror(),  # noqa: B008 (it has no state)
    ) -> None:
        self._resolved, self._planned, self._ledger, self._memo = resolved, planned, ledger, memo
        self._tracker, self._watcher, self._mirror = tracker, watcher, mirror
        self._incumbents, self._pasts = incumbents or {}, pasts
        self._results: dict[int, StudyResult] = {}
        self.cuts: dict[str, dict[Gap, int]] = {}
        self.contests: list[Contest] = []
        self.error: Exception | None = None

    @property
    def experiment(self) -> Experiment:
        """What it is about."""
        return self._resolved.experiment

    def flush(self) -> None:
        """Makes durable what was written of it."""
        self._ledger.flush()

    @property
    def weight(self) -> float:
        """Of all its studies."""
        return sum(study.study.weight for study in self._planned)

    @property
    def results(self) -> list[StudyResult]:
        """Of its studies, in the order of the plan; of all of them unless something broke it."""
        return [self._results[id(contest)] for contest in self.contests if id(contest) in self._results]

    @property
    def notices(self) -> list[str]:
        """What people should know of how it went, each once."""
        return list(dict.fromkeys(notice for contest in self.contests for notice in contest.tally.notices))

    def begin(self, board: BuildBoard, num_builders: int, all_weights: float) -> list[Part]:
        """Opens a contest for each study.

        Args:
            board: what is built.
            num_builders: build workers, to judge whether all can be compiled beforehand.
            all_weights: of the studies of every sweep that competes for the same workers.
        """
        self._tracker.start()
        most = int(EAGER_S * max(1, num_builders) / BUILD_S * self.weight / all_weights)
        missing = self._missing(board, most)
        num_builds = missing if missing <= most else 0
        eager = missing <= most
        self.contests = [
            _contest(
                self._resolved,
                study,
                self._minutes(study),
                eager,
                self._incumbents,
                self._pasts,
                study.study.weight / all_weights,
            )
            for study in self._planned
        ]
        for contest in self.contests:
            contest.show = partial(self._mirror.show, contest.planned.study)
        self._watcher.began(self.contests, num_builds)
        return [
            Part(contest=contest, steps=contest.run_through(), then=partial(self._take, contest))
            for contest in self.contests
        ]

    def _minutes(self, study: PlannedStudy) -> Minutes:
        return Minutes(study=study.study.key, ledger=self._ledger, memo=self._memo)

    def _missing(self, board: BuildBoard, most: int) -> int:
        """Compilations that building every candidate would take; of more than `most` nobody wants to know how many."""
        keys = set()
        for study in self._planned:
            for config in () if study.is_recorded else study.candidates:
                slot = board.slot(study.call, config)
                if board.find(slot, config) is None:
                    keys.add(slot.key)
                if len(keys) > most:
                    return len(keys)
        return len(keys)

    def _take(self, contest: Contest, result: StudyResult) -> None:
        self._results[id(contest)] = result
        if not self.experiment.accept.one_config_over:
            self._tell(contest, result)

    def agree(self) -> list[Part]:
        """What is left to do once all studies have ended: those that are to share one config agree on it."""
        over = self.experiment.accept.one_config_over
        groups = families(list(zip(self.contests, self.results, strict=True)), over)
        return [
            Part(contest=family[0][0], steps=unify(family, over), then=partial(self._share, family))
            for family in groups
        ]

    def _share(self, family: Sequence[tuple[Contest, StudyResult]], shared: Sequence[StudyResult]) -> None:
        self._results |= {id(contest): result for (contest, _), result in zip(family, shared, strict=True)}

    def tell_shared(self) -> None:
        """Tells of studies that share one config, once all do."""
        for contest, result in zip(self.contests, self.results, strict=True):
            self._tell(contest, result)

    def cross(self, is_spent: Callable[[], bool]) -> list[Part]:
        """What is left to measure once winners are known: where each gives way to its neighbour.

        Args:
            is_spent: whether a budget is.
        """
        ranges = self._resolved.found.ranges if self._resolved.found is not None else ()
        members = groups(zip(self.contests, self.results, strict=True)) if ranges else []
        return [
            Part(
                contest=crossing.members[0][0],
                steps=cross(crossing, self._resolved, self._probe, is_spent),
                then=partial(self._cut, group[0][1].study.device.key, crossing.gap),
            )
            for group in members
            for crossing in crossings(group, ranges)
        ]

    def _probe(self, planned: PlannedStudy) -> Contest:
        return _contest(self._resolved, planned, self._minutes(planned), True, {}, (), 0.0)

    def _cut(self, device: str, gap: Gap, cut: int | None) -> None:
        if cut is not None:
            self.cuts.setdefault(device, {})[gap] = cut

    def _tell(self, contest: Contest, result: StudyResult) -> None:
        self._ledger.flush()
        self._tracker.study(result, contest.best_ms, contest.tally.spent_s)
        if result.source:
            self._mirror.show(result.study, result.trials, result.winner)
        self._watcher.ended(result, self.experiment.name)


def run_through(
    sweeps: Sequence[Sweep], *, dispatch: Dispatch, board: BuildBoard, watcher: Watcher, num_builders: int
) -> None:
    """Runs the contests of all sweeps side by side. What breaks one stands in its `error`; the others go on.

    Args:
        sweeps: the experiments.
        dispatch: who works.
        board: what is built.
        watcher: who is told.
        num_builders: build workers.

    Raises:
        InfrastructureError: no worker could do what must be done.
    """

    def moved() -> None:
        watcher.moved(board, [contest for sweep in sweeps for contest in sweep.contests])

    desks = Desks(dispatch, board, moved)
    weights = sum(sweep.weight for sweep in sweeps)
    desks.play([(sweep, partial(sweep.begin, board, num_builders, weights)) for sweep in sweeps])
    sharing = [sweep for sweep in sweeps if sweep.error is None and sweep.experiment.accept.one_config_over]
    desks.play([(sweep, sweep.agree) for sweep in sharing])
    for sweep in sharing:
        if sweep.error is None:
            sweep.tell_shared()
    if not dispatch.spent:
        desks.play([(sweep, partial(sweep.cross, lambda: bool(dispatch.spent))) for sweep in sweeps if not sweep.error])


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
        incumbent = incumbent if incumbent in planned.entrants else None
    return Contest(
        experiment=resolved.experiment, planned=planned, minutes=minutes, eager=eager, incumbent=incumbent,
        kernel=resolved.kernel,
        compares_with_default=resolved.found is not None and resolved.found.compares_with_default,
        pasts=pasts, share=share,
    )  # fmt: skip
