"""Kernels and packs for the tests of the runtime wing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import tunefarm
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, seal
from tunefarm.source import python_function, source_hash

SM_90 = nominal("sm_90")
CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 32}, num_warps=2)]


def first_two(configs: list[Any], named_args: dict[str, Any], **kwargs: Any) -> list[Any]:
    return configs[1:2] if named_args["n"] > 100 else configs[:1]


@tunefarm.autotune(configs=[Config(params={"BLOCK": 64}, options={"num_warps": 4}), CONFIGS[1]], key=["n"])
@triton.jit
def own(x, y, n, extra=None, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def foreign(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(
    configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": first_two, "perf_model": None, "top_k": 0.5}
)
@triton.jit
def pruned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["y"])
@triton.jit
def restoring(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def make_pack(kernel: Any, *rows: Row, **changes: Any) -> Pack:
    text = source_hash(kernel)
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", tunefarm="0",
        source=changes.pop("source", "measured"), created="",
    )  # fmt: skip
    table = Table(
        kernel=changes.pop("name", python_function(kernel).__name__), source_hash=changes.pop("text", text),
        device=changes.pop("device", SM_90), provenance=provenance, rows=rows,
        key_parts=FrozenMap(triton=changes.pop("triton", triton.__version__)),
    )  # fmt: skip
    return seal(Pack(tables=(table,)))


def make_row(n: int, config: Config, *, bounds: tuple[int, int] | None = None, **changes: Any) -> Row:
    facts = {"n": "one"} if n == 1 else {"n": "div16"} if n % 16 == 0 else {}
    facts = {"x": "div16", "y": "div16", **facts, **changes.pop("facts", {})}
    match = Match(
        dims=FrozenMap(n=bounds or n), dtypes=FrozenMap(changes.pop("dtypes", {"x": "fp32", "y": "fp32"})),
        facts=FrozenMap(facts),
    )  # fmt: skip
    return Row(match=match, measured_at=FrozenMap(n=n), config=config, median_ms=1.0, interval_ms=(1.0, 1.0))


def block(size: int, **options: Any) -> Config:
    return Config(params={"BLOCK": size}, options={"num_warps": 4, **options})


LADDER = (
    make_row(256, block(128), bounds=(128, 362)),
    make_row(512, block(256), bounds=(362, 724)),
    make_row(1024, block(512), bounds=(724, 2048)),
)


class Seen:
    """A torch.compile backend that keeps, per graph, the configs captured for the kernel."""

    def __init__(self) -> None:
        self.graphs: list[list[dict[str, Any]]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        for node in graph.graph.nodes:
            if "triton" in str(node.target):
                kernel: Any = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                self.graphs.append([config.all_kwargs() for config in kernel.configs])
        return lambda *args: [torch.empty_like(next(a for a in args if isinstance(a, torch.Tensor)))]

    @property
    def blocks(self) -> list[list[int]]:
        return [[config["BLOCK"] for config in graph] for graph in self.graphs]
