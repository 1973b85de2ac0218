"""Faults judged: real exception types, with the messages that drivers, torch and Triton have been seen to give."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from tunefarm.bench import faults
from tunefarm.bench.faults import (
    CEILING_S,
    FIRST_S,
    FLOOR_S,
    Mislaunched,
    Pace,
    Poisoned,
    failed,
    first_line,
    judge,
    preparing,
)
from tunefarm.bench.faults import obituary as written
from tunefarm.bench.meter import Answer
from tunefarm.bench.tensors import explained
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.trial import PREPARE, Failure, Measurement, Outcome

ADVICE = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Device-side assertion tracking was not enabled by user."""

STICKY = [
    ("an illegal memory access was encountered", Outcome.ILLEGAL_ACCESS),
    ("misaligned address", Outcome.ILLEGAL_ACCESS),
    ("operation not supported on global/shared address space", Outcome.ILLEGAL_ACCESS),
    ("an illegal instruction was encountered", Outcome.LAUNCH_ERROR),
    ("invalid program counter", Outcome.LAUNCH_ERROR),
    ("unspecified launch failure", Outcome.LAUNCH_ERROR),
    ("device-side assert triggered", Outcome.LAUNCH_ERROR),
    ("hardware stack error", Outcome.LAUNCH_ERROR),
    ("the launch timed out and was terminated", Outcome.TIMEOUT),
]


def from_torch(words: str) -> list[Exception]:
    return [error(f"CUDA error: {words}{ADVICE}") for error in (torch.AcceleratorError, RuntimeError)]


def from_triton(words: str) -> list[Exception]:
    return [RuntimeError(f"Triton Error [CUDA]: {words}")]


@pytest.mark.parametrize(("words", "outcome"), STICKY)
def test_a_sticky_error_costs_the_process_and_is_the_candidates(words: str, outcome: Outcome) -> None:
    """TF-003: whether torch or Triton was first to hear of it."""
    for error in (*from_torch(words), *from_triton(words)):
        with pytest.raises(Poisoned) as caught:
            failed(7, error)
        (answer,) = caught.value.args
        assert (answer.number, answer.outcome, answer.failure.stage) == (7, outcome, "launch")
        assert answer.failure.kind == type(error).__name__
        assert answer.failure.message == first_line(error)
        assert words in answer.failure.message
        assert "CUDA_LAUNCH_BLOCKING" not in answer.failure.message


def test_a_sticky_error_among_several_is_nobodys_yet() -> None:
    (error, _) = from_torch("an illegal memory access was encountered")
    with pytest.raises(Poisoned) as caught:
        failed(7, error, alone=False)
    assert caught.value.args == ()
    # What is said at once is the candidate's own, whoever else is under way.
    assert failed(7, OutOfResources(300_000, 232_448, "shared memory"), alone=False).number == 7


@pytest.mark.parametrize(
    ("error", "outcome", "stage"),
    [
        (OutOfResources(300_000, 232_448, "shared memory"), Outcome.OUT_OF_RESOURCES, "load"),
        (RuntimeError("Triton Error [CUDA]: too many resources requested for launch"),
         Outcome.OUT_OF_RESOURCES, "launch"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Outcome.DEVICE_OOM, "launch"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Outcome.DEVICE_OOM, "launch"),
        (RuntimeError("CUDA error: invalid configuration argument"), Outcome.LAUNCH_ERROR, "launch"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), Outcome.LAUNCH_ERROR, "launch"),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), Outcome.LAUNCH_ERROR, "load"),
        (RuntimeError("CUDA driver error: something new"), Outcome.LAUNCH_ERROR, "launch"),
        (Mislaunched("the call specialises otherwise here"), Outcome.LAUNCH_ERROR, "launch"),
        (ValueError("CUDA is not what this is about, nor running out of memory"), Outcome.USER_ERROR, "launch"),
        (KeyError("n"), Outcome.USER_ERROR, "launch"),
        (SystemExit(3), Outcome.USER_ERROR, "launch"),
    ],
)  # fmt: skip
def test_what_leaves_the_process_whole(error: BaseException, outcome: Outcome, stage: str) -> None:
    """TF-043, TF-013: a grid beyond the limit, memory, resources, the user's own Python: the candidate's alone."""
    answer = failed(3, error)
    assert (answer.outcome, answer.why.stage, answer.why.kind) == (outcome, stage, type(error).__name__)
    assert answer.why.message == first_line(error)


@pytest.mark.parametrize("words", ["uncorrectable ECC error encountered", "no CUDA-capable device is detected"])
def test_a_broken_gpu_is_no_candidates_fault(words: str) -> None:
    with pytest.raises(InfrastructureError, match=f"the GPU is broken: CUDA error: {words}"):
        judge(RuntimeError(f"CUDA error: {words}"))


def test_an_error_of_the_users_python_names_its_line() -> None:
    """TF-040: such as an attribute that an argument lacks once it is specialised to a constant."""

    def call() -> None:
        getattr(1, "to")(torch.int64)  # noqa: B009

    with pytest.raises(AttributeError) as caught:
        call()
    message = failed(0, caught.value).why.message
    line = call.__code__.co_firstlineno + 1
    assert message == f"'int' object has no attribute 'to' ({__file__}:{line})"


def test_an_error_without_words_goes_by_its_name() -> None:
    assert failed(0, AssertionError()).why.message == "AssertionError"
    assert first_line(RuntimeError("\n\n  at last \nmore")) == "at last"


def test_an_answer_keeps_nothing_alive_and_can_travel() -> None:
    """TF-010: neither the exception nor its frames nor the tensors in them."""
    kept: list[Any] = []

    def call() -> None:
        tensor = torch.empty(8)
        kept.append(weakref.ref(tensor))
        raise ValueError(f"{tuple(tensor.shape)} is odd")

    try:
        call()
    except ValueError as error:
        answer = failed(0, error)
    gc.collect()
    assert kept[0]() is None
    assert pickle.loads(pickle.dumps(answer)) == answer


# ---- before the first candidate ----


def prepare(error: Exception) -> None:
    """As the meter does: inputs are explained by themselves as well."""
    with preparing("problem 1000 of fill", [3, 5]), explained("input y of fill"):
        raise error


@pytest.mark.parametrize(("words", "outcome"), STICKY)
def test_a_sticky_error_while_preparing_costs_the_process_and_the_problem(words: str, outcome: Outcome) -> None:
    """TF-003: not the sweep."""
    for error in (*from_torch(words), *from_triton(words)):
        with pytest.raises(Poisoned) as caught:
            prepare(error)
        assert [(a.number, a.outcome, a.why.stage) for a in caught.value.args] == [
            (3, outcome, PREPARE), (5, outcome, PREPARE),
        ]  # fmt: skip
        kind = type(error).__name__
        assert caught.value.args[0].why.kind == kind
        assert caught.value.args[0].why.message == f"input y of fill cannot be made: {kind}: {first_line(error)}"


def test_a_gpu_that_breaks_while_preparing_is_not_the_users_fault() -> None:
    for error in from_torch("uncorrectable ECC error encountered"):
        with pytest.raises(InfrastructureError, match="the GPU is broken: CUDA error: uncorrectable ECC"):
            prepare(error)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ValueError("n is odd"), "look at the workload's inputs"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "take a smaller problem"),
        (RuntimeError("CUDA error: invalid configuration argument"), "look at the workload's inputs"),
    ],
)
def test_what_else_fails_while_preparing_is_the_users(error: Exception, hint: str) -> None:
    with pytest.raises(SpecError, match="input y of fill cannot be made") as caught:
        prepare(error)
    assert hint in caught.value.hint
    with pytest.raises(SpecError, match="no such input"), preparing("problem 1000 of fill", [3]):
        raise SpecError("no such input")


def test_a_fault_that_the_preparation_passed_over_is_not_the_first_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a reference that is only timed if it can be."""

    def synchronize() -> None:
        raise RuntimeError("CUDA error: misaligned address")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(Poisoned) as caught, preparing("problem 1000 of fill", [3]):
        pass
    (answer,) = caught.value.args
    assert (answer.outcome, answer.why.stage) == (Outcome.ILLEGAL_ACCESS, PREPARE)
    assert answer.why.message == "problem 1000 of fill cannot be made: RuntimeError: CUDA error: misaligned address"


# ---- of a dead process ----

DUMP = f"""
Current thread 0x00007f5d3a7fe740 (most recent call first):
  File "/venv/lib/python3.12/site-packages/torch/cuda/__init__.py", line 1083 in synchronize
  File "{faults.__file__}", line 9 in measure
  File "/home/me/ops.py", line 12 in matmul
  File "<string>", line 6 in <module>"""


@pytest.mark.parametrize(
    ("death", "words", "message"),
    [
        ("SIGABRT", f"LLVM ERROR: Cannot select\nmore\nFatal Python error: Aborted\n{DUMP}",
         "LLVM ERROR: Cannot select (/home/me/ops.py:12)"),
        ("SIGSEGV", f"Fatal Python error: Segmentation fault\n{DUMP}", "no last words (/home/me/ops.py:12)"),
        ("hung", f"chatter\n{DUMP}", "no answer within 5 s (/home/me/ops.py:12)"),
        ("hung", DUMP.replace("/home/me", "/venv/lib/python3.12/site-packages/numpy"), "no answer within 5 s"),
        ("exit code 7", "", "no last words"),
    ],
)  # fmt: skip
def test_a_death_is_told_in_one_line(death: str, words: str, message: str) -> None:
    """TF-003: what it cried, and the user's line that it was at."""
    failure = written(WorkerLost("measure-0 is gone", death=death, words=words), "launch", 5.0)
    assert failure == Failure(stage="launch", kind=death, message=message, detail=words)


# ---- patience ----


def answer(time_ms: float | None) -> Answer:
    if time_ms is None:
        return Answer(number=0, outcome=Outcome.USER_ERROR)
    return Answer(number=0, measurement=Measurement(samples_ms=(time_ms,), timer="cold", rung=0, source="measured"))


@pytest.mark.parametrize(
    ("reference_ms", "told", "patience_s"),
    [
        (None, [], CEILING_S),
        (None, [None], CEILING_S),
        (0.05, [], FIRST_S),
        (0.05, [None], FLOOR_S),
        (None, [0.02], FLOOR_S),
        (1000.0, [10.0, 30.0], 100 * 10 * 0.010),  # the best, whatever the reference
        (1000.0, [], CEILING_S),
        (6000.0, [], 5 * 10 * 6.0),  # slow kernels have their time
    ],
)
def test_patience_follows_what_is_known_of_the_problem(
    reference_ms: float | None, told: list[float | None], patience_s: float
) -> None:
    pace = Pace(reference_ms=reference_ms)
    for time_ms in told:
        pace.learn(answer(time_ms))
    assert pace.patience_s(10) == pytest.approx(patience_s)
