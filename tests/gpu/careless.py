"""A workload for a whole sweep: the careless half of its space is right for sizes divisible by 16 alone."""

from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm


@triton.jit
def copy_kernel(x, y, n, CARELESS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    end = n // 16 * 16 if CARELESS else n
    tl.store(y + at, tl.load(x + at, mask=at < end), mask=at < end)


def copy(x: Any) -> Any:
    y = torch.empty_like(x)
    copy_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


workload = tunefarm.Workload(
    call=copy,
    kernel=copy_kernel,
    inputs={"x": ["n"]},
    reference=torch.clone,
    key=("n",),
    default=tunefarm.Config(params={"CARELESS": 0, "BLOCK": 1024}, options={"num_warps": 4}),
)
