"""`tunefarm pack verify`: whether rows fit the kernels as they are now, by the real compiler and without a GPU."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from farm import KERNEL, write_experiment
from typer.testing import CliRunner

from tunefarm.audit import Finding, audit
from tunefarm.bench.build import triton_version
from tunefarm.bench.store import BuildStore
from tunefarm.cli.app import app
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.dispatch import Dispatch
from tunefarm.export import export
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, dumps, seal
from tunefarm.plan import Target, plan
from tunefarm.source import source_hash
from tunefarm.study import Status, StudyResult
from tunefarm.trial import Winner

ROOT = Path(__file__).parents[1]
H100, A100 = nominal("sm_90"), nominal("sm_80")
MATMUL: dict[str, Any] = {
    "name": "matmul",
    "workload": {
        "call": f"{ROOT / 'tests/bench_kernels.py'}:matmul",
        "kernel": f"{ROOT / 'tests/bench_kernels.py'}:matmul_kernel",
        "default": {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4},
        "dots": [["BM", "BN", "BK"]],
    },
    "inputs": {"a": ["M", "K"], "b": ["K", "N"]},
    "problems": [{"M": 256, "N": 256, "K": 256, "dtype": "bf16"}],
    "space": {"BM": [64, 128], "BN": [64, 128], "BK": [32, 128], "num_warps": [4, 8], "num_stages": [3, 5]},
}


def tuned(experiment: Path, config: Config | None = None, device: Device = H100) -> Pack:
    """A pack as if a sweep of the experiment had found this config, or the default, for each of its problems."""
    resolved = open_experiment(experiment)
    toolchain = FrozenMap(triton=triton_version())
    results = [
        StudyResult(
            study=planned.study, status=Status.WINNER, source="measured", toolchain=toolchain, timer="cold",
            winner=Winner(config=config or planned.default or Config(), median_ms=1.0, interval_ms=(1.0, 1.0)),
        )
        for planned in plan(resolved, [Target(device=device)])
    ]  # fmt: skip
    return export(
        results, kernel=resolved.workload.signature.kernel, source_hash=source_hash(resolved.workload.kernel),
        sweep="s", experiment="", created="2026-01-02", tunefarm="0.1.0", ranges=resolved.workload.ranges,
    )  # fmt: skip


@pytest.fixture
def verdicts(fleet: InlineFleet, store: Path) -> Any:
    """Audits a pack against experiments."""

    def ask(pack: Pack, *experiments: Path) -> Sequence[Finding]:
        resolved = [open_experiment(path) for path in experiments]
        return audit(pack.tables, resolved, Dispatch(fleet), BuildStore(store / "builds"))

    return ask


def test_rows_that_fit(tmp_path: Path, verdicts: Any) -> None:
    path = write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}])
    pack = tuned(path)
    for _ in range(2):  # compiled, then found in the store
        found = verdicts(pack, path)
        assert [finding.reason for finding in found] == ["", ""]
        assert [finding.row.measured_at["n"] for finding in found] == [1000, 4096]
        assert all(finding.build.registers > 0 for finding in found)


def test_a_changed_kernel_fails_and_a_comment_does_not(tmp_path: Path, verdicts: Any) -> None:
    pack = tuned(write_experiment(tmp_path / "old"))
    commented = KERNEL.replace("    i = tl", "    # places\n    i = tl")
    (found,) = verdicts(pack, write_experiment(tmp_path / "commented", kernel=commented))
    assert not found.reason
    new = write_experiment(tmp_path / "new", kernel=KERNEL.replace("mask=i < n", "mask=i <= n - 1"))
    (found,) = verdicts(pack, new)
    assert found.row is None
    assert found.reason.startswith(
        f"the kernel's source has changed: tuned {pack.tables[0].source_hash[:12]}, here is "
    )
    assert f"({new})" in found.reason
    (found,) = verdicts(pack, new, tmp_path / "old/experiment.yaml")
    assert not found.reason, "one of two kernels of that name is the one"


def test_a_kernel_that_is_not_there(tmp_path: Path, verdicts: Any) -> None:
    path = write_experiment(tmp_path)
    pack = tuned(path)
    renamed = seal(Pack(tables=(*pack.tables, replace(pack.tables[0], kernel="gone_kernel"))))
    good, bad = verdicts(renamed, path)
    assert not good.reason
    assert (bad.label, bad.row) == ("gone_kernel on NVIDIA H100 80GB HBM3", None)
    assert bad.reason == "no experiment given launches this kernel; they launch fill_kernel"


def test_a_config_too_large_for_shared_memory(tmp_path: Path, verdicts: Any) -> None:
    path = write_experiment(tmp_path, **MATMUL)
    good, bad = (
        verdicts(tuned(path, Config(params=dict.fromkeys(("BM", "BN", "BK"), 128), options=options), A100), path)[0]
        for options in ({"num_warps": 8, "num_stages": 3}, {"num_warps": 8, "num_stages": 4})
    )
    assert not good.reason
    assert good.build.shared_bytes <= A100.shared_bytes < bad.build.shared_bytes
    assert re.search(r"shared memory: required \d+ bytes .*, limit 166912 bytes .*A100", bad.reason)
    assert bad.label.startswith("matmul_kernel on NVIDIA A100-SXM4-80GB, ")


def test_tf_073_a_config_that_needs_more_than_when_it_was_tuned(tmp_path: Path, verdicts: Any) -> None:
    """As after an upgrade of the compiler: told on a CPU, before any training meets it."""
    path = write_experiment(tmp_path, **MATMUL)
    (fits,) = verdicts(tuned(path), path)
    tight = replace(H100, name="Tight GPU", shared_bytes=fits.build.shared_bytes)
    assert [f.reason for f in verdicts(tuned(path, device=tight), path)] == [""]
    (bad,) = verdicts(tuned(path, device=replace(tight, shared_bytes=tight.shared_bytes - 1)), path)
    assert f"required {tight.shared_bytes} bytes" in bad.reason


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 64}), "legality: threads per block <= 1024"),
        (Config(params={"BLOCK": 64, "MARK": 0, "LOST": 0}, options={"num_warps": 4}), "LOST"),
        (Config(params={"BLOCK": 100, "MARK": 0}, options={"num_warps": 4}), "arange's range must be a power of 2"),
        (Config(params={"BLOCK": 64, "MARK": 0, "n": 7}, options={"num_warps": 4}), "names n, which is for the caller"),
    ],
)
def test_a_config_that_cannot_be(tmp_path: Path, verdicts: Any, config: Config, reason: str) -> None:
    path = write_experiment(tmp_path)
    (found,) = verdicts(tuned(path, config), path)
    assert reason in found.reason
    assert "\n" not in found.reason
    assert found.build is None


def test_a_row_whose_problem_no_experiment_has_was_not_verified(tmp_path: Path, verdicts: Any) -> None:
    wide = write_experiment(tmp_path / "wide", problems=[{"n": [1000, 5000], "dtype": "fp32"}])
    narrow = write_experiment(tmp_path / "narrow", problems=[{"n": [1000, 0], "dtype": "fp32"}])
    good, bad = verdicts(tuned(wide), narrow)
    assert not good.reason
    assert bad.reason.startswith(f"not compiled: no problem of {narrow} is the one it was measured at (n=5000); add ")
    assert [f.reason for f in verdicts(tuned(wide), narrow, wide)] == ["", ""]


def test_devices_of_others_are_not_compiled_for(tmp_path: Path, verdicts: Any) -> None:
    path = write_experiment(tmp_path)
    (table,) = tuned(path).tables
    other = replace(table, device=replace(H100, vendor="amd", arch="gfx942"))
    (found,) = verdicts(seal(Pack(tables=(other,))), path)
    assert found.reason == "builds are made for NVIDIA's archs only, not for gfx942"


# ---- the verb ----


def run(*arguments: str | Path, store: Path) -> tuple[int, str]:
    done = CliRunner().invoke(
        app, ["pack", "verify", *map(str, arguments)], env={"TUNEFARM_CACHE": str(store), "COLUMNS": "200"}
    )
    return done.exit_code, done.output or str(done.exception)


def test_the_verb_on_softmax(tmp_path: Path, store: Path) -> None:
    """Two of its problems, real kernel and compiler; then with a row that no longer fits its device."""
    text = (ROOT / "experiments/softmax.yaml").read_text()
    kept = [line for line in text.splitlines() if "{n_rows:" not in line or "1024, dtype" in line or "50257" in line]
    head = "\n".join(kept).partition("\nchecks:")[0].replace("kernels/", f"{ROOT}/experiments/kernels/")
    path = tmp_path / "softmax.yaml"
    path.write_text(f"{head}\ndevices: [sm_90]\n")
    pack, file = tuned(path), tmp_path / "pack.json"
    file.write_text(dumps(pack))
    code, output = run(file, "--kernels", path, "--arch", "sm_90", "--builders", "2", store=store)
    assert code == 0, output
    assert output.count(" ok") == 2
    assert "softmax_kernel on NVIDIA H100 80GB HBM3 (sm_90): compiled by Triton" in output
    assert output.endswith(f"{file}: 2 of 2 rows verified, 0 failures\n")
    (table,) = pack.tables
    tight = replace(table, device=replace(H100, name="Tight GPU", shared_bytes=1))
    file.write_text(dumps(seal(Pack(tables=(table, tight)))))
    code, output = run(file, "--kernels", path, store=store)
    assert code == 1
    first, second = (line for line in output.splitlines() if line.startswith("FAILED "))
    assert first.startswith("FAILED softmax_kernel on Tight GPU, n_cols in (25128, 100514] not div16, bf16: ")
    assert re.search(r"in \(512, 2048\] .* shared memory: required \d+ bytes .*, limit 1 bytes", second)
    assert output.endswith(f"{file}: 2 of 4 rows verified, 2 failures\n")
    code, output = run(file, "--kernels", path, "--json", store=store)
    rows = json.loads(output)["rows"]
    assert (code, len(rows), sum(row["failure"] is None for row in rows)) == (1, 4, 2)


def test_the_verb_says_what_it_cannot_do(tmp_path: Path, store: Path) -> None:
    path, file = write_experiment(tmp_path), tmp_path / "pack.json"
    file.write_text(dumps(tuned(path)))
    assert (
        "has no table for sm_80 (--arch may be sm_90)"
        in run(file, "--kernels", path, "--arch", "sm_80", store=store)[1]
    )
    empty = tmp_path / "empty.json"
    empty.write_text(dumps(seal(Pack(tables=(replace(tuned(path).tables[0], rows=()),)))))
    assert "empty.json: holds no row to verify" in run(empty, "--kernels", path, store=store)[1]
    assert "takes an experiment's YAML" in run(file, "--kernels", tmp_path / "kernels.py", store=store)[1]
    assert "no such file" in run(tmp_path / "gone.json", "--kernels", path, store=store)[1]


def test_the_pre_commit_hook_is_the_verb() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "tunefarm-pack-verify"
    program, *words = shlex.split(hook["entry"])
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert (program, command.name, hook["pass_filenames"]) == ("tunefarm", "verify", False)
    changed = ("kernels/softmax.py", "experiments/softmax.yaml", "packs/softmax.json")
    assert all(re.search(hook["files"], name) for name in changed)
