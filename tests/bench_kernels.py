"""Kernels and workloads for the tests of the bench wing."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import tunefarm

CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)]


@triton.jit
def scale_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@tunefarm.autotune(configs=[tunefarm.Config(params={"BLOCK": 32}, options={"num_warps": 1})], key=["n"])
@triton.jit
def own_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def heuristics_outside(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=EVEN or at < n) * 2, mask=EVEN or at < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristics_inside(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=EVEN or at < n) * 2, mask=EVEN or at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristics_alone(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=EVEN or at < n) * 2, mask=EVEN or at < n)


@triton.jit
def bias_kernel(x, bias, y, n, stride, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at * stride, mask=at < n) * factor
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    tl.store(y + at, value, mask=at < n)


def set_blocks(arguments: dict[str, Any]) -> None:
    arguments["x"].block_shape = [arguments["BLOCK"]]
    arguments["y"].block_shape = [arguments["BLOCK"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}, num_warps=4, pre_hook=set_blocks) for size in (64, 128)], key=[]
)
@triton.jit
def descriptor_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    y.store([at], x.load([at]) * 2)


@triton.jit
def split_kernel(x, parts, n, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(parts + at, tl.load(x + at, mask=at < n) + SPLIT, mask=at < n)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + depth
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + columns[None, :], mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def sort_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def fat_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    # Everything is needed again after the sum, so it must be kept meanwhile.
    tl.store(y + at, value / tl.sum(value * value, 0))


@triton.jit(noinline=True)
def slow_root(value, n):
    for _ in range(n):
        value = tl.sqrt(value + 1.0)
    return value


@triton.jit
def calling_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * slow_root(tl.load(x), n))


@triton.jit
def misspelt_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.expp(value), mask=at < n)


@triton.jit
def misspelt(value):
    return tl.expp(value)


@triton.jit
def calling_misspelt_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, misspelt(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def unassemblable_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if BLOCK == 128:
        value = tl.inline_asm_elementwise("nonsense.f32 $0, $1;", "=r,r", [value], tl.float32, True, 1)
    tl.store(y + at, value, mask=at < n)


@triton.jit
def strided_kernel(x, y, stride, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    far = at * stride.to(tl.int64)
    tl.store(y + at, tl.load(x + far, mask=at < n), mask=at < n)


@triton.jit
def tile_kernel(y, BM: tl.constexpr, BN: tl.constexpr):
    total = tl.zeros((BM, BN), tl.float32)
    tl.store(y, tl.sum(tl.sum(total, 1), 0))


def launch(kernel: Any, x: Any, **params: Any) -> Any:
    """Calls one of the kernels above that take x, y, n, as production code would."""
    y = torch.empty_like(x)
    n = x.numel()
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, **params)
    return y


def scale(x: Any) -> Any:
    return launch(scale_kernel, x, BLOCK=256, num_warps=8)


def with_descriptors(x: Any) -> Any:
    y = torch.empty_like(x)
    at = [TensorDescriptor.from_tensor(t, [1]) for t in (x, y)]
    descriptor_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](*at)
    return y


def matmul(a: Any, b: Any, **config: Any) -> Any:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))](a, b, c, m, n, k, **config)
    return c


scaling = tunefarm.Workload(call=scale, kernel=scale_kernel, inputs={"x": ["N"]}, reference=lambda x: x * 2)
matmuls = tunefarm.Workload(
    call=matmul,
    kernel=matmul_kernel,
    inputs={"a": ["M", "K"], "b": ["K", "N"]},
    reference=torch.matmul,
    tiles=[["BM", "BN"], ["BM", "BK"], ["BK", "BN"]],
    dots=[["BM", "BN", "BK"]],
)
