"""What changed between two packs: nothing that a digest covers is passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_pack import PROVENANCE, make_row, make_table
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, Row, Table, dumps, seal
from tunefarm.pack_diff import diff

ROWS = make_row(16, 8, 45), make_row(128, 45, 362), make_row(1024, 362, 2048)
TABLE = make_table(*ROWS)


def packed(*tables: Table) -> Pack:
    return seal(Pack(tables=tables))


def test_equal_packs_differ_in_nothing() -> None:
    assert diff(packed(TABLE), packed(make_table(*ROWS[::-1]))) == ()


def test_rows_are_added_removed_and_changed() -> None:
    faster = replace(ROWS[1], config=Config(params={"BLOCK": 64}), median_ms=0.2, gain=2.5)
    (change,) = diff(packed(TABLE), packed(make_table(ROWS[0], faster, make_row(4096, 2048, 8192))))
    states = {row.label: [field.name for field in row.changes] for row in change.rows if row.old and row.new}
    assert states == {faster.match.label: ["config", "median_ms", "gain"]}
    assert [row.old for row in change.rows if row.new is None] == [ROWS[2]]
    assert [row.new and row.new.measured_at["n"] for row in change.rows if row.old is None] == [4096]
    assert change.changes == ()


def test_a_moved_boundary_is_a_change_of_its_row() -> None:
    (change,) = diff(packed(TABLE), packed(make_table(make_row(16, 8, 64), *ROWS[1:])))
    (row,) = change.rows
    assert [(field.name, field.old, field.new) for field in row.changes] == [("match.dims.n", [8, 45], [8, 64])]


def test_tables_are_told_apart_by_kernel_and_device() -> None:
    other, a100 = make_table(ROWS[0], kernel="other"), make_table(ROWS[0], device=nominal("sm_80"))
    changes = diff(packed(TABLE, a100), packed(TABLE, other))
    assert [(c.table.kernel, c.table.device.arch, c.old is None, c.new is None) for c in changes] == [
        ("k", "sm_80", False, True), ("other", "sm_90", True, False),
    ]  # fmt: skip


def test_a_table_of_another_source_or_triton_is_the_same_table_changed() -> None:
    parts = FrozenMap({**TABLE.key_parts, "source_hash": "t" * 64, "triton": "3.7.1"})
    later = replace(TABLE, source_hash="t" * 64, key_parts=parts, provenance=replace(PROVENANCE, created="2026-02-03"))
    (change,) = diff(packed(TABLE), packed(later))
    names = [field.name for field in change.changes]
    assert names == ["source_hash", "key_parts.source_hash", "key_parts.triton", "provenance.created"]
    assert change.rows == ()
    assert diff(packed(TABLE, later), packed(later)) == diff(packed(TABLE), Pack(tables=()))


@pytest.mark.parametrize(
    "change",
    [
        {"median_ms": 0.3}, {"interval_ms": (0.2, 0.3)}, {"default": None}, {"default_ms": None}, {"margin": 0.1},
        {"config": Config(params={"BLOCK": 128.0}, options={"num_warps": 4})},
        {"config": Config(params={"BLOCK": 128}, options={"num_warps": True})},
        {"measured_at": FrozenMap(n=129, k=64)}, {"measured_at": FrozenMap(n=128, k=64.0)},
    ],
)  # fmt: skip
def test_whatever_changes_the_digest_is_shown(change: dict[str, Any]) -> None:
    old, new = packed(TABLE), packed(make_table(ROWS[0], replace(ROWS[1], **change), ROWS[2]))
    assert old.digest != new.digest
    assert diff(old, new)[0].rows
    assert diff(old, packed(replace(TABLE, layer=3)))[0].changes[0].name == "layer"
    for device in (replace(TABLE.device, memory_bytes=1), replace(TABLE.device, live=True)):
        assert diff(old, packed(replace(TABLE, device=device)))[0].changes


def test_two_rows_of_one_identity_are_both_seen() -> None:
    twice: tuple[Row, ...] = (ROWS[0], make_row(16, 8, 45, BLOCK=1))
    (change,) = diff(packed(make_table(*twice)), packed(make_table(ROWS[0])))
    assert len(change.rows) >= 1
    assert sum(row.new is None for row in change.rows) == 1


def test_the_command_says_it_and_exits_with_1(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(dumps(packed(TABLE)))
    new.write_text(dumps(packed(make_table(replace(ROWS[0], median_ms=0.2), ROWS[1]))))
    same = CliRunner().invoke(app, ["pack", "diff", str(old), str(old)])
    assert (same.exit_code, same.output) == (0, "equal\n")
    told = CliRunner().invoke(app, ["pack", "diff", str(old), str(new)])
    assert told.exit_code == 1
    assert told.output.splitlines() == [
        "k on NVIDIA H100 80GB HBM3: table changed",
        "  ~ k=64, n in (8, 45] div16, bf16, fp32, x unaligned, y unaligned",
        "      median_ms: 0.25 -> 0.2",
        "  - k=64, n in (362, 2048] div16, bf16, fp32, x unaligned, y unaligned: "
        "BLOCK=1024 num_warps=4, 250.0 us, 2.00x default",
        "1 table differs: 0 rows added, 1 row removed, 1 row changed",
    ]
    plain = json.loads(CliRunner().invoke(app, ["pack", "diff", str(old), str(new), "--json"]).output)
    assert plain["equal"] is False
    assert [row["state"] for row in plain["tables"][0]["rows"]] == ["changed", "removed"]
    assert plain["tables"][0]["rows"][0]["changes"] == {"median_ms": [0.25, 0.2]}
