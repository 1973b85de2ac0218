"""The live view of a running sweep: how its studies, GPUs and failures stand, in lines that fit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunefarm.cli.tables import time_text
from tunefarm.config import counted
from tunefarm.study import StudyResult
from tunefarm.trial import FAILURES

if TYPE_CHECKING:
    from tunefarm.contest import Contest
    from tunefarm.schedule.standing import Standing

SHARE = 0.02
"""Of the driver's time, at most: with many trials it looks less often."""

REFRESH_S, SAID_S = 0.5, 60.0
"""How often it looks at least, and how often it says a line where there is no terminal."""

KNOWN = 0.05
"""Share of the work that must be done before it says how long the rest takes."""


@dataclass(slots=True)
class View:
    """What people see of sweeps that go on.

    Attributes:
        clock: seconds since some fixed moment.
    """

    clock: Callable[[], float] = time.monotonic
    _contests: list[Contest] = field(default_factory=list)
    _results: dict[int, StudyResult] = field(default_factory=dict)
    _standing: Callable[[], Standing] | None = None
    _due_s: float | None = None
    _cost_s: float = 0.0
    _first: tuple[float, float] | None = None

    def began(self, contests: Sequence[Contest]) -> None:
        """Further studies are under way."""
        self._contests += contests

    def ended(self, result: StudyResult) -> None:
        """One of them has ended."""
        self._results[id(result.study)] = result

    def follow(self, standing: Callable[[], Standing]) -> None:
        """From now on this tells who works."""
        self._standing = standing

    def is_due(self, every_s: float = REFRESH_S) -> bool:
        """Whether it is time to look again, and would cost the driver little of its time."""
        if self._due_s is None:
            self._due_s = self.clock() + (every_s if every_s > REFRESH_S else 0.0)
        if self.clock() < self._due_s:
            return False
        if self._first is None and (share := self._share()):
            self._first = (self.clock(), share)
        self._due_s = self.clock() + max(every_s, self._cost_s / SHARE)
        return True

    def lines(self, num: int) -> list[str]:
        """The whole view: how all stands, and the studies that are being measured, `num` lines at most."""
        began_s = self.clock()
        running = [contest for contest in self._contests if self._is_running(contest)]
        begun = [contest for contest in running if contest.best_ms]
        shown = begun[: max(0, num - 2)]
        width = max((len(contest.planned.study.label) for contest in shown), default=0)
        told = [self.summary(), *(f"  {c.planned.study.label:{width}}  {_progress(c)}" for c in shown)]
        if hidden := len(begun) - len(shown):
            told.append(f"  and {counted(hidden, 'more study', 'more studies')}")
        elif waiting := len(running) - len(begun):
            told.append(f"  {counted(waiting, 'study waits', 'studies wait')} for builds or a turn")
        self._cost_s = self.clock() - began_s
        return told

    def summary(self) -> str:
        """How all stands, in one line."""
        parts = [f"{len(self._results)} of {counted(len(self._contests), 'study', 'studies')}"]
        for verb in dict.fromkeys(_verb(contest) for contest in self._contests if contest.planned.target.meter):
            tried = sum(len(contest.best_ms) for contest in self._contests if _verb(contest) == verb)
            parts.append(f"{counted(tried, 'candidate')} {verb}")
        parts += [use] if (use := self._use()) else []
        failed = self._failed()
        if failed:
            kinds = ", ".join(f"{number} {kind}" for kind, number in failed.most_common(3))
            parts.append(f"{failed.total()} failed ({kinds})")
        parts += [f"about {duration} left"] if (duration := self._left()) else []
        return ", ".join(parts)

    def _is_running(self, contest: Contest) -> bool:
        return contest.search is not None and id(contest.planned.study) not in self._results

    def _use(self) -> str:
        if self._standing is None or not any(contest.tally.holds_gpu for contest in self._contests):
            return ""
        workers: Counter[str] = Counter()
        for (role, _, state), number in self._standing().workers.items():
            if role == "measure":
                workers[state] += number
        away = f" ({workers['quarantined']} in quarantine)" if workers["quarantined"] else ""
        return f"{workers['busy']} of {counted(workers.total(), 'GPU')} busy{away}"

    def _failed(self) -> Counter[str]:
        failed: Counter[str] = Counter()
        for contest in self._contests:
            result = self._results.get(id(contest.planned.study))
            if result is not None:
                failed.update({outcome.value: n for outcome, n in result.outcomes.items() if outcome in FAILURES})
            elif contest.search is not None:
                failed.update(trial.outcome.value for trial in contest.search.trials if trial.outcome in FAILURES)
        return failed

    def _share(self) -> float:
        """Of the work that is done; a study that goes on may end before all its candidates are timed."""
        done = 0.0
        for contest in self._contests:
            if id(contest.planned.study) in self._results:
                done += 1.0
            elif contest.planned.candidates:
                done += 0.9 * min(1.0, len(contest.best_ms) / len(contest.planned.candidates))
        return done / len(self._contests) if self._contests else 0.0

    def _left(self) -> str:
        share = self._share()
        if self._first is None or share >= 1.0 or share - self._first[1] < KNOWN:
            return ""
        since_s, before = self._first
        left_s = (self.clock() - since_s) * (1.0 - share) / (share - before)
        return (
            f"{left_s:.0f} s"
            if left_s < 100
            else f"{left_s / 60:.0f} min"
            if left_s < 6000
            else f"{left_s / 3600:.1f} h"
        )


def _verb(contest: Contest) -> str:
    return "replayed" if contest.planned.target.meter == "replay" else "timed"


def _progress(contest: Contest) -> str:
    """How far one study is."""
    assert contest.search is not None
    trials, candidates = contest.search.trials, len(contest.planned.candidates)
    rungs = [trial.measurements[-1].rung for trial in trials if trial.measurements]
    stage = "compiling" if not rungs else "finals" if contest.finals is not None else f"rung {max(rungs)}"
    parts = [f"{stage:9}", f"{len(contest.best_ms)} of {candidates} {_verb(contest)}"]
    if contest.best_ms:
        parts.append(f"best {time_text(contest.best_ms[-1])}")
    failed = sum(trial.outcome in FAILURES for trial in trials)
    parts += [f"{failed} failed"] if failed else []
    return "  ".join(parts)
