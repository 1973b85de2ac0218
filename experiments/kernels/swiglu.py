"""SwiGLU, the activation of today's MLPs: silu(gate) * up, both halves of one projection. Two reads and one write."""

import torch
import triton
import triton.language as tl

import tunefarm

# As in Unsloth: blocks of 1024, whatever the shape.
DEFAULT = tunefarm.Config(
    params={"ROWS": 1, "BLOCK_N": 1024, "KEEP": ""},
    options={"num_warps": 4},
)


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def swiglu_kernel(
    x_ptr,
    y_ptr,
    n_rows,
    n_cols,
    x_stride,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
):
    """y[n_rows, n_cols] from x[n_rows, 2 * n_cols]; each program takes ROWS rows of a block of columns."""
    blocks = tl.cdiv(n_cols, BLOCK_N)
    program = tl.program_id(0)
    first = (program // blocks).to(tl.int64) * ROWS
    start = program % blocks * BLOCK_N
    row = tl.arange(0, ROWS)[:, None]
    column = start + tl.arange(0, BLOCK_N)[None, :]
    inside = (row < tl.minimum(n_rows - first, ROWS).to(tl.int32)) & (column < n_cols)
    # Scalars first: a 64-bit offset for each element would cost two registers an element.
    gate_ptr = x_ptr + first * x_stride
    offset = row * x_stride + column
    gate = tl.load(gate_ptr + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    up = tl.load(gate_ptr + n_cols + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    y_offset = row * n_cols + column
    tl.store(y_ptr + first * n_cols + y_offset, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=KEEP)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of a [n_rows, 2 * n_cols] projection, gate first: what training code calls."""
    if x.shape[1] % 2:
        raise ValueError(f"swiglu: x must have an even number of columns, gate and up, and has {x.shape[1]}")
    x = x if x.stride(1) == 1 else x.contiguous()
    n_rows, n_cols = x.shape[0], x.shape[1] // 2
    y = torch.empty(n_rows, n_cols, dtype=x.dtype, device=x.device)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(n_rows, meta["ROWS"]) * triton.cdiv(n_cols, meta["BLOCK_N"]),)

    swiglu_kernel[grid](x, y, n_rows, n_cols, x.stride(0))
    return y


def reference(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


workload = tunefarm.Workload(
    call=swiglu,
    kernel=swiglu_kernel,
    name="swiglu",
    inputs={"x": ["n_rows", "2 * n_cols"]},
    reference=reference,
    key=("n_cols",),
    ranges=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: 3 * n_rows * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype],
    tiles=(("ROWS", "BLOCK_N"),),
)
