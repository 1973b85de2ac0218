"""Correct before fast: a candidate's outputs against the reference, every element."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

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

Kernels compute narrow outputs in fp32 and round once, at the end; in fp32 and fp64 every step of the kernel rounds.
"""


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

    if workload.reference is None:
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


def mismatch(
    outputs: Any, expected: list[torch.Tensor], atol: float | None = None, rtol: float | None = None
) -> Failure | None:
    """How a candidate's outputs differ from what they should be, or None.

    Args:
        outputs: what the call returned.
        expected: from `reference_outputs`; same number and shapes.
        atol: absolute tolerance; None for the dtype's, see `SLACK`.
        rtol: relative tolerance; None for the dtype's.

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
    for position, (actual, wanted) in enumerate(zip(got, expected, strict=True)):
        if failure := _compare(actual, wanted, atol, rtol, position):
            return failure
    return None


def _compare(
    actual: torch.Tensor, wanted: torch.Tensor, atol: float | None, rtol: float | None, position: int
) -> Failure | None:
    import torch

    if actual.numel() == 0:
        return None
    # Narrow outputs are exact in fp32, which halves the memory of comparing them.
    wide = torch.float64 if actual.dtype in (torch.float64, torch.int64) else torch.float32
    a, w = actual.to(wide), wanted.to(actual.device, wide)
    roundoff = ROUNDOFF.get(str(actual.dtype).removeprefix("torch."), 0.0)
    slack = roundoff * (WIDE_SLACK if actual.dtype in (torch.float64, torch.float32) else SLACK)
    rtol = slack if rtol is None else rtol
    if atol is None:
        finite = torch.where(torch.isfinite(w), w, torch.zeros_like(w))
        atol = slack / 4 * math.sqrt(float(finite.square().mean()))
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
