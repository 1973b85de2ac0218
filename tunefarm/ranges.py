"""Ranges: which calls a measured row answers besides its own, found one dim at a time.

Rows of one family differ in nothing but the dims that range. Along such a dim each row has a gap to its next neighbour,
or at its end to nothing; where in a gap the one row gives way to the other is measured (`crossover`) or, where it is
not, halfway: at the geometric mean of two neighbours, and at twice or half of an outermost row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, TypeAlias

from tunefarm.frozen import FrozenMap
from tunefarm.pack import Bounds, Row

Family: TypeAlias = tuple[tuple[str, ...], FrozenMap[Any], FrozenMap[str], FrozenMap[str]]
"""(dims that range, exact dims, dtypes, facts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What lies between two neighbours along a dim, or beyond an outermost row.

    Attributes:
        family: of the rows.
        dim: the dim.
        rest: their other dims that range.
        low: the dim's value at the lower neighbour; None below the lowest.
        high: at the upper one; None above the highest.
    """

    family: Family
    dim: str
    rest: FrozenMap[int]
    low: int | None
    high: int | None

    @property
    def ends(self) -> tuple[int, int]:
        """Where a cut may be, its ends included: the row below answers up to it."""
        if self.low is None:
            return (self.high or 0) // 2, (self.high or 1) - 1
        return self.low, 2 * self.low if self.high is None else self.high - 1

    @property
    def middle(self) -> int:
        """The cut where nothing was measured."""
        if self.low is None:
            return self.ends[0]
        return self.ends[1] if self.high is None else isqrt(self.low * self.high)


Cuts: TypeAlias = Mapping[Gap, int]
"""Of some gaps the greatest value that the row below answers."""


def gaps(rows: Iterable[Row]) -> Iterator[tuple[Gap, Row | None, Row | None]]:
    """All gaps between rows of one table, each with its lower and its upper row."""
    for family, members in _families(rows).items():
        for name in family[0]:
            ladders: dict[FrozenMap[int], dict[int, Row]] = {}
            for row in members:
                point = _point(row)
                if point[name] > 0:
                    rest = FrozenMap((k, v) for k, v in point.items() if k != name)
                    ladders.setdefault(rest, {})[point[name]] = row
            for rest, ladder in ladders.items():
                values = [None, *sorted(ladder), None]
                for low, high in itertools.pairwise(values):
                    gap = Gap(family=family, dim=name, rest=rest, low=low, high=high)
                    yield gap, ladder.get(low or 0), ladder.get(high or 0)


def known(rows: Iterable[Row]) -> dict[Gap, int]:
    """The cuts that rows have already: where two of them meet, and how far the outermost reach."""
    found: dict[Gap, int] = {}
    for gap, low, high in gaps(rows):
        sides = [(row, side) for row, side in ((low, 1), (high, 0)) if row is not None]
        cuts = {_range(row, gap.dim)[side] for row, side in sides}
        is_set = all(_range(row, gap.dim) != _alone(_point(row)[gap.dim]) for row, _ in sides)
        if is_set and len(cuts) == 1 and gap.ends[0] <= min(cuts) <= gap.ends[1]:
            found[gap] = cuts.pop()
    return found


def bounded(rows: Sequence[Row], cuts: Cuts | None = None) -> tuple[Row, ...]:
    """The rows of one table with the ranges of their ranging dims set, from the points at which they were measured.

    A range that would take another row's own point is cut off before it, so every measured problem finds its own row.

    Args:
        rows: a dim of theirs ranges where `match` holds a pair.
        cuts: of gaps, where they are known; the others are cut in the middle.
    """
    boxes = {row.identity: {name: _alone(value) for name, value in _point(row).items()} for row in rows}
    for gap, low, high in gaps(rows):
        cut = (cuts or {}).get(gap, gap.middle)
        if low is not None:
            box = boxes[low.identity]
            box[gap.dim] = box[gap.dim][0], cut
        if high is not None:
            box = boxes[high.identity]
            box[gap.dim] = cut, box[gap.dim][1]
    families = _families(rows).values()
    for a, b in itertools.chain.from_iterable(itertools.combinations(family, 2) for family in families):
        here, there = boxes[a.identity], boxes[b.identity]
        if _inside(_point(b), here) or _inside(_point(a), there):
            _part(_point(a), here, _point(b), there)
    return tuple(
        replace(row, match=replace(row.match, dims=FrozenMap({**row.match.dims, **boxes[row.identity]})))
        for row in itertools.chain.from_iterable(families)
    )


def _families(rows: Iterable[Row]) -> dict[Family, list[Row]]:
    """Rows that differ in nothing but the dims that range, whose names come first."""
    found: dict[Family, list[Row]] = {}
    for row in rows:
        names = tuple(sorted(ranging(row)))
        exact = FrozenMap((k, v) for k, v in row.match.dims.items() if k not in names)
        found.setdefault((names, exact, row.match.dtypes, row.match.facts), []).append(row)
    return found


def ranging(row: Row) -> frozenset[str]:
    """Names of the dims that range."""
    return frozenset(name for name, value in row.match.dims.items() if isinstance(value, tuple))


def _point(row: Row) -> dict[str, int]:
    return {name: int(row.measured_at[name] or 0) for name in sorted(ranging(row))}


def _range(row: Row, name: str) -> Bounds:
    value = row.match.dims[name]
    assert isinstance(value, tuple)
    return value


def _alone(value: int) -> Bounds:
    return value - 1, value


def _inside(point: Mapping[str, int], box: Mapping[str, Bounds]) -> bool:
    return bool(box) and all(lo < point[name] <= hi for name, (lo, hi) in box.items())


def _part(a: Mapping[str, int], box_a: dict[str, Bounds], b: Mapping[str, int], box_b: dict[str, Bounds]) -> None:
    """Cuts two boxes apart along the dim in which their points differ most."""
    name = max(a, key=lambda k: max(a[k], b[k]) / max(1, min(a[k], b[k])))
    (low, box_low), (high, box_high) = sorted(((a[name], box_a), (b[name], box_b)), key=lambda pair: pair[0])
    if low == high:
        return  # The same problem twice; the exporter refuses it.
    cut = isqrt(max(0, low) * high)
    box_low[name] = (box_low[name][0], min(box_low[name][1], cut))
    box_high[name] = (max(box_high[name][0], cut), box_high[name][1])
