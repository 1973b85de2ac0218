"""Machine code made ready: a kernel loaded without compiling it, with the arguments of a production launch."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.bench.build import Artifact
from tunefarm.bench.launch import Launch
from tunefarm.spec.workload import Workload

if TYPE_CHECKING:
    import torch

GRAPH_MS, MAX_LAUNCHES = 0.2, 100
"""A sample of the graph timer replays as many launches as take about so long, and at most so many."""

SPIN_CYCLES = 100_000
"""Some 50 us, in which a host queues a launch."""


def load_kernel(launch: Launch, artifact: Artifact) -> Any:
    """Triton's own handle for a kernel, made from machine code: nothing is compiled but its small host launcher.

    Args:
        launch: a launch of it.
        artifact: its machine code.
    """
    from triton.compiler import ASTSource, CompiledKernel

    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    with tempfile.TemporaryDirectory(prefix="tunefarm-load-") as folder:
        paths = {"kernel.json": Path(folder, "kernel.json"), "kernel.cubin": Path(folder, "kernel.cubin")}
        paths["kernel.json"].write_text(artifact.metadata)
        paths["kernel.cubin"].write_bytes(artifact.cubin)
        kernel = CompiledKernel(source, {name: str(path) for name, path in paths.items()}, artifact.binary)
    _ = kernel.run  # loads the module now, so that a failure is the loading's
    return kernel


@dataclass(slots=True)
class Loaded:
    """What can be launched again and again, a candidate with the arguments of its own call or a reference.

    Attributes:
        fire: launches it.
        again: makes the same of other arguments; None where there is nothing to exchange.
        reset: gives arguments that are to be restored or zeroed their content before the launch; None if none are.
        arguments: of the kernel, by name.
        written: names of those that the first launch was seen to change.
        zeroed: storages that `reset` zeroes, by address.
        timer: `cold`, `hot` or `graph`; see `Measurement`.
        samples: events before and after each queued sample.
    """

    fire: Callable[[], Any]
    again: Callable[[Mapping[str, Any]], Loaded] | None = None
    reset: Callable[[], None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    zeroed: frozenset[int] = frozenset()
    timer: str = "cold"
    samples: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    _graph: tuple[torch.cuda.CUDAGraph, int] | None = None

    @classmethod
    def of(
        cls, workload: Workload, kernel: Callable[..., None], arguments: Mapping[str, Any], timer: str = "cold"
    ) -> Loaded:
        """A kernel and a launch that has not happened yet: the content to be restored is that of now.

        Args:
            workload: says which arguments are restored or zeroed.
            kernel: from `load_kernel`, with its grid.
            arguments: of the launch, by name.
            timer: how samples are taken.
        """
        saved = [(span, span.clone()) for span in map(_span, _tensors(workload.restore, arguments))]
        zero = _tensors(workload.zero, arguments)
        values = tuple(arguments.values())

        def reset() -> None:
            for tensor, content in saved:
                tensor.copy_(content)
            for tensor in zero:
                tensor.zero_()

        zeroed = frozenset(tensor.untyped_storage().data_ptr() for tensor in zero)
        return cls(
            fire=lambda: kernel(*values), again=lambda others: cls.of(workload, kernel, others, timer),
            reset=reset if saved or zero else None, arguments=arguments, zeroed=zeroed,
            timer=timer,
        )  # fmt: skip

    def renew(self) -> None:
        """Resets what is to be reset."""
        if self.reset is not None:
            self.reset()

    def sharing(self, others: Mapping[str, Any]) -> Loaded:
        """The same, writing into another's tensors where those are alike.

        What is written by turns is then written to the same place: kernels differ by more than the noise for the
        addresses of their outputs alone. What is only read stays each one's own: it may depend on the config.
        """
        shared = {n: _shared(v, others.get(n)) if n in self.written else v for n, v in self.arguments.items()}
        changed = any(shared[name] is not value for name, value in self.arguments.items())
        return self.again(shared) if changed and self.again is not None else self

    def sample(self, flush: torch.Tensor | None = None) -> None:
        """Queues one sample; the flush and the reset are outside the timed region.

        Args:
            flush: written before a cold sample: larger than the L2 cache. Other timers need none.
        """
        if self.timer == "graph" and self._graph is None:
            self._graph = self._captured()
        before, after = _event(), _event()
        self.renew()
        if self.timer == "cold" and flush is not None:
            flush.zero_()
        else:
            # As the flush does: the GPU is busy until the host has queued the launch, which else would be timed.
            _spin(SPIN_CYCLES)
        before.record()
        if self._graph is None:
            self.fire()
        else:
            self._graph[0].replay()
        after.record()
        self.samples.append((before, after))

    def durations_ms(self) -> list[float]:
        """Durations of one launch in the queued samples, oldest first; waits for them."""
        import torch

        torch.cuda.synchronize()
        launches = self._graph[1] if self._graph else 1
        durations = [before.elapsed_time(after) / launches for before, after in self.samples]
        self.samples.clear()
        return durations

    def _captured(self) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of so many launches that starting it does not count, and their number."""
        import torch

        before, after = _event(), _event()
        for _ in range(2):  # the first holds one-time costs
            self.renew()
            before.record()
            self.fire()
            after.record()
        torch.cuda.synchronize()
        wanted = GRAPH_MS / max(before.elapsed_time(after), 1e-3)
        # What is restored before every launch cannot be launched twice in a row.
        launches = 1 if self.reset else max(1, min(MAX_LAUNCHES, round(wanted)))
        make: Callable[[], torch.cuda.CUDAGraph] = torch.cuda.CUDAGraph
        graph = make()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                self.fire()
        return graph, launches


def tensors(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among kernel arguments, those behind tensor descriptors included."""
    import torch

    found = {name: getattr(value, "base", value) for name, value in arguments.items()}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _shared(mine: Any, theirs: Any) -> Any:
    """An argument that writes to where another does, if that is of the same layout; else the argument as it is."""
    (own,), other = tensors({"": mine}).values(), tensors({"": theirs}).get("")
    layout = (own.dtype, own.shape, own.stride(), own.data_ptr() % 16)
    if other is None or layout != (other.dtype, other.shape, other.stride(), other.data_ptr() % 16):
        return mine
    if own is mine:
        return other
    descriptor = copy.copy(mine)
    descriptor.base = other
    return descriptor


def _tensors(names: tuple[str, ...], arguments: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors behind kernel arguments, those of tensor descriptors included; absent ones left out."""
    found = (arguments[name] for name in names)
    return [getattr(argument, "base", argument) for argument in found if argument is not None]


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, as one flat tensor: also where elements share a place."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((length if tensor.numel() else 0,), (1,))


def _spin(cycles: int) -> None:
    import torch

    spin: Callable[[int], None] = torch.cuda._sleep
    spin(cycles)


def _event() -> torch.cuda.Event:
    import torch

    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=True)
