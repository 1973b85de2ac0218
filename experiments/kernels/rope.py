"""Rotary position embedding of queries and keys in one launch: one read and one write of both."""

import torch
import triton
import triton.language as tl

import tunefarm

# As in Liger: a program for each token, with all its heads at once.
DEFAULT = tunefarm.Config(
    params={"TOKENS": 1, "HEADS": 32, "KEEP": ""},
    options={"num_warps": 4},
)


@triton.jit
def rotate_heads(
    x_ptr,
    y_ptr,
    cos,
    sin,
    n_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Turns the pairs (x[i], x[i + HEAD_DIM / 2]) of one token's heads, HEADS at a time."""
    HALF: tl.constexpr = HEAD_DIM // 2
    lane = tl.arange(0, BLOCK_D)[None, :]
    for start in range(0, n_heads, HEADS):
        head = start + tl.arange(0, HEADS)[:, None]
        inside = (head < n_heads) & (lane < HALF)
        offset = head * HEAD_DIM + lane
        a = tl.load(x_ptr + offset, mask=inside, eviction_policy=KEEP).to(tl.float32)
        b = tl.load(x_ptr + offset + HALF, mask=inside, eviction_policy=KEEP).to(tl.float32)
        left = (a * cos - b * sin).to(y_ptr.dtype.element_ty)
        right = (b * cos + a * sin).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + offset, left, mask=inside, eviction_policy=KEEP)
        tl.store(y_ptr + offset + HALF, right, mask=inside, eviction_policy=KEEP)


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_q_heads", "n_k_heads", "HEAD_DIM"])
@triton.jit
def rope_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    q_out_ptr,
    k_out_ptr,
    n_tokens,
    length,
    q_stride,
    k_stride,
    n_q_heads,
    n_k_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Heads of TOKENS tokens a program; a token's heads lie side by side, its position is its number modulo length."""
    lane = tl.arange(0, BLOCK_D)
    first = tl.program_id(0) * TOKENS
    for token in range(first, tl.minimum(first + TOKENS, n_tokens)):
        row = token % length * (HEAD_DIM // 2)
        cos = tl.load(cos_ptr + row + lane, mask=lane < HEAD_DIM // 2).to(tl.float32)[None, :]
        sin = tl.load(sin_ptr + row + lane, mask=lane < HEAD_DIM // 2).to(tl.float32)[None, :]
        # Scalars first: a 64-bit offset for each element would cost two registers an element.
        far = tl.cast(token, tl.int64)
        q_out = q_out_ptr + far * n_q_heads * HEAD_DIM
        k_out = k_out_ptr + far * n_k_heads * HEAD_DIM
        rotate_heads(q_ptr + far * q_stride, q_out, cos, sin, n_q_heads, HEAD_DIM, BLOCK_D, HEADS, KEEP)
        rotate_heads(k_ptr + far * k_stride, k_out, cos, sin, n_k_heads, HEAD_DIM, BLOCK_D, HEADS, KEEP)


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys turned by their position: what training code calls. Its backward pass is itself with -sin.

    Args:
        q: [batch, length, heads, head_dim]; a slice of a joint projection is read where it lies.
        k: the same with its own number of heads.
        cos: [length, head_dim / 2]; a table may go on beyond length.
        sin: the same.

    Raises:
        ValueError: a shape does not fit.
    """
    length, head_dim = q.shape[1], q.shape[3]
    if head_dim % 2:
        raise ValueError(f"rope: q must have an even head_dim, to be turned in pairs, and has {head_dim}")
    if (*k.shape[:2], k.shape[3]) != (*q.shape[:2], head_dim):
        raise ValueError(f"rope: k may differ from q in its heads only: {tuple(k.shape)}, and q is {tuple(q.shape)}")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.shape[0] < length or table.shape[1] != head_dim // 2:
            raise ValueError(f"rope: {name} must be [{length}, {head_dim // 2}], and its shape is {tuple(table.shape)}")
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    q_rows, k_rows = _tokens(q), _tokens(k)
    n_tokens, n_q_heads = q_rows.shape[:2]
    rope_kernel[lambda meta: (triton.cdiv(n_tokens, meta["TOKENS"]),)](
        q_rows,
        k_rows,
        cos.contiguous(),
        sin.contiguous(),
        q_out,
        k_out,
        n_tokens,
        length,
        q_rows.stride(0),
        k_rows.stride(0),
        n_q_heads,
        k_rows.shape[1],
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim // 2),
    )
    return q_out, k_out


def _tokens(x: torch.Tensor) -> torch.Tensor:
    """The same as [tokens, heads, head_dim], a token's heads side by side: a view where one exists."""
    x = x.flatten(0, 1)
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        c, s = cos[:, None, :], sin[:, None, :]
        return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

    return turned(q), turned(k)


def num_bytes(batch: int, length: int, n_q_heads: int, n_k_heads: int, head_dim: int, dtype: str) -> int:
    size = {"bf16": 2, "fp16": 2, "fp32": 4}[dtype]
    return 2 * batch * length * (n_q_heads + n_k_heads) * head_dim * size + 4 * length * head_dim


workload = tunefarm.Workload(
    call=rope,
    kernel=rope_kernel,
    name="rope",
    inputs={
        "q": ["batch", "length", "n_q_heads", "head_dim"],
        "k": ["batch", "length", "n_k_heads", "head_dim"],
        # Any numbers will do; these need not be the cosine and sine of one angle.
        "cos": {"shape": ["length", "head_dim // 2"], "dtype": "fp32", "init": "uniform", "low": -1, "high": 1},
        "sin": {"shape": ["length", "head_dim // 2"], "dtype": "fp32", "init": "uniform", "low": -1, "high": 1},
    },
    reference=reference,
    key=("n_q_heads", "n_k_heads", "HEAD_DIM"),
    num_bytes=num_bytes,
    tiles=(("HEADS",),),
)
