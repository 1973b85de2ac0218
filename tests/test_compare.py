"""`tunefarm compare`, as CI runs it: on packs that real sweeps exported, with nothing else installed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import farm
import pytest
from bare import bare
from farm import smooth, tunefarm, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.pack import Pack, dumps, seal
from tunefarm.pack_reader import load_pack

# Two blocks, and two problems whose best is the one or the other.
SECTIONS = {
    "problems": [{"n": [1000, 4096], "dtype": "fp32"}],
    "space": {"BLOCK": [128, 256], "MARK": [0], "num_warps": [2, 4]},
    "export": "pack.json",
}


def slower_once(config: Config, variables: Mapping[str, Value]) -> float:
    """Everything takes a tenth longer, at one of the problems."""
    return smooth(config, variables) * (1.1 if variables["n"] == 4096 else 1.0)


def faster(config: Config, variables: Mapping[str, Value]) -> float:
    return smooth(config, variables) * 0.9


def sweep(folder: Path, store: Path, time_ms: farm.Time) -> Path:
    write_landscape(write_experiment(folder, **SECTIONS), time_ms)
    done = tunefarm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet", folder=folder, store=store
    )
    assert done.returncode == 0, done.stderr
    return folder / "pack.json"


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, Path]:
    """By name a pack of a sweep that was held."""
    times = {"main": smooth, "regressed": slower_once, "better": faster}
    return {name: sweep(tmp_path_factory.mktemp(name), store, time_ms) for name, time_ms in times.items()}


def compare(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return bare("compare", *words, folder=folder, without=("mlflow", "numpy"))


def test_one_regressed_row_blocks_a_pack_and_a_faster_pack_passes(packs: dict[str, Path], tmp_path: Path) -> None:
    blocked = compare(packs["main"], packs["regressed"], folder=tmp_path)
    assert (blocked.returncode, blocked.stderr) == (1, "")
    assert "2 rows in both: 1 same, 1 slower; 0 with another config" in blocked.stdout
    (line,) = [line for line in blocked.stdout.splitlines() if "slower  " in line]
    assert "n in (2048, 8192] div16" in line
    assert "+10.0%" in line
    passed = compare(packs["main"], packs["better"], folder=tmp_path)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert "2 rows in both: 2 faster" in passed.stdout
    assert compare(packs["main"], packs["main"], folder=tmp_path).returncode == 0


def test_json_stands_alone_and_says_by_how_much(packs: dict[str, Path], tmp_path: Path) -> None:
    done = compare(packs["main"], packs["regressed"], "--json", folder=tmp_path)
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["counts"] == {"same": 1, "faster": 0, "slower": 1, "not comparable": 0, "gone": 0, "new": 0}
    (slower,) = [row for row in told["rows"] if row["standing"] == "slower"]
    assert slower["measured_at"]["n"] == 4096
    assert slower["change"] == pytest.approx(0.1, abs=0.001)
    assert slower["old"]["median_ms"] * 1.1 == pytest.approx(slower["new"]["median_ms"], rel=0.001)
    assert slower["reason"] == "its default takes 1.100x of then"


def test_a_sweep_stands_for_the_pack_it_exported(packs: dict[str, Path], tmp_path: Path) -> None:
    folder = packs["regressed"].parent
    done = compare(packs["main"], "sweeps/fill", folder=folder)
    assert (done.returncode, done.stderr) == (1, "")
    text = packs["regressed"].read_text()
    try:
        packs["regressed"].write_bytes(packs["main"].read_bytes())
        changed = compare(packs["main"], "sweeps/fill", folder=folder)
        assert changed.returncode == 2
        assert "pack.json has changed since this sweep exported it" in changed.stderr
    finally:
        packs["regressed"].write_text(text)
    elsewhere = compare(packs["main"], folder / "sweeps/fill", folder=tmp_path)
    assert elsewhere.returncode == 2
    assert "is not there (stand where it ran)" in elsewhere.stderr


def test_what_cannot_be_compared_is_an_error_of_the_user(packs: dict[str, Path], tmp_path: Path) -> None:
    missing = compare(packs["main"], "nothing.json", folder=tmp_path)
    assert (missing.returncode, "nothing.json" in missing.stderr) == (2, True)
    torn = tmp_path / "torn.json"
    torn.write_text(packs["main"].read_text()[:200])
    assert compare(packs["main"], torn, folder=tmp_path).returncode == 2
    (table,) = load_pack(packs["main"]).tables
    other = tmp_path / "other.json"
    other.write_text(dumps(seal(Pack(tables=(replace(table, kernel="other"),)))))
    apart = compare(packs["main"], other, folder=tmp_path)
    assert apart.returncode == 2
    assert "hold no row for the same problem of one kernel and device" in apart.stderr
    registered = "models:/tunefarm.fill@champion"
    nowhere = compare(packs["main"], registered, folder=tmp_path)
    assert (nowhere.returncode, "mlflow.db: there is no such database" in nowhere.stderr) == (2, True)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("create table anything (x)")
    without = compare(packs["main"], registered, folder=tmp_path)
    assert without.returncode == 2
    assert "mlflow is not installed" in without.stderr
