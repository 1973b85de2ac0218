"""Merging packs: nothing is lost in silence, the better-proven row stays, and git can do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_pack import PROVENANCE, make_row, make_table
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.device import nominal
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, Row, Table, dumps, seal
from tunefarm.pack_merge import Merged, merge
from tunefarm.pack_reader import load_pack
from tunefarm.ranges import bounded

ROOT = Path(__file__).parents[1]
BETTER, WORSE = {"BLOCK": 1}, {"BLOCK": 2}


def row(n: int, **changes: Any) -> Row:
    params = changes.pop("params", {"BLOCK": n})
    return replace(make_row(n, n - 1, n, **params), **changes)


def table(*rows: Row, **changes: Any) -> Table:
    origin = {k: changes.pop(k) for k in ("source", "created", "timer", "checked", "toolchain") if k in changes}
    return make_table(*bounded(rows), provenance=replace(PROVENANCE, **origin), **changes)


def pack(*tables: Table) -> Pack:
    return seal(Pack(tables=tables))


def configs(merged: Merged) -> dict[int, Any]:
    return {int(r.measured_at["n"] or 0): r.config.params["BLOCK"] for t in merged.pack.tables for r in t.rows}


def test_rows_of_one_table_come_together_with_their_boundaries_set_anew() -> None:
    merged = merge(pack(table(row(16), row(1024))), pack(table(row(128))))
    (one,) = merged.pack.tables
    assert merged.dropped == ()
    assert one.rows == seal(Pack(tables=(table(row(16), row(128), row(1024)),))).tables[0].rows
    assert [r.match.dims["n"] for r in one.rows] == [(8, 45), (45, 362), (362, 2048)]


def test_other_tables_stay_byte_for_byte() -> None:
    ours, theirs = pack(table(row(16))), pack(table(row(16), device=nominal("sm_80")), table(row(8), kernel="other"))
    merged = merge(ours, theirs)
    assert {t.digest for t in merged.pack.tables} == {t.digest for p in (ours, theirs) for t in p.tables}
    assert merge(ours, ours).pack == ours


@pytest.mark.parametrize(
    ("better", "worse", "reason"),
    [
        ({}, {"source": "replayed", "created": "2027-01-01"}, "measured over replayed"),
        ({}, {"checked": False, "created": "2027-01-01"}, "outputs checked over not checked"),
        ({"created": "2026-02-01"}, {"created": "2026-01-31"}, "of 2026-02-01 over 2026-01-31"),
        ({"interval_ms": (0.249, 0.251)}, {}, "an interval of 0.80% over 8.00%"),
    ],
)
def test_the_better_proven_row_stays_and_the_other_is_listed(
    better: dict[str, Any], worse: dict[str, Any], reason: str
) -> None:
    def one(n: int, params: dict[str, int], terms: dict[str, Any]) -> Pack:
        interval = {"interval_ms": terms["interval_ms"]} if "interval_ms" in terms else {}
        rest = {k: v for k, v in terms.items() if k != "interval_ms"}
        return pack(table(row(16, params=params, **interval), row(n), **rest))

    good, bad = one(64, BETTER, better), one(256, WORSE, worse)
    for ours, theirs in ((good, bad), (bad, good)):
        merged = merge(ours, theirs)
        assert configs(merged) == {16: 1, 64: 64, 256: 256}
        (dropped,) = merged.dropped
        assert (dropped.row.config.params["BLOCK"], dropped.reason) == (2, reason)
        assert dropped.kept is not None
        assert dropped.kept.config.params["BLOCK"] == 1
    assert merge(good, bad).pack == merge(bad, good).pack


def test_rows_of_other_conditions_keep_a_table_of_their_own() -> None:
    """Whoever reads that a table was measured under torch 2.12 may believe it of each of its rows."""
    later = FrozenMap(torch="2.12.0", triton="3.6.0")
    merged = merge(pack(table(row(16), row(128))), pack(table(row(128), row(1024), toolchain=later, created="2027")))
    told = {t.provenance.toolchain["torch"]: [r.measured_at["n"] for r in t.rows] for t in merged.pack.tables}
    assert told == {"2.11.0": [16], "2.12.0": [128, 1024]}
    ranges = sorted(r.match.dims["n"] for t in merged.pack.tables for r in t.rows)  # type: ignore[type-var]
    assert ranges == [(8, 45), (45, 362), (362, 2048)]
    assert merged.dropped == ()  # the same row under both


def test_different_timers_are_refused() -> None:
    with pytest.raises(UserError, match=r"provenance\.timer: the table of k on NVIDIA H100.*cold in a and hot in b.*"):
        merge(pack(table(row(16))), pack(table(row(128), timer="hot")), names=("a", "b"))


def test_with_a_base_what_one_side_alone_did_counts() -> None:
    base = pack(table(row(16), row(64), row(256)))
    ours = pack(table(row(16, params=BETTER, interval_ms=(0.1, 0.5)), row(64), row(1024)))  # 256 removed, 1024 new
    theirs = pack(table(row(16), row(64, params=WORSE), row(256), row(4096)))
    merged = merge(ours, theirs, base=base)
    assert configs(merged) == {16: 1, 64: 2, 1024: 1024, 4096: 4096}
    reasons = {(d.side, d.row.measured_at["n"]): d.reason for d in merged.dropped}
    assert reasons == {
        ("theirs", 16): "changed in ours alone",
        ("ours", 64): "changed in theirs alone",
        ("theirs", 256): "removed in ours alone",
    }
    assert merge(theirs, ours, base=base).pack == merged.pack


def test_with_a_base_a_table_that_one_side_removed_goes_unless_the_other_changed_it() -> None:
    other = table(row(8), kernel="other")
    base, without = pack(table(row(16), row(64)), other), pack(other)
    merged = merge(without, base, base=base)
    assert merged.pack == without
    assert [d.reason for d in merged.dropped] == ["removed in ours alone"] * 2
    changed = pack(table(row(16, params=BETTER), row(64)), other)
    assert configs(merge(without, changed, base=base)) == {8: 8, 16: 1}


def test_the_command_writes_a_pack_and_lists_what_it_dropped(tmp_path: Path) -> None:
    a, b, out = (tmp_path / name for name in ("a.json", "b.json", "out.json"))
    a.write_text(dumps(pack(table(row(16, params=BETTER)))))
    b.write_text(dumps(pack(table(row(16, params=WORSE), source="replayed"), table(row(64), kernel="other"))))
    done = CliRunner().invoke(app, ["pack", "merge", str(a), str(b), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert load_pack(out).num_rows == 2
    assert "out.json: 2 rows in 2 tables, 1 row dropped" in done.output
    assert "dropped BLOCK=2 num_warps=4 of" in done.output
    assert "measured over replayed; kept BLOCK=1 num_warps=4" in done.output
    told = json.loads(CliRunner().invoke(app, ["pack", "merge", str(a), str(b), "-o", str(out), "--json"]).output)
    assert told["dropped"][0]["config"]["params"] == WORSE


# ---- git ----


class Repository:
    """A real repository in which packs are merged by the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "packs" / "k.json"
        self.git("init", "-q", "-b", "main")
        driver = f"{sys.executable} -m tunefarm.cli pack merge-driver %O %A %B --path %P"
        self.git("config", "merge.tunefarm-pack.driver", driver)
        (folder / ".gitattributes").write_text("packs/*.json merge=tunefarm-pack\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "attributes")

    def git(self, *words: str, fails: bool = False) -> str:
        who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env={**os.environ, **who, **alone}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def commit(self, made: Pack) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(dumps(made))
        self.git("add", "-A")
        self.git("commit", "-qm", "pack")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def branches(repository: Repository, base: Pack | None, ours: Pack, theirs: Pack) -> None:
    if base is not None:
        repository.commit(base)
    repository.git("switch", "-qc", "theirs")
    repository.commit(theirs)
    repository.git("switch", "-q", "main")
    repository.commit(ours)


def test_git_merges_what_its_own_merge_would_call_a_conflict(repository: Repository) -> None:
    base = pack(table(row(16), row(256)))
    ours, theirs = pack(table(row(16, params=BETTER), row(256))), pack(table(row(16), row(64), row(256)))
    branches(repository, base, ours, theirs)
    (repository.folder / ".gitattributes").write_text("")
    assert "CONFLICT" in repository.git("merge", "theirs", fails=True)
    repository.git("merge", "--abort")
    repository.git("checkout", "-q", ".gitattributes")
    said = repository.git("merge", "--no-edit", "theirs")
    assert "packs/k.json: 3 rows in 1 table, 1 row dropped" in said
    assert {r.measured_at["n"]: r.config.params["BLOCK"] for r in load_pack(repository.file).tables[0].rows} == {
        16: 1, 64: 64, 256: 256,
    }  # fmt: skip
    assert repository.git("status", "--porcelain") == ""


def test_a_merge_goes_into_a_new_file_or_a_pack(tmp_path: Path) -> None:
    a, other = tmp_path / "a.json", tmp_path / "train.py"
    a.write_text(dumps(pack(table(row(16)))))
    other.write_text("import torch\n")
    for out, says in ((other, "is there and no sound pack"), (tmp_path, "cannot be"), (other / "b.json", "cannot be")):
        done = CliRunner().invoke(app, ["pack", "merge", str(a), str(a), "-o", str(out)])
        assert isinstance(done.exception, UserError)
        assert says in str(done.exception)
    assert other.read_text() == "import torch\n"
    assert CliRunner().invoke(app, ["pack", "merge", str(a), str(a), "-o", str(a)]).exit_code == 0


def test_git_merges_a_pack_that_both_sides_added(repository: Repository) -> None:
    branches(repository, None, pack(table(row(16))), pack(table(row(256))))
    repository.git("merge", "--no-edit", "theirs")
    assert load_pack(repository.file).num_rows == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_git_calls_it_a_conflict_where_packs_cannot_be_merged(repository: Repository, damaged: bool) -> None:
    ours = pack(table(row(16)))
    branches(repository, None, ours, pack(table(row(256), timer="cold" if damaged else "hot")))
    if damaged:
        repository.git("switch", "-q", "theirs")
        repository.file.write_text(repository.file.read_text().replace('"BLOCK":256', '"BLOCK":255'))
        repository.git("commit", "-qam", "by hand")
        repository.git("switch", "-q", "main")
    said = repository.git("merge", "--no-edit", "theirs", fails=True)
    assert "CONFLICT" in said
    wrong = "packs/k.json (theirs): tables[0]: does not match its digest" if damaged else "cold in ours and hot in"
    assert wrong in said
    assert load_pack(repository.file) == ours
