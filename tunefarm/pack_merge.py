"""Two packs become one: the union of their rows, and of two answers to one problem the better-proven.

Better-proven is, in this order: measured over replayed, and that over imported; outputs checked over not checked; the
newer table; the tighter interval. Times themselves are never compared: they were taken on different days. With the pack
from which both sides came (as git knows it), a row that only one side changed or removed is as that side has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tunefarm.document import canonical
from tunefarm.errors import UserError
from tunefarm.pack import SOURCES, Pack, Row, Table, plain, seal
from tunefarm.ranges import bounded, known


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that a merge left out.

    Attributes:
        side: the pack it stood in.
        table: where it stood.
        row: what it was.
        kept: the row that answers its problem now, or None.
        reason: why, for people.
    """

    side: str
    table: Table
    row: Row
    kept: Row | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge gave.

    Attributes:
        pack: sealed.
        dropped: every row of either side that is not in it.
    """

    pack: Pack
    dropped: tuple[Dropped, ...]


class _Entry(NamedTuple):
    row: Row
    table: Table
    side: str


def merge(ours: Pack, theirs: Pack, *, base: Pack | None = None, names: tuple[str, str] = ("ours", "theirs")) -> Merged:
    """One pack of two.

    Rows that come together into one table have the boundaries of their ranges set anew, as an export does; the table's
    provenance is that of the newer side. A table that only one side has, or that one side alone changed, stays byte for
    byte.

    Args:
        ours: one side.
        theirs: the other.
        base: what both came from, if that is known.
        names: of the sides, for people.

    Raises:
        UserError: the sides timed one table with different timers.
    """
    dropped: list[Dropped] = []
    tables: list[Table] = []
    for place in dict.fromkeys(t.place for pack in (ours, theirs) for t in pack.tables):
        sides = [[t for t in pack.tables if t.place == place] for pack in (ours, theirs)]
        old = None if base is None else [t for t in base.tables if t.place == place]
        tables += _merge_place(sides, old, names, dropped)
    # Tables of one key are in an order of their own, whichever side is ours.
    first = sorted(seal(Pack(tables=tuple(tables))).tables, key=lambda table: table.digest)
    return Merged(pack=seal(Pack(tables=tuple(first))), dropped=tuple(dropped))


def _merge_place(
    sides: Sequence[list[Table]], old: list[Table] | None, names: tuple[str, str], dropped: list[Dropped]
) -> list[Table]:
    """The tables of one kernel, device and key."""
    digests = [{t.digest for t in side} for side in sides]
    before = None if old is None else {t.digest for t in old}
    if digests[0] == digests[1]:
        return sides[0]
    for mine, other in ((0, 1), (1, 0)):
        if digests[other] == before or (before is None and not sides[other]):
            _tell_removed(sides, mine, other, names, dropped)
            return sides[mine]
    _same_timer(sides, names)
    entries = [[_Entry(r, t, name) for t in side for r in t.rows] for side, name in zip(sides, names, strict=True)]
    base = None if old is None else {row.identity: _content(row) for table in old for row in table.rows}
    kept: list[_Entry] = []
    for identity in dict.fromkeys(entry.row.identity for side in entries for entry in side):
        here = [[e for e in side if e.row.identity == identity] for side in entries]
        chosen = _choose(here, None if base is None else base.get(identity, ""), names, dropped)
        kept += [chosen] if chosen else []
    return _tables(kept, [[e.row for e in side] for side in entries])


def _tell_removed(
    sides: Sequence[list[Table]], mine: int, other: int, names: tuple[str, str], dropped: list[Dropped]
) -> None:
    # One side left everything here as it was: what the other made of it counts.
    now = {row.identity: row for table in sides[mine] for row in table.rows}
    for table in sides[other]:
        for row in table.rows:
            kept = now.get(row.identity)
            if kept is None or _content(kept) != _content(row):
                what = "removed" if kept is None else "changed"
                reason = f"{what} in {names[mine]} alone"
                dropped.append(Dropped(side=names[other], table=table, row=row, kept=kept, reason=reason))


def _same_timer(sides: Sequence[list[Table]], names: tuple[str, str]) -> None:
    # Where imported times come from is nobody's word, so nothing is lost by keeping them beside others.
    timers = [{t.provenance.timer for t in side if t.provenance.source != "imported"} for side in sides]
    if all(timers) and timers[0] != timers[1]:
        table = sides[0][0]
        told = " and ".join(f"{', '.join(sorted(t))} in {name}" for t, name in zip(timers, names, strict=True))
        raise UserError(
            f"the table of {table.kernel} on {table.device.name} has timer {told}; times of different timers are "
            "never compared",
            key=f"{table.kernel} {table.key[:12]}: provenance.timer",
            hint="sweep one side again with the other's timer, or activate both packs",
        )


def _choose(
    here: Sequence[list[_Entry]], base: str | None, names: tuple[str, str], dropped: list[Dropped]
) -> _Entry | None:
    """The row for one measured problem.

    Args:
        here: on each side what answers it; at most one row, unless somebody wrote the pack by hand.
        base: content of the row from which both sides came; empty if there was none, None if nobody knows.
        names: of the sides.
        dropped: what is left out is added here.
    """
    everyone = [entry for side in here for entry in side]
    if base:
        unchanged = [all(_content(entry.row) == base for entry in side) and bool(side) for side in here]
        for mine, other in ((0, 1), (1, 0)):
            if unchanged[other] and not unchanged[mine]:
                chosen = here[mine][0] if here[mine] else None
                what = f"{'changed' if chosen else 'removed'} in {names[mine]} alone"
                return _drop(everyone, chosen, lambda _, what=what: what, dropped)  # type: ignore[misc]
    chosen = max(everyone, key=lambda entry: (_proof(entry), canonical(plain(entry.row)), entry.table.digest))
    return _drop(everyone, chosen, lambda entry: _reason(chosen, entry), dropped)


def _drop(
    everyone: Iterable[_Entry], chosen: _Entry | None, reason: Callable[[_Entry], str], dropped: list[Dropped]
) -> _Entry | None:
    for entry in everyone:
        if entry is not chosen and (chosen is None or _content(entry.row) != _content(chosen.row)):
            kept = None if chosen is None else chosen.row
            dropped.append(Dropped(side=entry.side, table=entry.table, row=entry.row, kept=kept, reason=reason(entry)))
    return chosen


def _proof(entry: _Entry) -> tuple[Any, ...]:
    origin, row = entry.table.provenance, entry.row
    width = float("inf")
    if row.interval_ms is not None and row.median_ms:
        width = (row.interval_ms[1] - row.interval_ms[0]) / row.median_ms
    return -SOURCES.index(origin.source), origin.checked, origin.created, -width


def _reason(chosen: _Entry, entry: _Entry) -> str:
    mine, other = _proof(chosen), _proof(entry)
    step = next((i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), None)
    origins = chosen.table.provenance, entry.table.provenance
    match step:
        case 0:
            return f"{origins[0].source} over {origins[1].source}"
        case 1:
            return "outputs checked over not checked"
        case 2:
            return f"of {origins[0].created} over {origins[1].created}"
        case 3:
            return f"an interval of {-mine[3]:.2%} over {-other[3]:.2%}"
    return "equally proven: one of them had to go"


def _content(row: Row) -> str:
    """All of a row but where its ranges end, which its neighbours decide."""
    data = plain(row)
    data["match"]["dims"] = {k: None if isinstance(v, list) else v for k, v in data["match"]["dims"].items()}
    return canonical(data)


def _tables(kept: Sequence[_Entry], sides: Sequence[list[Row]]) -> list[Table]:
    """One table for all rows of equal conditions, in the newest one's name."""
    rows = [entry.row for entry in kept]
    if not any(set(rows) == set(side) for side in sides):
        made = {row.identity: row for row in bounded(rows, known(rows))}
        rows = [made[row.identity] for row in rows]
    groups: dict[Hashable, list[tuple[Row, Table]]] = {}
    for row, entry in zip(rows, kept, strict=True):
        origin = entry.table.provenance
        conditions = origin.source, origin.timer, origin.checked, origin.toolchain
        groups.setdefault(conditions, []).append((row, entry.table))
    tables = []
    for group in groups.values():
        newest = max((table for _, table in group), key=lambda table: (table.provenance.created, table.digest))
        tables.append(replace(newest, rows=tuple(row for row, _ in group)))
    return tables
