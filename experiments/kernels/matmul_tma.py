"""The matrix product of matmul.py by a persistent kernel: each program takes many tiles, and tiles move by TMA."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import tunefarm


def set_blocks(args):
    """Gives the descriptors of a launch the blocks of its config."""
    m, n, k = args["BLOCK_M"], args["BLOCK_N"], args["BLOCK_K"]
    args["a_desc"].block_shape = [m, k]
    args["b_desc"].block_shape = [k, n]
    args["c_desc"].block_shape = [m, n // 2 if args["HALVES"] else n]


# The first config of the persistent TMA kernel of Triton's tutorial.
DEFAULT = triton.Config(
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "HALVES": True, "FLATTEN": True},
    num_warps=4,
    num_stages=2,
    pre_hook=set_blocks,
)


@triton.jit
def grouped_tile(program, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: GROUP_M rows of tiles, column by column, so that programs share L2."""
    first_m = program // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    within = program % (GROUP_M * num_n)
    return first_m + within % height, within // height


@tunefarm.autotune(configs=[DEFAULT], key=["M", "N", "K"])
@triton.jit(do_not_specialize=["M"])  # any number of rows: one binary, one row of a pack
def matmul_tma_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    HALVES: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """Every so many tiles of C a program; TMA reads zeros past the edges and stores nothing there.

    HALVES stores a tile in two parts, which takes half the shared memory. FLATTEN makes one loop of both, so that the
    next tile's loads start before this one is stored.
    """
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # Where to store is worked out anew: a value that lives across the inner loop would tie both ends of the pipeline.
    stored = tl.program_id(0) - tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=FLATTEN):
        tile_m, tile_n = grouped_tile(tile, num_m, num_n, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([tile_m * BLOCK_M, step * BLOCK_K])
            b = b_desc.load([step * BLOCK_K, tile_n * BLOCK_N])
            total = tl.dot(a, b, total)
        stored += tl.num_programs(0)
        tile_m, tile_n = grouped_tile(stored, num_m, num_n, GROUP_M)
        if HALVES:
            halves = tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2))
            left, right = tl.split(tl.permute(halves, (0, 2, 1)))
            c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], left.to(c_desc.dtype))
            c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N + BLOCK_N // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([tile_m * BLOCK_M, tile_n * BLOCK_N], total.to(c_desc.dtype))


def num_sms(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; those of an H100 for tensors that are on none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def matmul_tma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B of two row-major matrices of one dtype; TMA wants them aligned to 16 bytes, row by row.

    Raises:
        ValueError: one of them is not, or the product would not be.
    """
    a, b = (x if x.stride(1) == 1 else x.contiguous() for x in (a, b))
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    for name, x, row in (("a", a, a.stride(0)), ("b", b, b.stride(0)), ("b", b, n)):
        if row * x.element_size() % 16:
            raise ValueError(f"matmul_tma: rows of {name} must be a multiple of 16 bytes for TMA, not {row} {x.dtype}")
        # torch.compile cannot trace where a view begins.
        if not torch.compiler.is_compiling() and x.storage_offset() * x.element_size() % 16:
            raise ValueError(
                f"matmul_tma: {name} must begin at a multiple of 16 bytes for TMA: make a copy of the view"
            )
    # Blocks are the config's, which is known at the launch only.
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1]) for x in (a, b, c)]

    def grid(meta):
        num_tiles = triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"])
        return (min(num_sms(a.device), num_tiles),)

    matmul_tma_kernel[grid](*descriptors, m, n, k)
    return c


workload = tunefarm.Workload(
    call=matmul_tma,
    kernel=matmul_tma_kernel,
    name="matmul_tma",
    inputs={"a": ["M", "K"], "b": ["K", "N"]},
    reference=torch.matmul,
    key=("M", "N", "K"),
    ranges=("M",),
    num_bytes=lambda M, N, K, dtype: 2 * (M * K + K * N + M * N),
    flops=lambda M, N, K, dtype: 2 * M * N * K,
    tiles=[("BLOCK_M", "BLOCK_N"), ("BLOCK_M", "BLOCK_K"), ("BLOCK_K", "BLOCK_N")],
    dots=[("BLOCK_M", "BLOCK_N", "BLOCK_K")],
)
