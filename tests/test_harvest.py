"""The harvest, without a GPU: what torch.compile generates for one, as experiments; and a job that finds their rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tunefarm.bench.build import Artifact, compile_launch, launch_options, triton_version
from tunefarm.bench.launch import learn
from tunefarm.bench.tensors import make_inputs
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.generated import public
from tunefarm.inductor.harvest import explained
from tunefarm.pack import Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.spec.experiment import load_experiment, resolve

HERE = Path(__file__).parent
STORE = Path(os.environ.get("TUNEFARM_CACHE", Path.home() / ".cache" / "tunefarm"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TUNEFARM_CACHE": str(STORE), "PYTHONPATH": f"{HERE.parent}:{HERE}"}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@cache
def gathered(function: str, arch: str, folder: Path) -> dict[str, Any]:
    out = folder / function / arch
    done = run("-m", "tunefarm.cli", "harvest", f"{HERE}/harvested.py:{function}", "--out", str(out),
               "--device", arch, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("harvest")


@pytest.mark.parametrize("code", [0, 5])
def test_a_function_that_exits_is_an_error(code: int) -> None:
    says = rf"train.py:block raised SystemExit: {code} \(it returns"
    with pytest.raises(SpecError, match=says), explained("train.py:block"):
        raise SystemExit(code)


def test_what_torch_wraps_is_told() -> None:
    says = "train.py:block raised RuntimeError: a and b must have same reduction dim"
    with pytest.raises(SpecError, match=says), explained("train.py:block"):
        torch.compile(torch.mm, backend="eager")(torch.ones(4, 4), torch.ones(3, 3))


def test_a_product_of_odd_sizes_needs_no_gpu_to_time_its_padding(folder: Path) -> None:
    found = gathered("odd_product", "sm_90", folder)
    assert (len(found["products"]), found["left"]) == (1, [])


def corners(resolved: Any) -> list[Config]:
    """The default, and the candidates with the least and the greatest of every param."""
    domain = resolved.space.domain
    ends = [{name: values[end] for name, values in domain.items()} for end in (0, -1)]
    signature = resolved.workload.signature
    return [resolved.workload.default, *(signature.config(end) for end in ends)]


def read(kernel: dict[str, Any]) -> Any:
    """The kernel's experiment, read and compared with what the harvest told."""
    resolved = resolve(load_experiment(kernel["experiment"]), launch_options(), triton_version())
    assert resolved.workload.packed_as[1:] == (kernel["key"], 3)
    assert resolved.workload.default.flat == kernel["configs"][0]
    return resolved


def check_build(resolved: Any, config: Config, arch: str) -> Any:
    """Builds a config as the farm does, and returns its launch."""
    (problem,) = resolved.experiment.problems
    inputs = make_inputs(resolved.workload, problem.variables, "meta")
    launch = learn(resolved.workload, inputs, config, nominal(arch).target)
    build, artifact = compile_launch(launch, nominal(arch).target)
    assert isinstance(artifact, Artifact), build
    return launch


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_forward_and_backward_become_experiments_that_plan_and_build(folder, arch):
    found = gathered("gated_norm", arch, folder)
    assert {"persistent_reduction", "reduction"} <= {kernel["heuristic"] for kernel in found["kernels"]}
    assert found["graph_breaks"] == []
    for kernel in found["kernels"]:
        resolved = read(kernel)
        for config in corners(resolved)[:2]:
            assert all(size >= 1 for size in check_build(resolved, config, arch).grid)
    done = run("-m", "tunefarm.cli", "plan", found["kernels"][0]["experiment"])
    assert done.returncode == 0, done.stderr
    assert "candidates" in done.stdout
    done = run("-m", "tunefarm.cli", "inspect", found["kernels"][0]["experiment"], "--json")
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)["configs"]
    assert shown["config"]["options"].items() <= found["kernels"][0]["configs"][0].items()
    assert shown["usage"]["registers"] > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_rows_and_columns_in_one_kernel_keep_their_split(folder, arch):
    found = gathered("layer_norm", arch, folder)
    assert found["left"] == []
    (kernel,) = [k for k in found["kernels"] if "RSPLIT_SIZE" in k["configs"][0]]
    resolved = read(kernel)
    split = kernel["configs"][0]["RSPLIT_SIZE"]
    domain = resolved.space.domain
    assert domain["RSPLIT_SIZE"] == (split,)
    assert domain["NUM_STAGES"] == (1, 2, 3, 4)
    # Blocks of 16 would have rows beyond the last, which the sums over columns do not leave out.
    assert (split, domain["XBLOCK"]) == (16, (1, 2, 4, 8))
    least, greatest = corners(resolved)[1:]
    for config in (resolved.workload.default, least, greatest):
        launch = check_build(resolved, config, arch)
        assert launch.grid[0] == 513
    # Column sums of each program's rows, of the weight and of the bias.
    assert (
        f"ws_ptr = torch.empty_strided(({2 * 513 * 1024},), (1,)"
        in Path(kernel["experiment"]).with_suffix(".py").read_text()
    )


def test_loops_tiles_indices_and_arguments_in_place(folder):
    found = {k["kernel"]: k for k in gathered("wide_sum", "sm_90", folder)["kernels"]}
    assert {k["heuristic"] for k in found.values()} == {"pointwise", "reduction", "persistent_reduction"}
    (looked,) = gathered("looked_up", "sm_90", folder)["kernels"]
    resolved = resolve(load_experiment(looked["experiment"]), launch_options(), triton_version())
    assert resolved.workload.restore == ("in_out_ptr0",) or "in_ptr0" in resolved.workload.restore
    ids = [spec for spec in resolved.workload.specs.values() if getattr(spec, "dtype", "") == "i64"]
    assert [(spec.init, spec.low, spec.high) for spec in ids] == [("uniform", 0, 1000)]


def test_a_graph_break_is_told_and_both_graphs_are_harvested(folder):
    found = gathered("broken", "sm_90", folder)
    assert len(found["kernels"]) == 2
    assert "graph_break" in found["graph_breaks"][0]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nix", "has no 'nix'"),
        ("nothing", "is a int, not a function"),
        ("no_pair", "not (callable, inputs)"),
        ("raising", "ValueError: no such model"),
        ("on_the_cpu", "generates no Triton kernel"),
    ],
)
def test_what_cannot_be_harvested_is_one_clear_error(folder, function, says):
    done = run("-m", "tunefarm.cli", "harvest", f"{HERE}/harvested.py:{function}", "--out", str(folder / "none"))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "none").exists()


def other_than(config: dict[str, int], number: int) -> Config:
    """A config that Inductor would not choose."""
    params = {name: value for name, value in config.items() if name not in ("num_warps", "num_stages")}
    changes = {"XBLOCK": 2 << number}
    if "NUM_STAGES" in params:
        changes["NUM_STAGES"] = 4
    return Config(params={**params, **changes}, options={"num_warps": 2, "num_stages": 1})


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--export", "."], ".: cannot be written"), (["--pack", "damaged.json"], "damaged.json: is not valid JSON")],
)
def test_what_would_fail_later_fails_now(tmp_path, words, says):
    (tmp_path / "damaged.json").write_text("{")
    words = [str(tmp_path / word) if word == "damaged.json" else word for word in words]
    done = run("-m", "tunefarm.cli", "harvest", f"{HERE}/harvested.py:layer_norm", "--out", str(tmp_path / "o"), *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_path_is_written_so_that_yaml_reads_it(folder):
    out = folder / "a b: c #1"
    done = run("-m", "tunefarm.cli", "harvest", f"{HERE}/harvested.py:layer_norm", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    for kernel in json.loads(done.stdout)["kernels"]:
        assert load_experiment(kernel["experiment"]).export == "packs/a b: c #1.json"


@pytest.mark.parametrize("function", ["gated_norm", "layer_norm"])
def test_a_job_gives_each_kernel_its_row_forward_and_backward(folder, function):
    import torch

    found = gathered(function, "sm_90", folder)
    wanted = {}
    tables = []
    for number, kernel in enumerate(found["kernels"]):
        config = other_than(kernel["configs"][0], number)
        wanted[kernel["kernel"]] = config.flat
        row = Row(match=Match(), measured_at=FrozenMap(), config=config, median_ms=1.0, interval_ms=(1.0, 1.0))
        origin = Provenance(sweep="s", experiment="e", toolchain=FrozenMap(), timer="cold", source="measured",
                            tunefarm="0", created="2026")  # fmt: skip
        parts = {"source_hash": kernel["key"], "torch": public(torch.__version__), "triton": triton_version()}
        tables.append(Table(kernel=kernel["kernel"], source_hash=kernel["key"], device=nominal("sm_90"),
                            key_parts=FrozenMap(parts), provenance=origin, rows=(row,), layer=3))  # fmt: skip
    pack = folder / f"{function}.json"
    pack.write_text(dumps(seal(Pack(tables=tuple(tables)))))
    done = run(str(HERE / "job_on_shapes.py"), function, str(pack), str(STORE))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["hits"], told["misses"]) == (len(found["kernels"]), 0)
    used = {name.rpartition("_")[0]: kernel for name, kernel in told["kernels"].items()}
    assert {name: kernel["configs"] for name, kernel in used.items()} == {n: [c] for n, c in wanted.items()}
    assert not any(kernel["scales"] for kernel in used.values())
    # Autograd compiles the backward in a thread of its own, which must see the table, too.
    assert {kernel["thread"] for kernel in used.values()} == {True, False}
