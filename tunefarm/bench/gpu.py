"""The GPU meter: launches machine code that others compiled, checks it, times it."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.bench.launch import Launch, call, intercept
from tunefarm.bench.meter import NUM_WARMUP, Answer, Candidate, Question
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.verify import flatten, mismatch, poisoned, reference_outputs
from tunefarm.errors import InfrastructureError, SpecError, UserError
from tunefarm.spec.workload import Workload, load_workload
from tunefarm.trial import Failure, Measurement, Outcome

if TYPE_CHECKING:
    import torch

MEASURED = "measured"
FLUSH_BYTES = 256 << 20
"""Written before each cold sample: several times the L2 of any GPU we know."""


class Poisoned(Exception):
    """The CUDA context is lost; nothing more can be measured in this process."""


class Mislaunched(Exception):
    """The call did something with the kernel that a candidate cannot be blamed for."""


@dataclass(slots=True)
class _Loaded:
    """A candidate ready to be launched again and again with the arguments of its own call."""

    fire: Callable[[], None]
    reset: Callable[[], None]
    outputs: Any
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


class GpuMeter:
    """Measures on this process's first visible GPU. Inputs, reference and kernels stay warm per problem."""

    def __init__(self) -> None:
        self._key: object = None
        self._workload: Workload | None = None
        self._inputs: dict[str, Any] = {}
        self._expected: list[torch.Tensor] | None = None
        self._kernels: dict[str, Any] = {}
        self._verified: set[int] = set()
        self._flush: torch.Tensor | None = None
        self.reference_ms: float | None = None

    def prepare(self, question: Question) -> None:
        """Makes the problem's inputs and the reference's outputs.

        Raises:
            UserError: the workload cannot be imported, or its inputs or reference fail.
        """
        key = (question.ref, question.variables, question.seed)
        if key == self._key:
            return
        self.close()
        import torch

        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._workload = workload = load_workload(question.ref)
        self._inputs = make_inputs(workload, question.variables, "cuda", question.seed)
        if workload.reference is not None:
            self._expected = reference_outputs(workload, self._inputs)
            self.reference_ms = self._time_reference(workload)
        self._key = key

    def _time_reference(self, workload: Workload) -> float | None:
        assert workload.reference is not None
        reference, arguments = workload.reference, list(self._inputs.values())
        loaded = _Loaded(fire=lambda: reference(*arguments), reset=lambda: None, outputs=None)
        return self._median(loaded, 9)

    def _median(self, loaded: _Loaded, count: int) -> float | None:
        assert self._flush is not None
        try:
            for _ in range(count + NUM_WARMUP):
                loaded.sample(self._flush)
            durations = sorted(loaded.durations_ms()[NUM_WARMUP:])
        except Exception:  # a reference that only works in double precision is no fault: it is just not timed
            return None
        return durations[len(durations) // 2]

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """Checks and times candidates; see `Meter.measure`."""
        if question.interleaved:
            yield from self._interleaved(candidates, question)
            return
        for candidate in candidates:
            started = time.perf_counter()
            loaded = self._load(candidate, question)
            if isinstance(loaded, Answer):
                yield loaded
                continue
            try:
                for _ in range(question.num_samples + NUM_WARMUP):
                    loaded.sample(self._buffer)
                durations = loaded.durations_ms()
                loaded.reset()
            except Exception as e:
                yield _failed(candidate, e)
                continue
            yield _timed(candidate, question, durations, time.perf_counter() - started)

    def _interleaved(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """One sample of each in turn, in an order drawn anew each round: drift hits all alike."""
        started = time.perf_counter()
        running: dict[int, tuple[Candidate, _Loaded]] = {}
        for candidate in candidates:
            loaded = self._load(candidate, question)
            if isinstance(loaded, Answer):
                yield loaded
            else:
                running[candidate.number] = candidate, loaded
        order = sorted(running)
        shuffle = random.Random(question.seed).shuffle
        for _ in range(question.num_samples + NUM_WARMUP):
            shuffle(order)
            for number in order:
                running[number][1].sample(self._buffer)
        share = (time.perf_counter() - started) / max(1, len(running))
        for candidate, loaded in running.values():
            try:
                yield _timed(candidate, question, loaded.durations_ms(), share)
            except Exception as e:
                yield _failed(candidate, e)

    @property
    def _buffer(self) -> torch.Tensor:
        if self._flush is None:
            raise InfrastructureError("the meter was not prepared")
        return self._flush

    def _load(self, candidate: Candidate, question: Question) -> _Loaded | Answer:
        """Runs the production call with the candidate's machine code in the kernel's place, and checks the outputs."""
        try:
            loaded = self._start(candidate, question)
            if self._expected is not None and candidate.number not in self._verified:
                failure = mismatch(loaded.outputs, self._expected, question.atol, question.rtol)
                if failure is not None:
                    return Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=failure)
                self._verified.add(candidate.number)
            loaded.outputs = None
        except (Poisoned, UserError):
            raise
        except Exception as e:
            return _failed(candidate, e)
        return loaded

    def _start(self, candidate: Candidate, question: Question) -> _Loaded:
        import torch

        assert self._workload is not None
        workload = self._workload
        loads: list[_Loaded] = []

        def on_launch(launch: Launch) -> None:
            kernel = self._kernel(candidate, launch)[launch.grid]
            arguments = tuple(launch.arguments.values())
            loaded = _Loaded(fire=lambda: kernel(*arguments), reset=_resetter(workload, launch.arguments), outputs=None)
            loaded.reset()
            loaded.fire()
            loads.append(loaded)

        with poisoned(), intercept(workload, candidate.config, question.device.target, on_launch):
            outputs = call(workload, self._inputs, candidate.config)
        torch.cuda.synchronize()
        if len(loads) != 1:
            raise SpecError(f"the call of {workload.name} launched its kernel {len(loads)} times", hint="once is right")
        flatten(outputs)
        loads[0].outputs = outputs
        return loads[0]

    def _kernel(self, candidate: Candidate, launch: Launch) -> Any:
        artifact = candidate.artifact
        if artifact is None:
            raise InfrastructureError(f"candidate {candidate.number} came without machine code")
        if artifact.specialization != launch.specialization:
            # Compiling here would hide it: the farm's promise is that measuring processes compile nothing.
            raise Mislaunched("arguments specialise otherwise on the GPU than they did on the builder")
        key = artifact.binary + artifact.specialization
        if key not in self._kernels:
            self._kernels[key] = _load_kernel(launch, artifact.cubin, artifact.metadata, artifact.binary)
        return self._kernels[key]

    def close(self) -> None:
        """Frees inputs, reference and kernels."""
        self._key = self._workload = self._expected = self._flush = self.reference_ms = None
        self._inputs = {}
        self._kernels.clear()
        self._verified.clear()


def _resetter(workload: Workload, arguments: Mapping[str, Any]) -> Callable[[], None]:
    autotuned = workload.autotuned
    restore = dict.fromkeys((*workload.restore, *(autotuned.restore if autotuned else ())))
    zero = dict.fromkeys((*workload.zero, *(autotuned.zero if autotuned else ())))
    saved = {name: arguments[name].clone() for name in restore}

    def reset() -> None:
        for name, copy in saved.items():
            arguments[name].copy_(copy)
        for name in zero:
            arguments[name].zero_()

    return reset


def _load_kernel(launch: Launch, cubin: bytes, metadata: str, binary: str) -> Any:
    """Triton's own handle for a kernel, made from machine code: nothing is compiled but its small host launcher."""
    from triton.compiler import ASTSource, CompiledKernel

    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    with tempfile.TemporaryDirectory(prefix="tunefarm-load-") as folder:
        paths = {"kernel.json": Path(folder, "kernel.json"), "kernel.cubin": Path(folder, "kernel.cubin")}
        paths["kernel.json"].write_text(metadata)
        paths["kernel.cubin"].write_bytes(cubin)
        kernel = CompiledKernel(source, {name: str(path) for name, path in paths.items()}, binary)
    _ = kernel.run  # loads the module now, so that a failure is the loading's
    return kernel


def _timed(candidate: Candidate, question: Question, durations: Sequence[float], busy_s: float) -> Answer:
    measurement = Measurement(
        samples_ms=tuple(durations[NUM_WARMUP:]), warmup_ms=tuple(durations[:NUM_WARMUP]), timer=question.timer,
        rung=question.rung, source=MEASURED, busy_s=busy_s,
    )  # fmt: skip
    return Answer(number=candidate.number, measurement=measurement)


def _failed(candidate: Candidate, error: Exception) -> Answer:
    """What an exception says about the candidate.

    Raises:
        Poisoned: it also says that this process is lost.
    """
    import torch

    kind = type(error).__name__
    text = str(error).strip() or kind
    message = next(line.strip() for line in text.splitlines() if line.strip())
    if isinstance(error, torch.cuda.OutOfMemoryError):
        outcome, stage = Outcome.DEVICE_OOM, "launch"
    elif kind == "OutOfResources":
        outcome, stage = Outcome.OUT_OF_RESOURCES, "load"
    elif "illegal memory access" in text or "misaligned address" in text:
        outcome, stage = Outcome.ILLEGAL_ACCESS, "launch"
    elif isinstance(error, Mislaunched) or "CUDA" in text or "Triton Error" in text:
        outcome, stage = Outcome.LAUNCH_ERROR, "launch"
    else:
        outcome, stage = Outcome.USER_ERROR, "launch"
    # Strings only: an exception would keep its frames, and they the tensors, alive.
    answer = Answer(
        number=candidate.number, outcome=outcome, failure=Failure(stage=stage, kind=kind, message=message[:400])
    )
    try:
        torch.cuda.synchronize()
    except Exception:
        raise Poisoned(answer) from None
    return answer
