"""Cross entropy over a large vocabulary: the loss, and the logits' gradient in the place of the logits.

The matrix is read and written once where a row fits a block, and read once more (from L2) where not. Nothing of its
size is allocated: at 128 Ki columns the logits are the largest tensor of a training step.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from rowwise import exp_less, is_ragged, layout, ragged_ends, take_in

import tunefarm

# As in Liger, whose blocks are as long as the vocabulary up to this.
DEFAULT = tunefarm.Config(
    params={"BLOCK_N": 32768, "KEEP": "", "BACKWARDS": False},
    options={"num_warps": 32},
)
IGNORED = -100


@triton.jit
def gradient(p, column, label, scale, logits_ptr):
    """The gradient of the logits in columns of probability p."""
    return (tl.where(column == label, p - 1.0, p) * scale).to(logits_ptr.dtype.element_ty)


@triton.jit
def clear_row(logits_ptr, row, n_cols, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr):
    """The gradient of a row that is ignored."""
    LINE: tl.constexpr = 1024 // logits_ptr.dtype.element_ty.primitive_bitwidth  # elements of a cache line
    lane = tl.arange(0, BLOCK_N)
    zeros = tl.zeros((BLOCK_N,), logits_ptr.dtype.element_ty)
    begin, lead, whole, length = layout(row, row + 1, n_cols, LINE, RAGGED)
    start = (begin + lead) // LINE * LINE  # visibly a multiple of a line, or there would be no wide loads and stores
    if RAGGED:
        column, at_end = ragged_ends(lead, whole, length, tl.arange(0, 2 * LINE), LINE)
        tl.store(logits_ptr + begin + column, tl.zeros((2 * LINE,), logits_ptr.dtype.element_ty), mask=at_end)
    for at in range(0, whole, BLOCK_N):
        tl.store(logits_ptr + start + at + lane, zeros, mask=lane < whole - at, eviction_policy="evict_first")


@triton.jit
def short_row(logits_ptr, row, n_cols, label, scale, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr):
    """Gradient of a row that fits a block; returns the greatest logit and the sum of exponentials relative to it."""
    LINE: tl.constexpr = 1024 // logits_ptr.dtype.element_ty.primitive_bitwidth
    lane = tl.arange(0, BLOCK_N)
    begin, lead, whole, length = layout(row, row + 1, n_cols, LINE, RAGGED)
    start, inside = (begin + lead) // LINE * LINE, lane < whole
    if RAGGED:
        column, at_end = ragged_ends(lead, whole, length, tl.arange(0, 2 * LINE), LINE)
        x_end = tl.load(logits_ptr + begin + column, mask=at_end, other=float("-inf")).to(tl.float32)
    x = tl.load(logits_ptr + start + lane, mask=inside, other=float("-inf"), eviction_policy="evict_first")
    x = x.to(tl.float32)
    top = tl.max(x, 0)
    if RAGGED:
        top = tl.maximum(top, tl.max(x_end, 0))
    e = exp_less(x, top)
    total = tl.sum(e, 0)
    if RAGGED:
        e_end = exp_less(x_end, top)
        total += tl.sum(e_end, 0)
        g_end = gradient(e_end * (1.0 / total), column, label, scale, logits_ptr)
        tl.store(logits_ptr + begin + column, g_end, mask=at_end)
    g = gradient(e * (1.0 / total), lead + lane, label, scale, logits_ptr)
    tl.store(logits_ptr + start + lane, g, mask=inside, eviction_policy="evict_first")
    return top, total


@triton.jit
def long_row(
    logits_ptr, row, n_cols, label, scale,
    BLOCK_N: tl.constexpr, KEEP: tl.constexpr, BACKWARDS: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """The same, block by block: running maxima and sums, then a second pass that should hit L2."""
    LINE: tl.constexpr = 1024 // logits_ptr.dtype.element_ty.primitive_bitwidth
    RUN: tl.constexpr = 128 // logits_ptr.dtype.element_ty.primitive_bitwidth  # elements of a 16-byte access
    lane = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    begin, lead, whole, length = layout(row, row + 1, n_cols, LINE, RAGGED)
    start = (begin + lead) // LINE * LINE
    if RAGGED:
        column, at_end = ragged_ends(lead, whole, length, tl.arange(0, 2 * LINE), LINE)
        x_end = tl.load(logits_ptr + begin + column, mask=at_end, other=float("-inf")).to(tl.float32)
    tops = tl.full((BLOCK_N // RUN,), float("-inf"), tl.float32)
    totals = tl.zeros((BLOCK_N // RUN,), tl.float32)
    last = whole // BLOCK_N * BLOCK_N
    for at in range(0, last, BLOCK_N):
        x = tl.load(logits_ptr + start + at + lane, eviction_policy=KEEP)
        tops, totals = take_in(x, tops, totals)
    if last < whole:
        inside = lane < whole - last
        x = tl.load(logits_ptr + start + last + lane, mask=inside, other=float("-inf"), eviction_policy=KEEP)
        tops, totals = take_in(x, tops, totals)
    top = tl.max(tops, 0)
    if RAGGED:
        top = tl.maximum(top, tl.max(x_end, 0))
    total = tl.sum(totals * exp_less(tops, top), 0)
    if RAGGED:
        e_end = exp_less(x_end, top)
        total += tl.sum(e_end, 0)
        g_end = gradient(e_end * (1.0 / total), column, label, scale, logits_ptr)
        tl.store(logits_ptr + begin + column, g_end, mask=at_end)
    factor = 1.0 / total
    for done in range(0, whole, BLOCK_N):
        # Backwards, the second pass begins with what the first one has just read.
        at = (whole - 1) // BLOCK_N * BLOCK_N - done if BACKWARDS else done
        inside = lane < whole - at
        x = tl.load(logits_ptr + start + at + lane, mask=inside, eviction_policy="evict_first").to(tl.float32)
        g = gradient(exp_less(x, top) * factor, lead + at + lane, label, scale, logits_ptr)
        tl.store(logits_ptr + start + at + lane, g, mask=inside, eviction_policy="evict_first")
    return top, total


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    target_ptr,
    loss_ptr,
    n_cols,
    ignore_index,
    scale,
    RAGGED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
    BACKWARDS: tl.constexpr,
):
    """Loss of each row of a contiguous matrix, whose gradient, times scale, takes the row's place. A program a row.

    The call says whether rows are RAGGED: not a whole number of cache lines long.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        clear_row(logits_ptr, row, n_cols, BLOCK_N, RAGGED)
        tl.store(loss_ptr + row, 0.0)
    else:
        label = target.to(tl.int32)
        # Before the gradient overwrites it: every thread has it when the row's maximum is known.
        logit = tl.load(logits_ptr + row * n_cols + label).to(tl.float32)
        if n_cols <= BLOCK_N:
            top, total = short_row(logits_ptr, row, n_cols, label, scale, BLOCK_N, RAGGED)
        else:
            top, total = long_row(logits_ptr, row, n_cols, label, scale, BLOCK_N, KEEP, BACKWARDS, RAGGED)
        tl.store(loss_ptr + row, top - logit + tl.log(total))  # a sum of top and logarithm could lose the latter


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int = IGNORED, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each row, and the gradient of `scale` times their sum in the memory of the logits.

    Args:
        logits: a contiguous matrix; what it holds is replaced.
        target: the right column of each row, [rows]; must be below columns, or `ignore_index`: nobody checks.
        ignore_index: target of rows without loss and gradient.
        scale: such as 1 / number of tokens, for a mean.

    Raises:
        ValueError: the logits are not contiguous, so their memory cannot take the gradient; or not as many as targets.
    """
    if not logits.is_contiguous():
        raise ValueError("cross_entropy writes into its logits: they must be contiguous")
    n_rows, n_cols = logits.shape
    if target.shape != (n_rows,):
        raise ValueError(f"cross_entropy: target must be [{n_rows}], and its shape is {tuple(target.shape)}")
    target = target.contiguous()
    loss = torch.empty(n_rows, dtype=torch.float32, device=logits.device)
    ragged = is_ragged(logits)
    cross_entropy_kernel[(n_rows,)](logits, target, loss, n_cols, ignore_index, scale, RAGGED=ragged)
    return loss, logits


def inputs(device: str, seed: int, n_rows: int, n_cols: int, dtype: str) -> dict[str, Any]:
    """Logits, and targets of which every seventh is ignored."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(seed)
    element = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    logits = torch.randn(n_rows, n_cols, dtype=element, device=device, generator=generator)
    target = torch.randint(n_cols, (n_rows,), device=device, generator=generator)
    target[3::7] = IGNORED
    return {"logits": logits, "target": target}


def reference(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = logits.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, target, reduction="none", ignore_index=IGNORED)
    return loss, torch.autograd.grad(loss.sum(), leaf)[0]


workload = tunefarm.Workload(
    call=cross_entropy,
    kernel=cross_entropy_kernel,
    name="cross_entropy",
    inputs=inputs,
    reference=reference,
    key=("n_cols",),
    ranges=("n_cols",),
    restore=("logits_ptr",),
    num_bytes=lambda n_rows, n_cols, dtype: (
        2 * n_rows * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype] + 12 * n_rows
    ),
    tiles=(("BLOCK_N",),),
)
