"""Cross entropy over a large vocabulary: the loss, and the logits' gradient in the place of the logits.

The matrix is read and written once where a row fits a block, and read once more (from L2) where not. Nothing of its
size is allocated: at 128 Ki columns the logits are the largest tensor of a training step.
"""

from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm

# As in Liger, whose blocks are as long as the vocabulary up to this.
DEFAULT = tunefarm.Config(
    params={"BLOCK_N": 32768, "KEEP": "", "BACKWARDS": False},
    options={"num_warps": 32},
)
IGNORED = -100


@triton.jit
def load_block(row_ptr, start, head, end, BLOCK_N: tl.constexpr, KEEP: tl.constexpr):
    """Columns [start, start + BLOCK_N) of a row that occupies [head, end), as fp32; -inf outside."""
    lane = tl.arange(0, BLOCK_N)
    if (start >= head) & (start + BLOCK_N <= end):
        # No mask: rows whose length is no multiple of 16 bytes still get vector loads.
        x = tl.load(row_ptr + start + lane, eviction_policy=KEEP)
    else:
        inside = (start + lane >= head) & (start + lane < end)
        x = tl.load(row_ptr + start + lane, mask=inside, other=float("-inf"), eviction_policy=KEEP)
    return x.to(tl.float32)


@triton.jit
def store_gradient(row_ptr, p, start, head, end, label, scale, BLOCK_N: tl.constexpr):
    """Writes the gradient of a block whose probabilities are p."""
    lane = tl.arange(0, BLOCK_N)
    gradient = (tl.where(start + lane == label, p - 1.0, p) * scale).to(row_ptr.dtype.element_ty)
    if (start >= head) & (start + BLOCK_N <= end):
        tl.store(row_ptr + start + lane, gradient, eviction_policy="evict_first")
    else:
        inside = (start + lane >= head) & (start + lane < end)
        tl.store(row_ptr + start + lane, gradient, mask=inside, eviction_policy="evict_first")


@triton.jit
def clear_row(row_ptr, head, end, BLOCK_N: tl.constexpr):
    """The gradient of a row that is ignored."""
    lane = tl.arange(0, BLOCK_N)
    zeros = tl.zeros((BLOCK_N,), row_ptr.dtype.element_ty)
    for start in range(0, end, BLOCK_N):
        inside = (start + lane >= head) & (start + lane < end)
        tl.store(row_ptr + start + lane, zeros, mask=inside, eviction_policy="evict_first")


@triton.jit
def short_row(row_ptr, head, end, label, scale, BLOCK_N: tl.constexpr):
    """Gradient of a row that fits a block; returns the logarithm of the sum of exponentials."""
    x = load_block(row_ptr, 0, head, end, BLOCK_N, "evict_first")
    top = tl.max(x, 0)
    e = tl.exp(x - top)
    total = tl.sum(e, 0)
    store_gradient(row_ptr, e * (1.0 / total), 0, head, end, label, scale, BLOCK_N)
    return top + tl.log(total)


@triton.jit
def long_row(row_ptr, head, end, label, scale, BLOCK_N: tl.constexpr, KEEP: tl.constexpr, BACKWARDS: tl.constexpr):
    """The same, block by block: running maximum and sum, then a second pass that should hit L2."""
    top = float("-inf")
    total = 0.0
    for start in range(0, end, BLOCK_N):
        x = load_block(row_ptr, start, head, end, BLOCK_N, KEEP)
        new_top = tl.maximum(top, tl.max(x, 0))
        # A block of -inf alone would give inf - inf.
        new_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    factor = 1.0 / total
    last = tl.cdiv(end, BLOCK_N) - 1
    for block in range(0, last + 1):
        # Backwards, the second pass begins with what the first one has just read.
        start = (last - block if BACKWARDS else block) * BLOCK_N
        x = load_block(row_ptr, start, head, end, BLOCK_N, "evict_first")
        store_gradient(row_ptr, tl.exp(x - top) * factor, start, head, end, label, scale, BLOCK_N)
    return top + tl.log(total)


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
    ALIGNED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
    BACKWARDS: tl.constexpr,
):
    """Loss of each row of a contiguous matrix, whose gradient, times scale, takes the row's place. A program a row."""
    VECTOR: tl.constexpr = 128 // logits_ptr.dtype.element_ty.primitive_bitwidth
    row = tl.program_id(0).to(tl.int64)
    # Scalars first: a 64-bit offset for each element would cost two registers an element. Blocks start at a multiple
    # of 16 bytes, at or before the row; where all rows do, the compiler must know it to use vectors under a mask.
    begin = row * n_cols
    head = 0 if ALIGNED else (begin % VECTOR).to(tl.int32)
    row_ptr = logits_ptr + tl.multiple_of(begin - head, VECTOR)
    end = n_cols + head
    target = tl.load(target_ptr + row)
    if target == ignore_index:
        clear_row(row_ptr, head, end, BLOCK_N)
        tl.store(loss_ptr + row, 0.0)
    else:
        label = head + target.to(tl.int32)
        # Before the gradient overwrites it: every thread has it when the row's maximum is known.
        logit = tl.load(row_ptr + label).to(tl.float32)
        if end <= BLOCK_N:
            log_sum = short_row(row_ptr, head, end, label, scale, BLOCK_N)
        else:
            log_sum = long_row(row_ptr, head, end, label, scale, BLOCK_N, KEEP, BACKWARDS)
        tl.store(loss_ptr + row, log_sum - logit)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int = IGNORED, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of each row, and the gradient of `scale` times their sum in the memory of the logits.

    Args:
        logits: a contiguous matrix; what it holds is replaced.
        target: the right column of each row, [rows].
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
    is_aligned = n_cols * logits.element_size() % 16 == 0
    cross_entropy_kernel[(n_rows,)](logits, target, loss, n_cols, ignore_index, scale, ALIGNED=is_aligned)
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
