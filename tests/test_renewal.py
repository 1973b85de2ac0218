"""`tunefarm pack revalidate`: code that did not change keeps its times, other code is measured again. Real compiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm import KERNEL, play, smooth, write_experiment, write_landscape
from softmax_recording import SOFTMAX, pack_of
from typer.testing import CliRunner

from tunefarm.audit import audit
from tunefarm.bench.build import triton_version
from tunefarm.bench.store import BuildStore
from tunefarm.cli.app import app
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config, Value
from tunefarm.dispatch import Dispatch
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Code, Pack, dumps, seal
from tunefarm.pack_reader import load_pack
from tunefarm.source import source_hash

TWO = [{"n": [1000, 4096], "dtype": "fp32"}]
REWRITTEN = KERNEL.replace("mask=i < n", "mask=n > i")
OTHER = KERNEL.replace("mask=i < n", "mask=i < n - 1")
BEST = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})


def run(*arguments: str | Path, store: Path) -> tuple[int, str]:
    words = ["pack", "revalidate", *map(str, arguments), "--quiet", "--builders", "1"]
    done = CliRunner().invoke(app, words, env={"TUNEFARM_CACHE": str(store), "COLUMNS": "200"})
    return done.exit_code, done.output + ("" if done.exception is None else str(done.exception))


def under(pack: Pack, triton: str) -> Pack:
    """The pack as if another Triton had compiled it."""
    return seal(
        Pack(
            tables=tuple(replace(t, key_parts=FrozenMap({**t.key_parts, "triton": triton})) for t in pack.tables),
        )
    )


@pytest.fixture
def tuned(tmp_path: Path, fleet: InlineFleet, store: Path) -> Path:
    """A pack of two problems, replayed, whose rows know their code."""
    path = write_experiment(tmp_path / "old", problems=TWO)
    write_landscape(path)
    (table,) = pack_of(path).tables
    pack = under(Pack(tables=(table,)), triton_version())
    found = audit(pack.tables, [open_experiment(path)], Dispatch(fleet), BuildStore(store / "builds"))
    rows = []
    for finding in found:
        assert finding.row is not None
        build = finding.build
        assert build is not None
        code = Code(sha256=build.code, registers=build.registers, spills=build.spills, shared_bytes=build.shared_bytes)
        rows.append(replace(finding.row, code=code))
    file = tmp_path / "pack.json"
    file.write_text(dumps(seal(Pack(tables=(replace(pack.tables[0], rows=tuple(rows)),)))))
    return file


def rows(file: Path) -> list[str]:
    """The lines that rows stand in."""
    return [line.rstrip(",") for line in file.read_text().splitlines() if line.startswith('{"code"')]


def test_a_comment_changes_nothing(tuned: Path, tmp_path: Path, store: Path) -> None:
    commented = KERNEL.replace("    i = tl", "    # places\n    i = tl")
    path = write_experiment(tmp_path / "new", kernel=commented, problems=TWO, devices=["sm_90"])
    before = tuned.read_bytes()
    code, output = run(tuned, path, "-o", tuned, store=store)
    assert code == 0, output
    assert "pack.json: 2 rows: 2 current" in output
    assert output.endswith("pack.json: not written: nothing changed\n")
    assert tuned.read_bytes() == before


def test_the_same_code_of_another_source_keeps_its_bytes(tuned: Path, tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path / "new", kernel=REWRITTEN, problems=TWO, devices=["sm_90"])
    (before,), out = load_pack(tuned).tables, tmp_path / "new.json"
    code, output = run(tuned, path, "-o", out, store=store)
    assert code == 0, output
    assert "2 rows: 2 same code" in output
    assert output.endswith("new.json: written\n")
    (after,) = load_pack(out).tables
    assert rows(out) == rows(tuned)
    assert after.source_hash == source_hash(open_experiment(path).workload.kernel) != before.source_hash
    assert after.key_parts["source_hash"] == after.source_hash
    assert after.provenance == before.provenance
    assert run(out, path, store=store)[1].count("current ") == 2


def test_the_same_code_of_another_triton(tuned: Path, tmp_path: Path, store: Path) -> None:
    tuned.write_text(dumps(under(load_pack(tuned), "3.5.0")))
    path = write_experiment(tmp_path / "new", problems=TWO, devices=["sm_90"])
    before = rows(tuned)
    code, output = run(tuned, path, "-o", tuned, "--json", store=store)
    assert code == 0, output
    assert [row["fate"] for row in json.loads(output)["rows"]] == ["same code"] * 2
    (table,) = load_pack(tuned).tables
    assert table.key_parts["triton"] == triton_version()
    assert rows(tuned) == before


def test_other_code_is_left_where_nothing_can_measure_it(tuned: Path, tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path / "new", kernel=OTHER, problems=TWO, devices=["sm_90"])
    code, output = run(tuned, path, "-o", tmp_path / "new.json", store=store)
    assert code == 1
    assert output.count("(other code, and nothing is here to measure it with)") == 2
    assert load_pack(tmp_path / "new.json") == load_pack(tuned)


def test_other_code_is_measured_again(tuned: Path, tmp_path: Path, store: Path) -> None:
    """The best of before is slower than the default now for the larger problem, and still the best for the other."""
    path = write_experiment(tmp_path / "new", kernel=OTHER, problems=TWO)

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float:
        is_default = config.flat == {"BLOCK": 64, "MARK": 0, "num_warps": 4}
        return 0.1 * smooth(config, variables) if is_default and variables["n"] == 4096 else smooth(config, variables)

    write_landscape(path, time_ms)
    code, output = run(tuned, path, "-o", tmp_path / "new.json", "--meter", "replay", store=store)
    assert code == 0, output
    assert "2 rows: 1 kept, 1 replaced" in output
    assert "-> BLOCK=64 MARK=0 num_warps=4, " in output
    before, after = load_pack(tuned).tables[0], load_pack(tmp_path / "new.json").tables
    (table,) = after
    assert table.source_hash == source_hash(open_experiment(path).workload.kernel)
    assert [row.match for row in table.rows] == [row.match for row in before.rows]
    assert [row.config == old.config for row, old in zip(table.rows, before.rows, strict=True)] == [True, False]
    assert table.rows[1].config == table.rows[1].default
    assert table.provenance.sweep == "fill"


def test_rows_of_one_table_may_fare_differently(tuned: Path, tmp_path: Path, store: Path) -> None:
    """An edit that touches one config only: its row is left, the others go on under the new key."""
    (table,) = load_pack(tuned).tables
    first, second = table.rows
    blocks = first.config.params["BLOCK"], second.config.params["BLOCK"]
    assert blocks[0] != blocks[1]
    edited = KERNEL.replace("    tl.store", f"    if BLOCK == {blocks[1]}:\n        n = n - 1\n    tl.store")
    path = write_experiment(tmp_path / "new", kernel=edited, problems=TWO, devices=["sm_90"])
    code, output = run(tuned, path, "-o", tuned, store=store)
    assert code == 1
    assert "2 rows: 1 same code, 1 left" in output
    tables = {t.source_hash: t.rows for t in load_pack(tuned).tables}
    assert tables == {table.source_hash: (second,), source_hash(open_experiment(path).workload.kernel): (first,)}


def test_runners_up_come_from_the_sweep_s_ledger(tuned: Path, tmp_path: Path, store: Path, fleet: InlineFleet) -> None:
    """The row holds a config that is not good any more; the default is worse than what the ledger knows."""
    path = write_experiment(tmp_path / "sweep", problems=TWO)
    write_landscape(path)
    play(path, fleet, store)
    (table,) = load_pack(tuned).tables
    slow = Config(params={"BLOCK": 64, "MARK": 1}, options={"num_warps": 4})
    old = replace(table, rows=tuple(replace(row, config=slow, code=None) for row in table.rows))
    tuned.write_text(dumps(under(Pack(tables=(old,)), "3.5.0")))
    for words, better in (((), False), (("--sweep", path.parent), True)):
        code, output = run(tuned, path, "--meter", "replay", "--json", *words, store=store)
        assert code == 0, output
        found = json.loads(output)["rows"]
        assert [row["fate"] for row in found] == ["replaced"] * 2
        assert all(row["reason"] == "nobody knows its code" for row in found)
        best = [row.config.to_json() for row in table.rows]
        assert ([row["new"]["config"] for row in found] == best) is better


def test_a_real_recording(tmp_path: Path, store: Path) -> None:
    """Softmax on an H200 from another Triton: the recorded winners win again, and one that was none gives way."""
    (table,) = pack_of(SOFTMAX, toolchain=FrozenMap(triton="3.5.0")).tables
    *first, fourth, fifth, sixth = table.rows
    slow = Config(params={"ROWS": 1, "BLOCK_N": 2048}, options={"num_warps": 1, "num_stages": 2})
    file = tmp_path / "old.json"
    old = replace(table, rows=(*first, replace(fourth, config=slow), fifth, sixth))
    file.write_text(dumps(under(Pack(tables=(old,)), "3.5.0")))
    code, output = run(file, SOFTMAX, "-o", file, "--meter", "replay", store=store)
    assert code == 0, output
    (after,) = load_pack(file).tables
    assert after.key_parts["triton"] == "3.6.0", "the times are of the recording's Triton"
    assert after.provenance.source == "replayed"
    assert [row.match for row in after.rows] == [row.match for row in old.rows]
    assert [row.config for row in after.rows] == [row.config for row in table.rows]
    assert after.rows[3].config == fourth.default
    assert "6 rows: 5 kept, 1 replaced" in output
    assert (
        "replaced   softmax_kernel on NVIDIA H200, n_cols in (2048, 7240] div16, bf16: BLOCK_N=2048 ROWS=1 " in output
    )


def test_bad_input(tuned: Path, tmp_path: Path, store: Path) -> None:
    path = write_experiment(tmp_path / "new", problems=TWO, devices=["sm_90"])
    assert "is there already" in run(tuned, path, "-o", path, store=store)[1]
    assert "holds fill_kernel; the experiments launch softmax_kernel" in run(tuned, SOFTMAX, store=store)[1]
    empty = tmp_path / "empty.json"
    empty.write_text(dumps(under(Pack(tables=(replace(load_pack(tuned).tables[0], rows=()),)), "3.5.0")))
    assert "empty.json: holds no row to revalidate" in run(empty, path, store=store)[1]
    assert "holds no ledger.jsonl" in run(tuned, path, "--sweep", tmp_path, store=store)[1]
    code, output = run(tuned, write_experiment(tmp_path / "one", devices=["sm_90"]), store=store)
    assert (code, "is the one it was measured at (n=4096)" in output) == (1, True)
    (table,) = load_pack(tuned).tables
    measured = replace(table, provenance=replace(table.provenance, source="measured"))
    tuned.write_text(dumps(under(Pack(tables=(measured,)), "3.5.0")))
    assert run(tuned, path, store=store)[0] == 0, "the same code asks no meter"
    other = write_experiment(tmp_path / "other", kernel=OTHER, problems=TWO)
    write_landscape(other)
    said = run(tuned, other, "--meter", "replay", store=store)[1]
    assert "its rows were measured, and those measured again would be replayed" in said
    tuned.write_text(tuned.read_text().replace("BLOCK", "BLOCKS"))
    assert "does not match its digest" in run(tuned, path, store=store)[1]


def test_one_config_over_is_refused(tuned: Path, tmp_path: Path, store: Path) -> None:
    accept: dict[str, Any] = {"one_config_over": ["n"]}
    path = write_experiment(tmp_path / "new", kernel=OTHER, problems=TWO, accept=accept)
    write_landscape(path)
    said = run(tuned, path, "--meter", "replay", store=store)[1]
    assert "accept.one_config_over: rows that share one config cannot be renewed one by one (sweep it again)" in said
