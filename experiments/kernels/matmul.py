"""Matrix product in bf16 or fp16 with fp32 accumulation: C[M, N] = A[M, K] @ B[K, N], both operands row-major."""

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


@tunefarm.autotune(configs=[DEFAULT], key=["M", "N", "K"])
@triton.heuristics(
    {
        "EVEN_N": lambda args: args["N"] % args["BLOCK_N"] == 0,
        "EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0,
        "ALIGN": lambda args: math.gcd(args["N"], args["K"], args["stride_a"], args["stride_b"], 16),
    }
)
@triton.jit(do_not_specialize=["M"])  # any number of rows: one binary, one row of a pack
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """One tile of C a program; rows of A and B are contiguous and `stride_*` elements apart, C is dense."""
    # Equal, but visibly multiples: Triton asks for divisibility by 16 alone, where 8 elements are a whole vector.
    N, K = N // ALIGN * ALIGN, K // ALIGN * ALIGN
    stride_a, stride_b = stride_a // ALIGN * ALIGN, stride_b // ALIGN * ALIGN
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_row, first_column = tile_m * BLOCK_M, tile_n * BLOCK_N
    row, column, depth = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64 bits for where a tile starts, 32 for what lies within it. Rows past the last read the last, and are not stored.
    a_tile = a_ptr + first_row.to(tl.int64) * stride_a
    b_tile = b_ptr + first_column
    a_at = tl.minimum(row, M - 1 - first_row)[:, None] * stride_a + depth[None, :]
    b_at = depth[:, None] * stride_b + column[None, :]
    inside_n = column[None, :] < N - first_column

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_tile + a_at)
        else:
            a = tl.load(a_tile + a_at, mask=depth[None, :] < K - k, other=0.0)
        if EVEN_K and EVEN_N:
            b = tl.load(b_tile + b_at)
        else:
            b = tl.load(b_tile + b_at, mask=(depth[:, None] < K - k) & inside_n, other=0.0)
        total = tl.dot(a, b, total)
        a_tile += BLOCK_K
        b_tile += BLOCK_K * stride_b

    c_tile = c_ptr + first_row.to(tl.int64) * N + first_column
    inside = (row[:, None] < M - first_row) & inside_n
    tl.store(c_tile + row[:, None] * N + column[None, :], total.to(c_ptr.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B of two matrices of one dtype; views whose rows are contiguous are read where they lie."""
    a, b = (x if x.stride(1) == 1 else x.contiguous() for x in (a, b))
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    matmul_kernel[grid](a, b, c, m, n, k, a.stride(0), b.stride(0))
    return c


workload = tunefarm.Workload(
    call=matmul,
    kernel=matmul_kernel,
    name="matmul",
    inputs={"a": ["M", "K"], "b": ["K", "N"]},
    reference=torch.matmul,
    key=("M", "N", "K"),
    ranges=("M",),
    num_bytes=lambda M, N, K, dtype: 2 * (M * K + K * N + M * N),
    flops=lambda M, N, K, dtype: 2 * M * N * K,
    tiles=[("BLOCK_M", "BLOCK_N"), ("BLOCK_M", "BLOCK_K"), ("BLOCK_K", "BLOCK_N")],
    dots=[("BLOCK_M", "BLOCK_N", "BLOCK_K")],
)
