"""Dissection: how torch.compile takes a function apart: graphs, breaks between them, and what is fused to which kernel.

First the function is traced with tensors that hold no memory, as for a harvest, for a GPU that need not be there. If it
looks at values it cannot go on so; then it is traced once more with real tensors, and what is known of its kernels ends
where the values were first needed.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tunefarm.device import Device
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.inductor.breaks import Break, watching_breaks
from tunefarm.inductor.harvest import explained, generate, made_by
from tunefarm.inductor.standin import standing_in
from tunefarm.spec.importing import import_object

_NODES = re.compile(r"Source Nodes: \[([^\]]*)\]")
_OPS = re.compile(r"Original ATen: \[([^\]]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph of operations.

    Attributes:
        ops: how many calls it has of each operation.
        text: the graph as code.
        is_backward: whether it computes gradients.
        uncacheable: why Inductor would not keep what it makes of it for the next process; empty if it would, and where
            that is not asked.
    """

    ops: FrozenMap[int]
    text: str
    is_backward: bool = False
    uncacheable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A Triton kernel, and the operations that it does in one.

    Attributes:
        kernel: its name.
        graph: number of the graph in `Dissection.lowered`.
        ops: operations, as they were called before they were taken apart.
        nodes: nodes of the graph that torch.compile took up.
    """

    kernel: str
    graph: int
    ops: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissection:
    """How a function is taken apart.

    Attributes:
        graphs: as torch.compile took them up, in order.
        lowered: the same with gradients and after all passes, from which kernels are generated.
        fusions: kernels, in order.
        library_calls: calls of library kernels, such as matrix products, that nothing is fused with.
        breaks: where and why graphs end.
        unseen: why no more is known of graphs and kernels; empty if all of the function was seen.
    """

    graphs: tuple[Graph, ...]
    lowered: tuple[Graph, ...]
    fusions: tuple[Fusion, ...]
    library_calls: int
    breaks: tuple[Break, ...]
    unseen: str = ""


def dissect(reference: str, folder: str, device: Device) -> Dissection:
    """Runs torch.compile on what a function of no arguments returns: a callable, and a tuple of inputs.

    Args:
        reference: `file.py:object` or `package.module:object`.
        folder: where the file's path starts.
        device: to generate for.

    Raises:
        SpecError: the object cannot be imported, is not as described, or raises.
        UserError: this machine has a GPU of another arch.
        InfrastructureError: this torch does not say where it breaks graphs.
    """
    make = import_object(reference, folder)
    seen = _Seen()
    with _quiet(), watching_breaks() as breaks, standing_in(device), seen.listening():
        try:
            generate(make, reference, seen.take)
        except SpecError as e:
            seen.unseen = str(e)
    found = seen.dissection(tuple(breaks))
    if not found.unseen:
        return found
    return _with_values(make, reference, found)


def _with_values(make: Callable[[], Any], reference: str, without: Dissection) -> Dissection:
    """The dissection of a function that looks at values: its graphs and breaks by tracing it with some."""
    import torch

    taken: list[Graph] = []

    def collect(graph: Any, inputs: Sequence[Any]) -> Any:
        taken.append(_read(graph))
        return graph.forward

    torch._dynamo.reset()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with _quiet(), watching_breaks() as breaks, explained(reference):
            with torch.device(device):
                function, inputs = made_by(make, reference)
            torch.compile(function, backend=collect)(*inputs)
    except SpecError:
        if not without.graphs and not without.breaks:
            raise
        return without
    return replace(without, graphs=tuple(taken), breaks=tuple(breaks))


class _Seen:
    """What is heard of while a function is generated."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.lowered: list[Graph] = []
        self.fusions: list[Fusion] = []
        self.library_calls = 0
        self.unseen = ""

    def take(self, graph: Any) -> None:
        """Notes a graph that torch.compile has taken up."""
        self.graphs.append(_read(graph))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While active, what Inductor lowers and generates is noted."""
        from torch._dynamo.utils import counters
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.graph import GraphLowering

        lower, define = GraphLowering.run, PythonWrapperCodegen.define_kernel

        def run(lowering: Any, *inputs: Any) -> Any:
            graph = _read(lowering.module)
            self.lowered.append(
                replace(graph, is_backward=bool(lowering.is_backward), uncacheable=_uncacheable(lowering.module))
            )
            return lower(lowering, *inputs)

        def define_kernel(wrapper: Any, name: str, body: str, metadata: str | None = None, *more: Any, **m: Any) -> Any:
            self.fusions.append(
                Fusion(
                    kernel=name, graph=len(self.lowered), ops=_listed(_OPS, metadata), nodes=_listed(_NODES, metadata)
                )
            )
            return define(wrapper, name, body, metadata, *more, **m)

        with (
            mock.patch.object(GraphLowering, "run", run),
            mock.patch.object(PythonWrapperCodegen, "define_kernel", define_kernel),
        ):
            yield
        self.library_calls = counters["inductor"]["extern_calls"]

    def dissection(self, breaks: tuple[Break, ...]) -> Dissection:
        """What was heard."""
        return Dissection(
            graphs=tuple(self.graphs), lowered=tuple(self.lowered), fusions=tuple(self.fusions),
            library_calls=self.library_calls, breaks=breaks, unseen=self.unseen,
        )  # fmt: skip


def _listed(pattern: re.Pattern[str], metadata: str | None) -> tuple[str, ...]:
    found = pattern.search(metadata or "")
    return tuple(name.strip() for name in found[1].split(",") if name.strip()) if found else ()


def _read(graph: Any) -> Graph:
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    ops = Counter(_named(node) for node in calls)
    return Graph(ops=FrozenMap(ops.most_common()), text=graph.print_readable(print_output=False))


def _named(node: Any) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def _uncacheable(graph: Any) -> str:
    from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache

    try:
        FxGraphCache._check_can_cache(graph)
    except BypassFxGraphCache as e:
        return str(e)
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the user's function prints is no part of a dissection."""
    import logging

    logger = logging.getLogger("torch")
    level = logger.level
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
