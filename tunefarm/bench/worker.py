"""The jobs that a fleet carries for the farm: build on a CPU, measure on a GPU or from a landscape.

Each is a plain function of one picklable request. What is worth keeping between jobs (imports, inputs, kernels) stays
in this module's globals: a worker is one long-lived process.
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
from tunefarm.bench.faults import Poisoned
from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.launch import learn
from tunefarm.bench.legality import unfit
from tunefarm.bench.meter import Answer, Answers, Meter, Question
from tunefarm.bench.replay import LandscapeMeter
from tunefarm.bench.tensors import make_inputs
from tunefarm.config import Config, Value
from tunefarm.device import Device
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import load_cached
from tunefarm.seams import Retire
from tunefarm.source import source_hash
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import Build, Failure, Outcome

_BORN = time.monotonic()
_meters: dict[str, Meter] = {}
_started = _worn = False


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
    """

    ref: WorkloadRef
    variables: FrozenMap[Value]
    configs: tuple[Config, ...]
    target: int
    keys: tuple[str, ...] = ()


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


def build(request: BuildRequest) -> tuple[Built, ...]:
    """Compiles the configs of a request, in order.

    Raises:
        UserError: the workload cannot be imported or its call cannot be followed.
    """
    workload = load_workload(request.ref)
    inputs = make_inputs(workload, request.variables, "meta")
    source = source_hash(workload.kernel) if request.keys else ""
    built = []
    for position, config in enumerate(request.configs):
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


def probe() -> Device:
    """The GPU of this worker.

    Raises:
        InfrastructureError: it has none.
    """
    return telemetry.live_device()


def measure(question: Question) -> Answers | Retire:
    """Answers a question on this worker's GPU, or from a landscape if the question names one.

    Returns:
        The answers; wrapped in `Retire` when a fault has left the process untrustworthy. `Retire` alone when the
        question wants a fresh process and this one has measured others.

    Raises:
        UserError: the workload or the landscape cannot serve the problem.
    """
    global _started, _worn
    if question.fresh and _worn:
        return Retire(again=True)
    _worn = _worn or not question.fresh
    startup_s, began = 0.0, time.monotonic()
    meter = _meter("replay" if question.landscape else "gpu")
    meter.prepare(question)
    if not _started:
        # The first problem's preparation loads CUDA libraries; it is start-up, not measuring.
        startup_s, began = time.monotonic() - _BORN, time.monotonic()
        _started = True
    compiled = _count_compiles() if not question.landscape else lambda: 0
    answers: list[Answer] = []
    poisoned = False
    try:
        for answer in meter.measure(question.candidates, question):
            answers.append(answer)
    except Poisoned as e:
        answers += e.args
        poisoned = True
    result = Answers(
        answers=tuple(answers),
        worker=f"{socket.gethostname()}:{os.getpid()}",
        startup_s=startup_s,
        busy_s=time.monotonic() - began,
        num_compiled=compiled(),
        toolchain=_toolchain(question),
        reference_ms=meter.reference_ms,
        notices=meter.notices,
    )
    if question.landscape:
        return result
    # A lost context can tell nothing more.
    signed = _signed(result, FrozenMap() if poisoned else telemetry.sample())
    return Retire(signed) if poisoned else signed


def _meter(kind: str) -> Meter:
    if kind not in _meters:
        _meters[kind] = GpuMeter() if kind == "gpu" else LandscapeMeter()
    return _meters[kind]


def _signed(result: Answers, seen: FrozenMap[Any]) -> Answers:
    """The answers with who measured them, and in what state the GPU was."""
    answers = tuple(
        dataclasses.replace(a, measurement=dataclasses.replace(a.measurement, telemetry=seen, worker=result.worker))
        if a.measurement is not None
        else a
        for a in result.answers
    )
    return dataclasses.replace(result, answers=answers)


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
