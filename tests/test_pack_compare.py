"""Two packs side by side: what is faster, what slower beyond noise, what is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_pack import PROVENANCE, make_row, make_table

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.pack import Pack, Row, Table, seal
from tunefarm.pack_compare import Compared, Standing, compare, count

ROWS = make_row(16, 8, 45), make_row(128, 45, 362), make_row(1024, 362, 2048)


def packed(*tables: Table) -> Pack:
    return seal(Pack(tables=tables))


def timed(row: Row, factor: float, **changes: object) -> Row:
    assert row.median_ms is not None
    assert row.interval_ms is not None
    low, high = row.interval_ms
    return replace(row, median_ms=row.median_ms * factor, interval_ms=(low * factor, high * factor), **changes)  # type: ignore[arg-type]


def beside(old: Row, new: Row, **changes: object) -> Compared:
    """One row beside another; `changes` are of the newer pack's provenance."""
    later = make_table(new, provenance=replace(PROVENANCE, **changes))  # type: ignore[arg-type]
    ((row,),) = (table.rows for table in compare(packed(make_table(old)), packed(later)))
    return row


def test_equal_packs_are_the_same_in_every_row() -> None:
    (table,) = compare(packed(make_table(*ROWS)), packed(make_table(*ROWS[::-1])))
    assert {row.standing for row in table.rows} == {Standing.SAME}
    assert [row.change for row in table.rows] == [0.0] * 3
    assert table.changes == ()


@pytest.mark.parametrize(
    ("factor", "standing"),
    [(1.2, Standing.SLOWER), (1.05, Standing.SAME), (0.95, Standing.SAME), (0.8, Standing.FASTER)],
)
def test_a_row_is_slower_or_faster_where_the_intervals_lie_apart(factor: float, standing: Standing) -> None:
    """The interval of these rows is 4 % to either side."""
    row = beside(ROWS[0], timed(ROWS[0], factor))
    assert row.standing is standing
    assert row.change == pytest.approx(factor - 1)


@pytest.mark.parametrize(("margin", "standing"), [(0.05, Standing.SLOWER), (-0.02, Standing.SLOWER), (-0.1, "same")])
def test_what_the_finals_took_for_no_difference_is_none_now(margin: float, standing: Standing) -> None:
    """A row kept though another config's median was 10 % lower says that 10 % were not beyond the noise there."""
    slower = timed(ROWS[0], 1.12)
    assert beside(replace(ROWS[0], margin=margin), slower).standing == standing
    assert beside(ROWS[0], replace(slower, margin=margin)).standing == standing


def test_times_of_two_kinds_are_not_compared() -> None:
    slower = timed(ROWS[0], 2.0)
    hot, replayed = beside(ROWS[0], slower, timer="hot"), beside(ROWS[0], slower, source="replayed")
    assert (hot.standing, hot.reason, hot.change) == (Standing.UNCLEAR, "timed cold, now hot", None)
    assert (replayed.standing, replayed.reason) == (Standing.UNCLEAR, "measured, now replayed")
    unknown = beside(ROWS[0], replace(ROWS[0], median_ms=None, interval_ms=None))
    assert (unknown.standing, unknown.reason) == (Standing.UNCLEAR, "no time was recorded")


def test_a_day_that_slowed_the_default_too_is_told() -> None:
    assert ROWS[0].default_ms is not None
    slower = timed(ROWS[0], 1.2, default_ms=ROWS[0].default_ms * 1.2)
    assert beside(ROWS[0], slower).reason == "its default takes 1.200x of then"
    assert beside(ROWS[0], replace(slower, default=Config(params={"BLOCK": 32}))).reason == ""


def test_rows_and_tables_of_one_side_only_are_gone_or_new() -> None:
    a100 = make_table(ROWS[0], device=nominal("sm_80"))
    tables = compare(packed(make_table(*ROWS[:2]), a100), packed(make_table(*ROWS[1:])))
    assert {(t.table.device.arch, r.row.measured_at["n"]): r.standing for t in tables for r in t.rows} == {
        ("sm_80", 16): Standing.GONE, ("sm_90", 16): Standing.GONE,
        ("sm_90", 128): Standing.SAME, ("sm_90", 1024): Standing.NEW,
    }  # fmt: skip
    assert count(tables) == {
        Standing.SAME: 1, Standing.FASTER: 0, Standing.SLOWER: 0, Standing.UNCLEAR: 0, Standing.GONE: 2,
        Standing.NEW: 1,
    }  # fmt: skip


def test_a_row_is_found_again_when_its_range_has_moved() -> None:
    moved = replace(make_row(16, 8, 64), config=Config(params={"BLOCK": 64}))
    row = beside(ROWS[0], moved)
    assert row.standing is Standing.SAME
    assert (row.old, row.new) == (ROWS[0], moved)
