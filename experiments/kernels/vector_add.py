"""Vector addition: two reads and one write, nothing to compute; what is left is how memory is asked."""

import torch
import triton
import triton.language as tl

import tunefarm

# As in Triton's first tutorial.
DEFAULT = tunefarm.Config(
    params={"BLOCK": 1024, "STEPS": 1, "STAGES": 1, "KEEP": ""},
    options={"num_warps": 4},
)


# Without a pack the first config is used; it is never benchmarked here.
@tunefarm.autotune(configs=[DEFAULT], key=["n_elements"])
@triton.jit
def vector_add_kernel(
    x_ptr,
    y_ptr,
    z_ptr,
    n_elements,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    KEEP: tl.constexpr,
):
    """z = x + y; each program takes STEPS blocks, STAGES of them in flight; KEEP is the policy of the caches."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * STEPS)
    lane = tl.arange(0, BLOCK)
    if first + BLOCK * STEPS <= n_elements:
        # No mask: vectors of 16 bytes whatever the length. Scalars first, lanes last: offsets beyond 2^31 cost nothing.
        for step in tl.range(0, STEPS, num_stages=STAGES):
            start = first + step * BLOCK
            x = tl.load(x_ptr + start + lane, eviction_policy=KEEP).to(tl.float32)
            y = tl.load(y_ptr + start + lane, eviction_policy=KEEP).to(tl.float32)
            tl.store(z_ptr + start + lane, (x + y).to(z_ptr.dtype.element_ty), eviction_policy=KEEP)
    else:
        for start in range(first, n_elements, BLOCK):
            inside = lane < tl.minimum(n_elements - start, BLOCK).to(tl.int32)
            x = tl.load(x_ptr + start + lane, mask=inside).to(tl.float32)
            y = tl.load(y_ptr + start + lane, mask=inside).to(tl.float32)
            tl.store(z_ptr + start + lane, (x + y).to(z_ptr.dtype.element_ty), mask=inside)


def vector_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sum of two tensors of one shape: what training code calls."""
    if y.shape != x.shape:
        raise ValueError(f"vector_add: y must have the shape of x, {tuple(x.shape)}, and has {tuple(y.shape)}")
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    n_elements = x.numel()
    vector_add_kernel[lambda meta: (triton.cdiv(n_elements, meta["BLOCK"] * meta["STEPS"]),)](x, y, z, n_elements)
    return z


workload = tunefarm.Workload(
    call=vector_add,
    kernel=vector_add_kernel,
    name="vector_add",
    inputs={"x": ["n_elements"], "y": ["n_elements"]},
    reference=torch.add,
    key=("n_elements",),
    ranges=("n_elements",),
    num_bytes=lambda n_elements, dtype: 3 * n_elements * {"bf16": 2, "fp16": 2, "fp32": 4}[dtype],
    tiles=(("BLOCK",),),
)
