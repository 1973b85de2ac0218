"""The command, as people run it: what it prints, writes and returns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import Warm, events, measured, tunefarm, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.pack_reader import load_pack
from tunefarm.record.finalists import MAX_FINALISTS
from tunefarm.trial import Outcome

TWO: dict[str, Any] = {
    "problems": [{"n": [1000, 4096], "dtype": "fp32"}],
    "space": {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]},
    "devices": [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"],
    "export": "packs/fill.json",
}
LEDGER = Path("sweeps/fill/ledger.jsonl")


def tags(database: Path, name: str) -> list[tuple[str, str]]:
    """(run name, value) of an MLflow tag, over all runs that have it."""
    query = "select r.name, t.value from tags t join runs r using (run_uuid) where t.key = ? order by r.name"
    with sqlite3.connect(database) as db:
        return list(db.execute(query, (name,)))


def run_statuses(database: Path) -> dict[str, str]:
    with sqlite3.connect(database) as db:
        return dict(db.execute("select name, status from runs"))


# ---- sweep ----


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, store: Path) -> tuple[Path, str, str]:
    """(folder, standard output, standard error) of a sweep with everything as it comes: Ray, Optuna, MLflow, a pack."""
    folder = tmp_path_factory.mktemp("swept")
    write_landscape(write_experiment(folder, **TWO))
    done = tunefarm("sweep", "experiment.yaml", folder=folder, store=store)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, done.stderr


def test_every_label_of_a_replay_says_so(swept: tuple[Path, str, str]) -> None:
    """Terminal, MLflow, pack."""
    folder, out, err = swept
    assert "REPLAYED" in out
    assert "Test GPU" in out
    assert "pack     packs/fill.json, replayed" in out
    lines = [line for line in err.splitlines() if line.startswith("fill sm_90 ")]
    assert len(lines) == 2
    assert all(" replayed" in line and "best BLOCK=" in line for line in lines)
    told = tags(folder / "mlflow.db", "tunefarm.source")
    assert {source for _, source in told} == {"replayed"}
    assert [name for name, _ in told if name.startswith("sm_90 ")] == ["sm_90 1000 fp32", "sm_90 4096 fp32"]
    assert len(told) == 1 + 2 + 2 * MAX_FINALISTS, "the sweep, each study and its finalists"
    pack = load_pack(folder / "packs/fill.json")
    assert pack.sources == ("replayed",)
    assert pack.tables[0].provenance.toolchain == farm.TOOLCHAIN


def test_outputs_that_nothing_checks_are_recorded_as_such(swept: tuple[Path, str, str], store: Path) -> None:
    """TF-034: the workload has no reference. The pack says so, MLflow says so, and so does who shows the pack."""
    folder, _, _ = swept
    assert [value for _, value in tags(folder / "mlflow.db", "tunefarm.checked")] == ["no"]
    assert not load_pack(folder / "packs/fill.json").tables[0].provenance.checked
    shown = tunefarm("pack", "show", "packs/fill.json", folder=folder, store=store)
    assert "outputs not checked: the workload has no reference" in shown.stdout, shown.stderr


def test_a_device_without_times_is_compiled_for_and_nothing_more(swept: tuple[Path, str, str]) -> None:
    folder, out, err = swept
    assert "NOT MEASURED: sm_80" in out
    lines = [line for line in err.splitlines() if line.startswith("fill sm_80 ")]
    assert len(lines) == 2
    assert all("no sm_80 GPU and no landscape; 48 of 48 candidates were compiled" in line for line in lines)
    (table,) = load_pack(folder / "packs/fill.json").tables
    assert table.device.arch == "sm_90"
    assert len(table.rows) == 2
    assert dict(tags(folder / "mlflow.db", "tunefarm.status")) == {
        "sm_80 1000 fp32": "not_measured", "sm_80 4096 fp32": "not_measured",
        "sm_90 1000 fp32": "winner", "sm_90 4096 fp32": "winner",
    }  # fmt: skip
    assert set(run_statuses(folder / "mlflow.db").values()) == {"FINISHED"}


def test_the_ledger_ends_with_the_export(swept: tuple[Path, str, str]) -> None:
    folder, _, _ = swept
    (export,) = events(folder / LEDGER, "export")
    assert export["digest"] == load_pack(folder / "packs/fill.json").digest
    assert export["rows"] == 2
    assert len(events(folder / LEDGER, "study")) == 4
    assert len(events(folder / LEDGER, "winner")) == 2


def test_pack_show(swept: tuple[Path, str, str], store: Path) -> None:
    folder, _, _ = swept
    shown = tunefarm("pack", "show", "packs/fill.json", folder=folder, store=store)
    assert shown.returncode == 0
    assert "fill_kernel on Test GPU (sm_90, 132 SMs) -- REPLAYED" in shown.stdout
    data = tunefarm("pack", "show", "packs/fill.json", "--json", folder=folder, store=store)
    assert json.loads(data.stdout) == json.loads((folder / "packs/fill.json").read_text())


def test_json_stands_alone_on_standard_output(swept: tuple[Path, str, str], store: Path) -> None:
    """Here after a sweep that is done: nothing is measured, and the numbers are the same."""
    folder, _, err = swept
    before = measured(folder / LEDGER)
    done = tunefarm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--json", "--tracking", "none", folder=folder, store=store
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert measured(folder / LEDGER) == before
    assert [study["status"] for study in facts["studies"]] == ["winner"] * 2 + ["not_measured"] * 2
    assert [study["source"] for study in facts["studies"]] == ["replayed"] * 2 + [""] * 2
    for study in facts["studies"][:2]:
        assert f"{study['measured']} replayed" in err
        assert study["winner"]["gain"] >= 1
        assert study["tbps"] > 0
        assert study["left"]["limit"] == ""
        assert study["left"]["num"] == study["candidates"] - sum(study["outcomes"].values())
    assert facts["pack"] == "packs/fill.json"
    assert facts["compiled_by_measuring"] == 0
    assert facts["gpu_held_s"] == facts["gpu_startup_s"] == 0


def test_a_problem_without_a_winner_makes_the_sweep_partial(tmp_path: Path, store: Path, warm: Warm) -> None:
    """TF-008: exit code 1, the rest is exported, its MLflow run has failed. TF-130: a failing sweep harms no pack."""

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
        return Outcome.OUT_OF_RESOURCES if variables["n"] == 4096 else farm.smooth(config, variables)

    problems = [{"n": [1000, 4096, 5000], "dtype": "fp32"}]
    experiment = write_experiment(tmp_path, problems=problems, export="packs/fill.json")
    write_landscape(experiment, time_ms)
    part = tunefarm("sweep", "experiment.yaml", "--fleet", "inline", folder=tmp_path, store=store)
    assert part.returncode == 1, part.stderr
    assert "fill sm_90 4096 fp32" in part.stderr
    assert "NO WINNER: 10/10 candidates failed alike: launch: out_of_resources: out_of_resources on p" in part.stderr
    pack = (tmp_path / "packs/fill.json").read_bytes()
    assert {row.measured_at["n"] for row in load_pack(tmp_path / "packs/fill.json").tables[0].rows} == {1000, 5000}
    statuses = run_statuses(tmp_path / "mlflow.db")
    assert [name for name, status in statuses.items() if status == "FAILED"] == ["sm_90 4096 fp32"]
    assert ("sm_90 4096 fp32", "no_winner") in tags(tmp_path / "mlflow.db", "tunefarm.status")

    typo = farm.KERNEL.replace("tl.arange(0, BLOCK)", "tl.arrange(0, BLOCK)")
    write_landscape(write_experiment(tmp_path, typo, problems=problems, export="packs/fill.json"))
    failed = tunefarm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", folder=tmp_path, store=store
    )
    assert failed.returncode == 1
    # TF-012: once a study, with the source line.
    assert failed.stderr.count("tl.arrange(0, BLOCK)") == 3
    assert failed.stderr.count("10/10 candidates failed alike") == 3
    assert "pack     none" in failed.stdout
    quiet = warm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "-q", folder=tmp_path, store=store
    )
    assert (quiet.returncode, quiet.stderr) == (1, "")
    assert quiet.stdout.count("10/10 candidates failed alike") == 3
    assert (tmp_path / "packs/fill.json").read_bytes() == pack


def test_what_only_workers_find_ends_in_one_line_too(tmp_path: Path, store: Path) -> None:
    """Exit code 2, workers gone; and the ledger is left so that the mended experiment goes on in it."""
    raises = (
        '    if sys.argv[0] == "-c" and sys.argv[1:]:\n        raise ValueError("only on workers")\n    fill_kernel['
    )
    write_landscape(write_experiment(tmp_path, farm.KERNEL.replace("    fill_kernel[", raises), export="fill.json"))
    arguments = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")
    done = tunefarm(*arguments, folder=tmp_path, store=tmp_path / "cold")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: experiment.yaml:1: workload: the call of fill raised ValueError: only on workers (")
    assert "kernels.py:" in line
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "fill.json").exists()
    write_experiment(tmp_path, export="fill.json")
    assert tunefarm(*arguments, folder=tmp_path, store=tmp_path / "cold").returncode == 0
    assert [e["epoch"] for e in events(tmp_path / LEDGER, "epoch")] == [1, 2]


# ---- plan ----


def test_plan_counts_what_each_rule_removed(tmp_path: Path, store: Path) -> None:
    """TF-028: the counts add up, and values that no candidate uses are named; TF-016: rules of the device as well."""
    write_experiment(
        tmp_path,
        space={"BLOCK": [64, 128], "MARK": [0, 1, 2], "num_warps": [4, 64]},
        constraints=["MARK != 2", "n < 2000 or BLOCK == 128"],
        problems=[{"n": [1000, 4096], "dtype": "fp32"}],
        devices=["sm_90"],
    )
    done = tunefarm("plan", "experiment.yaml", "--json", folder=tmp_path, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = json.loads(done.stdout)["studies"]
    for study in (first, second):
        assert study["candidates"] + sum(study["removed"].values()) == study["points"] + study["added_default"]
        assert study["points"] == 12
        assert study["removed"]["MARK != 2"] == 4
        assert {"MARK=2", "num_warps=64"} <= set(study["unused"])
        assert 1 <= study["buckets"] <= study["candidates"]
    assert first["removed"]["threads per block <= 1024"] == 4
    assert second["removed"] == {"MARK != 2": 4, "n < 2000 or BLOCK == 128": 4, "threads per block <= 1024": 2}
    assert (first["added_default"], second["added_default"]) == (0, 1)

    text = tunefarm("plan", "experiment.yaml", folder=tmp_path, store=store).stdout
    assert "fill sm_90 4096 fp32: 3 candidates" in text
    assert "removed     4 by MARK != 2" in text
    assert "no candidate uses MARK=2, num_warps=64" in text
    assert "times from: none: compiled and checked only" in text
    assert not (tmp_path / "sweeps").exists()


# ---- words about itself ----


@pytest.mark.parametrize(
    "verb",
    [
        [],
        *([v] for v in ("sweep", "plan", "build", "submit", "misses", "record", "repro", "doctor", "pack")),
        ["pack", "show"],
    ],
)
def test_help(tmp_path: Path, store: Path, verb: list[str]) -> None:
    done = tunefarm(*verb, "--help", folder=tmp_path, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout
    assert "Traceback" not in done.stdout
    if not verb:
        for name in ("sweep", "plan", "record", "doctor", "pack"):
            assert f" {name} " in done.stdout
        assert "Exit codes: 0 done" in done.stdout


def test_version(tmp_path: Path, store: Path) -> None:
    done = tunefarm("--version", folder=tmp_path, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tunefarm 0.")


@pytest.mark.parametrize("arguments", [["sweep"], ["sweep", "x.yaml", "--no-such"], ["frobnicate"], ["aa", "a", "b"]])
def test_usage_errors(tmp_path: Path, store: Path, arguments: list[str]) -> None:
    done = tunefarm(*arguments, folder=tmp_path, store=store)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr
