"""Batched linear layer in one kernel: C[i] = relu(A[i] @ B[i] + bias[i]), with fp32 accumulation."""

import math

import torch
import triton
import triton.language as tl

import tunefarm

# The first config of Triton's matmul tutorial.
DEFAULT = tunefarm.Config(
    params={"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8},
    options={"num_warps": 8, "num_stages": 3},
)


@triton.jit
def grouped_tile(program, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: GROUP_M rows of tiles, column by column, so that programs share L2."""
    first_m = program // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    within = program % (GROUP_M * num_n)
    return first_m + within % height, within // height


@tunefarm.autotune(configs=[DEFAULT], key=["batch", "M", "N", "K"])
@triton.heuristics(
    {
        "EVEN_N": lambda args: args["N"] % args["BLOCK_N"] == 0,
        "EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0,
        "ALIGN": lambda args: math.gcd(args["N"], args["K"], 16),
    }
)
@triton.jit(do_not_specialize=["M"])  # any number of rows: one binary, one row of a pack
def bmm_add_relu_kernel(
    a_ptr, b_ptr, bias_ptr, c_ptr, batch, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """One tile of one product a program, product after product; all tensors are dense."""
    # Equal, but visibly multiples: Triton asks for divisibility by 16 alone, where 8 elements are a whole vector.
    N, K = N // ALIGN * ALIGN, K // ALIGN * ALIGN
    num_tiles = tl.num_programs(0) // batch
    index = (tl.program_id(0) // num_tiles).to(tl.int64)
    tile_m, tile_n = grouped_tile(tl.program_id(0) % num_tiles, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_row, first_column = tile_m * BLOCK_M, tile_n * BLOCK_N
    row, column, depth = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64 bits for where a tile starts, 32 for what lies within it. Rows past the last read the last, and are not stored.
    a_tile = a_ptr + (index * M + first_row) * K
    b_tile = b_ptr + index * K * N + first_column
    a_at = tl.minimum(row, M - 1 - first_row)[:, None] * K + depth[None, :]
    b_at = depth[:, None] * N + column[None, :]
    inside_n = column < N - first_column

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_tile + a_at)
        else:
            a = tl.load(a_tile + a_at, mask=depth[None, :] < K - k, other=0.0)
        if EVEN_K and EVEN_N:
            b = tl.load(b_tile + b_at)
        else:
            b = tl.load(b_tile + b_at, mask=(depth[:, None] < K - k) & inside_n[None, :], other=0.0)
        total = tl.dot(a, b, total)
        a_tile += BLOCK_K
        b_tile += BLOCK_K * N

    bias = tl.load(bias_ptr + index * N + first_column + column, mask=inside_n, other=0.0).to(tl.float32)
    # A comparison with NaN is false: `maximum` alone would turn NaN into zero, and hide a diverged model.
    total += bias[None, :]
    c = tl.where(total < 0, 0.0, total).to(c_ptr.dtype.element_ty)
    c_tile = c_ptr + (index * M + first_row) * N + first_column
    tl.store(c_tile + row[:, None] * N + column[None, :], c, mask=(row[:, None] < M - first_row) & inside_n[None, :])


def bmm_add_relu(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """relu(A @ B + bias) of [batch, M, K], [batch, K, N] and [batch, N], all of one dtype."""
    a, b, bias = a.contiguous(), b.contiguous(), bias.contiguous()
    (batch, m, k), n = a.shape, b.shape[2]
    if bias.shape != (batch, n):
        raise ValueError(f"bmm_add_relu: bias must be [{batch}, {n}], and its shape is {tuple(bias.shape)}")
    c = torch.empty((batch, m, n), dtype=a.dtype, device=a.device)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]) * batch,)

    bmm_add_relu_kernel[grid](a, b, bias, c, batch, m, n, k)
    return c


def reference(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    return torch.relu(torch.baddbmm(bias[:, None], a, b))


workload = tunefarm.Workload(
    call=bmm_add_relu,
    kernel=bmm_add_relu_kernel,
    name="bmm_add_relu",
    inputs={"a": ["batch", "M", "K"], "b": ["batch", "K", "N"], "bias": ["batch", "N"]},
    reference=reference,
    key=("batch", "M", "N", "K"),
    ranges=("M",),
    num_bytes=lambda batch, M, N, K, dtype: 2 * batch * (M * K + K * N + N + M * N),
    flops=lambda batch, M, N, K, dtype: 2 * batch * M * N * K,
    tiles=[("BLOCK_M", "BLOCK_N"), ("BLOCK_M", "BLOCK_K"), ("BLOCK_K", "BLOCK_N")],
    dots=[("BLOCK_M", "BLOCK_N", "BLOCK_K")],
)
