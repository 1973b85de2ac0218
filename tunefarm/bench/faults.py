"""Faults: what an exception, or a process's death, says about the candidate; and how long a candidate is waited for.

After some CUDA errors every later call of the process fails with the same words: they are sticky, and only a fresh
process helps. Others leave the process as good as before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.bench.launch import users_line
from tunefarm.bench.meter import Answer
from tunefarm.bench.tensors import explained
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.trial import PREPARE, Failure, Outcome

MAX_MESSAGE = 400
"""Characters of a failure's message."""

FIRST_S, FLOOR_S, CEILING_S = 15.0, 5.0, 120.0
"""Seconds for the first candidate of a process, which also compiles Triton's host launcher; the least for others; and
for all while nothing is known of the problem's times. Loading and checking a candidate takes a fraction of a second."""

HOPELESS, SLOW = 100.0, 5.0
"""How many times as long as expected a candidate may take within the ceiling, and in any case."""


class Poisoned(Exception):
    """The CUDA context is lost; nothing more can be measured in this process.

    Holds the answer of the candidate that did it, or nothing where several were under way and any may have; of all
    candidates where it was lost before the first.
    """


class Mislaunched(Exception):
    """The launch differs from the one that the machine code was compiled for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What an error means.

    Attributes:
        outcome: how the candidate ended.
        stage: where.
        sticky: the process is lost with it.
    """

    outcome: Outcome
    stage: str = "launch"
    sticky: bool = False


def _sticky(outcome: Outcome) -> Fault:
    return Fault(outcome=outcome, sticky=True)


# The words are the driver's own (cuGetErrorString), which torch and Triton both repeat.
# Source: CUDA Driver API, CUresult: after these "the process must be terminated and relaunched".
SAYINGS: Mapping[str, Fault] = {
    "an illegal memory access was encountered": _sticky(Outcome.ILLEGAL_ACCESS),
    "misaligned address": _sticky(Outcome.ILLEGAL_ACCESS),
    "operation not supported on global/shared address space": _sticky(Outcome.ILLEGAL_ACCESS),
    "an illegal instruction was encountered": _sticky(Outcome.LAUNCH_ERROR),
    "invalid program counter": _sticky(Outcome.LAUNCH_ERROR),
    "unspecified launch failure": _sticky(Outcome.LAUNCH_ERROR),
    "device-side assert triggered": _sticky(Outcome.LAUNCH_ERROR),
    "hardware stack error": _sticky(Outcome.LAUNCH_ERROR),
    "the launch timed out and was terminated": _sticky(Outcome.TIMEOUT),
    "out of memory": Fault(outcome=Outcome.DEVICE_OOM),
    "CUBLAS_STATUS_ALLOC_FAILED": Fault(outcome=Outcome.DEVICE_OOM),
    "too many resources requested for launch": Fault(outcome=Outcome.OUT_OF_RESOURCES),
    "invalid configuration argument": Fault(outcome=Outcome.LAUNCH_ERROR),
    "invalid argument": Fault(outcome=Outcome.LAUNCH_ERROR),
    "device kernel image is invalid": Fault(outcome=Outcome.LAUNCH_ERROR, stage="load"),
    "no kernel image is available": Fault(outcome=Outcome.LAUNCH_ERROR, stage="load"),
}

BROKEN = ("uncorrectable ECC error", "fallen off the bus", "device is lost", "unrecoverable", "no CUDA-capable device")
"""Words that accuse the machine, whatever the candidate."""

# What `faulthandler` writes, the first line of which says less than the signal's name does.
_DUMP = re.compile(r"Fatal Python error|Current thread|Thread 0x|Stack \(most|File \"|Binary file|<|\.\.\.|Timeout \(")
_HOUSE = Path(__file__).parents[1]
_FRAME = re.compile(r'File "(.+)", line (\d+) in ')
_SPEAKERS = re.compile(r"\s*(CUDA (driver )?error|Triton Error \[|cuda runtime error|CUDA out of memory)")


def judge(error: BaseException) -> Fault:
    """What an error means for the candidate during whose loading, launch or check it was raised.

    Raises:
        InfrastructureError: it accuses the machine.
    """
    kind, text = type(error).__name__, str(error)
    if kind == "OutOfMemoryError":  # torch's
        return Fault(outcome=Outcome.DEVICE_OOM)
    if kind == "OutOfResources":  # Triton's, when it loads a kernel that wants more than a block may have
        return Fault(outcome=Outcome.OUT_OF_RESOURCES, stage="load")
    if isinstance(error, Mislaunched):
        return Fault(outcome=Outcome.LAUNCH_ERROR)
    if kind == "AcceleratorError" or _SPEAKERS.match(text):
        if any(words in text for words in BROKEN):
            raise InfrastructureError(f"the GPU is broken: {first_line(error)}", hint="see the driver's log")
        found = (fault for words, fault in SAYINGS.items() if words in text)
        return next(found, Fault(outcome=Outcome.LAUNCH_ERROR))
    return Fault(outcome=Outcome.USER_ERROR)


def failed(number: int, error: BaseException, *, alone: bool = True) -> Answer:
    """What an exception says about a candidate, as its answer.

    Args:
        number: of the candidate that was loaded, launched or checked when it was raised.
        error: the exception.
        alone: no other candidate had work on the GPU. CUDA reports faults late, to whoever calls next: a sticky one
            among several is nobody's until each has been tried by itself.

    Raises:
        Poisoned: this process is lost.
        InfrastructureError: so is the machine.
    """
    fault = judge(error)
    # Strings only: an exception would keep its frames, and they the tensors, alive.
    place = users_line(error) if fault.outcome is Outcome.USER_ERROR else ""
    message = first_line(error)[: MAX_MESSAGE - len(place)] + place
    failure = Failure(stage=fault.stage, kind=type(error).__name__, message=message)
    answer = Answer(number=number, outcome=fault.outcome, failure=failure)
    if fault.sticky or not _is_sound():
        raise Poisoned(*([answer] if alone else [])) from None
    return answer


@contextlib.contextmanager
def preparing(what: str, numbers: Sequence[int]) -> Iterator[None]:
    """Explains what fails before the first candidate, as the user's fault only where it is.

    Args:
        what: is prepared.
        numbers: of the candidates that wait for it.

    Raises:
        SpecError: it cannot be made.
        Poisoned: this process is lost with it, which costs no other problem anything.
        InfrastructureError: the machine is.
    """
    try:
        with explained(what):
            yield
            _settle()  # A fault may have been passed over, or not have shown yet; the first candidate would be blamed.
    except SpecError as e:
        error = e.__context__  # what is explained, though people are not shown it
        if error is None:
            raise
        fault = judge(error)
        if not fault.sticky and _is_sound():
            raise
        failure = Failure(stage=PREPARE, kind=type(error).__name__, message=e.args[0][:MAX_MESSAGE])
        raise Poisoned(*(Answer(number=n, outcome=fault.outcome, failure=failure) for n in numbers)) from None


def obituary(lost: WorkerLost, stage: str, patience_s: float) -> Failure:
    """Why a candidate failed whose process died: what it cried last, and where in Python it was.

    Args:
        lost: how it died.
        stage: what it was at.
        patience_s: how long it was waited for.
    """
    lines = [line.strip() for line in lost.words.splitlines()]
    cries = [line for line in lines if line and not _DUMP.match(line)]
    frames = [found for line in lines if (found := _FRAME.match(line))]
    # The user's own line, or none: where a library waits is of no use to anybody.
    frames = [f for f in frames if not f[1].startswith((str(_HOUSE), "<")) and "site-packages" not in f[1]]
    cry = f"no answer within {patience_s:.3g} s" if lost.death == "hung" else cries[0] if cries else "no last words"
    place = f" ({frames[0][1]}:{frames[0][2]})" if frames else ""
    message = cry[: MAX_MESSAGE - len(place)] + place
    return Failure(stage=stage, kind=lost.death, message=message, detail=lost.words[:4000])


@dataclass(slots=True)
class Pace:
    """How long candidates of one problem take, and so how long one is waited for.

    Attributes:
        reference_ms: time of the reference, where known.
        best_ms: median of the fastest candidate so far.
        warm: a candidate has been answered in this process.
    """

    reference_ms: float | None = None
    best_ms: float | None = None
    warm: bool = False

    def learn(self, answer: Answer) -> None:
        """Takes in what became of a candidate."""
        self.warm = True
        if answer.measurement is not None:
            found_ms = answer.measurement.median_ms
            self.best_ms = found_ms if self.best_ms is None else min(self.best_ms, found_ms)

    def patience_s(self, num_launches: int) -> float:
        """How long a candidate may take that is launched so often."""
        usual_ms = self.reference_ms if self.best_ms is None else self.best_ms
        if usual_ms is None:
            return CEILING_S
        expected_s = num_launches * usual_ms / 1e3
        least_s = FLOOR_S if self.warm else FIRST_S
        return max(least_s, min(CEILING_S, HOPELESS * expected_s), SLOW * expected_s)


def first_line(error: BaseException) -> str:
    """The first line of a message that says anything; the exception's name if none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _is_sound() -> bool:
    """Whether the CUDA context still works, which may show only now; True where there is none."""
    try:
        _settle()
    except Exception:
        return False
    return True


def _settle() -> None:
    """Waits for the GPU, where there is one, and raises what went wrong on it."""
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.synchronize()
