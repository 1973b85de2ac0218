"""Kernels as people have them, each with the function that launches it: what `tunefarm init` is tried on."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

TILES = [(128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2)]


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in TILES
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(c_ptr + at, tl.load(a_ptr + at, mask=at < M * N) + BLOCK_N + BLOCK_K + GROUP_M, mask=at < M * N)


def matmul(a, b, activation=""):
    assert a.shape[1] == b.shape[0], "incompatible dimensions"
    assert a.is_contiguous()
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    matmul_kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        ACTIVATION=activation,
    )  # fmt: skip
    return c


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output_ptr + at, tl.load(x_ptr + at, mask=at < n_elements), mask=at < n_elements)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    output = torch.empty_like(x)
    n_elements = output.numel()
    add_kernel[lambda meta: (triton.cdiv(n_elements, meta["BLOCK"]),)](x, y, output, n_elements, BLOCK=1024)
    return output


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@triton.jit
def _swiglu_forward_kernel(a_ptr, b_ptr, c_ptr, stride, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(c_ptr + tl.program_id(0) * stride + at, tl.load(a_ptr + at, mask=at < n_cols), mask=at < n_cols)


def swiglu_forward(a, b):
    shape = a.shape
    n_cols = shape[-1]
    a = a.view(-1, n_cols)
    b = b.view(-1, n_cols)
    c = torch.empty_like(a)
    n_rows = a.shape[0]
    block = triton.next_power_of_2(n_cols)
    _swiglu_forward_kernel[(n_rows,)](a, b, c, c.stride(-2), n_cols=n_cols, BLOCK=block, num_warps=8)
    return c.view(*shape)


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (2, 4)],
    key=["n"], restore_value=["x"], reset_to_zero=["y"],
)  # fmt: skip
@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0), mask=at < n)


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        relu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y


def relu(x: torch.Tensor) -> torch.Tensor:
    return Relu.apply(x)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({})], key=[])
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr = 32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


def scale(x, n, factor: float, num_warps: int, *, flag: bool):
    y = torch.empty_like(x)
    scale_kernel[lambda meta: (triton.cdiv(n, 32),)](x, y, n, factor)
    return y


def scale_by_two(x):
    n = x.size(0)
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(n, 32),)](x, y, n, 2.0)
    return y


@triton.jit
def fill_kernel(y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 1.0, mask=at < n)


def fill(y, *, n: int):
    fill_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n)
    return y


@triton.autotune([triton.Config({"BLOCK": 48}, num_warps=32, num_stages=1)], key=["n"])
@triton.jit
def lonely_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    pass


def no_kernel() -> None:
    pass


@triton.jit
def halves_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * 2 * n_cols + at, mask=at < n_cols)
    tl.store(y_ptr + row * n_cols + at, x + tl.load(x_ptr + (row * 2 + 1) * n_cols + at, mask=at < n_cols), at < n_cols)


def halves(x):
    n_rows, n_cols = x.shape[0], x.shape[1] // 2
    y = torch.empty((n_rows, n_cols), device=x.device, dtype=x.dtype)
    halves_kernel[(n_rows,)](x, y, n_cols, BLOCK=triton.next_power_of_2(n_cols))
    return y
