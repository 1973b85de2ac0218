"""Whether a pack is as fast as another: row by row, by the times and intervals that both recorded.

Nothing is timed here. What `pack revalidate` does on a GPU is dearer and surer; this is for a pull request, which has
none.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.pack import Pack, Row, Table
from tunefarm.pack_diff import Change, head_changes, pair_rows, pair_tables


class Standing(enum.StrEnum):
    """How a row of the newer pack stands beside the older one's for the same measured problem."""

    SAME = "same"
    """Neither is faster beyond noise."""
    FASTER = "faster"
    SLOWER = "slower"
    UNCLEAR = "not comparable"
    """Their times are not of one kind, or one of them is not known."""
    GONE = "gone"
    """The newer pack has none."""
    NEW = "new"
    """The older pack has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row beside its counterpart.

    Attributes:
        old: as it was, or None.
        new: as it is, or None.
        standing: how they stand.
        reason: why, for people; empty where there is nothing to say.
    """

    old: Row | None
    new: Row | None
    standing: Standing
    reason: str = ""

    @property
    def row(self) -> Row:
        """The newer side that there is."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def change(self) -> float | None:
        """Fraction by which the newer median lies above the older one; None where they may not be compared."""
        if self.standing is Standing.UNCLEAR or self.old is None or self.new is None:
            return None
        if not self.old.median_ms or self.new.median_ms is None:
            return None
        return self.new.median_ms / self.old.median_ms - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTables:
    """The rows of one kernel on one device.

    Attributes:
        table: the newer side that there is.
        changes: what else differs, such as the toolchain under which the times were taken.
        rows: every row of either.
    """

    table: Table
    changes: tuple[Change, ...]
    rows: tuple[Compared, ...]


def compare(old: Pack, new: Pack) -> tuple[ComparedTables, ...]:
    """Every row of two packs beside its counterpart, by kernel and device."""
    compared = []
    for before, after in pair_tables(old.tables, new.tables):
        table = after or before
        assert table is not None
        pairs = pair_rows(before.rows if before else (), after.rows if after else ())
        apart = _apart(before, after)
        changes = head_changes(before, after) if before is not None and after is not None else ()
        rows = tuple(_compare(row, other, apart) for row, other in pairs)
        compared.append(ComparedTables(table=table, changes=changes, rows=rows))
    return tuple(compared)


def count(tables: Sequence[ComparedTables]) -> dict[Standing, int]:
    """How many rows stand how; every standing is there."""
    standings = [row.standing for table in tables for row in table.rows]
    return {standing: standings.count(standing) for standing in Standing}


def objections(tables: Sequence[ComparedTables], *, allow_gone: bool, allow_unclear: bool) -> list[str]:
    """Why the newer pack may not take the older one's place, one line a row.

    Args:
        tables: the two, compared.
        allow_gone: rows may be lost.
        allow_unclear: rows may be there whose times cannot be compared.
    """
    allowed = {Standing.GONE: allow_gone, Standing.UNCLEAR: allow_unclear, Standing.SLOWER: False}
    return [_object(table, row) for table in tables for row in table.rows if not allowed.get(row.standing, True)]


def _object(table: ComparedTables, row: Compared) -> str:
    parts = [row.standing.value, f"by {row.change:.1%}" if row.change is not None else ""]
    reason = f" ({row.reason})" if row.reason else ""
    place = f"{table.table.kernel} on {table.table.device.name}, {row.row.match.label}"
    return f"{place}: {' '.join(filter(None, parts))}{reason}"


def _apart(old: Table | None, new: Table | None) -> str:
    """Why the times of two tables must not be compared, or empty."""
    if old is None or new is None:
        return ""
    before, after = old.provenance, new.provenance
    if before.timer != after.timer:
        return f"timed {before.timer}, now {after.timer}"
    return f"{before.source}, now {after.source}" if before.source != after.source else ""


def _compare(old: Row | None, new: Row | None, apart: str) -> Compared:
    if old is None or new is None:
        return Compared(old=old, new=new, standing=Standing.NEW if old is None else Standing.GONE)
    if old == new:
        return Compared(old=old, new=new, standing=Standing.SAME)
    if apart or not old.median_ms or not new.median_ms or old.interval_ms is None or new.interval_ms is None:
        return Compared(old=old, new=new, standing=Standing.UNCLEAR, reason=apart or "no time was recorded")
    noise = _noise(old, new)
    if _is_beyond(old.interval_ms, new.interval_ms, noise):
        return Compared(old=old, new=new, standing=Standing.FASTER, reason=_note(old, new))
    if _is_beyond(new.interval_ms, old.interval_ms, noise):
        return Compared(old=old, new=new, standing=Standing.SLOWER, reason=_note(old, new))
    return Compared(old=old, new=new, standing=Standing.SAME)


def _noise(old: Row, new: Row) -> float:
    """What was no difference in the finals of either is none now.

    A margin below zero says that a config was kept though another one's median was lower by that much, because it was
    not faster beyond the noise of the sitting, or not by enough to matter.
    """
    return max([0.0, *(-row.margin for row in (old, new) if row.margin is not None)])


def _is_beyond(slower_ms: tuple[float, float], faster_ms: tuple[float, float], noise: float) -> bool:
    """Whether 95 % intervals of two medians lie apart, by more than the noise."""
    return slower_ms[0] > faster_ms[1] * (1 + noise)


def _note(old: Row, new: Row) -> str:
    """What a day, a clock or a driver did to both alike can be seen by the default, which nobody tuned."""
    if old.default is None or old.default != new.default or not old.default_ms or not new.default_ms:
        return ""
    return f"its default takes {new.default_ms / old.default_ms:.3f}x of then"
