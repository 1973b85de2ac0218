"""RMS norm of rows: one read and one write of the matrix where a row fits a block, another read (from L2) if not."""

import torch
import triton
import triton.language as tl

import tunefarm

# As in Liger for a hidden size of 4096; longer rows go block by block.
DEFAULT = tunefarm.Config(
    params={"ROWS": 1, "BLOCK_N": 4096, "KEEP": ""},
    options={"num_warps": 8},
)


@triton.jit
def rms_norm_rows(
    x_ptr, w_ptr, y_ptr, rstd_ptr, rest, n_cols, eps, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, KEEP: tl.constexpr
):
    """The first `rest` of ROWS rows that fit into a block each: everything stays in registers."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_N)
    inside = (row < rest)[:, None] & (column < n_cols)[None, :]
    offset = row[:, None] * n_cols + column[None, :]
    w = tl.load(w_ptr + column, mask=column < n_cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
    x = tl.load(x_ptr + offset, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / n_cols + eps)
    y = x * rstd[:, None] * w[None, :]
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=KEEP)
    tl.store(rstd_ptr + row, rstd, mask=row < rest)


@triton.jit
def rms_norm_long_row(x_ptr, w_ptr, y_ptr, rstd_ptr, n_cols, eps, BLOCK_N: tl.constexpr):
    """One row, block by block: the squares, then a second pass that should hit L2."""
    lane = tl.arange(0, BLOCK_N)
    squares = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, n_cols, BLOCK_N):
        x = tl.load(x_ptr + start + lane, mask=start + lane < n_cols, other=0.0, eviction_policy="evict_last")
        squares += x.to(tl.float32) * x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(squares, 0) / n_cols + eps)
    tl.store(rstd_ptr, rstd)
    for start in range(0, n_cols, BLOCK_N):
        inside = start + lane < n_cols
        w = tl.load(w_ptr + start + lane, mask=inside, eviction_policy="evict_last").to(tl.float32)
        x = tl.load(x_ptr + start + lane, mask=inside, eviction_policy="evict_first").to(tl.float32)
        y = (x * rstd * w).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + start + lane, y, mask=inside, eviction_policy="evict_first")


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def rms_norm_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    rstd_ptr,
    n_rows,
    n_cols,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
):
    """RMS norm along the rows of a contiguous [n_rows, n_cols] matrix; each program takes ROWS rows."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    end = tl.minimum(first + ROWS, n_rows)
    # Scalars first: a 64-bit offset for each element would cost two registers an element.
    if n_cols <= BLOCK_N:
        shift = first * n_cols
        rest = (end - first).to(tl.int32)
        rms_norm_rows(x_ptr + shift, w_ptr, y_ptr + shift, rstd_ptr + first, rest, n_cols, eps, ROWS, BLOCK_N, KEEP)
    else:
        for row in range(first, end):
            shift = row * n_cols
            rms_norm_long_row(x_ptr + shift, w_ptr, y_ptr + shift, rstd_ptr + row, n_cols, eps, BLOCK_N)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm over the last dimension of a matrix, and the rows' factors that its backward pass needs."""
    x, weight = x.contiguous(), weight.contiguous()
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    rstd = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    rms_norm_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](x, weight, y, rstd, n_rows, n_cols, eps)
    return y, rstd


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = torch.rsqrt(x.square().mean(1) + eps)
    if x.dtype is torch.float64:
        # What outputs are compared with. PyTorch's fused kernel makes NaN of every element beside an infinity.
        return x * rstd[:, None] * weight, rstd
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps), rstd


workload = tunefarm.Workload(
    call=rms_norm,
    kernel=rms_norm_kernel,
    name="rms_norm",
    inputs={"x": ["n_rows", "n_cols"], "weight": ["n_cols"]},
    reference=reference,
    key=("n_cols",),
    ranges=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: (
        (2 * n_rows + 1) * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype] + 4 * n_rows
    ),
    tiles=(("ROWS", "BLOCK_N"),),
)
