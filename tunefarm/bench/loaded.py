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


@dataclass(slots=True)
class Loaded:
    """A candidate ready to be launched again and again with the arguments of its own call.

    Attributes:
        fire: launches it.
        reset: gives arguments to be restored or zeroed their content before a launch.
        zeroed: storages that `reset` zeroes, by address.
        samples: events before and after each queued sample.
    """

    fire: Callable[[], None]
    reset: Callable[[], None]
    zeroed: frozenset[int]
    samples: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

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


def _event() -> torch.cuda.Event:
    import torch

    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=True)


def load_kernel(launch: Launch, artifact: Artifact) -> Any:
    """Triton's own handle for a kernel, made from machine code: nothing is compiled but its small host launcher.

    Args:
        launch: to be launched.
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




def loaded(workload: Workload, kernel: Callable[..., None], arguments: Mapping[str, Any]) -> Loaded:
    """A kernel with the arguments of a launch that has not happened yet.

    Args:
        workload: says which arguments are restored or zeroed.
        kernel: from `load_kernel`, with its grid.
        arguments: of the launch, by name.
    """
    restore, zero = ([t for n in names if (t := _tensor(arguments[n])) is not None]
                     for names in (workload.restore, workload.zero))  # fmt: skip
    values = tuple(arguments.values())
    saved = [(tensor, tensor.clone()) for tensor in restore]

    def reset() -> None:
        for tensor, copy in saved:
            tensor.copy_(copy)
        for tensor in zero:
            tensor.zero_()

    zeroed = frozenset(tensor.untyped_storage().data_ptr() for tensor in zero)
    return Loaded(fire=lambda: kernel(*values), reset=reset, zeroed=zeroed)


def _tensor(argument: Any) -> torch.Tensor | None:
    """The tensor behind a kernel argument, a tensor descriptor's included; None for an absent one."""
    found: torch.Tensor | None = getattr(argument, "base", argument)
    return found
