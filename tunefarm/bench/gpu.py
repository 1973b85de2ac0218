"""The GPU meter: launches machine code that others compiled, checks it, times it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tunefarm.bench.faults import Mislaunched, failed
from tunefarm.bench.launch import Launch, call, intercept
from tunefarm.bench.loaded import Loaded, load_kernel
from tunefarm.bench.meter import NUM_WARMUP, Answer, Candidate, Question
from tunefarm.bench.tensors import checksums, explained, make_inputs
from tunefarm.bench.verify import mismatch, poisoned, reference_outputs
from tunefarm.config import Config
from tunefarm.errors import InfrastructureError, SpecError, TunefarmError
from tunefarm.spec.workload import Workload, load_workload
from tunefarm.trial import Failure, Measurement, Outcome

if TYPE_CHECKING:
    import torch

MEASURED = "measured"
FLUSH_BYTES = 256 << 20
"""Written before each cold sample: several times the L2 of any GPU we know."""
NUM_REFERENCE, MAX_REFERENCE_MS = 9, 500.0
"""Samples of the reference, and the sum of their durations after which there are no more."""


class GpuMeter:
    """Measures on this process's first visible GPU. Inputs, reference and kernels stay warm per problem.

    Attributes:
        reference_ms: time of the reference for the prepared problem, where it could be timed.
        notices: what people should know of how the prepared problem is measured.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._workload: Workload | None = None
        self._inputs: dict[str, Any] = {}
        self._checksums: dict[str, int] = {}
        self._zeroed: set[str] = set()
        self._expected: list[torch.Tensor] | None = None
        self._kernels: dict[str, Any] = {}
        self._seen: set[Config] = set()
        self._flush: torch.Tensor | None = None
        self.reference_ms: float | None = None
        self.notices: tuple[str, ...] = ()

    def prepare(self, question: Question) -> None:
        """Makes the problem's inputs and the reference's outputs.

        Raises:
            UserError: the workload cannot be imported, or its inputs or reference fail.
            InfrastructureError: there is no GPU.
        """
        import torch

        key = (question.ref, question.variables, question.seed)
        if key == self._key:
            return
        self.close()
        if not torch.cuda.is_available():
            raise InfrastructureError("no CUDA device is visible to this process", hint="see `tunefarm doctor`")
        workload = load_workload(question.ref)
        try:
            with explained(f"problem {question.problem.label} of {workload.name}"):
                self._make(workload, question)
        except BaseException:
            self.close()
            raise
        self._workload, self._key = workload, key

    def _make(self, workload: Workload, question: Question) -> None:
        import torch

        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._inputs = make_inputs(workload, question.variables, "cuda", question.seed)
        self._checksums = checksums(self._inputs)
        if workload.reference is None:
            self._notice(f"workload {workload.name} has no reference: its outputs were not checked")
            return
        self._expected = reference_outputs(workload, self._inputs)
        self.reference_ms = self._time_reference(workload.reference)

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices = (*self.notices, text)

    def _time_reference(self, reference: Callable[..., Any]) -> float | None:
        arguments = list(self._inputs.values())
        loaded = Loaded(fire=lambda: reference(*arguments))
        durations: list[float] = []
        try:
            while len(durations) < NUM_WARMUP + NUM_REFERENCE and sum(durations) < MAX_REFERENCE_MS:
                loaded.sample(self._buffer)
                durations += loaded.durations_ms()
        except Exception:  # a reference that only works in double precision is no fault: it is just not timed
            return None
        return statistics.median(durations[NUM_WARMUP:] or durations)

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """Checks and times candidates; see `Meter.measure`.

        Raises:
            Poisoned: the CUDA context is lost; holds the last answer.
            UserError: the workload cannot be measured at all.
        """
        if question.interleaved:
            yield from self._interleaved(candidates, question)
        else:
            for candidate in candidates:
                yield self._measure(candidate, question)

    def _measure(self, candidate: Candidate, question: Question) -> Answer:
        started = time.perf_counter()
        loaded = self._load(candidate, question)
        if isinstance(loaded, Answer):
            return loaded
        try:
            for _ in range(question.num_samples + NUM_WARMUP):
                loaded.sample(self._buffer)
            durations = loaded.durations_ms()
            loaded.reset()
        except Exception as e:
            return failed(candidate.number, e)
        return _timed(candidate, question, durations, time.perf_counter() - started)

    def _interleaved(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """One sample of each in turn, in an order drawn anew each round: drift hits all alike."""
        started = time.perf_counter()
        running: dict[int, tuple[Candidate, Loaded]] = {}
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
            for number in tuple(order):
                candidate, loaded = running[number]
                try:
                    loaded.sample(self._buffer)
                except Exception as e:
                    order.remove(number)
                    yield failed(candidate.number, e)
        durations: dict[int, list[float]] = {}
        for number in sorted(order):
            candidate, loaded = running[number]
            try:
                durations[number] = loaded.durations_ms()
                loaded.reset()
            except Exception as e:
                yield failed(candidate.number, e)
        share = (time.perf_counter() - started) / max(1, len(running))
        for number, taken in durations.items():
            yield _timed(running[number][0], question, taken, share)

    @property
    def _buffer(self) -> torch.Tensor:
        if self._flush is None:
            raise InfrastructureError("the meter was not prepared")
        return self._flush

    def _load(self, candidate: Candidate, question: Question) -> Loaded | Answer:
        """Runs the production call with the candidate's machine code in the kernel's place, and checks the outputs."""
        try:
            loaded, outputs = self._start(candidate, question)
            is_new = candidate.config not in self._seen
            failure = self._check(outputs, question) if is_new else None
            loaded.reset()
            if is_new:
                self._watch_inputs(loaded)
            if failure is not None:
                return Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=failure)
            self._seen.add(candidate.config)
        except TunefarmError:
            raise
        except Exception as e:
            return failed(candidate.number, e)
        return loaded

    def _check(self, outputs: Any, question: Question) -> Failure | None:
        if self._expected is None:
            return None
        workload = self._prepared
        atol = workload.atol if question.atol is None else question.atol
        rtol = workload.rtol if question.rtol is None else question.rtol
        return mismatch(outputs, self._expected, atol, rtol)

    def _watch_inputs(self, loaded: Loaded) -> None:
        """Gives notice of inputs that stay changed after a launch."""
        self._zeroed |= {
            name for name in self._checksums if self._inputs[name].untyped_storage().data_ptr() in loaded.zeroed
        }
        if changed := self._changed_inputs():
            self._notice(
                f"the call of {self._prepared.name} writes into {', '.join(changed)}: name the kernel's argument in "
                "restore or zero, or its samples do not start from equal inputs"
            )

    def _changed_inputs(self) -> list[str]:
        now = checksums({name: value for name, value in self._inputs.items() if name not in self._zeroed})
        return [name for name, checksum in now.items() if checksum != self._checksums[name]]

    def _start(self, candidate: Candidate, question: Question) -> tuple[Loaded, Any]:
        """The candidate after its first launch, and what the production call returned."""
        import torch

        workload = self._prepared
        if self._changed_inputs():
            # By the reference, or by a candidate that failed half-way or writes where nobody said it would.
            self._inputs = {}
            self._inputs = make_inputs(workload, question.variables, "cuda", question.seed)
        loads: list[Loaded] = []

        def on_launch(launch: Launch) -> None:
            kernel = self._kernel(candidate, launch, question)[launch.grid]
            loads.append(Loaded.of(workload, kernel, launch.arguments))
            loads[-1].reset()
            loads[-1].fire()

        with poisoned(), intercept(workload, candidate.config, question.device.target, on_launch):
            outputs = call(workload, self._inputs, candidate.config)
        torch.cuda.synchronize()
        if len(loads) != 1:
            raise SpecError(f"the call of {workload.name} launched its kernel {len(loads)} times", hint="once is right")
        return loads[0], outputs

    @property
    def _prepared(self) -> Workload:
        if self._workload is None:
            raise InfrastructureError("the meter was not prepared")
        return self._workload

    def _kernel(self, candidate: Candidate, launch: Launch, question: Question) -> Any:
        artifact = candidate.artifact
        if artifact is None:
            raise InfrastructureError(f"candidate {candidate.number} came without machine code")
        if artifact.specialization != launch.specialization:
            # Compiling here would hide it: the farm's promise is that measuring processes compile nothing.
            other = sorted(dict(launch.facts.items() ^ question.problem.facts.items()))
            raise Mislaunched(
                "the call specialises otherwise here than where it was compiled: "
                + (f"argument {', '.join(other)}" if other else "other options or constants")
            )
        key = artifact.binary + artifact.specialization
        if key not in self._kernels:
            self._kernels[key] = load_kernel(launch, artifact)
        return self._kernels[key]

    def close(self) -> None:
        """Frees inputs, reference and kernels."""
        self._key = self._workload = self._expected = self._flush = self.reference_ms = None
        self._inputs, self._checksums, self.notices = {}, {}, ()
        for warm in (self._zeroed, self._kernels, self._seen):
            warm.clear()


def _timed(candidate: Candidate, question: Question, durations: Sequence[float], busy_s: float) -> Answer:
    measurement = Measurement(
        samples_ms=tuple(durations[NUM_WARMUP:]), warmup_ms=tuple(durations[:NUM_WARMUP]), timer=question.timer,
        rung=question.rung, source=MEASURED, busy_s=busy_s,
    )  # fmt: skip
    return Answer(number=candidate.number, measurement=measurement)
