"""relu(a + bias) + c in one pass: an activation and a residual beside it. Two reads and one write."""

import torch
import triton
import triton.language as tl

import tunefarm

# As an elementwise kernel of Triton's tutorials: blocks of 1024.
DEFAULT = tunefarm.Config(
    params={"BLOCK": 1024, "KEEP": ""},
    options={"num_warps": 4},
)


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def add_relu_add_kernel(
    a_ptr,
    bias_ptr,
    c_ptr,
    y_ptr,
    n_rows,
    n_cols,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    """y = relu(a + bias) + c, matrices [n_rows, n_cols]; each program takes BLOCK elements, wherever rows end.

    RUN divides n_cols: so many elements lie in one row, and one division tells their columns.
    """
    RUNS: tl.constexpr = BLOCK // RUN
    run, within = tl.arange(0, RUNS), tl.arange(0, RUN)[None, :]
    first, runs_of_row = tl.program_id(0).to(tl.int64) * RUNS, n_cols // RUN
    column = ((first % runs_of_row).to(tl.int32) + run) % runs_of_row
    inside = (run < tl.minimum(tl.cast(n_rows, tl.int64) * runs_of_row - first, RUNS).to(tl.int32))[:, None]
    bias = tl.load(bias_ptr + column[:, None] * RUN + within, eviction_policy="evict_last").to(tl.float32)
    # Scalars first: a 64-bit offset for each element would cost two registers an element.
    shift, offset = first * RUN, run[:, None] * RUN + within
    a = tl.load(a_ptr + shift + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    c = tl.load(c_ptr + shift + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    x = a + bias
    # Not tl.maximum, which would turn NaN into 0 where torch keeps it.
    y = tl.where(x < 0.0, 0.0, x) + c
    tl.store(y_ptr + shift + offset, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=KEEP)


def add_relu_add(a: torch.Tensor, bias: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """relu(a + bias) + c of two matrices and a row: what training code calls."""
    if bias.shape != a.shape[1:]:
        raise ValueError(f"add_relu_add: bias must have a's {a.shape[1]} columns, and its shape is {tuple(bias.shape)}")
    if c.shape != a.shape:
        raise ValueError(f"add_relu_add: c must have the shape of a, {tuple(a.shape)}, and has {tuple(c.shape)}")
    a, bias, c = a.contiguous(), bias.contiguous(), c.contiguous()
    y = torch.empty_like(a)
    n_rows, n_cols = a.shape

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(a.numel(), meta["BLOCK"]),)

    add_relu_add_kernel[grid](a, bias, c, y, n_rows, n_cols, RUN=max(run for run in (1, 2, 4, 8) if n_cols % run == 0))
    return y


workload = tunefarm.Workload(
    call=add_relu_add,
    kernel=add_relu_add_kernel,
    name="add_relu_add",
    inputs={"a": ["n_rows", "n_cols"], "bias": ["n_cols"], "c": ["n_rows", "n_cols"]},
    reference=lambda a, bias, c: torch.relu(a + bias) + c,
    key=("n_cols",),
    ranges=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: (3 * n_rows + 1) * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype],
    tiles=(("BLOCK",),),
)
