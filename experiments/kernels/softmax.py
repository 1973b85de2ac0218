"""Row softmax: one read and one write of the matrix where a row fits a block, one extra read (from L2) where not."""

import torch
import triton
import triton.language as tl
from rowwise import exp_less, is_ragged, layout, ragged_ends, take_in

import tunefarm

DEFAULT = tunefarm.Config(
    params={"ROWS": 1, "BLOCK_N": 4096},
    options={"num_warps": 4, "num_stages": 2},
)


@triton.jit
def softmax_rows(x_ptr, y_ptr, first, n_rows, n_cols, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr):
    """Softmax of ROWS rows that fit into a block each: everything stays in registers."""
    LINE: tl.constexpr = 1024 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements of a cache line
    lane, edge = tl.arange(0, BLOCK_N)[None, :], tl.arange(0, 2 * LINE)[None, :]
    begin, lead, whole, length = layout(first + tl.arange(0, ROWS)[:, None], n_rows, n_cols, LINE, RAGGED)
    # Visibly a multiple of a line, or there would be no wide loads and stores. Lanes come last: a 64-bit offset for
    # each element would stay in registers from load to store.
    start, inside = (begin + lead) // LINE * LINE, lane < whole
    if RAGGED:
        column, at_end = ragged_ends(lead, whole, length, edge, LINE)
        x_end = tl.load(x_ptr + begin + column, mask=at_end, other=float("-inf")).to(tl.float32)
    x = tl.load(x_ptr + start + lane, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 1, keep_dims=True)
    if RAGGED:
        top = tl.maximum(top, tl.max(x_end, 1, keep_dims=True))
    e = exp_less(x, top)
    total = tl.sum(e, 1, keep_dims=True)
    if RAGGED:
        e_end = exp_less(x_end, top)
        total += tl.sum(e_end, 1, keep_dims=True)
        tl.store(y_ptr + begin + column, (e_end * (1.0 / total)).to(y_ptr.dtype.element_ty), mask=at_end)
    tl.store(y_ptr + start + lane, (e * (1.0 / total)).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_long_row(x_ptr, y_ptr, row, n_rows, n_cols, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr):
    """Softmax of one row, block by block: running maxima and sums, then a second pass that should hit L2."""
    LINE: tl.constexpr = 1024 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements of a cache line
    RUN: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements of a 16-byte access
    lane = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    begin, lead, whole, length = layout(row, n_rows, n_cols, LINE, RAGGED)
    start = (begin + lead) // LINE * LINE
    if RAGGED:
        column, at_end = ragged_ends(lead, whole, length, tl.arange(0, 2 * LINE), LINE)
        x_end = tl.load(x_ptr + begin + column, mask=at_end, other=float("-inf")).to(tl.float32)
    tops = tl.full((BLOCK_N // RUN,), float("-inf"), tl.float32)
    totals = tl.zeros((BLOCK_N // RUN,), tl.float32)
    last = whole // BLOCK_N * BLOCK_N
    for at in range(0, last, BLOCK_N):
        x = tl.load(x_ptr + start + at + lane, eviction_policy="evict_last")
        tops, totals = take_in(x, tops, totals)
    if last < whole:
        inside = lane < whole - last
        x = tl.load(x_ptr + start + last + lane, mask=inside, other=float("-inf"), eviction_policy="evict_last")
        tops, totals = take_in(x, tops, totals)
    top = tl.max(tops, 0)
    if RAGGED:
        top = tl.maximum(top, tl.max(x_end, 0))
    total = tl.sum(totals * exp_less(tops, top), 0)
    if RAGGED:
        e_end = exp_less(x_end, top)
        total += tl.sum(e_end, 0)
        tl.store(y_ptr + begin + column, (e_end * (1.0 / total)).to(y_ptr.dtype.element_ty), mask=at_end)
    scale = 1.0 / total
    # Backwards: what was read last is the surest to be in L2.
    for done in range(0, whole, BLOCK_N):
        at = (whole - 1) // BLOCK_N * BLOCK_N - done
        inside = lane < whole - at
        x = tl.load(x_ptr + start + at + lane, mask=inside, eviction_policy="evict_first").to(tl.float32)
        y = (exp_less(x, top) * scale).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + start + at + lane, y, mask=inside, eviction_policy="evict_first")


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def softmax_kernel(
    x_ptr,
    y_ptr,
    n_rows,
    n_cols,
    RAGGED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Softmax along the rows of a contiguous [n_rows, n_cols] matrix; each program takes ROWS rows.

    The call says whether rows are RAGGED: not a whole number of cache lines long.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    if n_cols <= BLOCK_N:
        softmax_rows(x_ptr, y_ptr, first, n_rows, n_cols, ROWS, BLOCK_N, RAGGED)
    else:
        for i in range(0, ROWS):
            if first + i < n_rows:
                softmax_long_row(x_ptr, y_ptr, first + i, n_rows, n_cols, BLOCK_N, RAGGED)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of a matrix of bf16, fp16 or fp32, forward: what training code calls."""
    x = x.contiguous()
    y = torch.empty_like(x)
    n_rows, n_cols = x.shape
    softmax_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](x, y, n_rows, n_cols, RAGGED=is_ragged(x))
    return y


workload = tunefarm.Workload(
    call=softmax,
    kernel=softmax_kernel,
    name="softmax",
    inputs={"x": ["n_rows", "n_cols"]},
    reference=lambda x: torch.softmax(x, 1),
    key=("n_cols",),
    ranges=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: 2 * n_rows * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype],
)
