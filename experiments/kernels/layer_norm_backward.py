"""Backward pass of layer norm: the inputs' gradient, and the sums over all rows that weight and bias need.

A fixed number of programs walks over the rows and keeps its share of the sums in registers; each writes it once, and
torch adds up these few rows. No atomics, so equal inputs give equal bits.
"""

import torch
import triton
import triton.language as tl

import tunefarm

# As in Liger: a program for each of an H100's SMs.
DEFAULT = tunefarm.Config(
    params={"PROGRAMS": 132, "ROWS": 1, "STAGES": 1},
    options={"num_warps": 8},
)
MAX_PROGRAMS = 1056
"""Rows that the buffer of partial sums is made with, before the config is known; those never written cost nothing."""
MAX_COLS = 16384


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def layer_norm_backward_kernel(
    dy_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_ptr,
    db_ptr,
    n_rows,
    n_cols,
    BLOCK_N: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dx of all rows; dw and db of each program's rows, into row `program` of [programs, n_cols].

    The call gives a BLOCK_N that holds a row.
    """
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_N)
    w = tl.load(w_ptr + column, mask=column < n_cols, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK_N,), tl.float32)
    db = tl.zeros((BLOCK_N,), tl.float32)
    for block in tl.range(program, tl.cdiv(n_rows, ROWS), PROGRAMS, num_stages=STAGES):
        first = tl.cast(block, tl.int64) * ROWS
        rest = tl.minimum(n_rows - first, ROWS).to(tl.int32)
        inside = (row < rest)[:, None] & (column < n_cols)[None, :]
        # Scalars first: a 64-bit offset for each element would cost two registers an element.
        offset = row[:, None] * n_cols + column[None, :]
        x = tl.load(x_ptr + first * n_cols + offset, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + first * n_cols + offset, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + first + row, mask=row < rest, other=0.0)
        rstd = tl.load(rstd_ptr + first + row, mask=row < rest, other=0.0)
        normal = (x - mean[:, None]) * rstd[:, None]
        dw += tl.sum(dy * normal, 0)
        db += tl.sum(dy, 0)
        # Lanes beyond the row add nothing: dy and w are zero there.
        slope = dy * w[None, :]
        along = tl.sum(slope * normal, 1) / n_cols
        dx = (slope - normal * along[:, None] - (tl.sum(slope, 1) / n_cols)[:, None]) * rstd[:, None]
        tl.store(dx_ptr + first * n_cols + offset, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    shift = program.to(tl.int64) * n_cols
    tl.store(dw_ptr + shift + column, dw, mask=column < n_cols)
    tl.store(db_ptr + shift + column, db, mask=column < n_cols)


def layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a layer norm's input, weight and bias: what training code calls.

    Args:
        dy: gradient of the output, a matrix.
        x: input.
        weight: of each column.
        mean: of each row, in fp32, from the forward pass.
        rstd: 1 / deviation of each row, in fp32, from the forward pass.

    Raises:
        ValueError: a row is too long to be kept in registers.
    """
    n_rows, n_cols = x.shape
    if n_cols > MAX_COLS:
        raise ValueError(f"layer_norm_backward takes rows of at most {MAX_COLS} elements, not {n_cols}")
    dy, x, weight, mean, rstd = (given.contiguous() for given in (dy, x, weight, mean, rstd))
    dx = torch.empty_like(x)
    partial = torch.empty(2, MAX_PROGRAMS, n_cols, dtype=torch.float32, device=x.device)
    programs = MAX_PROGRAMS

    def grid(meta: dict[str, int]) -> tuple[int]:
        # The launch asks for its grid with the config that it takes: so the sum below knows it, too.
        nonlocal programs
        programs = min(meta["PROGRAMS"], triton.cdiv(n_rows, meta["ROWS"]))
        return (programs,)

    layer_norm_backward_kernel[grid](
        dy, x, weight, mean, rstd, dx, partial[0], partial[1], n_rows, n_cols, BLOCK_N=triton.next_power_of_2(n_cols)
    )
    dw, db = partial[:, :programs].sum(1).to(weight.dtype)
    return dx, dw, db


def reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What autograd runs; weight stands in for the bias, of which only shape and dtype matter."""
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, weight.shape, mean[:, None], rstd[:, None], weight, weight, [True, True, True]
    )


workload = tunefarm.Workload(
    call=layer_norm_backward,
    kernel=layer_norm_backward_kernel,
    name="layer_norm_backward",
    inputs={
        "dy": ["n_rows", "n_cols"],
        "x": ["n_rows", "n_cols"],
        "weight": ["n_cols"],
        # About what they are for normally distributed rows. They need not be these rows' own.
        "mean": {"shape": ["n_rows"], "dtype": "fp32", "init": "uniform", "low": -0.1, "high": 0.1},
        "rstd": {"shape": ["n_rows"], "dtype": "fp32", "init": "uniform", "low": 0.8, "high": 1.2},
    },
    reference=reference,
    key=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: (
        3 * (n_rows + 1) * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype] + 8 * n_rows
    ),
    tiles=(("ROWS",),),
)
