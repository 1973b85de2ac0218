"""The rungs a trial climbs: how many samples each allows, and how far behind the incumbent it may be to go on."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.trial import FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One fidelity.

    Attributes:
        number: 0 is the early benchmark, `FINAL` the finals.
        num_samples: launches timed for each candidate at least; in the finals interleaved with those of the others.
        max_samples: at most, where the median is not yet known precisely.
        precision: share of the median that half its 95 % interval may have.
        gate: a trial slower than this multiple of the incumbent is pruned after it; None where none is.
    """

    number: int
    num_samples: int
    max_samples: int = 0
    precision: float = 0.0
    gate: float | None = None


EXPLORATION = (
    Rung(number=0, num_samples=3, gate=1.3),
    Rung(number=1, num_samples=10, max_samples=20, precision=0.01, gate=1.1),
)
"""Rungs before the finals, in the order they are climbed."""

FINALS = Rung(number=FINAL, num_samples=20, max_samples=100, precision=0.003)

LAST = EXPLORATION[-1].number

RUNGS: dict[int, Rung] = {rung.number: rung for rung in (*EXPLORATION, FINALS)}
"""All rungs by number."""
