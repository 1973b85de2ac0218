"""The last look around before a study stops: what lies one step beside its leaders.

A surrogate search stalls a step or two beside the optimum of a rugged space; measuring the neighbours costs little and
asks nothing of the surrogate.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.config import Config, Value, show
from tunefarm.search.features import is_number
from tunefarm.trial import FAILURES, Trial

NUM_LEADERS, LEADING_RATIO = 6, 1.15
"""Leaders are the fastest few, as far as they are within this multiple of the fastest."""


def leaders(trials: Sequence[Trial]) -> list[int]:
    """Numbers of the fastest trials, fastest first."""
    timed = [(t.median_ms, t.number) for t in trials if t.median_ms is not None and t.outcome not in FAILURES]
    fastest = sorted((ms, number) for ms, number in timed if ms is not None)[:NUM_LEADERS]
    return [number for ms, number in fastest if ms <= LEADING_RATIO * fastest[0][0]]


class Neighbourhood:
    """Which candidates lie side by side: they differ in a single name, by one step among the values that occur.

    Args:
        configs: all candidates.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        self._flats = [config.flat for config in configs]
        self._place = {frozenset(flat.items()): number for number, flat in enumerate(self._flats)}
        values: dict[str, dict[Value, None]] = {}
        for flat in self._flats:
            for name, value in flat.items():
                values.setdefault(name, {})[value] = None
        self._ladders = {
            name: sorted(found, key=lambda v: (not is_number(v), v if is_number(v) else show(v)))
            for name, found in values.items()
        }

    def beside(self, numbers: Sequence[int]) -> list[int]:
        """Candidates beside one of some, each once; those beside the first one first."""
        found: dict[int, None] = {}
        for flat in (self._flats[number] for number in numbers):
            for name, value in flat.items():
                ladder = self._ladders[name]
                at = ladder.index(value)
                for other in ladder[max(0, at - 1) : at + 2]:
                    beside = self._place.get(frozenset({**flat, name: other}.items()))
                    if beside is not None and other != value:
                        found[beside] = None
        return list(found)
