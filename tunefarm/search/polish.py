"""The last look around before a study stops: what lies one step beside its leaders.

A surrogate search stalls a step or two beside the optimum of a rugged space; measuring the neighbours costs little and
asks nothing of the surrogate.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.config import Config, show
from tunefarm.search.features import is_number
from tunefarm.trial import FAILURES, Trial

NUM_LEADERS, LEADING_RATIO = 6, 1.15
"""Leaders are the fastest few, as far as they are within this multiple of the fastest."""


def leaders(trials: Sequence[Trial]) -> list[int]:
    """Numbers of the fastest trials, fastest first."""
    timed = [(t.median_ms, t.number) for t in trials if t.median_ms is not None and t.outcome not in FAILURES]
    fastest = sorted((ms, number) for ms, number in timed if ms is not None)[:NUM_LEADERS]
    return [number for ms, number in fastest if ms <= LEADING_RATIO * fastest[0][0]]


def neighbours(configs: Sequence[Config], number: int) -> list[int]:
    """Candidates that differ from one in a single name, by one step among the values that occur.

    Args:
        configs: all candidates.
        number: the one.
    """
    flats = [config.flat for config in configs]
    ladders = {
        name: sorted(
            {flat[name] for flat in flats if name in flat},
            key=lambda v: (not is_number(v), v if is_number(v) else show(v)),
        )
        for name in flats[number]
    }
    found = []
    for other, flat in enumerate(flats):
        if flat.keys() != flats[number].keys():
            continue
        differing = [name for name, value in flat.items() if value != flats[number][name]]
        if len(differing) == 1:
            ladder = ladders[differing[0]]
            step = ladder.index(flat[differing[0]]) - ladder.index(flats[number][differing[0]])
            if abs(step) == 1:
                found.append(other)
    return found
