"""relu(a + bias) + c in one pass: an activation and a residual beside it. Two reads and one write."""

import torch
import triton
import triton.language as tl

import tunefarm

# As an elementwise kernel of Triton's tutorials: blocks of 1024.
DEFAULT = tunefarm.Config(
    params={"ROWS": 1, "BLOCK_N": 1024, "KEEP": ""},
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
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
):
    """y = relu(a + bias) + c, matrices [n_rows, n_cols]; each program takes ROWS rows of a block of columns."""
    blocks = tl.cdiv(n_cols, BLOCK_N)
    program = tl.program_id(0)
    first = (program // blocks).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    column = program % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    bias = tl.load(bias_ptr + column, mask=column < n_cols, eviction_policy="evict_last").to(tl.float32)
    inside = (row < tl.minimum(n_rows - first, ROWS).to(tl.int32)) & (column < n_cols)[None, :]
    # Scalars first: a 64-bit offset for each element would cost two registers an element.
    shift = first * n_cols
    offset = row * n_cols + column[None, :]
    a = tl.load(a_ptr + shift + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    c = tl.load(c_ptr + shift + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    x = a + bias[None, :]
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
        return (triton.cdiv(n_rows, meta["ROWS"]) * triton.cdiv(n_cols, meta["BLOCK_N"]),)

    add_relu_add_kernel[grid](a, bias, c, y, n_rows, n_cols)
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
    tiles=(("ROWS", "BLOCK_N"),),
)
