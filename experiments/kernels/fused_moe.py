"""Mixture of experts, gate and up projections: each token times the weights of the experts that it is routed to.

A slot is one of a token's `top_k` choices. Slots are sorted by expert, and each expert's are padded to whole blocks, so
that a program's rows share one weight. How many blocks that makes is known on the device only.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm

# vLLM's config for a device and shape of which it has no table.
DEFAULT = tunefarm.Config(
    params={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8},
    options={"num_warps": 4, "num_stages": 3},
)
MIN_BLOCK_M, MAX_BLOCK_M = 16, 256


@triton.jit
def grouped_tile(program, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: GROUP_M rows of tiles, column by column, so that programs share L2."""
    first_m = program // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    within = program % (GROUP_M * num_n)
    return first_m + within % height, within // height


@tunefarm.autotune(configs=[DEFAULT], key=["num_slots", "num_experts", "N", "K", "TOP_K"])
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit(do_not_specialize=["num_slots"])  # any number of slots: one binary, one row of a pack
def fused_moe_kernel(
    x_ptr, w_ptr, c_ptr, slots_ptr, experts_ptr, ends_ptr, num_slots, num_experts, N, K,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
):  # fmt: skip
    """One tile of C[num_slots, N] a program; `slots`, `experts` and `ends` are what `pad_slots` writes."""
    num_m, num_n = tl.load(ends_ptr + num_experts - 1) // BLOCK_M, tl.cdiv(N, BLOCK_N)
    # The grid is as large as any routing may need.
    if tl.program_id(0) >= num_m * num_n:
        return
    tile_m, tile_n = grouped_tile(tl.program_id(0), num_m, num_n, GROUP_M)
    first_column = tile_n * BLOCK_N
    row, column, depth = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    slot = tl.load(slots_ptr + tile_m * BLOCK_M + row)
    is_slot = slot < num_slots
    # Padding reads the first token, and is not stored.
    token = tl.where(is_slot, slot // TOP_K, 0).to(tl.int64)
    expert = tl.load(experts_ptr + tile_m).to(tl.int64)
    x_at = token[:, None] * K + depth[None, :]
    w_tile = w_ptr + (expert * N + first_column) * K
    w_at = tl.minimum(column, N - 1 - first_column)[:, None] * K + depth[None, :]

    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptr + k + x_at)
            w = tl.load(w_tile + k + w_at)
        else:
            inside_k = depth[None, :] < K - k
            x = tl.load(x_ptr + k + x_at, mask=inside_k, other=0.0)
            w = tl.load(w_tile + k + w_at, mask=inside_k, other=0.0)
        total = tl.dot(x, w.T, total)

    c_at = slot.to(tl.int64)[:, None] * N + column[None, :]
    inside = is_slot[:, None] & (column[None, :] < N - first_column)
    tl.store(c_ptr + first_column + c_at, total.to(c_ptr.dtype.element_ty), mask=inside)


def pad_slots(
    expert_of_slot: torch.Tensor, block: int, slots: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor
) -> None:
    """Sorts slots by expert, pads each expert's to whole blocks, and writes the kernel's arguments, on the device.

    Args:
        expert_of_slot: as routed, in int64.
        block: rows of a block.
        slots: gets the sorted slots; the number of all of them stands for padding.
        experts: gets the expert of each block.
        ends: gets where each expert's padded slots end.
    """
    num_slots = expert_of_slot.numel()
    counts = torch.zeros(ends.shape, dtype=torch.int64, device=ends.device)
    counts.scatter_add_(0, expert_of_slot, torch.ones_like(expert_of_slot))
    padded = (counts + block - 1) // block * block
    padded_ends = padded.cumsum(0)
    ends.copy_(padded_ends)
    order = expert_of_slot.argsort(stable=True)
    # How far padding moves the slots of each expert from where sorting alone puts them.
    shift = (padded_ends - padded) - (counts.cumsum(0) - counts)
    at = torch.arange(num_slots, device=ends.device) + shift[expert_of_slot[order]]
    slots.fill_(num_slots).scatter_(0, at, order.to(slots.dtype))
    starts = torch.arange(experts.numel(), device=ends.device) * block
    experts.copy_(torch.searchsorted(padded_ends, starts, right=True).clamp_(max=ends.numel() - 1))


def max_blocks(num_slots: int, num_experts: int, block: int) -> int:
    """Blocks that the least favourable routing needs: every expert leaves all but one row of its last block empty."""
    return triton.cdiv(num_slots + num_experts * (block - 1), block)


def fused_moe(
    x: torch.Tensor, w: torch.Tensor, topk_ids: torch.Tensor, config: Mapping[str, Any] | None = None
) -> torch.Tensor:
    """Products of tokens with the weights of their experts.

    Args:
        x: tokens, [tokens, K].
        w: weights, [experts, N, K].
        topk_ids: each token's experts, [tokens, top_k] in int32 or int64. That each is one of w is left to the device,
            whose indexing asserts it: to ask here would wait for the GPU.
        config: params that the kernel is launched with, where it is tuned; in production the active packs say.

    Returns:
        [tokens, top_k, N].

    Raises:
        ValueError: topk_ids are no integers, or not those of x.
    """
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"fused_moe: topk_ids must be int32 or int64, not {topk_ids.dtype}")
    if topk_ids.dim() != 2 or topk_ids.shape[0] != x.shape[0]:
        raise ValueError(f"fused_moe: topk_ids must be [{x.shape[0]}, top_k], and its shape is {tuple(topk_ids.shape)}")
    # Scattering by expert takes int64 alone.
    x, w, topk_ids = x.contiguous(), w.contiguous(), topk_ids.to(torch.int64).contiguous()
    num_slots, (num_experts, n, k), device = topk_ids.numel(), w.shape, x.device
    c = torch.empty((*topk_ids.shape, n), dtype=x.dtype, device=device)
    slots = torch.empty(max_blocks(num_slots, num_experts, MAX_BLOCK_M) * MAX_BLOCK_M, dtype=torch.int32, device=device)
    experts = torch.empty(max_blocks(num_slots, num_experts, MIN_BLOCK_M), dtype=torch.int32, device=device)
    ends = torch.empty(num_experts, dtype=torch.int32, device=device)
    arguments = {
        "x_ptr": x, "w_ptr": w, "c_ptr": c, "slots_ptr": slots, "experts_ptr": experts, "ends_ptr": ends,
        "num_slots": num_slots, "num_experts": num_experts, "N": n, "K": k, "TOP_K": topk_ids.shape[1],
    }  # fmt: skip
    block = (config or fused_moe_kernel.config_for(**arguments).params)["BLOCK_M"]
    pad_slots(topk_ids.flatten(), block, slots, experts, ends)

    def grid(meta):
        if meta["BLOCK_M"] != block:
            # The pack's config could not be launched, and the default has taken its place.
            pad_slots(topk_ids.flatten(), meta["BLOCK_M"], slots, experts, ends)
        return (max_blocks(num_slots, num_experts, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    fused_moe_kernel[grid](**arguments)
    return c


def reference(x: torch.Tensor, w: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch, expert by expert."""
    c = x.new_empty((*topk_ids.shape, w.shape[1]))
    for expert in range(w.shape[0]):
        token, choice = (topk_ids == expert).nonzero(as_tuple=True)
        c[token, choice] = x[token] @ w[expert].T
    return c


def make_inputs(
    device: str, seed: int, tokens: int, experts: int, top_k: int, hidden: int, intermediate: int, dtype: str = "bf16"
) -> dict[str, torch.Tensor]:
    """Tokens, weights and an uneven routing: the popularity of experts falls off as in Zipf's law."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    sizes = {"x": (tokens, hidden), "w": (experts, 2 * intermediate, hidden)}
    if device == "meta":
        made = {name: torch.empty(size, dtype=kind, device=device) for name, size in sizes.items()}
        return {**made, "topk_ids": torch.empty((tokens, top_k), dtype=torch.int64, device=device)}
    generator = torch.Generator(device=device).manual_seed(seed)
    made = {name: torch.randn(size, generator=generator, dtype=kind, device=device) for name, size in sizes.items()}
    # On the CPU, so that all devices route alike.
    generator = torch.Generator().manual_seed(seed)
    popularity = 1.0 / torch.arange(1, experts + 1) ** 0.8
    popularity = popularity[torch.randperm(experts, generator=generator)]
    topk_ids = torch.multinomial(popularity.expand(tokens, -1), top_k, generator=generator)
    return {**made, "topk_ids": topk_ids.to(device)}


workload = tunefarm.Workload(
    call=fused_moe,
    kernel=fused_moe_kernel,
    name="fused_moe",
    inputs=make_inputs,
    reference=reference,
    key=("num_slots", "num_experts", "N", "K", "TOP_K"),
    ranges=("num_slots",),
    # Weights of all experts, though a few tokens may not reach each of them.
    num_bytes=lambda tokens, experts, top_k, hidden, intermediate, dtype: (
        2 * (tokens * hidden + 2 * experts * intermediate * hidden + 2 * tokens * top_k * intermediate)
    ),
    flops=lambda tokens, experts, top_k, hidden, intermediate, dtype: 4 * tokens * top_k * intermediate * hidden,
    tiles=[("BLOCK_M", "BLOCK_N"), ("BLOCK_M", "BLOCK_K"), ("BLOCK_N", "BLOCK_K")],
    dots=[("BLOCK_M", "BLOCK_N", "BLOCK_K")],
)
