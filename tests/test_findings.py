"""Findings about kernels that were made to show them: the evidence is there, and a kernel without fault has none."""

from __future__ import annotations

from collections.abc import Iterable

import inspect_kernels as k
import pytest

from tunefarm.bench.build import Stages, compile_stages
from tunefarm.bench.findings import Finding, Seen, doubts, findings
from tunefarm.bench.inspection import Inspection, inspect
from tunefarm.bench.launch import learn
from tunefarm.bench.listing import parse_sass
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.toolkit import disassemble
from tunefarm.config import Config, Value
from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.workload import Workload


def seen(
    work: Workload, arch: str = "sm_90", n: int = 1 << 20, dtype: str = "bf16", **flat: Value
) -> tuple[Inspection, dict[str, Finding]]:
    device = nominal(arch)
    config = work.signature.config(flat)
    variables: FrozenMap[Value] = FrozenMap(n=n, dtype=dtype)
    launch = learn(work, make_inputs(work, variables, "meta"), config, device.target)
    stages = compile_stages(launch, device.target, keep=True)
    assert isinstance(stages, Stages), stages
    code = parse_sass(disassemble(stages.artifact.cubin))
    it = inspect(stages, code, device, config, launch.grid)
    doubtful = doubts(launch.signature, launch.facts, device)
    found = findings(Seen(inspection=it, code=code, texts=stages.texts, doubts=doubtful))
    return it, {finding.kind: finding for finding in found}


def words(finding: Finding) -> str:
    return " | ".join(finding.evidence)


def only(found: Iterable[str], *kinds: str) -> None:
    assert sorted(found) == sorted(kinds)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nothing_is_said_of_a_kernel_without_fault(arch):
    it, found = seen(k.plain, arch, BLOCK=1024, num_warps=4)
    only(found)
    assert it.occupancy.share == 1
    assert dict(it.loads) == dict(it.stores) == {"16": 1}
    assert it.num_programs == 1024


def test_spills_by_maxnreg():
    it, found = seen(k.fat, n=4096, dtype="fp32", BLOCK=4096, num_warps=1, maxnreg=32)
    spills = found["spills"]
    assert it.spill_store_bytes > 0
    assert f"writes {it.spill_store_bytes} B" in words(spills)
    assert f"reads {it.spill_load_bytes} B" in words(spills)
    assert "32 registers (maxnreg=32)" in words(spills)
    assert "inspect_kernels.py:" in words(spills)
    assert "maxnreg" in spills.advice


def test_spills_by_size_ask_for_smaller_blocks_or_more_warps():
    it, found = seen(k.fat, n=8192, dtype="fp32", BLOCK=8192, num_warps=1)
    assert it.usage.registers == 255
    assert "255 registers (a block of 1 warp leaves a thread 255)" in words(found["spills"])
    assert "a smaller block or more warps" in found["spills"].advice
    other, found = seen(k.fat, n=8192, dtype="fp32", BLOCK=8192, num_warps=8)
    assert "spills" not in found
    assert other.spill_store_bytes == other.usage.stack_bytes == 0


def test_low_occupancy_by_registers():
    it, found = seen(k.fat, n=32768, dtype="fp32", BLOCK=32768, num_warps=8)
    low = words(found["low occupancy"])
    assert it.occupancy.limiters == ("registers",)
    assert f"registers limit it: {it.usage.registers} a thread; one block more needs 128 or fewer" in low
    assert "shared memory" not in low
    assert "maxnreg" in found["low occupancy"].advice


def test_low_occupancy_by_shared_memory():
    it, found = seen(k.product, n=4096, BLOCK=64, PRECISION="tf32", num_warps=4, num_stages=8)
    low = found["low occupancy"]
    assert it.occupancy.limiters == ("shared memory",)
    assert f"{it.shared_bytes} B a block; one block more needs {(228 // 2 - 1) * 1024} or less" in words(low)
    assert "fewer stages" in low.advice
    assert it.copies


def test_a_block_that_does_not_fit_cannot_be_launched():
    it, found = seen(k.product, n=4096, BLOCK=128, PRECISION="tf32", num_warps=4, num_stages=8)
    assert it.occupancy.blocks == 0
    assert "an SM holds 0 blocks" in words(found["cannot be launched"])
    assert it.waves == it.num_programs / 1


def test_narrow_loads_name_the_arguments_in_doubt():
    it, found = seen(k.strided, n=100001, BLOCK=1024, num_warps=4)
    loads = found["narrow global loads"]
    assert dict(it.loads) == {"2": 8}
    assert "of 8 global loads 8 move 2 B a thread, 64 B a warp or less" in words(loads)
    assert "inspect_kernels.py:24 (8)" in words(loads)
    assert "n: its value is not known to be a multiple of 16" in words(loads)
    assert "pad or align" in loads.advice
    it, found = seen(k.plain, n=1 << 20, BLOCK=128, num_warps=4)
    assert dict(it.loads) == {"2": 1}
    assert "a larger block or fewer warps" in found["narrow global loads"].advice
    assert "narrow global stores" in found


def test_a_product_without_tensor_cores():
    it, found = seen(k.product, n=4096, dtype="fp32", BLOCK=32, PRECISION="ieee", num_warps=4, num_stages=2)
    assert not it.tensor
    assert words(found["no tensor cores"]).startswith("1 tt.dot in the Triton IR, 1 of them in IEEE precision")
    it, found = seen(k.product, n=4096, dtype="fp32", BLOCK=32, PRECISION="tf32", num_warps=4, num_stages=2)
    assert it.tensor
    assert "no tensor cores" not in found


def test_a_product_by_the_older_instructions():
    """Two warps are no warp group."""
    it, found = seen(k.product, n=4096, BLOCK=64, PRECISION="tf32", num_warps=2, num_stages=2)
    assert set(it.tensor) == {"HMMA.16816.F32.BF16"}
    assert "2 warps a block" in words(found["older tensor instructions"])
    it, found = seen(k.product, n=4096, BLOCK=64, PRECISION="tf32", num_warps=4, num_stages=2)
    assert "older tensor instructions" not in found
    _, found = seen(k.product, "sm_80", n=4096, BLOCK=64, PRECISION="tf32", num_warps=2, num_stages=2)
    assert "older tensor instructions" not in found


def test_a_loop_that_copies_nothing_ahead():
    it, found = seen(k.product, n=4096, BLOCK=64, PRECISION="tf32", num_warps=4, num_stages=1)
    assert not it.copies
    assert "num_stages=1" in words(found["no copies ahead"])
    assert "inspect_kernels.py:" in words(found["no copies ahead"])
    _, found = seen(k.product, n=4096, BLOCK=64, PRECISION="tf32", num_warps=4, num_stages=3)
    assert "no copies ahead" not in found


def test_few_programs():
    it, found = seen(k.plain, n=4096, BLOCK=1024, num_warps=4)
    assert words(found["few programs"]) == "4 programs for the 132 SMs of NVIDIA H100 80GB HBM3"
    assert it.waves < 0.01


def test_what_is_no_listing_is_refused():
    with pytest.raises(InfrastructureError, match="holds no SASS instruction"):
        parse_sass("nothing of the kind")
    with pytest.raises(InfrastructureError, match="nvdisasm cannot read the cubin"):
        disassemble(b"not machine code" * 20)


def test_without_the_disassembler_it_is_said_what_is_missing(monkeypatch):
    from triton import knobs

    def nowhere(path: str) -> None:
        return None

    monkeypatch.setattr(knobs.NvidiaTool, "from_path", staticmethod(nowhere))
    with pytest.raises(InfrastructureError, match=r"nvdisasm is not installed: no SASS can be read"):
        disassemble(b"")


def test_a_config_is_what_it_was():
    it, _ = seen(k.plain, BLOCK=1024, num_warps=4)
    assert it.config == Config(params=FrozenMap(BLOCK=1024), options=FrozenMap(num_warps=4))
