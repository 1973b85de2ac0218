"""What changed between two packs: tables, where they come from, and rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.document import canonical
from tunefarm.pack import Pack, Row, Table, plain

_HEAD = ("layer", "source_hash", "device", "key_parts", "provenance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field with another value.

    Attributes:
        name: of the field, such as `config` or `provenance.timer`.
        old: as plain data.
        new: as plain data.
    """

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """A row on one side only, or one that differs.

    Attributes:
        old: as it was, or None.
        new: as it is, or None.
        changes: the fields that differ, if it is on both sides.
    """

    old: Row | None
    new: Row | None
    changes: tuple[Change, ...] = ()

    @property
    def label(self) -> str:
        """The calls it is for."""
        row = self.new or self.old
        assert row is not None
        return row.match.label


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """A table on one side only, or one that differs.

    Attributes:
        old: as it was, or None.
        new: as it is, or None.
        changes: what differs besides rows.
        rows: the rows that differ.
    """

    old: Table | None
    new: Table | None
    changes: tuple[Change, ...]
    rows: tuple[RowChange, ...]

    @property
    def table(self) -> Table:
        """The newer side that there is."""
        table = self.new or self.old
        assert table is not None
        return table


def diff(old: Pack, new: Pack) -> tuple[TableChange, ...]:
    """What changed, by kernel and device; empty exactly where both hold the same."""
    changes = []
    for before, after in pair_tables(old.tables, new.tables):
        if before is None or after is None or before.digest != after.digest:
            rows = _rows(before.rows if before else (), after.rows if after else ())
            head = () if before is None or after is None else head_changes(before, after)
            changes.append(TableChange(old=before, new=after, changes=head, rows=rows))
    return tuple(changes)


def head_changes(old: Table, new: Table) -> tuple[Change, ...]:
    """What differs between two tables besides their rows: source, toolchain, timer and the like."""
    return tuple(_fields("", _head(old), _head(new)))


def pair_tables(old: Sequence[Table], new: Sequence[Table]) -> list[tuple[Table | None, Table | None]]:
    """Tables of one kernel and device side by side: equal ones, then those of one key, then what is left over."""
    pairs: list[tuple[Table | None, Table | None]] = []
    for place in dict.fromkeys((t.kernel, t.device.key) for t in (*old, *new)):
        before = [t for t in old if (t.kernel, t.device.key) == place]
        after = [t for t in new if (t.kernel, t.device.key) == place]
        for same in (lambda a, b: a.digest == b.digest, lambda a, b: a.key == b.key, lambda a, b: True):
            for table in tuple(before):
                other = next((t for t in after if same(table, t)), None)
                if other is not None:
                    before.remove(table)
                    after.remove(other)
                    pairs.append((table, other))
        pairs += [(table, None) for table in before] + [(None, table) for table in after]
    return pairs


def pair_rows(old: Iterable[Row], new: Iterable[Row]) -> list[tuple[Row | None, Row | None]]:
    """Rows that answer the same measured problem side by side, the older pack's first."""
    before, after = _numbered(old), _numbered(new)
    return [(before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after))]


def _rows(old: Sequence[Row], new: Sequence[Row]) -> tuple[RowChange, ...]:
    changes = []
    for row, other in pair_rows(old, new):
        if row is None or other is None:
            changes.append(RowChange(old=row, new=other))
        elif fields := tuple(_fields("", plain(row), plain(other))):
            changes.append(RowChange(old=row, new=other, changes=fields))
    return tuple(changes)


def _numbered(rows: Iterable[Row]) -> dict[Hashable, Row]:
    # Nothing but the exporter keeps two rows of one identity out of a table.
    count: Counter[Hashable] = Counter()
    numbered: dict[Hashable, Row] = {}
    for row in rows:
        numbered[row.identity, count[row.identity]] = row
        count[row.identity] += 1
    return numbered


def _head(table: Table) -> dict[str, Any]:
    return {name: plain(getattr(table, name)) for name in _HEAD}


def _fields(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    found: list[Change] = []
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict) and name not in ("config", "default"):
            found += _fields(f"{prefix}{name}.", before, after)
        elif canonical(before) != canonical(after):  # to a pack 1, 1.0 and true are three values
            found.append(Change(name=f"{prefix}{name}", old=before, new=after))
    return found
