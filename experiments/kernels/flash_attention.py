"""Causal attention, forward: softmax(q k^T * scale) v in one pass over keys and values; heads may share those (GQA)."""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

import tunefarm

# What Triton's attention tutorial uses where it does not tune.
DEFAULT = tunefarm.Config(
    params={"BLOCK_M": 128, "BLOCK_N": 64, "HEADS_FIRST": False},
    options={"num_warps": 4, "num_stages": 2},
)


@triton.jit
def attend(
    total, weight, top, q, k_head, v_head, stride_k, stride_v, scale, first_row, begin, end, length,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Takes keys [begin, end) into account: the weighted sum of values, the weights' sum and the greatest score."""
    row, column, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    k_at = column[:, None] * stride_k + dim[None, :]
    v_at = column[:, None] * stride_v + dim[None, :]
    k_tile = k_head + tl.cast(begin, tl.int64) * stride_k
    v_tile = v_head + tl.cast(begin, tl.int64) * stride_v
    for start in range(begin, end, BLOCK_N):
        inside = column[:, None] < length - start
        k = tl.load(k_tile + k_at, mask=inside, other=0.0) if MASKED else tl.load(k_tile + k_at)
        score = tl.dot(q, k.T)
        if MASKED:
            score = tl.where(first_row + row[:, None] >= start + column[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1) * scale)
        p = tl.exp2(score * scale - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        weight = weight * shrink + tl.sum(p, 1)
        v = tl.load(v_tile + v_at, mask=inside, other=0.0) if MASKED else tl.load(v_tile + v_at)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None])
        top = new_top
        k_tile += BLOCK_N * stride_k
        v_tile += BLOCK_N * stride_v
    return total, weight, top


@tunefarm.autotune(configs=[DEFAULT], key=["heads", "kv_heads", "length", "HEAD_DIM"])
@triton.jit(do_not_specialize=["length"])  # any number of positions: one binary, one row of a pack
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    scale, heads, kv_heads, length,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS_FIRST: tl.constexpr,
):  # fmt: skip
    """BLOCK_M queries of one head a program. `stride_xb`, `_xh`, `_x`: from sequence to sequence, head, position.

    `scale` includes log2(e), since exp2 is what the hardware has.
    """
    program, num_blocks = tl.program_id(0), tl.cdiv(length, BLOCK_M)
    # Late queries see more keys: they start first, and the short ones fill up the end. All heads of a block in a row
    # balance best; all blocks of a head share its keys in L2.
    if HEADS_FIRST:
        num_heads = tl.num_programs(0) // num_blocks
        block, index = num_blocks - 1 - program // num_heads, program % num_heads
    else:
        block, index = num_blocks - 1 - program % num_blocks, program // num_blocks
    batch, head = (index // heads).to(tl.int64), index % heads
    kv_head = (head // (heads // kv_heads)).to(tl.int64)
    first_row = block * BLOCK_M
    row, dim = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    inside = row[:, None] < length - first_row

    q_tile = q_ptr + batch * stride_qb + head.to(tl.int64) * stride_qh + first_row.to(tl.int64) * stride_q
    q = tl.load(q_tile + row[:, None] * stride_q + dim[None, :], mask=inside, other=0.0)
    k_head = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_head = v_ptr + batch * stride_vb + kv_head * stride_vh
    total = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    # Whole blocks of keys that all queries see need no mask; the rest reaches to the diagonal.
    seen_by_all = first_row // BLOCK_N * BLOCK_N
    total, weight, top = attend(
        total, weight, top, q, k_head, v_head, stride_k, stride_v, scale, first_row, 0, seen_by_all, length,
        BLOCK_M, BLOCK_N, HEAD_DIM, MASKED=False,
    )  # fmt: skip
    total, weight, top = attend(
        total, weight, top, q, k_head, v_head, stride_k, stride_v, scale, first_row,
        seen_by_all, min(first_row + BLOCK_M, length), length, BLOCK_M, BLOCK_N, HEAD_DIM, MASKED=True,
    )  # fmt: skip

    o_tile = o_ptr + (index.to(tl.int64) * length + first_row) * HEAD_DIM
    o = (total / weight[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_tile + row[:, None] * HEAD_DIM + dim[None, :], o, mask=inside)


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of [batch, heads, length, head_dim]; k and v may have fewer heads, by a whole factor.

    The head dim is a power of two and contiguous; [batch, length, heads, head_dim] comes as a transposed view.
    """
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, length, head_dim = q.shape
    o = torch.empty((batch, heads, length, head_dim), dtype=q.dtype, device=q.device)
    strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]

    def grid(meta):
        return (triton.cdiv(length, meta["BLOCK_M"]) * heads * batch,)

    scale = math.log2(math.e) / math.sqrt(head_dim)
    flash_attention_kernel[grid](q, k, v, o, *strides, scale, heads, k.shape[1], length, HEAD_DIM=head_dim)
    return o


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in PyTorch."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


workload = tunefarm.Workload(
    call=flash_attention,
    kernel=flash_attention_kernel,
    name="flash_attention",
    inputs={
        "q": ["batch", "heads", "length", "head_dim"],
        "k": ["batch", "kv_heads", "length", "head_dim"],
        "v": ["batch", "kv_heads", "length", "head_dim"],
    },
    reference=reference,
    key=("heads", "kv_heads", "length", "HEAD_DIM"),
    ranges=("length",),
    # Weights are rounded to 8 bits before they meet the values: where values cancel, this much of them is left over.
    # The outputs' root mean square, by which the default goes, says nothing of it: late rows average many values.
    atol=4e-3,
    num_bytes=lambda batch, heads, kv_heads, length, head_dim, dtype: (
        2 * batch * length * head_dim * (2 * heads + 2 * kv_heads)
    ),
    flops=lambda batch, heads, kv_heads, length, head_dim, dtype: (
        2 * batch * heads * length * (length + 1) * head_dim  # two products, half of each below the diagonal
    ),
    tiles=[("BLOCK_M", "BLOCK_N")],
    dots=[("BLOCK_M", "BLOCK_N", "HEAD_DIM"), ("BLOCK_M", "HEAD_DIM", "BLOCK_N")],
)
