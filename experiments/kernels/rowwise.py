"""Rows of a contiguous matrix in whole cache lines, whatever their length, and softmax over them block by block.

A row whose length is no multiple of a line's begins in the middle of one. Masks that say so element by element cost it
the wide loads and stores, and registers. Here a row is its whole lines, under a mask that is the same for all of a
line, and two ragged ends of less than a line each.
"""

import torch
import triton
import triton.language as tl

LINE_BYTES = 128


def is_ragged(x: torch.Tensor) -> bool:
    """Whether rows of a contiguous matrix have ragged ends: all begin at a line only where each is of whole lines."""
    return x.shape[1] * x.element_size() % LINE_BYTES != 0


@triton.jit
def layout(row, n_rows, n_cols, LINE: tl.constexpr, RAGGED: tl.constexpr):
    """(Where a row begins, its columns before the first whole line, those in whole lines, all its columns).

    `row` may be many rows; one beyond the last has no columns.
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
def exp_less(x, top):
    """exp(x - top), without what tl.exp adds to get the subnormal results right.

    The difference first: the product of log2(e) and a finite x, such as the least one that masks use, may be infinite.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    return tl.exp2((x - top) * LOG2_E)


@triton.jit
def take_in(x, tops, totals):
    """The running maximum and sum of exponentials of each run of lanes, with another block's.

    As a rule a run lies in one thread, and none waits for another before its row is through.
    """
    x = x.to(tl.float32)
    new_tops = tl.maximum(tops, tl.max(x, 1))
    # Where all is -inf by now, -inf - -inf would give NaN.
    origin = tl.where(new_tops == float("-inf"), 0.0, new_tops)
    return new_tops, totals * exp_less(tops, origin) + tl.sum(exp_less(x, origin[:, None]), 1)
