"""Linear layer in fp8: C[M, N] = (A[M, K] @ W[N, K].T) * scale_a[M] * scale_w[N], e4m3 in, bf16 out.

W lies as `torch.nn.Linear` keeps it: tensor cores take 8-bit operands with K contiguous only.
"""

import torch
import triton
import triton.language as tl

import tunefarm

# The first fp8 config of Triton's matmul tutorial.
DEFAULT = tunefarm.Config(
    params={"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 8},
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
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit(do_not_specialize=["M"])  # any number of rows: one binary, one row of a pack
def matmul_fp8_kernel(
    a_ptr, w_ptr, scale_a_ptr, scale_w_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """One tile of C a program; all tensors are dense."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    first_row, first_column = tile_m * BLOCK_M, tile_n * BLOCK_N
    row, column, depth = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64 bits for where a tile starts, 32 for what lies within it. Both operands have K contiguous: rows past the last
    # read the last, unmasked, and are not stored.
    a_tile = a_ptr + first_row.to(tl.int64) * K
    w_tile = w_ptr + first_column.to(tl.int64) * K
    a_at = tl.minimum(row, M - 1 - first_row)[:, None] * K + depth[None, :]
    w_at = tl.minimum(column, N - 1 - first_column)[:, None] * K + depth[None, :]

    # Hopper's tensor cores sum fp8 products in about 14 bits: sums of 128 are added to the total in fp32.
    PROMOTE: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_tile + a_at)
            w = tl.load(w_tile + w_at)
        else:
            inside_k = depth[None, :] < K - k
            a = tl.load(a_tile + a_at, mask=inside_k, other=0.0)
            w = tl.load(w_tile + w_at, mask=inside_k, other=0.0)
        total = tl.dot(a, w.T, total, max_num_imprecise_acc=PROMOTE)
        a_tile += BLOCK_K
        w_tile += BLOCK_K

    inside_m, inside_n = row < M - first_row, column < N - first_column
    scale_a = tl.load(scale_a_ptr + first_row + row, mask=inside_m, other=0.0)
    scale_w = tl.load(scale_w_ptr + first_column + column, mask=inside_n, other=0.0)
    c = (total * scale_a[:, None] * scale_w[None, :]).to(c_ptr.dtype.element_ty)
    c_tile = c_ptr + first_row.to(tl.int64) * N + first_column
    tl.store(c_tile + row[:, None] * N + column[None, :], c, mask=inside_m[:, None] & inside_n[None, :])


def matmul_fp8(a: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_w: torch.Tensor) -> torch.Tensor:
    """A @ W.T of [M, K] and [N, K] in e4m3, scaled by row of each, [M] and [N] in fp32; in bf16."""
    a, w, scale_a, scale_w = a.contiguous(), w.contiguous(), scale_a.contiguous(), scale_w.contiguous()
    (m, k), n = a.shape, w.shape[0]
    c = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    matmul_fp8_kernel[grid](a, w, scale_a, scale_w, c, m, n, k)
    return c


def reference(a: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_w: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch: dequantised in wide types; in fp8, where it is timed, cuBLAS or CUTLASS."""
    if a.dtype == torch.float8_e4m3fn:
        return torch._scaled_mm(a, w.T, scale_a[:, None], scale_w[None, :], out_dtype=torch.bfloat16)
    return (a @ w.T) * scale_a[:, None] * scale_w[None, :]


workload = tunefarm.Workload(
    call=matmul_fp8,
    kernel=matmul_fp8_kernel,
    name="matmul_fp8",
    inputs={
        "a": {"shape": ["M", "K"], "dtype": "fp8e4nv"},
        "w": {"shape": ["N", "K"], "dtype": "fp8e4nv"},
        "scale_a": {"shape": ["M"], "dtype": "fp32", "init": "uniform", "low": 0.5, "high": 2.0},
        "scale_w": {"shape": ["N"], "dtype": "fp32", "init": "uniform", "low": 0.5, "high": 2.0},
    },
    reference=reference,
    key=("M", "N", "K"),
    ranges=("M",),
    num_bytes=lambda M, N, K: M * K + N * K + 4 * (M + N) + 2 * M * N,
    flops=lambda M, N, K: 2 * M * N * K,
    tiles=[("BLOCK_M", "BLOCK_N"), ("BLOCK_M", "BLOCK_K"), ("BLOCK_N", "BLOCK_K")],
    dots=[("BLOCK_M", "BLOCK_N", "BLOCK_K")],
)
