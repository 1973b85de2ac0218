"""Functions that torch.compile is run on, for tests of the harvest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ROWS, COLUMNS = 512, 2048


def gated_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """RMSNorm, a gate and a residual; its backward, too."""
    x, gate = (torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    weight = torch.randn(COLUMNS, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def function(x: Any, weight: Any, gate: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return torch.nn.functional.silu(gate) * (normed.to(x.dtype) * weight) + x

    return function, (x, weight, gate)


def odd_product() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A product that Inductor would think of padding, as a head's over GPT-2's vocabulary."""
    made = torch.nn.Linear(64, 127, bias=False, dtype=torch.bfloat16)
    return made, (torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True),)


def layer_norm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Enough rows that the backward reduces rows and columns in one kernel; its last program has 8 rows of 16."""
    x = torch.randn(8200, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight, bias = (torch.randn(1024, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

    def function(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (1024,), weight, bias)

    return function, (x, weight, bias)


def wide_sum() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A reduction too long to be persistent, and a transposed pointwise kernel."""
    x = torch.randn(256, 50257, dtype=torch.float32)

    def function(x: Any) -> Any:
        return torch.logsumexp(x, 1), x.t().contiguous() + 1

    return function, (x,)


def looked_up() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Indices that are read from memory, an argument changed in place."""
    table, ids, out = torch.randn(1000, 256), torch.zeros(4096, dtype=torch.int64), torch.randn(4096, 256)

    def function(table: Any, ids: Any, out: Any) -> Any:
        out.mul_(2).add_(table[ids])

    return function, (table, ids, out)


def broken() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Two graphs."""
    x = torch.randn(4096, 256)

    def function(x: Any) -> Any:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * 2

    return function, (x,)


def on_the_cpu() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Nothing for a GPU."""
    return lambda x: x.sin() + 1, (torch.randn(64, device="cpu"),)


def raising() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function that raises."""
    raise ValueError("no such model")


def reads_a_value() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function that looks at what a tensor holds."""
    return lambda x: x * int(x.sum().item()), (torch.randn(64),)


def no_pair() -> Any:
    """Returns no pair."""
    return torch.randn(4)


nothing = 3
