"""Workloads for the tests of measuring: right ones, wrong ones, and ones that hurt."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def add(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out


def add_twice(x: Any, y: Any) -> Any:
    """Launches a second kernel of Triton's, which the measuring process must compile."""
    out = add(x, y)
    copy_kernel[(triton.cdiv(out.numel(), 256),)](out, y, out.numel(), BLOCK=256)
    return out


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def copy(x: Any) -> Any:
    y = torch.empty_like(x)
    copy_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


@triton.jit
def faulty_kernel(x, y, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if FAULT == "off":
        value += 0.1
    if FAULT == "nan":
        value = value * float("nan")
    inside = at < n
    if FAULT == "left":
        inside = at < n // 2
    if FAULT == "right":
        inside = (at >= n // 2) & (at < n)
    if FAULT == "far":
        y += 1 << 44
    tl.store(y + at, value, mask=inside)


def faulty(x: Any) -> Any:
    y = torch.empty_like(x)
    faulty_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


@triton.jit
def triple_kernel(x, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


def triple(x: Any) -> Any:
    triple_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, x.numel())
    return x


@triton.jit
def sum_kernel(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


def total_of(x: Any, total: Any = None) -> Any:
    total = torch.empty(1, device=x.device) if total is None else total
    sum_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, total, x.numel())
    return total


def made(call: Any, kernel: Any, reference: Any, inputs: Any = None, **more: Any) -> tunefarm.Workload:
    return tunefarm.Workload(call=call, kernel=kernel, reference=reference, inputs=inputs or {"x": ["n"]}, **more)


def triple_in_place(x: Any) -> Any:
    return x.mul_(3)


TWO = {"x": ["n"], "y": ["n"]}
WITH_TOTAL = {"x": ["n"], "total": [1]}

adding = made(add, add_kernel, torch.add, TWO)
unchecked = made(add, add_kernel, None, TWO)
misshapen = made(add, add_kernel, lambda x, y: (x + y)[:-1], TWO)
adding_twice = made(add_twice, add_kernel, torch.add, TWO)
copying = made(copy, copy_kernel, torch.clone)
faults = made(faulty, faulty_kernel, torch.clone)
loose = made(faulty, faulty_kernel, torch.clone, atol=0.2)
tripling = made(triple, triple_kernel, lambda x: x * 3, restore=["x"])
tripling_in_place = made(triple, triple_kernel, triple_in_place, restore=["x"])
undeclared = made(triple, triple_kernel, lambda x: x * 3)
summing = made(total_of, sum_kernel, lambda x: x.sum().reshape(1), zero=["total"], rtol=1e-4, atol=1e-2)
summing_into = made(
    total_of, sum_kernel, lambda x, total: x.sum().reshape(1), WITH_TOTAL, zero=["total"], rtol=1e-4, atol=1e-2
)
summing_dirty = made(total_of, sum_kernel, lambda x: x.sum().reshape(1), rtol=1e-4, atol=1e-2)
