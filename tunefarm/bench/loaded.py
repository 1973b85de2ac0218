"""Machine code made ready: a kernel loaded without compiling it, with the arguments of a production launch."""

from __future__ import annotations

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
        reset: gives arguments that are to be restored or zeroed their content before the launch.
        zeroed: storages that `reset` zeroes, by address.
        samples: events before and after each queued sample.
    """

    fire: Callable[[], Any]
    reset: Callable[[], None] = lambda: None
    zeroed: frozenset[int] = frozenset()
    samples: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    @classmethod
    def of(cls, workload: Workload, kernel: Callable[..., None], arguments: Mapping[str, Any]) -> Loaded:
        """A kernel and a launch that has not happened yet: the content to be restored is that of now.

        Args:
            workload: says which arguments are restored or zeroed.
            kernel: from `load_kernel`, with its grid.
            arguments: of the launch, by name.
        """
        saved = [(tensor, tensor.clone()) for tensor in _tensors(workload.restore, arguments)]
        zero = _tensors(workload.zero, arguments)
        values = tuple(arguments.values())

        def reset() -> None:
            for tensor, copy in saved:
                tensor.copy_(copy)
            for tensor in zero:
                tensor.zero_()

        zeroed = frozenset(tensor.untyped_storage().data_ptr() for tensor in zero)
        return cls(fire=lambda: kernel(*values), reset=reset, zeroed=zeroed)

    def sample(self, flush: torch.Tensor) -> None:
        """Queues one cold sample; the flush and the reset are outside the timed region."""
        before, after = _event(), _event()
        self.reset()
        flush.zero_()
        before.record()
        self.fire()
        after.record()
        self.samples.append((before, after))

    def durations_ms(self) -> list[float]:
        """Durations of the queued samples, oldest first; waits for them."""
        import torch

        torch.cuda.synchronize()
        durations = [before.elapsed_time(after) for before, after in self.samples]
        self.samples.clear()
        return durations


def _tensors(names: tuple[str, ...], arguments: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors behind kernel arguments, those of tensor descriptors included; absent ones left out."""
    found = (arguments[name] for name in names)
    return [getattr(argument, "base", argument) for argument in found if argument is not None]


def _event() -> torch.cuda.Event:
    import torch

    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=True)
