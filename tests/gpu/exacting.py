"""Workloads that are right here and wrong there: by layout, by size, by the order of a sum."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from workloads import add, add_kernel, made

# ---- sums whose order is nobody's ----


@triton.jit
def total_kernel(x, total, n, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    if ATOMIC:
        at = tl.program_id(0) * BLOCK + lane
        tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))
    elif tl.program_id(0) == 0:
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            sums += tl.load(x + start + lane, mask=start + lane < n, other=0.0)
        tl.store(total, tl.sum(sums, 0))


def total_of(x: Any) -> Any:
    total = torch.zeros(1, device=x.device)
    total_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, total, x.numel())
    return total


totalling = made(total_of, total_kernel, lambda x: x.sum().reshape(1), zero=["total"], rtol=1e-3, atol=1.0)

# ---- layouts ----


@triton.jit
def double_kernel(x, y, rows, cols, row_stride, col_stride, AWARE: tl.constexpr, BLOCK: tl.constexpr):
    """Twice x. What is not aware of strides takes x for dense."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows * cols
    place = (at // cols) * row_stride + (at % cols) * col_stride if AWARE else at
    tl.store(y + at, tl.load(x + place, mask=inside) * 2, mask=inside)


def double(x: Any) -> Any:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cols = x.shape
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, rows, cols, *x.stride())
    return y


def doubled(x: Any) -> Any:
    return x * 2


dense = made(double, double_kernel, doubled, {"x": ["rows", "cols"]})
transposed = made(double, double_kernel, doubled, {"x": {"shape": ["rows", "cols"], "strides": [1, "rows"]}})
repeated = made(double, double_kernel, doubled, {"x": {"shape": ["rows", "cols"], "strides": [0, 0]}})
unaligned = made(add, add_kernel, torch.add, {"x": {"shape": ["n"], "offset": 1}, "y": ["n"]})


@triton.jit
def triple_one_kernel(x, FACTOR: tl.constexpr):
    tl.store(x, tl.load(x) * FACTOR)


def triple_one(x: Any) -> Any:
    """In place, where all elements are one."""
    triple_one_kernel[(1,)](x)
    return x


tripling_repeated = made(
    triple_one, triple_one_kernel, lambda x: x * 3, {"x": {"shape": ["n", 2], "strides": [0, 0]}}, restore=["x"]
)

# ---- sizes ----


@triton.jit
def unmasked_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A matrix product that is right where BK divides K: beyond K it takes the last element again, not zero."""
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = tl.minimum(start + tl.arange(0, BK), K - 1)
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=rows[:, None] < M, other=0.0)
        y = tl.load(b + k[:, None] * N + columns[None, :], mask=columns[None, :] < N, other=0.0)
        total = tl.dot(x, y, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


def unmasked(a: Any, b: Any) -> Any:
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    unmasked_kernel[lambda meta: (triton.cdiv(M, meta["BM"]), triton.cdiv(N, meta["BN"]))](a, b, c, M, N, K)
    return c


multiplying = made(unmasked, unmasked_kernel, torch.matmul, {"a": ["M", "K"], "b": ["K", "N"]})
