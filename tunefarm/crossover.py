"""Cross-over: where a winner gives way to its neighbour's, and how far beyond its point an outermost one may be used.

Between two problems that differ in one ranging dim both winners sit once more at problems in between, and the gap is
halved; beyond an outermost problem its winner sits against the default. Nothing else competes there, so a probe costs a
small part of a study. Where no probe can be made (nothing to measure with, no variable of the experiment is the dim,
the budget is spent) the cut is left in the middle of the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import TypeAlias

from tunefarm.config import LIBRARY, Config, Value
from tunefarm.contest import Contest
from tunefarm.errors import LandscapeError, SpecError, UserError
from tunefarm.export import match_of, rows_of
from tunefarm.frozen import FrozenMap
from tunefarm.plan import PlannedStudy, narrowed
from tunefarm.ranges import Gap, gaps
from tunefarm.search.crown import is_better
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Measurement
from tunefarm.unify import Member, grouped
from tunefarm.wants import Got, Want

ROUNDS = 2
"""Probes in a gap: after them the cut is known within a fourth of it, on a scale of ratios."""

Opened: TypeAlias = Callable[[PlannedStudy], Contest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A gap whose cut is worth measuring.

    Attributes:
        gap: the gap.
        low: the winner below it, or beyond the lowest point the default.
        high: the winner above it, or beyond the highest point the default.
        members: the neighbours that there are.
    """

    gap: Gap
    low: Config
    high: Config
    members: tuple[Member, ...]


def crossings(members: Sequence[Member], ranges: Sequence[str]) -> Iterator[Crossing]:
    """The gaps between the winners of one device at which something changes.

    Args:
        members: contests with their results, all with winners.
        ranges: dims that may range.
    """
    try:
        rows = rows_of([result for _, result in members], ranges)
    except UserError:
        return  # The exporter will say so.
    by_row = {row.identity: member for row, member in zip(rows, members, strict=True)}
    for gap, low, high in gaps(rows):
        beside = tuple(by_row[row.identity] for row in (low, high) if row is not None)
        default = beside[0][0].planned.default
        first, second = (default if row is None else row.config for row in (low, high))
        if first is not None and second is not None and first != second and LIBRARY not in (first, second):
            yield Crossing(gap=gap, low=first, high=second, members=beside)


def cross(
    crossing: Crossing, resolved: Resolved, open_contest: Opened, is_spent: Callable[[], bool]
) -> Generator[Want, Got, int | None]:
    """Measures where the one gives way to the other.

    Args:
        crossing: the gap.
        resolved: the experiment.
        open_contest: opens one for a probe.
        is_spent: whether a budget is.

    Returns:
        The cut, or None where nothing could be measured.
    """
    gap = crossing.gap
    low, high = gap.low, gap.high
    for _ in range(ROUNDS):
        aim = None if is_spent() else _between(gap, low, high)
        planned = None if aim is None else _probe(crossing, resolved, aim)
        value = planned.study.problem.dims[gap.dim] if planned is not None else None
        if planned is None or type(value) is not int or not (low or 0) < value < (high or value + 1):
            break
        found = yield from open_contest(planned).compare()
        is_low = _is_low(crossing, found, resolved.experiment.search.seed)
        if is_low is None:
            break
        # Beyond an outermost point the first probe is as far as a row may reach.
        if (low is None and not is_low) or (high is None and is_low):
            return gap.middle
        low, high = (value, high) if is_low else (low, value)
    if (low, high) == (gap.low, gap.high) or low is None or high is None:
        return None
    return min(max(isqrt(low * high), gap.ends[0]), gap.ends[1])


def _is_low(crossing: Crossing, found: Mapping[Config, Measurement], seed: int) -> bool | None:
    """Whether at a probe the one from below is to be used; None if neither can be."""
    low, high = found.get(crossing.low), found.get(crossing.high)
    if low is None or high is None:
        return None if low is high else low is not None
    if crossing.gap.low is None:  # from below comes the default, which must be better to be worth it
        return is_better(low.samples_ms, high.samples_ms, seed=seed)
    if crossing.gap.high is None:
        return not is_better(high.samples_ms, low.samples_ms, seed=seed)
    return low.median_ms <= high.median_ms


def _between(gap: Gap, low: int | None, high: int | None) -> int | None:
    """The next value to probe: of those of which the compiler knows as much as at the gap's ends; None if none is left.

    Args:
        gap: the gap.
        low: the greatest value of which it is known what is best there; None at first below the lowest point.
        high: the least such value; None at first above the highest point.
    """
    first = gap.ends[0] + 1 if low is None else low + 1
    last = gap.ends[1] if high is None else high - 1
    aim = first if low is None else last if high is None else isqrt(low * high)
    even = all(end % 16 == 0 for end in (gap.low, gap.high) if end is not None)
    near = sorted(range(max(first, aim - 16), min(last, aim + 16) + 1), key=lambda value: abs(value - aim))
    return next((value for value in near if value > 1 and (value % 16 == 0) == even), None)


def _probe(crossing: Crossing, resolved: Resolved, value: int) -> PlannedStudy | None:
    """A study of the problem with about this value of the dim, in which the two compete; None if none can be made."""
    gap, ranges = crossing.gap, resolved.workload.ranges
    contest = crossing.members[0][0]
    here = match_of(contest.planned.study.problem, ranges)
    entrants = dict.fromkeys(c for c in (crossing.low, crossing.high, contest.planned.default) if c is not None)
    for variables in _variables(crossing, value):
        try:
            planned = narrowed(resolved, contest.planned, variables, tuple(entrants))
        except (SpecError, LandscapeError):
            continue  # Only the problems of the experiment must be sound, or recorded.
        if planned is None:
            continue
        there = match_of(planned.study.problem, ranges)
        exact, met = (FrozenMap((k, v) for k, v in m.dims.items() if k != gap.dim) for m in (here, there))
        if (exact, here.dtypes, here.facts) == (met, there.dtypes, there.facts):
            return planned
    return None


def _variables(crossing: Crossing, value: int) -> Iterator[FrozenMap[Value]]:
    """The experiment's variables with about this value in the place of the dim, of which one is a whole part.

    What a dim is called in an experiment, if it is anything there, must be found by trying.
    """
    studies = [contest.planned.study for contest, _ in crossing.members]
    dim, first = crossing.gap.dim, studies[0].variables
    parts: dict[str, int] = {}
    for name in first:
        ratios = {_ratio(study.problem.dims[dim], study.variables.get(name)) for study in studies}
        if len(ratios) == 1 and (ratio := ratios.pop()):
            parts[name] = ratio
    for name, ratio in sorted(parts.items(), key=lambda part: (part[1], part[0] != dim)):
        yield FrozenMap(first, **{name: value // ratio})


def _ratio(dim: object, held: object) -> int:
    """How many times a dim is a variable; 0 if it is no whole number of times."""
    if type(dim) is not int or type(held) is not int or held < 1 or dim % held:
        return 0
    return dim // held


def groups(members: Iterable[Member]) -> list[list[Member]]:
    """Those that were measured or replayed to a winner, by device."""
    won = (member for member in members if member[1].winner is not None and member[0].planned.target.meter)
    return grouped(won, lambda result: result.study.device.key)
