"""Row softmax: one read and one write of the matrix where a row fits a block, one extra read (from L2) where not."""

import torch
import triton
import triton.language as tl

import tunefarm

LINE_BYTES = 128
"""A cache line. Rows of whole ones all begin where one does; of others the ends are dealt with apart."""

DEFAULT = tunefarm.Config(
    params={"ROWS": 1, "BLOCK_N": 4096},
    options={"num_warps": 4, "num_stages": 2},
)


@triton.jit
def exp_less(x, top):
    """exp(x - top) by an FMA and an exp2, where tl.exp takes six instructions to get the subnormal ones right.

    The same `top * log2(e)` is rounded off every element and off their sum: the quotient does not notice.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    return tl.exp2(x * LOG2_E - top * LOG2_E)


@triton.jit
def layout(row, n_rows, n_cols, LINE: tl.constexpr, RAGGED: tl.constexpr):
    """Where a row begins, its columns before the first whole line, those in whole lines, and all; or so of many rows.

    A row beyond the last has no columns.
    """
    begin = tl.cast(row, tl.int64) * n_cols
    length = tl.where(row < n_rows, n_cols, 0)
    if RAGGED:
        lead = tl.minimum(((LINE - begin % LINE) % LINE).to(tl.int32), length)
    else:
        lead = length * 0
    return begin, lead, (length - lead) // LINE * LINE, length


@triton.jit
def ragged_ends(lead, whole, length, edge, LINE: tl.constexpr):
    """Columns of a row's two ragged ends, less than a line each, and which of the lanes `edge` hold one."""
    column = tl.where(edge < LINE, edge, lead + whole - LINE + edge)
    return column, tl.where(edge < LINE, edge < lead, column < length)


@triton.jit
def softmax_rows(x_ptr, y_ptr, first, n_rows, n_cols, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr):
    """Softmax of ROWS rows that fit into a block each: everything stays in registers."""
    LINE: tl.constexpr = 1024 // x_ptr.dtype.element_ty.primitive_bitwidth  # elements of a cache line
    lane, edge = tl.arange(0, BLOCK_N)[None, :], tl.arange(0, 2 * LINE)[None, :]
    begin, lead, whole, length = layout(first + tl.arange(0, ROWS)[:, None], n_rows, n_cols, LINE, RAGGED)
    # Visibly a multiple of a line, or there would be no wide loads and stores. Lanes come last: a 64-bit offset for
    # each element would be kept from a row's load to its store.
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
def take_in(x, tops, totals):
    """The running maximum and sum of each run of lanes, with another block's.

    A run lies in one thread: none waits for another before its row is through.
    """
    x = x.to(tl.float32)
    new_tops = tl.maximum(tops, tl.max(x, 1))
    # Where all is -inf by now, -inf - -inf would give NaN.
    origin = tl.where(new_tops == float("-inf"), 0.0, new_tops)
    return new_tops, totals * exp_less(tops, origin) + tl.sum(exp_less(x, origin[:, None]), 1)


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
    """Softmax over the last dimension of a matrix: what training code calls."""
    x = x.contiguous()
    y = torch.empty_like(x)
    n_rows, n_cols = x.shape
    is_ragged = n_cols * x.element_size() % LINE_BYTES != 0
    softmax_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](x, y, n_rows, n_cols, RAGGED=is_ragged)
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
