"""flash-linear-attention's l2norm, forward: its own call and kernel, and what is right."""

from __future__ import annotations

import torch
from fla.modules.norm.l2norm import l2norm_fwd, l2norm_fwd_kernel

import tunefarm


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The normed rows, and the factor of each."""
    rstd = torch.rsqrt((x * x).sum(-1) + 1e-6)
    return x * rstd[..., None], rstd


# The key is the kernel's own: head dimension, and tokens in steps of 65,536. Key arguments that are tl.constexpr make
# a kernel each, so none may range.
workload = tunefarm.Workload(
    call=l2norm_fwd,
    kernel=l2norm_fwd_kernel,
    inputs={"x": ["tokens", "dim"]},
    reference=reference,
    name="fla_l2norm",
    num_bytes=lambda tokens, dim, dtype: 4 * tokens * dim + 4 * tokens,
)
