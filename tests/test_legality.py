"""Legality: what a device can never run is known before the compiler is asked, and only that."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.build import compile_launch
from tunefarm.bench.launch import learn
from tunefarm.bench.legality import illegal, screen, unfit
from tunefarm.config import Config
from tunefarm.device import KIB, Device, nominal
from tunefarm.limits import MAX_TENSOR_ELEMENTS, MIN_DOT_K
from tunefarm.spec.workload import Workload
from tunefarm.trial import Build, Failure

SM_90, SM_80 = nominal("sm_90"), nominal("sm_80")


def config(**flat: Any) -> Config:
    params = {name: flat.pop(name) for name in list(flat) if name.isupper()}
    return Config(params=params, options=flat)


def points(**axes: list[Any]) -> list[Config]:
    return [config(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


def matmul_build(shape: Config, dtype: Any = torch.bfloat16) -> Build:
    inputs = {"a": torch.empty(512, 512, dtype=dtype, device="meta")}
    launch = learn(k.matmuls, {**inputs, "b": inputs["a"]}, shape, 80)
    build = compile_launch(launch, 80)[0]
    assert isinstance(build, Build)
    return build


def test_shared_memory_by_device():
    """TF-005: the same configs fit one device and not another; the message has what is required and the limit."""
    devices = [dataclasses.replace(SM_80, name=f"{size}", shared_bytes=size * KIB) for size in (227, 99, 64)]
    shapes = [
        config(BM=64, BN=64, BK=32, num_warps=4, num_stages=2),
        config(BM=128, BN=128, BK=64, num_warps=8, num_stages=4),
        config(BM=128, BN=256, BK=64, num_warps=8, num_stages=4),
    ]
    builds = [matmul_build(shape) for shape in shapes]
    assert [illegal(shape, k.matmuls, SM_80, ["bf16"]) for shape in shapes] == [None] * 3
    fits = [[unfit(build, device) is None for build in builds] for device in devices]
    assert fits == [[True, True, True], [True, True, False], [True, False, False]]
    failure = unfit(builds[1], devices[2])
    assert failure is not None
    assert failure.kind == "OutOfResources"
    assert failure.stage == "build"
    assert f"required {builds[1].shared_bytes} bytes" in failure.message
    assert "limit 65536 bytes (64 KiB)" in failure.message
    assert builds[1].shared_bytes > 64 * KIB


@pytest.mark.parametrize(("warp_size", "banned"), [(32, {64}), (64, {32, 64})])
def test_threads_of_a_block(warp_size, banned):
    """TF-016."""
    device = dataclasses.replace(SM_90, warp_size=warp_size)
    configs = points(BLOCK=[64], num_warps=[4, 8, 16, 32, 64])
    kept, removed = screen(configs, k.scaling, device)
    assert {c.options["num_warps"] for c in configs} - {c.options["num_warps"] for c in kept} == banned
    assert dict(removed) == {"threads per block <= 1024": len(banned)}
    failure = illegal(config(num_warps=64), k.scaling, device)
    assert failure is not None
    assert failure.stage == "legality"
    assert f"threads per block {64 * warp_size} > 1024" in failure.message


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_least_dot_is_the_backends(bits):
    """TF-017: what the installed Triton says; M and N may be 1."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.language import core

    dtype = core.block_type({8: core.float8e4nv, 16: core.bfloat16, 32: core.float32}[bits], [32, 32])
    for arch in (80, 90):
        backend = make_backend(GPUTarget("cuda", arch, 32))
        least = backend.get_codegen_implementation(backend.parse_options({}))["min_dot_size"](dtype, dtype)
        assert least == (1, 1, MIN_DOT_K[bits])


def test_tiles_below_the_least_dot():
    """TF-017: pruned by name, the rest stays; (16, 16, 16) is among it and can be built."""
    configs = points(BM=[8, 16, 32], BN=[8, 16, 32], BK=[8, 16])
    kept, removed = screen(configs, k.matmuls, SM_90, ["bf16", "bf16", "bf16"])
    assert dict(removed) == {"tl.dot K >= 16": 9}
    assert {c.params["BK"] for c in kept} == {16}
    assert {c.params["BM"] for c in kept} == {8, 16, 32}
    for shape in (config(BM=16, BN=16, BK=16), config(BM=8, BN=8, BK=16)):
        assert shape in kept
        assert matmul_build(shape).registers > 0


@pytest.mark.parametrize(
    ("dtypes", "least"),
    [
        (["fp8e4nv", "fp8e4nv", "fp8e4nv"], 32),
        (["fp8e4nv", "bf16"], 16),
        (["bf16", "i8"], 16),
        (["bf16", "i64"], 16),
        ([], 16),
    ],
)
def test_only_what_is_sure_is_ruled_out(dtypes, least):
    """An int8 mask beside bf16 operands makes no K of 16 illegal; what the compiler refuses is a failure of its own."""
    legal = [
        depth for depth in (8, 16, 32) if illegal(config(BM=16, BN=16, BK=depth), k.matmuls, SM_90, dtypes) is None
    ]
    assert legal == [depth for depth in (16, 32) if depth >= least]


def test_tiles_of_too_many_elements():
    """TF-018: exactly one of four, with the limit named; the limit is Triton's."""
    from triton.language.core import TRITON_MAX_TENSOR_NUMEL

    assert MAX_TENSOR_ELEMENTS == TRITON_MAX_TENSOR_NUMEL
    work = Workload(call=lambda y: None, kernel=k.tile_kernel, inputs={"y": [1]}, tiles=[["BM", "BN"]])
    configs = points(BM=[1024, 2048], BN=[512, 1024])
    kept, removed = screen(configs, work, SM_90)
    assert set(configs) - set(kept) == {config(BM=2048, BN=1024)}
    assert dict(removed) == {"tensor elements <= 1048576": 1}
    failure = illegal(config(BM=2048, BN=1024), work, SM_90)
    assert failure is not None
    assert failure.message == "tile BM=2048 x BN=1024 has 2097152 elements, Triton allows 1048576"
    undeclared = dataclasses.replace(work, tiles=())
    assert screen(configs, undeclared, SM_90)[0] == tuple(configs)


def test_declared_tiles_are_powers_of_two():
    """TF-014: pruned where the tile is declared."""
    work = Workload(call=lambda x: None, kernel=k.scale_kernel, inputs={"x": ["N"]}, tiles=[["BLOCK"]])
    kept, removed = screen(points(BLOCK=list(range(32, 321, 32))), work, SM_90)
    assert [c.params["BLOCK"] for c in kept] == [32, 64, 128, 256]
    assert dict(removed) == {"tile sizes are powers of two": 6}


@pytest.mark.parametrize(("device", "is_legal"), [(SM_90, True), (SM_80, False)])
def test_clusters(device, is_legal):
    """Clusters need sm_90; a launch without them runs everywhere."""
    for ctas in (None, 1):
        assert illegal(config(num_ctas=ctas), k.scaling, device) is None
    failure = illegal(config(num_ctas=2), k.scaling, device)
    assert (failure is None) is is_legal
    assert failure is None or "num_ctas=2 needs block clusters, which sm_80 does not have" in failure.message


@pytest.mark.parametrize(("limit", "is_legal"), [(None, True), (24, True), (255, True), (0, False), (256, False)])
def test_registers_of_a_thread(limit, is_legal):
    assert (illegal(config(maxnreg=limit), k.scaling, SM_90) is None) is is_legal


def build(**more: Any) -> Build:
    return Build(**{"binary": "b", "registers": 32, "spills": 0, "shared_bytes": 0, "launch": {"num_warps": 4}, **more})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (build(registers=255, launch={"num_warps": 16}), "registers: required 255 x 512 threads, limit 65536 a block"),
        (build(grid=(1, 65536, 1)), "grid y: 65536 programs, limit 65535"),
        (build(grid=(2**31, 1, 1)), "grid x: 2147483648 programs, limit 2147483647"),
    ],
)
def test_builds_that_cannot_be_launched(made, says):
    failure = unfit(made, SM_90)
    assert isinstance(failure, Failure)
    assert failure.message == says
    assert unfit(build(), SM_90) is None


def test_counts_add_up():
    """TF-028: what is kept and what each rule removed is all there was; a point counts under one rule."""
    configs = points(BM=[16, 48], BN=[16], BK=[8, 16], num_warps=[4, 64], num_ctas=[1, 2])
    kept, removed = screen(configs, k.matmuls, SM_80, ["bf16"])
    assert len(kept) + sum(removed.values()) == len(configs)
    assert len(removed) == 4
    assert isinstance(SM_80, Device)
