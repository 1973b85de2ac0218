"""The jobs that a fleet carries for the farm: build on a CPU, measure on a GPU or from a landscape.

Each is a plain function of one picklable request. What is worth keeping between jobs (imports, inputs, kernels) stays
in this module's globals: a worker is one long-lived process. Going from candidate to candidate a job leaves a will, so
that a process that dies or hangs costs the candidate it was at and no other.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunefarm.bench import telemetry
from tunefarm.bench.build import Artifact, build_key, compile_launch
from tunefarm.bench.faults import CEILING_S, Pace, Poisoned, failed, obituary
from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.launch import learn
from tunefarm.bench.legality import unfit
from tunefarm.bench.meter import NUM_WARMUP, Answer, Answers, Candidate, Meter, Question
from tunefarm.bench.replay import LandscapeMeter
from tunefarm.bench.steady import Watch
from tunefarm.bench.tensors import make_inputs
from tunefarm.config import Config, Value
from tunefarm.device import Device
from tunefarm.errors import SpecError, UserError, WorkerLost
from tunefarm.frozen import FrozenMap
from tunefarm.landscape_reader import load_cached
from tunefarm.seams import Retire
from tunefarm.source import source_hash
from tunefarm.spec.importing import enter
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import PREPARE, Build, Failure, Outcome
from tunefarm.will import leave

_meters: dict[str, Meter] = {}
_paces: dict[tuple[WorkloadRef, FrozenMap[Value]], Pace] = {}
_watch = Watch()
_started = _worn = _has_stepped_back = False

BUILD_NICENESS = 10
"""By how much a process that compiles gives way to others of its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Configs to compile for one problem's specialisation and one arch.

    Attributes:
        ref: where the workload is found.
        variables: the experiment's names for the problem.
        configs: what to compile.
        target: arch, such as 90.
        keys: the build key that the driver expects of each config, or empty: a worker whose kernel or Triton is
            another must not fill the store under them.
        patience_s: the longest one config may take; then the compiler is taken to hang.
    """

    ref: WorkloadRef
    variables: FrozenMap[Value]
    configs: tuple[Config, ...]
    target: int
    keys: tuple[str, ...] = ()
    patience_s: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of one config: a build with its artifact, or how and why it failed."""

    config: Config
    build: Build | None = None
    artifact: Artifact | None = None
    outcome: Outcome = Outcome.OK
    failure: Failure | None = None

    def judged(self, device: Device) -> Built:
        """The same with the verdict of a device that the build may be too large for."""
        if self.build is None or self.failure is not None:
            return self
        failure = unfit(self.build, device)
        return dataclasses.replace(self, outcome=Outcome.OUT_OF_RESOURCES, failure=failure) if failure else self

    def candidate(self, number: int) -> Candidate:
        """The config as a meter needs it.

        Args:
            number: in its study.
        """
        return Candidate(number=number, config=self.config, build=self.build, artifact=self.artifact)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unbuilt:
    """The will of a build job: what it has built, and the config it was at."""

    built: tuple[Built, ...]
    config: Config
    patience_s: float
    sure: bool = True

    def execute(self, lost: WorkerLost) -> tuple[Built, ...]:
        """The config is to blame."""
        failure = obituary(lost, "build", self.patience_s)
        outcome = Outcome.COMPILE_TIMEOUT if lost.death == "hung" else Outcome.CRASHED
        return (*self.built, Built(config=self.config, outcome=outcome, failure=failure))


def build(request: BuildRequest) -> tuple[Built, ...]:
    """Compiles the configs of a request, in order.

    Raises:
        UserError: the workload cannot be imported or its call cannot be followed.
        Lacking: its files have not been sent here.
    """
    _step_back()
    workload = load_workload(request.ref)
    inputs = make_inputs(workload, request.variables, "meta")
    source = source_hash(workload.kernel) if request.keys else ""
    built: list[Built] = []
    for position, config in enumerate(request.configs):
        leave(_Unbuilt(built=tuple(built), config=config, patience_s=request.patience_s), request.patience_s)
        launch = learn(workload, inputs, config, request.target)
        if request.keys and build_key(source, launch, request.target) != request.keys[position]:
            raise UserError(
                f"a build worker finds another kernel {workload.signature.kernel}, call or Triton than the driver did",
                hint="the file was edited while sweeping, or the worker's packages differ: start the sweep again",
            )
        first, second = compile_launch(launch, request.target)
        if isinstance(first, Build) and isinstance(second, Artifact):
            built.append(Built(config=config, build=first, artifact=second))
        elif isinstance(first, Outcome) and isinstance(second, Failure):
            built.append(Built(config=config, outcome=first, failure=second))
    return tuple(built)


def _step_back() -> None:
    """Lets whoever measures have the CPU first: a launch that comes late shows in the times."""
    global _has_stepped_back
    if not _has_stepped_back:
        os.nice(BUILD_NICENESS)
        _has_stepped_back = True


def probe() -> Device:
    """The GPU of this worker.

    Raises:
        InfrastructureError: it has none.
    """
    return telemetry.live_device()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unmeasured:
    """The will of a measuring job: the answers found, and the number of the candidate it was at.

    `at` is None while several are at work on the GPU, of which any may be the one, or none is any more.
    """

    answers: Answers
    at: int | None
    patience_s: float
    sure: bool = True

    def execute(self, lost: WorkerLost) -> Answers | str:
        """The candidate is to blame; where there were several, nobody is, and each is to be tried by itself."""
        if self.at is None:
            return _told(self.answers, is_lost=True) if self.answers.answers else str(lost)
        outcome = Outcome.TIMEOUT if lost.death == "hung" else Outcome.CRASHED
        guilty = Answer(number=self.at, outcome=outcome, failure=obituary(lost, "launch", self.patience_s))
        return _told(dataclasses.replace(self.answers, answers=(*self.answers.answers, guilty)), is_lost=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unprepared:
    """The will of a measuring job before the first candidate of a sitting; the answers of an earlier one stay."""

    before: Answers
    numbers: tuple[int, ...]
    sure: bool = False  # A broken GPU shows when it is first used.

    def execute(self, lost: WorkerLost) -> Answers:
        """The problem is to blame, by its inputs or its reference."""
        outcome = Outcome.TIMEOUT if lost.death == "hung" else Outcome.CRASHED
        failure = obituary(lost, PREPARE, CEILING_S)
        blamed = (Answer(number=n, outcome=outcome, failure=failure) for n in self.numbers)
        return dataclasses.replace(self.before, answers=(*self.before.answers, *blamed))


_NOTHING = Answers(answers=())


def measure(question: Question) -> Answers | Retire:
    """Answers a question on this worker's GPU, or from a landscape if the question names one.

    Returns:
        The answers; fewer than candidates, and wrapped in `Retire`, when a fault has left the process untrustworthy.
        Where the GPU's memory does not hold the problem, that is the answer for every candidate.
        `Retire` alone when the question wants a fresh process and this one has measured others.

    Raises:
        UserError: the workload or the landscape cannot serve the problem.
        Lacking: the workload's files have not been sent here.
    """
    global _worn
    if question.fresh and _worn:
        return Retire(again=True)
    _worn = _worn or not question.fresh
    if not question.landscape:
        enter(question.ref.bundle)
    result, is_lost = _sit(question)
    disturbed = {answer.number for answer in result.answers if _disturbance(answer)}
    if disturbed and not is_lost:
        # What disturbs passes, mostly: once more, and then it is said.
        candidates = tuple(candidate for candidate in question.candidates if candidate.number in disturbed)
        good = tuple(answer for answer in result.answers if answer.number not in disturbed)
        before = dataclasses.replace(result, answers=good)
        again, is_lost = _sit(dataclasses.replace(question, candidates=candidates), before)
        later = {answer.number: answer for answer in again.answers}
        result = dataclasses.replace(again, answers=tuple(later.get(a.number, a) for a in result.answers))
    result = _told(result, is_lost=is_lost)
    return Retire(result) if is_lost else result


def _sit(question: Question, before: Answers = _NOTHING) -> tuple[Answers, bool]:
    """The answers to a question with those of an earlier sitting, and whether the process is lost with them."""
    sitting = _Sitting(question, before)
    is_lost = False
    if not question.landscape:
        _watch.begin()
    try:
        sitting.prepare()
        sitting.go_through()
    except Poisoned as e:
        sitting.found += e.args
        is_lost = True
    except SpecError as e:
        if "out of memory" not in str(e):
            raise
        sitting.found += [_too_large(number, e) for number in sitting.left]
    if question.landscape:
        return sitting.so_far(), False
    return sitting.so_far(_watch.end(lost=is_lost)), is_lost


def _disturbance(answer: Answer) -> str:
    return str(answer.measurement.telemetry.get("disturbed", "")) if answer.measurement is not None else ""


def _told(result: Answers, *, is_lost: bool) -> Answers:
    """Answers with a notice of why times among them are not to be trusted.

    Args:
        result: the answers.
        is_lost: the process is, and could not measure all that was disturbed once more.
    """
    how = "kept from a process that was lost, though" if is_lost else "measured twice and still"
    reasons = (reason for answer in result.answers if (reason := _disturbance(answer)))
    notices = dict.fromkeys((*result.notices, *(f"{how} {reason}" for reason in reasons)))
    return dataclasses.replace(result, notices=tuple(notices))


class _Sitting:
    """A question while it is being answered.

    Attributes:
        found: the answers by now.

    Args:
        question: what is asked.
        before: the answers of an earlier sitting that stay.
    """

    def __init__(self, question: Question, before: Answers) -> None:
        self._question, self._before = question, before
        self._meter = _meter("replay" if question.landscape else "gpu")
        self._startup_s, self._began = 0.0, time.monotonic()
        self._compiled: Callable[[], int] = lambda: 0
        self._toolchain: FrozenMap[str] = FrozenMap()
        self.found: list[Answer] = []

    @property
    def left(self) -> list[int]:
        """Numbers of the candidates without an answer, in order."""
        answered = {answer.number for answer in self.found}
        return [c.number for c in self._question.candidates if c.number not in answered]

    def so_far(self, seen: FrozenMap[Any] | None = None) -> Answers:
        """What is known by now, signed with who measured it and what was seen of the GPU; a replay's has its own."""
        before, worker = self._before, f"{socket.gethostname()}:{os.getpid()}"
        found = self.found if seen is None else [_signed(answer, worker, seen) for answer in self.found]
        return Answers(
            answers=(*before.answers, *found), worker=worker, startup_s=before.startup_s + self._startup_s,
            busy_s=before.busy_s + time.monotonic() - self._began,
            num_compiled=before.num_compiled + self._compiled(), toolchain=self._toolchain,
            reference_ms=self._meter.reference_ms,
            notices=tuple(dict.fromkeys((*before.notices, *self._meter.notices))),
        )  # fmt: skip

    def prepare(self) -> None:
        """Makes the meter ready for the problem."""
        global _started
        if not self._question.landscape:
            leave(_Unprepared(before=self._before, numbers=tuple(self.left)), CEILING_S)
        self._meter.prepare(self._question)
        if not _started:
            # The first problem's preparation loads CUDA libraries; it is start-up, not measuring.
            now = time.monotonic()
            self._startup_s, self._began = now - self._began, now
            _started = True
        self._compiled = self._compiled if self._question.landscape else _count_compiles()
        self._toolchain = _toolchain(self._question)

    def go_through(self) -> None:
        """Finds an answer for one candidate after the other."""
        question = self._question
        pace = _paces.setdefault((question.ref, question.variables), Pace())
        pace.reference_ms = self._meter.reference_ms
        answers = self._meter.measure(question.candidates, question)
        while True:
            at = self._leave_will(pace)
            try:
                answer = next(answers, None)
            except (SystemExit, KeyboardInterrupt) as e:  # Nobody but the user's call raises them here.
                if at is None:
                    raise
                answer, answers = failed(at, e), iter(())
            if answer is None:
                return
            self.found.append(answer)
            pace.learn(answer)

    def _leave_will(self, pace: Pace) -> int | None:
        """Says how things stand; returns the number of the candidate that is next, if only one can be."""
        left = self.left
        several = self._question.interleaved and len(left) > 1
        at = left[0] if left and not several else None
        if not self._question.landscape:  # A replay does nothing that one could die of.
            num_samples = max(self._question.num_samples, self._question.max_samples)
            patience_s = pace.patience_s(NUM_WARMUP + num_samples + 1) * (len(left) if several else 1)
            if several:  # Times of a sitting that did not end are worth nothing.
                answers = self.so_far()
                failures = tuple(answer for answer in answers.answers if answer.measurement is None)
                answers = dataclasses.replace(answers, answers=failures)
            else:
                answers = self.so_far(_watch.look() if self.found else FrozenMap())
            leave(_Unmeasured(answers=answers, at=at, patience_s=patience_s), patience_s)
        return at


def _too_large(number: int, error: SpecError) -> Answer:
    failure = Failure(stage=PREPARE, kind="OutOfMemoryError", message=error.args[0], detail=error.hint)
    return Answer(number=number, outcome=Outcome.DEVICE_OOM, failure=failure)


def _meter(kind: str) -> Meter:
    if kind not in _meters:
        _meters[kind] = GpuMeter() if kind == "gpu" else LandscapeMeter()
    return _meters[kind]


def _signed(answer: Answer, worker: str, seen: FrozenMap[Any]) -> Answer:
    """The answer with who measured it, and in what state the GPU was."""
    if answer.measurement is None:
        return answer
    return dataclasses.replace(
        answer, measurement=dataclasses.replace(answer.measurement, telemetry=seen, worker=worker)
    )


def _toolchain(question: Question) -> FrozenMap[str]:
    # Times belong to the toolchain that produced them: a replay names the recording's.
    return load_cached(question.landscape).toolchain if question.landscape else telemetry.toolchain()


def _count_compiles() -> Callable[[], int]:
    """Starts counting kernels that Triton compiles in this process; call the result for the count."""
    from triton import knobs

    count = 0

    def listener(*, cache_hit: bool, **_: Any) -> None:
        nonlocal count
        count += not cache_hit

    knobs.compilation.listener = listener
    return lambda: count
