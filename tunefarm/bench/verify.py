"""Correct before fast: a candidate's outputs against the reference, every element."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tunefarm.bench.tensors import bits
from tunefarm.errors import SpecError
from tunefarm.spec.workload import Workload
from tunefarm.trial import Failure

if TYPE_CHECKING:
    import torch

ROUNDOFF = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}  # fmt: skip
"""Unit round-off of the output's element type."""

SLACK, WIDE_SLACK = 4.0, 64.0
"""Default tolerances in round-offs: this many of the value, and a quarter of it of the outputs' root mean square.

Kernels compute narrow outputs in fp32 and round once, at the end; in fp32 and fp64 every step of the kernel rounds, so
that the error of a sum grows with the square root of its length (Higham, Accuracy and Stability of Numerical
Algorithms, 2.8): beyond `FREE_LENGTH` terms the tolerance grows with it.
"""
FREE_LENGTH = 16

ROUGH = 0.25
"""Where the reference misses an element by more than this share of its size and of its output's, it is not rough in its
precision, but wrong."""


def flatten(outputs: Any, returned_by: str = "call") -> list[torch.Tensor]:
    """The tensors among what a call, or a reference, returned.

    Raises:
        SpecError: there are none, so nothing could be compared.
    """
    import torch

    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):
        found = [tensor for item in outputs if item is not None for tensor in flatten(item, returned_by)]
        if found:
            return found
    raise SpecError(f"the {returned_by} returned no tensor", hint="return the outputs, so that they can be compared")


def reference_outputs(workload: Workload, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """What the outputs should be, computed from the inputs in double precision.

    Where that is refused (a hard-coded dtype) or does not fit the memory, single precision is tried, then the inputs'
    own.

    Raises:
        SpecError: the reference raises, or returns no tensor.
    """
    import torch

    if not callable(workload.reference):
        raise SpecError(f"workload {workload.name} has no reference")

    def widen(value: Any, dtype: torch.dtype | None) -> Any:
        if dtype is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.to(dtype) if value.dtype.itemsize < dtype.itemsize else value

    failure = ""
    for dtype in (torch.float64, torch.float32, None):
        try:
            # By position: torch functions name their arguments otherwise (torch.matmul takes `input` and `other`).
            outputs = workload.reference(*(widen(value, dtype) for value in inputs.values()))
        except Exception as e:  # whatever the user's function raises
            failure = f"{type(e).__name__}: {e}"
        else:
            return [tensor.detach() for tensor in flatten(outputs, "reference")]
    raise SpecError(
        f"the reference of {workload.name} raised {failure}", hint="it is called with the inputs, by position"
    )


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """While active, memory that torch hands out uninitialised is filled with NaN (integers: their greatest value).

    So a candidate that leaves part of its output unwritten cannot be saved by what an earlier one wrote there, while
    outputs that the call itself zeroes stay zero. Uses torch's deterministic mode, which fills `torch.empty`.
    """
    import torch

    switches: Any = importlib.import_module("torch.utils.deterministic")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        switches.fill_uninitialized_memory = fill


def rms(tensor: torch.Tensor) -> float:
    """The root mean square of a tensor, taking what is not finite for zero."""
    import torch

    # In double: the squares of large values overflow in less, and everything is within an infinite tolerance.
    wide = tensor.double()
    return math.sqrt(float(torch.where(wide.isfinite(), wide, 0.0).square().mean()))


def _roundoff(dtype: torch.dtype) -> float:
    return ROUNDOFF.get(str(dtype).removeprefix("torch."), 0.0)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far outputs may be from what they should be.

    Attributes:
        atol: absolute; None for the dtype's, see `SLACK`.
        rtol: relative; None for the dtype's.
        length: terms in the longest sum behind an output.
    """

    atol: float | None = None
    rtol: float | None = None
    length: int = 1

    @property
    def is_given(self) -> bool:
        """Whether somebody has set it."""
        return self.atol is not None or self.rtol is not None

    def bound(self, dtype: torch.dtype, wanted: torch.Tensor) -> tuple[float, float]:
        """(absolute, relative) for outputs of an element type.

        Args:
            dtype: of the candidate's outputs.
            wanted: what they should be.
        """
        import torch

        roundoff = _roundoff(dtype)
        slack = SLACK * roundoff
        if dtype in (torch.float64, torch.float32):
            slack = WIDE_SLACK * roundoff * math.sqrt(max(1.0, self.length / FREE_LENGTH))
        rtol = slack if self.rtol is None else self.rtol
        if self.atol is not None:
            return self.atol, rtol
        return slack / 4 * rms(wanted), rtol


def sum_length(inputs: Mapping[str, Any], expected: Sequence[torch.Tensor], flops: float) -> int:
    """An upper estimate of the terms behind an output: of inputs to outputs, or of arithmetic to outputs.

    Args:
        inputs: of the call.
        expected: its outputs.
        flops: arithmetic of the call, 0 where unknown.
    """
    import torch

    largest = max((value.numel() for value in inputs.values() if isinstance(value, torch.Tensor)), default=0)
    smallest = min((tensor.numel() for tensor in expected if tensor.numel()), default=1)
    return max(1, largest // smallest, int(flops / (2 * sum(tensor.numel() for tensor in expected) or 1)))


def attainable(
    tolerance: Tolerance, own: Any, expected: Sequence[torch.Tensor], size: float = 0.0
) -> tuple[tuple[Tolerance, ...], bool]:
    """Tolerances that the reference itself meets: the given one, each output's `atol` twice what is missed there.

    Elements in which it is wrong, not rough, do not count: libraries have faults, too, at odd lengths or addresses, and
    what they miss there must not let a candidate through.

    Args:
        tolerance: as given.
        own: outputs of the reference in the inputs' own precision.
        expected: in higher precision.
        size: of what is summed up, the largest root mean square of an input: where terms cancel, rounding is left.

    Returns:
        One tolerance for each output, and whether the reference is wrong somewhere.
    """
    import torch

    chosen, is_faulty = [], False
    for actual, wanted in zip(flatten(own, "reference"), expected, strict=False):
        if not (actual.is_floating_point() and actual.numel() and actual.shape == wanted.shape):
            chosen.append(tolerance)
            continue
        wide = wanted.to(actual.device).double()
        atol, rtol = tolerance.bound(actual.dtype, wide)
        error = (actual.double() - wide).abs()
        cancelled = SLACK * _roundoff(actual.dtype) * size
        limit = (ROUGH * (wide.abs() + rms(wide))).clamp_min(max(atol, cancelled))
        is_rough = error <= limit  # not so for NaN
        is_faulty |= bool((wide.isfinite() & ~is_rough).any())
        beyond = torch.where(wide.isfinite() & is_rough, error - rtol * wide.abs(), 0.0)
        missing = float(beyond.max())
        chosen.append(tolerance if missing <= atol else replace(tolerance, atol=2 * missing))
    return tuple(chosen), is_faulty


def other_bits(outputs: Any, others: Any, whose: str) -> Failure | None:
    """How two outputs of equal calls differ bit by bit, or None.

    Args:
        outputs: of a candidate.
        others: of the same call.
        whose: the others are, for the message.
    """
    for position, (mine, theirs) in enumerate(zip(flatten(outputs), flatten(others), strict=True)):
        count = int((bits(mine) != bits(theirs)).sum())
        if count:
            share = 100 * count / mine.numel()
            return Failure(
                stage="verify", kind="other bits",
                message=f"output {position}: {share:.3g} % of {mine.numel()} elements have other bits than {whose}",
            )  # fmt: skip
    return None


def mismatch(
    outputs: Any, expected: list[torch.Tensor], tolerance: Tolerance | Sequence[Tolerance] = Tolerance()
) -> Failure | None:
    """How a candidate's outputs differ from what they should be, or None.

    Args:
        outputs: what the call returned.
        expected: from `reference_outputs`; same number and shapes.
        tolerance: how far they may differ, all or each.

    Raises:
        SpecError: outputs and reference differ in number or shape, which is no candidate's fault.
    """
    got = flatten(outputs)
    if [tuple(t.shape) for t in got] != [tuple(t.shape) for t in expected]:
        raise SpecError(
            f"the call returns tensors of shapes {[list(t.shape) for t in got]}, the reference "
            f"{[list(t.shape) for t in expected]}",
            hint="let both return the same outputs",
        )
    each = [tolerance] * len(got) if isinstance(tolerance, Tolerance) else tolerance
    for position, (actual, wanted, near) in enumerate(zip(got, expected, each, strict=True)):
        if failure := _compare(actual, wanted, near, position):
            return failure
    return None


def _compare(actual: torch.Tensor, wanted: torch.Tensor, tolerance: Tolerance, position: int) -> Failure | None:
    import torch

    if actual.numel() == 0:
        return None
    if not (actual.is_floating_point() or wanted.is_floating_point() or tolerance.is_given):
        return _compare_exactly(actual, wanted.to(actual.device, actual.dtype), position)
    # Narrow outputs are exact in fp32, which halves the memory of comparing them.
    wide = torch.float64 if actual.dtype in (torch.float64, torch.int64) else torch.float32
    a, w = actual.to(wide), wanted.to(actual.device, wide)
    atol, rtol = tolerance.bound(actual.dtype, w)
    # Equal covers infinities, from which everything is infinitely far; NaN is right only where the reference has NaN.
    is_near = w.isfinite() & ((a - w).abs() <= atol + rtol * w.abs())
    wrong = ~((a == w) | is_near | (a.isnan() & w.isnan()))
    count = int(wrong.sum())
    if count == 0:
        return None
    difference = (a - w).abs()[wrong]
    worst = float(difference.nan_to_num(nan=0.0, posinf=0.0).max())
    unwritten = int(a.isnan().sum())
    share = 100 * count / actual.numel()
    relative = float((difference / w.abs()[wrong].clamp_min(1e-30)).nan_to_num(nan=0.0, posinf=0.0).max())
    return Failure(
        stage="verify", kind="mismatch",
        message=f"output {position}: {share:.3g} % of {actual.numel()} elements differ, max abs {worst:.3g}, max rel "
                f"{relative:.3g} (atol {atol:.2g}, rtol {rtol:.2g})"
                + (f", {unwritten} NaN or never written" if unwritten else ""),
    )  # fmt: skip


def _compare_exactly(actual: torch.Tensor, wanted: torch.Tensor, position: int) -> Failure | None:
    """For ids, indices and flags, of which none is nearly right."""
    count = int((actual != wanted).sum())
    if not count:
        return None
    share = 100 * count / actual.numel()
    return Failure(
        stage="verify", kind="mismatch", message=f"output {position}: {share:.3g} % of {actual.numel()} elements differ"
    )
