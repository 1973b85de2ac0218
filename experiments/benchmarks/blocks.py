"""Three functions as training jobs have them, to be compiled by torch.compile: forward and backward, bf16.

They are large enough that the GPU, and not the host that launches, sets the time of a step.

Each is a function without arguments that gives (function, inputs); what requires a gradient is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Case = tuple[Callable[..., Tensor], tuple[Any, ...]]

MODEL, HIDDEN, HEADS = 1024, 4096, 16


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_()


class Mlp(nn.Module):
    """Up, GELU, down, as in a transformer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class Norms(nn.Module):
    """Norms, a softmax and what stands between them: memory-bound, over rows of two lengths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(2 * width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        left = self.first(x + gate)
        right = functional.rms_norm(x * torch.sigmoid(gate), (x.shape[-1],), self.scale)
        both = torch.cat([left * right, torch.softmax(right.float(), -1).to(x.dtype) + left], -1)
        return self.last(both)


def _module(module: nn.Module) -> nn.Module:
    return module.to(device="cuda", dtype=torch.bfloat16)


def mlp() -> Case:
    """An MLP block: 32768 rows of 1024, 4096 hidden."""
    return _module(Mlp(MODEL, HIDDEN)), (_leaf(32768, MODEL),)


def transformer() -> Case:
    """A small transformer block: 32 sequences of 1024, width 1024, 16 heads."""
    return _module(Block(MODEL, HIDDEN, HEADS)), (_leaf(32, 1024, MODEL),)


def norms() -> Case:
    """A norm-heavy function: 65536 rows of 2048 and of 4096."""
    return _module(Norms(2048)), (_leaf(65536, 2048), _leaf(65536, 2048))


CASES = {"mlp": mlp, "transformer": transformer, "norms": norms}
