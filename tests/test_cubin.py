"""Registers and spills, read from the machine code as the vendor's own tool reads them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import bench_kernels as k
import pytest
import torch
import triton
from farm import KERNEL, write_experiment

from tunefarm.bench.build import Artifact, compile_launch
from tunefarm.bench.cubin import code_hash, resources
from tunefarm.bench.launch import learn
from tunefarm.bench.tensors import make_inputs
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError
from tunefarm.plan import Target, plan
from tunefarm.spec.workload import Workload
from tunefarm.trial import Build

DUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def cubin(kernel: Any, target: int, config: Config) -> bytes:
    work = Workload(call=lambda x: k.launch(kernel, x), kernel=kernel, inputs={"x": ["N"]})
    launch = learn(work, {"x": torch.empty(1024, device="meta")}, config, target)
    artifact = compile_launch(launch, target)[1]
    assert isinstance(artifact, Artifact), artifact
    return artifact.cubin


def dumped(code: bytes, kernel: str, folder: Path) -> tuple[int, int]:
    """(registers, bytes of stack) that the vendor's tool finds for a kernel."""
    file = folder / "kernel.cubin"
    file.write_bytes(code)
    text = subprocess.run([DUMP, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"Function {kernel}:\s+REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


@pytest.mark.skipif(not DUMP.exists(), reason="this Triton brings no cuobjdump")
@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize(
    ("kernel", "config", "spills"),
    [
        (k.scale_kernel, Config(params={"BLOCK": 1024}, options={"num_warps": 1}), False),
        (k.sort_kernel, Config(params={"BLOCK": 128}, options={"num_warps": 1, "maxnreg": 24}), None),
        (k.fat_kernel, Config(params={"BLOCK": 2048}, options={"num_warps": 1, "maxnreg": 32}), True),
        (k.calling_kernel, Config(params={"BLOCK": 64}, options={"num_warps": 2}), None),
    ],
    ids=["plain", "sort", "spilling", "calling a function"],
)
def test_the_same_as_the_vendors_tool(kernel, config, spills, target, tmp_path):
    code = cubin(kernel, target, config)
    registers, stack = dumped(code, kernel.fn.__name__, tmp_path)
    assert resources(code) == (registers, stack // 4)
    if spills is not None:
        assert (stack > 0) is spills


def test_what_is_no_cubin_is_refused():
    code = cubin(k.scale_kernel, 90, Config(params={"BLOCK": 64}))
    renamed = code.replace(b".nv.info", b".nv.none")
    for damaged in (b"", b"\x7fELF", b"not machine code" * 20, code[: len(code) // 2], renamed):
        with pytest.raises(InfrastructureError):
            resources(damaged)


def test_code_is_what_a_gpu_gets(tmp_path: Path) -> None:
    """An edit above the kernel, another folder, other names: other binaries, and the code of before."""
    edits = {
        "plain": KERNEL,
        "moved": "\n\n\n" + KERNEL,
        "commented": KERNEL.replace("    i = tl", "    # places\n    i = tl"),
        "rewritten": KERNEL.replace("mask=i < n", "mask=n > i"),
        "other": KERNEL.replace("mask=i < n", "mask=i < n - 1"),
    }
    found = {}
    for name, text in edits.items():
        resolved = open_experiment(write_experiment(tmp_path / name, kernel=text))
        (study,) = plan(resolved, [Target(device=nominal("sm_90"))])
        inputs = make_inputs(resolved.workload, study.study.variables, "meta")
        build, artifact = compile_launch(learn(resolved.workload, inputs, study.default, 90), 90)
        assert isinstance(build, Build)
        assert isinstance(artifact, Artifact)
        assert build.code == code_hash(artifact.cubin)
        found[name] = build
    assert len({build.binary for build in found.values()}) == 5
    assert {found[name].code for name in ("moved", "commented", "rewritten")} == {found["plain"].code}
    assert found["other"].code != found["plain"].code


def test_code_of_no_cubin():
    with pytest.raises(InfrastructureError, match="unreadable cubin"):
        code_hash(b"not machine code" * 20)
