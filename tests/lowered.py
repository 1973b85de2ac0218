"""Inductor's lowering in a process without a GPU: of fake tensors of one whose facts are made up."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tunefarm.choosing import template_hash
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.export import match_of
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import Gemm
from tunefarm.generated import public
from tunefarm.pack import Pack, Provenance, Row, Table, seal
from tunefarm.runtime.kernels import triton_version

H200: Device = nominal("sm_90")

_FACTS = SimpleNamespace(
    name=H200.name, major=9, minor=0, multi_processor_count=132, gcnArchName=H200.name, total_memory=140 << 30,
    shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
)  # fmt: skip


@contextlib.contextmanager
def faked_gpu() -> Iterator[None]:
    """While active, Inductor finds the facts of an H200; nothing can be launched."""
    from torch._inductor.runtime import hints

    values = {
        "type": "cuda", "index": 0, "multi_processor_count": 132, "cc": 90, "major": 9,
        "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024,
        "warp_size": 32,
    }  # fmt: skip
    facts = hints.DeviceProperties(**{k: v for k, v in values.items() if k in hints.DeviceProperties._fields})
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(hints.DeviceProperties, "create", staticmethod(lambda device: facts)))
        enter(mock.patch("torch.cuda.get_device_properties", return_value=_FACTS))
        enter(mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)))
        enter(mock.patch("torch.cuda.device_count", return_value=1))
        enter(mock.patch("torch.cuda.current_device", return_value=0))
        enter(mock.patch("torch.utils._triton.triton_hash_with_backend", return_value="none"))
        yield


def lower(function: Callable[..., Any], *shapes: tuple[Any, ...]) -> list[tuple[str, list[Any]]]:
    """Lowers a function of GPU tensors.

    Args:
        function: of as many tensors as shapes, in aten's operators.
        shapes: of each tensor the sizes, then its dtype, then perhaps its strides.

    Returns:
        Each selection among implementations: the operation, and the choices that were left of those asked for.
    """
    import torch
    from torch._inductor import select_algorithm
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    seen: list[tuple[str, list[Any]]] = []
    stock = select_algorithm.AlgorithmSelectorCache.__call__

    def select(self: Any, name: str, choices: list[Any], *args: Any, **kwargs: Any) -> Any:
        left = choices
        for step in self.preprocessing_fns:
            left = step(left)
        seen.append((name, left))
        return stock(self, name, left[:1], *args, **kwargs)

    with faked_gpu(), FakeTensorMode() as mode:
        tensors = [
            torch.empty_strided(size, strides[0] if strides else _dense(size), dtype=dtype, device="cuda")
            for size, dtype, *strides in shapes
        ]
        graph = GraphLowering(make_fx(function, tracing_mode="fake")(*tensors))
        with (
            mock.patch.object(select_algorithm.AlgorithmSelectorCache, "__call__", select),
            V.set_graph_handler(graph),
            V.set_fake_mode(mode),
        ):
            graph.run(*tensors)
    return seen


def _dense(size: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(size[i + 1 :]) for i in range(len(size)))


def pack_of(
    *rows: tuple[Gemm, Config], torch_version: str = "", triton: str = "", source: str = "", device: Device = H200
) -> Pack:
    """A pack of rows for Inductor, as if they had been measured under this torch and Triton or others."""
    import torch

    torch_version = torch_version or public(torch.__version__)
    provenance = Provenance(
        sweep="s", experiment="e", toolchain=FrozenMap(torch=torch_version), timer="cold", source="measured",
        tunefarm="0", created="2026-01-01",
    )  # fmt: skip
    tables = []
    for op in dict.fromkeys(gemm.op for gemm, _ in rows):
        text = source or template_hash(op)
        parts = FrozenMap[Any](
            source_hash=text, backend_options=FrozenMap(), triton=triton or triton_version(), torch=torch_version,
            capability=device.arch,
        )  # fmt: skip
        made = tuple(
            Row(match=match_of(gemm.problem), measured_at=gemm.problem.dims, config=config, median_ms=1.0,
                interval_ms=(0.9, 1.1))
            for gemm, config in rows if gemm.op == op
        )  # fmt: skip
        tables.append(
            Table(
                kernel=op, source_hash=text, device=device, key_parts=parts, provenance=provenance, rows=made, layer=2
            )
        )
    return seal(Pack(tables=tuple(tables)))
