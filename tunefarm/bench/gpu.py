"""The GPU meter: launches machine code that others compiled, checks it, times it."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tunefarm.bench.faults import Mislaunched, Poisoned, failed, preparing
from tunefarm.bench.launch import Launch, call, intercept
from tunefarm.bench.loaded import Loaded, load_kernel, tensors
from tunefarm.bench.meter import NUM_WARMUP, Answer, Candidate, Question
from tunefarm.bench.sampling import Faulted, alone, in_turn
from tunefarm.bench.telemetry import require_gpu
from tunefarm.bench.tensors import checksums, make_inputs
from tunefarm.bench.verify import (
    Tolerance,
    attainable,
    flatten,
    mismatch,
    other_bits,
    poisoned,
    reference_outputs,
    rms,
    sum_length,
)
from tunefarm.config import LIBRARY, Config
from tunefarm.errors import InfrastructureError, SpecError, TunefarmError
from tunefarm.spec.workload import Workload, load_workload
from tunefarm.trial import PREPARE, Failure, Measurement, Outcome

if TYPE_CHECKING:
    import torch

MEASURED = "measured"
FLUSH_BYTES = 256 << 20
"""Written before each cold sample: several times the L2 of any GPU we know."""
NUM_SIZED = 1 << 20
"""Elements of an input that tell how large its values are."""
NUM_REFERENCE, MAX_REFERENCE_MS = 9, 500.0
"""Samples of the reference, and the sum of their durations after which there are no more."""
NUM_REPEATS = 2
"""Calls that must give the same bits as the first, where that is asked for."""
NO_BASELINE = Failure(
    stage="verify", kind="no baseline",
    message="outputs are to be compared with the default config's, and there is no default that can be built: give the "
            "workload one that can, or a reference",
)  # fmt: skip


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
        self._tolerances: tuple[Tolerance, ...] = ()
        self._baseline: Any = None
        self._kernels: dict[str, Any] = {}
        self._seen: set[Config] = set()
        self._flush: torch.Tensor | None = None
        self.reference_ms: float | None = None
        self.notices: tuple[str, ...] = ()

    def prepare(self, question: Question) -> None:
        """Makes the problem's inputs and the reference's outputs.

        Raises:
            UserError: the workload cannot be imported, or its inputs or reference fail.
            Poisoned: the CUDA context is lost; holds an answer for each candidate.
            InfrastructureError: there is no GPU, or it is broken.
        """
        key = (question.ref, question.variables, question.seed, question.atol, question.rtol, question.same_bits)
        if key == self._key:
            return
        self.close()
        require_gpu()
        workload = load_workload(question.ref)
        try:
            numbers = [candidate.number for candidate in question.candidates]
            with preparing(f"problem {question.problem.label} of {workload.name}", numbers):
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
        if workload.compares_with_default:
            return
        if workload.reference is None:
            self._notice(f"workload {workload.name} has no reference: its outputs were not checked")
            return
        self._expected = reference_outputs(workload, self._inputs)
        self._tolerances = self._choose_tolerances(workload, question)
        if question.num_samples and callable(workload.reference):
            self.reference_ms = self._time_reference(workload.reference, question)

    def _choose_tolerances(self, workload: Workload, question: Question) -> tuple[Tolerance, ...]:
        """How far each output may be from what it should be."""
        assert self._expected is not None
        flops = workload.flops(**question.variables) if workload.flops else 0.0
        given = Tolerance(
            atol=workload.atol if question.atol is None else question.atol,
            rtol=workload.rtol if question.rtol is None else question.rtol,
            length=sum_length(self._inputs, self._expected, flops),
        )
        as_given = (given,) * len(self._expected)
        if not given.is_given or not callable(workload.reference):
            return as_given
        try:
            own = workload.reference(*self._inputs.values())
        except Exception:  # a reference that only works in double precision cannot tell
            return as_given
        floats = [value for value in tensors(self._inputs).values() if value.is_floating_point() and value.numel()]
        size = max((rms(value.reshape(-1)[:NUM_SIZED]) for value in floats), default=0.0)
        chosen, is_faulty = attainable(given, own, self._expected, size)
        if is_faulty:
            self._notice(
                f"the reference of {workload.name} is wrong in the inputs' own precision ({question.problem.label}), "
                "by more than rounding explains: candidates are held to its results in double precision"
            )
        if len(chosen) != len(as_given):
            return as_given
        if wider := [tolerance.atol or 0.0 for tolerance in chosen if tolerance != given]:
            self._notice(
                f"tolerance below attainable: the reference of {workload.name} itself misses atol {given.atol}, rtol "
                f"{given.rtol} in the inputs' precision; twice what it misses is allowed instead, atol {max(wider)}"
            )
        return chosen

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices = (*self.notices, text)

    def _time_reference(self, reference: Callable[..., Any], question: Question) -> float | None:
        arguments = list(self._inputs.values())
        loaded = Loaded(fire=lambda: reference(*arguments), timer=question.timer)
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
            Poisoned: the CUDA context is lost; holds the last answer, or nothing where nobody knows whose fault it is.
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
        if not question.num_samples:
            return Answer(number=candidate.number)
        try:
            durations = alone(loaded, question, self._buffer)
        except Exception as e:
            return failed(candidate.number, e)
        return _timed(candidate, question, durations, time.perf_counter() - started)

    def _interleaved(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """All candidates in one sitting, by turns."""
        started = time.perf_counter()
        running: dict[int, Loaded] = {}
        others: dict[str, Any] = {}
        for candidate in candidates:
            loaded = self._load(candidate, question, others)
            if isinstance(loaded, Answer):
                yield loaded
            else:
                others = {**loaded.arguments, **others}
                running[candidate.number] = loaded
        by_number = {candidate.number: candidate for candidate in candidates}
        try:
            durations = in_turn(running, question, self._buffer)
        except Faulted as e:
            yield failed(e.number, e.error, alone=len(running) == 1)
            return
        share = (time.perf_counter() - started) / max(1, len(running))
        for number, taken in durations.items():
            yield _timed(by_number[number], question, taken, share)

    @property
    def _buffer(self) -> torch.Tensor:
        if self._flush is None:
            raise InfrastructureError("the meter was not prepared")
        return self._flush

    def _load(
        self, candidate: Candidate, question: Question, others: Mapping[str, Any] = MappingProxyType({})
    ) -> Loaded | Answer:
        """Runs the production call with the candidate's machine code in the kernel's place, and checks the outputs.

        Args:
            candidate: which.
            question: of whom.
            others: arguments of those it is measured with by turns, to be shared where they are alike.
        """
        is_new = candidate.config not in self._seen
        if is_new and (answer := self._without_baseline(candidate, question)) is not None:
            return answer
        try:
            start, outputs = self._start(candidate, question)
            failure = self._check(candidate, outputs, question) if is_new else None
            start.renew()
            if is_new:
                self._watch_inputs(start)
            if failure is not None:
                return Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=failure)
            self._seen.add(candidate.config)
            return start.sharing(others)
        except TunefarmError:
            raise
        except Exception as e:
            return failed(candidate.number, e)

    def _check(self, candidate: Candidate, outputs: Any, question: Question) -> Failure | None:
        if self._expected is not None and (failure := mismatch(outputs, self._expected, self._tolerances)):
            return failure
        if question.same_bits == "repeat":
            for _ in range(NUM_REPEATS):
                if failure := other_bits(outputs, self._again(candidate, question), "those of an equal launch"):
                    return failure
        if question.same_bits != "default":
            return None
        return other_bits(outputs, self._baseline, "the default config's")

    def _without_baseline(self, candidate: Candidate, question: Question) -> Answer | None:
        """The answer for a candidate whose outputs cannot be compared with the default's, through no fault of its own.

        Raises:
            Poisoned: the default has cost this process.
        """
        if not (question.same_bits == "default" or self._prepared.compares_with_default) or self._baseline is not None:
            return None
        if question.baseline is None:
            return Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=NO_BASELINE)
        try:
            self._baseline = self._again(question.baseline, question)
        except TunefarmError:
            raise
        except Exception as e:
            try:
                return _of_the_default(failed(candidate.number, e))
            except Poisoned as lost:
                raise Poisoned(*map(_of_the_default, lost.args)) from None
        if self._prepared.compares_with_default:
            self._expected = self._baseline
            self._tolerances = self._choose_tolerances(self._prepared, question)
        return None

    def _again(self, candidate: Candidate, question: Question) -> Any:
        """The outputs of one more call, copied: those of a call that works in place would not last."""
        start, outputs = self._start(candidate, question)
        kept = [tensor.clone() for tensor in flatten(outputs)]
        start.renew()
        return kept

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
        if candidate.config == LIBRARY:
            return self._start_library(workload, question)
        loads: list[Loaded] = []

        def on_launch(launch: Launch) -> None:
            kernel = self._kernel(candidate, launch, question)[launch.grid]
            loaded = Loaded.of(workload, kernel, launch.arguments, question.timer)
            loaded.renew()
            # Who sits alone shares nothing, and need not be looked at.
            watched = tensors(launch.arguments) if question.interleaved else {}
            before = checksums(watched)
            loaded.fire()
            after = checksums(watched)
            loaded.written = frozenset(name for name, content in after.items() if content != before[name])
            loads.append(loaded)

        with poisoned(), intercept(workload, candidate.config, question.device.target, on_launch):
            outputs = call(workload, self._inputs, candidate.config)
        torch.cuda.synchronize()
        if len(loads) != 1:
            raise SpecError(f"the call of {workload.name} launched its kernel {len(loads)} times", hint="once is right")
        return loads[0], outputs

    def _start_library(self, workload: Workload, question: Question) -> tuple[Loaded, Any]:
        import torch

        if workload.library is None:
            raise SpecError(f"workload {workload.name} has no library's call", hint="give the workload its library")
        fire = functools.partial(workload.library, **self._inputs)
        with poisoned():
            outputs = fire()
        torch.cuda.synchronize()
        return Loaded(fire=fire, timer=question.timer), outputs

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
        self._baseline, self._tolerances = None, ()
        for warm in (self._zeroed, self._kernels, self._seen):
            warm.clear()


def _of_the_default(answer: Answer) -> Answer:
    """What befell the default, as the answer of a candidate that was to be compared with it."""
    why = answer.why
    message = f"the default config, whose bits are asked for, failed: {why.message}"
    failure = replace(why, stage=PREPARE, message=message)
    return replace(answer, outcome=Outcome.WRONG_RESULT, failure=failure)


def _timed(candidate: Candidate, question: Question, durations: Sequence[float], busy_s: float) -> Answer:
    measurement = Measurement(
        samples_ms=tuple(durations[NUM_WARMUP:]), warmup_ms=tuple(durations[:NUM_WARMUP]), timer=question.timer,
        rung=question.rung, source=MEASURED, busy_s=busy_s,
    )  # fmt: skip
    return Answer(number=candidate.number, measurement=measurement)
