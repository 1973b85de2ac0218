"""Kernels each made to show one finding."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

import tunefarm


@triton.jit
def fat_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    # Everything is needed again after the sum, so it must be kept meanwhile.
    tl.store(y + at, value / tl.sum(value * value, 0))


@triton.jit
def strided_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * n, mask=at < n) * 2, mask=at < n)


@triton.jit
def plain_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def product_kernel(a, b, c, n, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    rows, columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(a + rows[:, None] * n + (start + depth)[None, :])
        y = tl.load(b + (start + depth)[:, None] * n + columns[None, :])
        total = tl.dot(x, y, total, input_precision=PRECISION)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


def elementwise(kernel: Any) -> tunefarm.Workload:
    def call(x: Any, y: Any, n: int) -> Any:
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y

    return tunefarm.Workload(call=call, kernel=kernel, inputs={"x": ["n"], "y": ["n"], "n": {"value": "n"}})


def _multiply(a: Any, b: Any, c: Any, n: int) -> Any:
    product_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),) * 2](a, b, c, n)
    return c


fat, strided, plain = elementwise(fat_kernel), elementwise(strided_kernel), elementwise(plain_kernel)
product = tunefarm.Workload(
    call=_multiply, kernel=product_kernel,
    inputs={"a": ["n", "n"], "b": ["n", "n"], "c": ["n", "n"], "n": {"value": "n"}},
)  # fmt: skip
