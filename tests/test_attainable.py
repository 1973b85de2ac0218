"""TF-036: what the reference itself attains in the inputs' own precision, and where it is wrong rather than rough."""

from __future__ import annotations

import math
from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.meter import Question
from tunefarm.bench.verify import Tolerance, attainable, mismatch, reference_outputs
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.spec.workload import Workload, WorkloadRef


def values(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def widened(given: Tolerance, own: torch.Tensor, exact: torch.Tensor, size: float = 0.0) -> tuple[Tolerance, bool]:
    (tolerance,), is_faulty = attainable(given, own, [exact], size)
    return tolerance, is_faulty


def test_tf_036_a_tolerance_below_the_references_own_error_is_widened_to_twice_that():
    """bf16 matmul: rounded once, its own results miss a thousandth."""
    a, b = values(64, 512).bfloat16(), values(512, 64).bfloat16()
    exact = a.double() @ b.double()
    own = a @ b
    assert mismatch(own, [exact], Tolerance(atol=1e-4, rtol=1e-4)) is not None
    wide, is_faulty = widened(Tolerance(atol=1e-4, rtol=1e-4), own, exact)
    assert not is_faulty
    assert wide.atol is not None
    assert wide.atol > 1e-4
    assert mismatch(own, [exact], wide) is None
    loose = Tolerance(atol=1.0, rtol=0.05)
    assert widened(loose, own, exact) == (loose, False)


def test_tf_036_one_element_that_is_missed_does_not_let_the_others_through():
    exact = torch.tensor([1e-9, 1.0, 2.0], dtype=torch.float64)
    own = torch.tensor([1e-5, 1.0, 2.0])
    for given in (Tolerance(atol=1e-8, rtol=1e-3), Tolerance(atol=0.0, rtol=1e-3), Tolerance(atol=0.0, rtol=0.0)):
        wide, _ = widened(given, own, exact)
        assert mismatch(own, [exact], wide) is None
        assert mismatch(torch.zeros(3), [exact], wide) is not None


@pytest.mark.parametrize("fault", [3.0, math.nan, math.inf])
def test_tf_036_where_the_reference_is_wrong_nothing_is_widened(fault: float):
    """Met with an attention of unaligned queries: what the library missed would have let everything through."""
    exact = values(64, 64).double() / 8
    own = exact.bfloat16()
    given = Tolerance(atol=1e-5, rtol=1e-5)
    honest, is_faulty = widened(given, own, exact)
    assert not is_faulty
    assert mismatch(own, [exact], honest) is None
    broken = own.clone()
    broken[3, 5] = fault
    wide, is_faulty = widened(given, broken, exact)
    assert is_faulty
    assert wide.atol is not None
    assert honest.atol is not None
    assert given.atol < wide.atol <= honest.atol
    assert mismatch(own, [exact], wide) is None
    assert mismatch(broken, [exact], wide) is not None


def peaks() -> torch.Tensor:
    logits = values(8, 4096).double()
    logits[:, 7] = 11.0
    return torch.softmax(logits, 1)


@pytest.mark.parametrize(
    ("exact", "own", "size"),
    [
        (values(64, 64).double(), values(64, 64).to(torch.float8_e5m2), 1.0),
        (peaks(), peaks().bfloat16(), 1.0),
        (torch.zeros(64, dtype=torch.float64), 3e-8 * values(64).float(), 1.0),
    ],
    ids=["fp8", "peaks far above the root mean square", "terms that cancel"],
)
def test_tf_036_what_is_rough_is_not_wrong(exact: torch.Tensor, own: torch.Tensor, size: float):
    wide, is_faulty = widened(Tolerance(atol=1e-9, rtol=1e-4), own, exact, size)
    assert not is_faulty
    assert mismatch(own, [exact], wide) is None


def test_tf_036_each_output_has_its_own():
    """What is allowed to one in thousands would let zeros pass for another in millionths."""
    large, small = 1e3 * values(64).double(), 1e-6 * values(64).double()
    chosen, is_faulty = attainable(Tolerance(rtol=1e-3), [large.bfloat16(), small.bfloat16()], [large, small])
    assert not is_faulty
    assert mismatch([large.bfloat16(), small.bfloat16()], [large, small], chosen) is None
    failure = mismatch([large.bfloat16(), torch.zeros(64, dtype=torch.bfloat16)], [large, small], chosen)
    assert failure is not None
    assert failure.message.startswith("output 1: ")


@pytest.mark.parametrize("is_wrong", [False, True])
def test_tf_036_a_reference_that_is_wrong_is_said_to_be(is_wrong: bool):
    """It is right in double precision, as libraries are whose faults lie in one kernel of many."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        if is_wrong and x.dtype == torch.bfloat16:
            y[7] = 30.0
        return y

    asked = Question(
        ref=WorkloadRef(call="", kernel="", object="", folder=""), device=nominal("sm_90"), problem=Problem(),
        variables=FrozenMap(), candidates=(), rung=0, num_samples=3, atol=1e-7, rtol=1e-7,
    )  # fmt: skip
    scaling = Workload(
        call=lambda x: x, kernel=k.scale_kernel, inputs={"x": ["N"]}, reference=reference, name="scaling"
    )  # fmt: skip
    meter = GpuMeter()
    meter._inputs = {"x": values(64).bfloat16()}
    meter._expected = reference_outputs(scaling, meter._inputs)
    (tolerance,) = meter._choose_tolerances(scaling, asked)
    assert tolerance.atol is not None
    assert tolerance.atol < 0.1
    said = [notice for notice in meter.notices if "is wrong in the inputs' own precision" in notice]
    assert len(said) == is_wrong
