"""The rungs a trial climbs: how many samples each allows, and how far behind the incumbent it may be to go on."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.trial import FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One fidelity.

    Attributes:
        number: 0 is the early benchmark, `FINAL` the finals.
        num_samples: launches timed for each candidate; in the finals interleaved with those of the others.
        gate: a trial slower than this multiple of the incumbent is pruned after it; None where none is.
    """

    number: int
    num_samples: int
    gate: float | None = None


EXPLORATION = (Rung(number=0, num_samples=3, gate=1.3), Rung(number=1, num_samples=10, gate=1.1))
"""Rungs before the finals, in the order they are climbed."""

LAST = EXPLORATION[-1].number

RUNGS: dict[int, Rung] = {rung.number: rung for rung in (*EXPLORATION, Rung(number=FINAL, num_samples=20))}
"""All rungs by number."""
