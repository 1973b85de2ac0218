"""adasplash's entmax, forward: its own call and kernel, and what is right."""

from __future__ import annotations

import torch
from adasplash.triton_entmax import _fwd_entmax, triton_entmax

import tunefarm


def reference(x: torch.Tensor, fast_math: bool) -> torch.Tensor:
    """Entmax with alpha 1.5: its threshold is found among the sorted values (Peters, Niculae, Martins 2019)."""
    half = (x - x.amax(-1, keepdim=True)) / 2
    ordered = half.sort(-1, descending=True).values
    size = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    mean = ordered.cumsum(-1) / size
    spread = (ordered * ordered).cumsum(-1) / size - mean * mean
    threshold = mean - torch.sqrt((1 / size - spread).clamp(min=0))
    support = (threshold <= ordered).sum(-1, keepdim=True)
    return (half - threshold.gather(-1, support - 1)).clamp(min=0) ** 2


workload = tunefarm.Workload(
    call=triton_entmax,
    kernel=_fwd_entmax,
    inputs={"x": ["rows", "cols"], "fast_math": {"value": "fast_math"}},
    reference=reference,
    name="adasplash_entmax",
    atol=1e-4,  # as its own tests have it
    rtol=1e-4,
    num_bytes=lambda rows, cols, fast_math, dtype: 8 * rows * cols,
)
