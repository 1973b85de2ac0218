"""Layer norm of rows: one read and one write of the matrix where a row fits a block, another read (from L2) if not."""

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
def layer_norm_rows(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    rest,
    n_cols,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
):
    """The first `rest` of ROWS rows that fit into a block each: everything stays in registers."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_N)
    inside = (row < rest)[:, None] & (column < n_cols)[None, :]
    offset = row[:, None] * n_cols + column[None, :]
    w = tl.load(w_ptr + column, mask=column < n_cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
    b = tl.load(b_ptr + column, mask=column < n_cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
    x = tl.load(x_ptr + offset, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
    mean = tl.sum(x, 1) / n_cols
    # Lanes beyond the row would count as -mean.
    x = tl.where(inside, x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / n_cols + eps)
    y = x * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=KEEP)
    tl.store(mean_ptr + row, mean, mask=row < rest)
    tl.store(rstd_ptr + row, rstd, mask=row < rest)


@triton.jit
def layer_norm_long_row(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, n_cols, eps, BLOCK_N: tl.constexpr):
    """One row, block by block: mean and variance, then a second pass that should hit L2."""
    lane = tl.arange(0, BLOCK_N)
    mean = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK_N):
        inside = start + lane < n_cols
        x = tl.load(x_ptr + start + lane, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        count = tl.minimum(n_cols - start, BLOCK_N)
        block_mean = tl.sum(x, 0) / count
        x = tl.where(inside, x - block_mean, 0.0)
        # Chan's merge: sums of squares alone would lose a variance that is small beside the mean.
        share = count / (start + count)
        delta = block_mean - mean
        mean += delta * share
        squares += tl.sum(x * x, 0) + delta * delta * share * start
    rstd = tl.rsqrt(squares / n_cols + eps)
    tl.store(mean_ptr, mean)
    tl.store(rstd_ptr, rstd)
    for start in range(0, n_cols, BLOCK_N):
        inside = start + lane < n_cols
        w = tl.load(w_ptr + start + lane, mask=inside, eviction_policy="evict_last").to(tl.float32)
        b = tl.load(b_ptr + start + lane, mask=inside, eviction_policy="evict_last").to(tl.float32)
        x = tl.load(x_ptr + start + lane, mask=inside, eviction_policy="evict_first").to(tl.float32)
        y = ((x - mean) * rstd * w + b).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + start + lane, y, mask=inside, eviction_policy="evict_first")


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_cols"])
@triton.jit
def layer_norm_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    n_rows,
    n_cols,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Layer norm along the rows of a contiguous [n_rows, n_cols] matrix; each program takes ROWS rows."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    end = tl.minimum(first + ROWS, n_rows)
    # Scalars first: a 64-bit offset for each element would cost two registers an element.
    if n_cols <= BLOCK_N:
        x_ptr += first * n_cols
        y_ptr += first * n_cols
        rest = (end - first).to(tl.int32)
        layer_norm_rows(
            x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr + first, rstd_ptr + first, rest, n_cols, eps, ROWS, BLOCK_N, KEEP
        )
    else:
        for row in range(first, end):
            shift = row * n_cols
            layer_norm_long_row(
                x_ptr + shift, w_ptr, b_ptr, y_ptr + shift, mean_ptr + row, rstd_ptr + row, n_cols, eps, BLOCK_N
            )


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm over the last dimension of a matrix; and the rows' mean and 1 / deviation, for the backward pass."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    mean, rstd = torch.empty(2, n_rows, dtype=torch.float32, device=x.device).unbind()
    layer_norm_kernel[lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)](
        x, weight, bias, y, mean, rstd, n_rows, n_cols, eps
    )
    return y, mean, rstd


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
    return y, mean.flatten(), rstd.flatten()


workload = tunefarm.Workload(
    call=layer_norm,
    kernel=layer_norm_kernel,
    name="layer_norm",
    inputs={"x": ["n_rows", "n_cols"], "weight": ["n_cols"], "bias": ["n_cols"]},
    reference=reference,
    key=("n_cols",),
    ranges=("n_cols",),
    num_bytes=lambda n_rows, n_cols, dtype: (
        2 * (n_rows + 1) * n_cols * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype] + 8 * n_rows
    ),
    tiles=(("ROWS", "BLOCK_N"),),
)
