"""The Meter seam: what answers "how long does this config take"; and what goes over the wire to whoever holds one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tunefarm.bench.build import Artifact
from tunefarm.config import Config, Value
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.spec.workload import WorkloadRef
from tunefarm.trial import (
    Build,
    Failure,
    Measurement,
    Outcome,
    failure_from_json,
    measurement_from_json,
    to_json,
)

NUM_WARMUP = 2
"""First launches after a load: they hold one-time costs, up to ten times the rest, and never count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A config as a meter needs it.

    Attributes:
        number: in its study.
        config: what to measure.
        build: what compiling gave.
        artifact: machine code; None for a replay, which launches nothing.
    """

    number: int
    config: Config
    build: Build | None = None
    artifact: Artifact | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a study asks of a meter: picklable, and complete enough for a process that knows nothing yet.

    Attributes:
        ref: where the workload is found.
        device: for which device.
        problem: what was learned of the call.
        variables: the experiment's names for the problem.
        candidates: to be measured.
        rung: fidelity.
        num_samples: of each candidate, at least; 0 checks outputs and times nothing.
        max_samples: of each candidate, at most.
        precision: share of the median that half its 95 % interval may have before more samples are taken.
        interleaved: take one sample of each in turn, in random order, instead of all of one.
        fresh: wants a process that has measured nothing but such questions.
        timer: how to time.
        same_bits: `repeat`: outputs must be equal bit by bit when repeated; `default`: to those of `baseline`; or `no`.
        baseline: the default, where its outputs are asked for.
        atol: absolute tolerance of the check, None for the dtype's.
        rtol: relative tolerance of the check, None for the dtype's.
        seed: of inputs, and of the order in turns.
        order_seed: which order of that seed, where the same question is asked again and again.
        landscape: file to replay, or empty.
    """

    ref: WorkloadRef
    device: Device
    problem: Problem
    variables: FrozenMap[Value]
    candidates: tuple[Candidate, ...]
    rung: int
    num_samples: int
    max_samples: int = 0
    precision: float = 0.0
    interleaved: bool = False
    fresh: bool = False
    timer: str = "cold"
    same_bits: str = "no"
    baseline: Candidate | None = None
    atol: float | None = None
    rtol: float | None = None
    seed: int = 0
    order_seed: int = 0
    landscape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a meter found out about one candidate: a measurement, that it is right, or how and why it failed."""

    number: int
    measurement: Measurement | None = None
    outcome: Outcome = Outcome.OK
    failure: Failure | None = None

    @property
    def why(self) -> Failure:
        """The failure of an answer that is no measurement."""
        return self.failure or Failure(stage="measure", kind=self.outcome.value, message="no reason was given")


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """An answer as the ledger keeps it; the candidate stands beside it."""
    if answer.measurement is not None:
        return {"measurement": to_json(answer.measurement)}
    return {"outcome": answer.outcome.value, "failure": to_json(answer.why)}


def answer_from_json(number: int, data: Mapping[str, Any]) -> Answer:
    """Reads what `answer_to_json` wrote, for candidate `number`."""
    if "measurement" in data:
        return Answer(number=number, measurement=measurement_from_json(data["measurement"]))
    return Answer(number=number, outcome=Outcome(data["outcome"]), failure=failure_from_json(data["failure"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What came back for a question.

    Attributes:
        answers: in the order of the candidates; fewer when the process could not go on.
        worker: who measured.
        startup_s: seconds from a process's first question until it was ready for it: CUDA context and libraries, and
            imports where nothing was loaded ahead.
        busy_s: seconds spent on this question.
        num_compiled: kernels compiled by the measuring process meanwhile.
        toolchain: versions the times depend on.
        reference_ms: time of the reference under the same timer, where known.
        notices: what people should know of these answers, such as that no output was checked.
    """

    answers: tuple[Answer, ...]
    worker: str = ""
    startup_s: float = 0.0
    busy_s: float = 0.0
    num_compiled: int = 0
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    reference_ms: float | None = None
    notices: tuple[str, ...] = ()


class Meter(Protocol):
    """Measures candidates of one problem after another.

    Attributes:
        reference_ms: time of the reference for the prepared problem, where known.
        notices: what people should know of how the prepared problem is measured.
    """

    reference_ms: float | None
    notices: tuple[str, ...]

    def prepare(self, question: Question) -> None:
        """Makes ready for a problem: inputs, reference, recording. Cheap when it was the last one's too.

        Raises:
            UserError: the workload or the landscape cannot serve this problem.
        """
        ...

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """Measures candidates of the prepared problem; answers come as they are found.

        Ends early when the process cannot be trusted any more; the rest is asked again elsewhere.
        """
        ...

    def close(self) -> None:
        """Frees what `prepare` holds."""
        ...
