"""Builds: the real compiler on a CPU, for GPUs that are not here; what it refuses is data."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from pathlib import Path
from typing import Any

import bench_kernels as k
import pytest
import torch
import triton

from tunefarm.bench.build import Artifact, build_key, compile_launch, launch_options, triton_version
from tunefarm.bench.launch import Launch, learn
from tunefarm.config import Config
from tunefarm.errors import InfrastructureError
from tunefarm.spec.workload import Workload
from tunefarm.trial import Build, Failure, Outcome


def launched(kernel: Any, target: int = 90, n: int = 1024, **flat: Any) -> Launch:
    params = {name: flat.pop(name) for name in list(flat) if name.isupper()}
    work = Workload(call=lambda x: k.launch(kernel, x), kernel=kernel, inputs={"x": ["N"]})
    return learn(work, {"x": torch.empty(n, device="meta")}, Config(params=params, options=flat), target)


def built(launch: Launch, target: int = 90) -> tuple[Build, Artifact]:
    build, artifact = compile_launch(launch, target)
    assert isinstance(build, Build), artifact
    assert isinstance(artifact, Artifact)
    return build, artifact


def refused(launch: Launch) -> Failure:
    outcome, failure = compile_launch(launch, 90)
    assert outcome is Outcome.COMPILE_ERROR
    assert isinstance(failure, Failure)
    assert failure.stage == "build"
    assert all(type(part) is str for part in (failure.kind, failure.message, failure.detail))
    return failure


@pytest.mark.parametrize("target", [80, 90])
def test_a_build_for_a_gpu_that_is_not_here(target):
    launch = launched(k.scale_kernel, target, BLOCK=256, num_warps=8)
    build, artifact = built(launch, target)
    assert artifact.cubin.startswith(b"\x7fELF")
    assert build.binary == artifact.binary == hashlib.sha256(artifact.cubin).hexdigest()
    assert 8 <= build.registers <= 64
    assert build.spills == build.shared_bytes == 0
    assert build.grid == (4, 1, 1)
    assert build.build_s > 0
    assert build.launch["num_warps"] == 8
    assert f'"arch": {target}' in artifact.metadata
    assert artifact.specialization == launch.specialization


def test_equal_configs_merge_and_others_never_do():
    """TF-056: num_stages says nothing to a kernel without a loop; num_warps always does."""
    one, three, warps = (
        built(launched(k.scale_kernel, BLOCK=256, **options))[0]
        for options in ({"num_warps": 4, "num_stages": 1}, {"num_warps": 4, "num_stages": 3}, {"num_warps": 8})
    )
    assert one.identity == three.identity
    assert hash(one.identity) == hash(three.identity)
    assert one.identity != warps.identity
    assert one.launch["num_warps"] != warps.launch["num_warps"]
    other_grid = built(launched(k.scale_kernel, n=4096, BLOCK=256, num_warps=4))[0]
    assert other_grid.binary == one.binary
    assert other_grid.identity != one.identity


def test_keys_of_the_store():
    launch = launched(k.scale_kernel, BLOCK=256)
    keys = [build_key("a", launch, 90), build_key("b", launch, 90), build_key("a", launch, 80)]
    keys.append(build_key("a", launched(k.scale_kernel, BLOCK=128), 90))
    assert len(set(keys)) == 4
    assert keys[0] == build_key("a", launched(k.scale_kernel, n=4096, BLOCK=256), 90)


def test_a_typo_in_the_kernel_names_kernel_line_and_text():
    """TF-012: equal errors read alike, whatever the config, so that they can be counted."""
    failures = [refused(launched(k.misspelt_kernel, BLOCK=size)) for size in (64, 128)]
    assert failures[0].message == failures[1].message
    assert failures[0].message.startswith("misspelt_kernel line 4: tl.store(y + at, tl.expp(value), mask=at < n): ")
    assert "has no attribute 'expp'" in failures[0].message
    assert failures[0].kind == "CompilationError"


def test_a_typo_in_what_the_kernel_calls_names_both():
    message = refused(launched(k.calling_misspelt_kernel, BLOCK=64)).message
    assert message.startswith("calling_misspelt_kernel line 3: tl.store(y + at, misspelt(tl.load(x + at")
    assert ": misspelt line 2: return tl.expp(value): " in message
    assert "expp" in message


@pytest.mark.parametrize("size", [96, 160])
def test_a_block_that_is_no_power_of_two_fails_alone(size):
    """TF-014."""
    message = refused(launched(k.scale_kernel, BLOCK=size)).message
    assert "scale_kernel line 2: at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)" in message
    assert "power of 2" in message


def test_an_argument_that_is_a_constant_because_it_is_one_is_named():
    """TF-040: the same kernel compiles for any other stride."""

    def call(x):
        y = torch.empty(64, device=x.device)
        k.strided_kernel[(1,)](x, y, x.stride(0), 64)

    work = Workload(call=call, kernel=k.strided_kernel, inputs={"x": [64, "B"]})
    config = Config(params={"BLOCK": 64})
    one, four = (learn(work, {"x": torch.empty(64, size, device="meta")}, config, 90) for size in (1, 4))
    message = refused(one).message
    assert message.startswith("strided_kernel line 3: far = at * stride.to(tl.int64): ")
    assert message.endswith(" (argument stride == 1 is specialised: a plain number in the kernel)")
    built(four)


def test_a_tile_of_too_many_elements_fails_alone():
    """TF-018: where the workload declares no tiles, the compiler says it."""

    def call(y):
        k.tile_kernel[(1,)](y, BM=16, BN=16)

    work = Workload(call=call, kernel=k.tile_kernel, inputs={"y": [1]})
    config = Config(params={"BM": 2048, "BN": 1024}, options={"num_warps": 32})
    message = refused(learn(work, {"y": torch.empty(1, device="meta")}, config, 90)).message
    assert message.startswith("tile_kernel line 2: total = tl.zeros((BM, BN), tl.float32): zeros line ")
    assert "1048576" in message


def test_what_the_assembler_refuses_is_data(capfd):
    """TF-001: one candidate fails, the other is built; the reason holds no name of a temporary file."""
    message = refused(launched(k.unassemblable_kernel, BLOCK=128)).message
    assert message.startswith("ptxas: ")
    assert "nonsense" in message
    assert "/" not in message
    assert capfd.readouterr().out == ""
    built(launched(k.unassemblable_kernel, BLOCK=64))


@pytest.mark.parametrize(
    ("kernel", "size"), [(k.scale_kernel, 64), (k.scale_kernel, 96), (k.unassemblable_kernel, 128)]
)
def test_compiling_leaves_nothing_behind(kernel, size, tmp_path, monkeypatch):
    """TF-087: neither losers nor what the assembler choked on, in Triton's cache or among temporary files."""
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    compile_launch(launched(kernel, BLOCK=size), 90)
    assert list(temporary.iterdir()) == []
    assert not cache.exists() or not [path for path in cache.rglob("*") if path.is_file()]
    assert tempfile.tempdir == str(temporary)
    assert triton.knobs.cache.dir == str(cache)
    assert triton.knobs.compilation.store_binary_only is False


def test_a_machine_that_cannot_compile_is_no_fault_of_the_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InfrastructureError, match="cannot compile here: FileNotFoundError"):
        compile_launch(launched(k.scale_kernel, BLOCK=64), 90)


def test_failures_keep_no_tensors_alive():
    """TF-010: a failure is strings; what the compiler's frames held is gone with its exception."""
    launch = launched(k.misspelt_kernel, BLOCK=64)
    tensors = [weakref.ref(launch.arguments[name]) for name in ("x", "y")]
    failure = refused(launch)
    del launch
    assert [tensor() for tensor in tensors] == [None, None]
    assert "expp" in failure.detail


def test_options_that_may_be_tuned_are_the_backends_own():
    """TF-022: what a release does not know is no option of it."""
    options = launch_options()
    assert {"num_warps", "num_stages", "num_ctas", "maxnreg"} <= options
    assert not {"arch", "warp_size", "num_consumer_groups", "matrix_instr_nonkdim"} & options
    assert triton_version() == triton.__version__
    assert Path(triton.__file__).exists()
