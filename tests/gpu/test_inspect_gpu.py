"""On a GPU: what `inspect` says without one of ten kernels is what the driver says once they are loaded."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tunefarm.bench import cuda
from tunefarm.bench.build import Stages, compile_stages
from tunefarm.bench.inspection import Inspection, inspect
from tunefarm.bench.launch import learn
from tunefarm.bench.listing import parse_sass
from tunefarm.bench.loaded import load_kernel
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.toolkit import disassemble
from tunefarm.cli.opening import open_experiment
from tunefarm.device import Device
from tunefarm.errors import SpecError
from tunefarm.inspecting import choose, default_config, written_config
from tunefarm.occupancy import occupancy, resident
from tunefarm.plan import Target, plan

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs Triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
KERNELS = (
    "vector_add", "cross_entropy", "flash_attention", "fused_moe", "layer_norm_backward", "matmul", "matmul_tma",
    "rms_norm", "rope", "softmax",
)  # fmt: skip

_LOCAL_SIZE_BYTES, _NUM_REGS, _MAX_DYNAMIC_SHARED_SIZE_BYTES = 3, 4, 8
"""`CUfunction_attribute` of the driver API."""


@pytest.fixture(scope="module")
def device() -> Device:
    properties = cuda.properties(torch.cuda.current_device())
    assert properties is not None
    found = Device.of_driver(properties, is_amd=False)
    try:
        resident(found)
    except SpecError as e:
        pytest.skip(str(e))
    return found


@pytest.fixture(scope="module")
def driver() -> Any:
    """libcuda, with the context that torch has made current."""
    torch.zeros(1, device="cuda")
    return ctypes.CDLL("libcuda.so.1")


def inspected(name: str, device: Device, config: str = "") -> tuple[Inspection, Any]:
    """A look inside an experiment's kernel, and the same machine code loaded by Triton."""
    resolved = open_experiment(EXPERIMENTS / f"{name}.yaml")
    study = choose(plan(resolved, [Target(device=device)]), "", name)
    chosen = written_config(study, resolved, config) if config else default_config(study)
    inputs = make_inputs(resolved.workload, study.study.variables, "meta")
    launch = learn(resolved.workload, inputs, chosen, device.target)
    stages = compile_stages(launch, device.target, keep=True)
    assert isinstance(stages, Stages), stages
    code = parse_sass(disassemble(stages.artifact.cubin))
    return inspect(stages, code, device, chosen, launch.grid), load_kernel(launch, stages.artifact)


def held(driver: Any, kernel: Any, num_warps: int, dynamic_bytes: int) -> int:
    """Blocks that an SM holds, by the driver's word."""
    blocks = ctypes.c_int(-1)
    code = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks), ctypes.c_void_p(kernel.function), ctypes.c_int(32 * num_warps),
        ctypes.c_size_t(dynamic_bytes),
    )  # fmt: skip
    assert code == 0, f"CUresult {code}"
    return blocks.value


def attribute(driver: Any, kernel: Any, number: int) -> int:
    value = ctypes.c_int(-1)
    code = driver.cuFuncGetAttribute(ctypes.byref(value), ctypes.c_int(number), ctypes.c_void_p(kernel.function))
    assert code == 0, f"CUresult {code}"
    return value.value


@pytest.mark.parametrize("name", KERNELS)
def test_occupancy_is_the_driver_s(name: str, device: Device, driver: Any) -> None:
    it, kernel = inspected(name, device)
    assert it.occupancy.blocks == held(driver, kernel, it.num_warps, kernel.metadata.shared)
    assert it.usage.registers == attribute(driver, kernel, _NUM_REGS)
    assert it.usage.stack_bytes == attribute(driver, kernel, _LOCAL_SIZE_BYTES)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *(("softmax", f"num_warps={warps}") for warps in (1, 2, 8, 16, 32)), ("softmax", "BLOCK_N=16384"),
        ("vector_add", "BLOCK=256"), ("flash_attention", "num_warps=8"),
        ("matmul", "BLOCK_M=64 BLOCK_N=64 num_stages=3 num_warps=4"), ("matmul", "BLOCK_M=64 BLOCK_N=128 num_stages=5"),
    ],
)  # fmt: skip
def test_occupancy_of_other_configs_is_the_driver_s(name: str, config: str, device: Device, driver: Any) -> None:
    it, kernel = inspected(name, device, config)
    assert it.occupancy.blocks == held(driver, kernel, it.num_warps, kernel.metadata.shared)


@pytest.mark.parametrize("name", ["vector_add", "softmax"])
def test_shared_memory_is_counted_as_the_driver_does(name: str, device: Device, driver: Any) -> None:
    """The rule by itself: of one kernel, as if it were launched with other shared memory."""
    it, kernel = inspected(name, device)
    own, most = kernel.metadata.shared, attribute(driver, kernel, _MAX_DYNAMIC_SHARED_SIZE_BYTES)
    sizes = [size for size in (0, 1, 128, 1024, 7000, 8192, 10000, 24576, 40000, 49152) if own <= size <= most]
    assert len(sizes) > 3
    for dynamic in sizes:
        told = occupancy(
            device, registers=it.usage.registers, shared_bytes=it.shared_bytes - own + dynamic, num_warps=it.num_warps
        )
        assert told.blocks == held(driver, kernel, it.num_warps, dynamic), dynamic
