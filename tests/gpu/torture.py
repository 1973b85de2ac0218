"""A copy whose space holds one of each fault beside good configs: whoever tunes it must not be harmed by it."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm

GOOD = "none"
MAX_GRID_Y = 65_535


@triton.jit
def torture_kernel(x, y, lock, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = (tl.program_id(0) + tl.program_id(1)) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if FAULT == "wrong":
        value += 0.5
    if FAULT == "nan":
        value = value * float("nan")
    if FAULT == "compile":
        value = tl.expp(value)
    if FAULT == "illegal":
        y += 1 << 44
    if FAULT == "loop":
        held = 0
        while held == 0:  # Nobody ever unlocks it.
            held = tl.atomic_or(lock, 0)
    if FAULT == "shared":  # A tile of 256 KiB has to change hands.
        i = tl.arange(0, 256)
        square = i[:, None] * 256 + i[None, :]
        tl.store(y + square, tl.trans(tl.load(x + square)))
    # Faults of the call: it comes to no launch, but equal binaries would be merged with a good one.
    if FAULT == "oom":
        value += 1
    if FAULT == "raise":
        value += 2
    if FAULT == "exit":
        value += 3
    if FAULT == "abort":
        value += 4
    tl.store(y + at, value, mask=at < n)


def torture(x: Any, config: Any = None) -> Any:
    """The production call; its own faults happen where the GPU is."""
    fault = (config or {}).get("FAULT", GOOD)
    if x.is_cuda:
        misbehave(fault)
    y, lock = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)

    def grid(meta: Any) -> tuple[int, ...]:
        return (1, MAX_GRID_Y + 1) if fault == "grid" else (triton.cdiv(x.numel(), meta["BLOCK"]), 1)

    torture_kernel[grid](x, y, lock, x.numel())
    return y


def misbehave(fault: str) -> None:
    """What Python can do."""
    if fault == "oom":
        torch.empty(1 << 46, dtype=torch.uint8, device="cuda")
    if fault == "raise":
        raise ValueError("the call does not like this config")
    if fault == "exit":
        sys.exit("the call has had enough")
    if fault == "abort":
        os.abort()


workload = tunefarm.Workload(
    call=torture,
    kernel=torture_kernel,
    inputs={"x": ["n"]},
    reference=torch.clone,
    key=("n",),
    num_bytes=lambda n, dtype: 8 * n,
    default=tunefarm.Config(params={"FAULT": GOOD, "BLOCK": 1024}, options={"num_warps": 4}),
)
