"""Correct before fast: what counts as right, and what does not pass for it."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.meter import Candidate, Question
from tunefarm.bench.verify import (
    Tolerance,
    attainable,
    flatten,
    mismatch,
    other_bits,
    poisoned,
    reference_outputs,
)
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.spec.workload import Workload, WorkloadRef
from tunefarm.trial import Failure

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def values(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def wrong(outputs: Any, expected: Any, **tolerance: float) -> Failure:
    failure = mismatch(outputs, [expected], Tolerance(**tolerance))
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.kind) == ("verify", "mismatch")
    return failure


def workload(reference: Any) -> Workload:
    return Workload(call=lambda x: x, kernel=k.scale_kernel, inputs={"x": ["N"]}, reference=reference, name="scaling")


# ---- tolerance ----


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_to_the_outputs_type_is_right(dtype):
    exact = values(64, 64)
    assert mismatch(exact.to(dtype), [exact]) is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_tenth_more_is_wrong(dtype):
    """TF-034: the fast kernel that is off by 0.1 is rejected, with how far and how much of it."""
    exact = values(64, 64)
    off = exact.clone()
    off[:, :16] += 0.1 if dtype not in FLOATS[4:] else 0.6
    message = wrong(off.to(dtype), exact).message
    share = re.search(r"output 0: (\S+) % of 4096 elements differ, max abs (\S+), max rel (\S+) \(atol", message)
    assert share, message
    assert 5 < float(share[1]) <= 25
    assert 0.09 < float(share[2]) < 1.5


def test_sums_in_single_precision_are_right():
    """Kernels in fp32 round at every step; a few round-offs of the last one would reject all of them."""
    x = values(64, 4096)
    assert mismatch(torch.softmax(x.float(), 1), [torch.softmax(x, 1)]) is None
    assert mismatch(x.float().cumsum(1)[:, -1], [x.sum(1)]) is None
    norm = torch.nn.LayerNorm(4096, elementwise_affine=False)
    assert mismatch(norm(x.float()), [norm(x)]) is None
    wrong(torch.softmax(x.bfloat16().float(), 1), torch.softmax(x, 1))


def test_tolerances_of_ones_own():
    exact = values(100)
    assert mismatch(exact + 0.05, [exact], Tolerance(atol=0.1)) is None
    wrong(exact + 0.05, exact, atol=0.01)
    assert mismatch(exact * 1.05, [exact], Tolerance(rtol=0.1, atol=0.0)) is None
    wrong(exact * 1.05, exact, rtol=0.01, atol=0.0)
    assert mismatch(exact.float(), [exact.float().double()], Tolerance(atol=0.0, rtol=0.0)) is None


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool])
def test_integers_are_exact(dtype):
    exact = torch.arange(16).remainder(2).to(dtype)
    assert mismatch(exact.clone(), [exact]) is None
    off = exact.clone()
    off[3] = 0
    assert "6.25 % of 16 elements differ" in wrong(off, exact).message


def test_large_integers_are_exact():
    exact = torch.tensor([2**53, 2**24 + 1])
    assert mismatch(exact.clone(), [exact]) is None
    assert "50 %" in wrong(torch.tensor([2**53, 2**24]), exact).message


# ---- what is not a number ----


def test_nan_is_right_only_where_the_reference_has_it():
    exact = values(10)
    got = exact.clone()
    got[4] = float("nan")
    message = wrong(got, exact).message
    assert "10 % of 10" in message
    assert "1 NaN or never written" in message
    exact[4] = float("nan")
    assert mismatch(got, [exact]) is None
    wrong(values(10), exact)


def test_infinities_are_equal_with_their_sign():
    exact = torch.tensor([1.0, float("inf"), -float("inf")], dtype=torch.float64)
    assert mismatch(exact.bfloat16(), [exact]) is None
    assert "33.3 %" in wrong(torch.tensor([1.0, float("inf"), float("inf")]), exact).message
    assert "33.3 %" in wrong(torch.tensor([1.0, 1e30, -float("inf")]), exact).message
    wrong(torch.tensor([float("inf")]), torch.tensor([1.0]), rtol=0.1)


# ---- never written ----


def test_outputs_are_poisoned_before_a_candidate_writes_them():
    """TF-033: neither half may pass because an earlier candidate wrote the other."""
    exact = values(1024)

    def candidate(offset: int) -> Any:
        out = torch.empty(1024)
        out[offset : offset + 512] = exact[offset : offset + 512]
        return out

    for offset in (0, 512):
        with poisoned():
            got = candidate(offset)
        message = wrong(got, exact).message
        assert "50 % of 1024" in message
        assert "512 NaN or never written" in message


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_poison_of_every_type(dtype):
    with poisoned():
        out = torch.empty(100, dtype=dtype)
        like = torch.empty_like(out)
        zeros = torch.zeros(100, dtype=dtype)
    for poison in (out, like):
        if dtype.is_floating_point:
            assert bool(poison.float().isnan().all())
        else:
            assert bool((poison == (True if dtype is torch.bool else torch.iinfo(dtype).max)).all())
    assert not bool(zeros.float().any())


def test_poisoning_ends_also_after_an_exception():
    switches = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory
    with pytest.raises(KeyError), poisoned():
        raise KeyError
    assert (torch.are_deterministic_algorithms_enabled(), switches.fill_uninitialized_memory) == before


def test_operations_without_a_deterministic_form_still_work():
    """Warnings are errors here, so this one is kept quiet; others are not."""
    with poisoned():
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]), accumulate=False)
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


# ---- shapes and structure ----


@pytest.mark.parametrize("got", [values(3, 5), values(4), [values(3), values(3)]])
def test_other_shapes_are_the_users_fault(got):
    with pytest.raises(SpecError, match=r"the call returns tensors of shapes .*, the reference \[\[3\]\]") as caught:
        mismatch(got, [values(3)])
    assert caught.value.hint


def test_outputs_may_be_nested():
    one, two = values(2), values(3)
    for outputs in ((one, None, [two]), {"a": one, "b": two}, [{"a": one}, (two,)]):
        assert [t.numel() for t in flatten(outputs)] == [2, 3]
    assert "output 1:" in (mismatch((one, two + 1), [one, two]) or Failure(stage="", kind="", message="")).message
    for nothing in (None, 3, [], {}, "text"):
        with pytest.raises(SpecError, match="the call returned no tensor"):
            flatten(nothing)
    assert mismatch(values(0), [values(0)]) is None


# ---- the reference ----


def test_the_reference_is_computed_in_double_precision():
    x = values(1000).bfloat16()
    seen = []

    def reference(x: Any, n: int) -> Any:
        seen.append((x.dtype, n))
        return torch.softmax(x, 0)

    (out,) = reference_outputs(workload(reference), {"x": x, "n": 3})
    assert seen == [(torch.float64, 3)]
    assert torch.equal(out, torch.softmax(x.double(), 0))
    assert mismatch(torch.softmax(x.float(), 0).bfloat16(), [out]) is None


@pytest.mark.parametrize("allowed", [torch.float32, torch.bfloat16])
def test_a_reference_that_refuses_doubles_gets_what_it_takes(allowed):
    def reference(x: Any) -> Any:
        if x.dtype is not allowed:
            raise RuntimeError(f"expected {allowed}, got {x.dtype}")
        return x * 2

    (out,) = reference_outputs(workload(reference), {"x": values(10).bfloat16()})
    assert out.dtype is allowed


def test_integers_and_wider_inputs_stay_as_they_are():
    seen = []

    def reference(x: Any, ids: Any) -> Any:
        seen.append((x.dtype, ids.dtype))
        if len(seen) == 1:
            raise RuntimeError("not yet")
        return x

    reference_outputs(workload(reference), {"x": values(3), "ids": torch.arange(3)})
    assert seen == [(torch.float64, torch.int64)] * 2


def test_a_reference_that_fails_is_the_users_fault():
    with pytest.raises(SpecError, match="the reference of scaling raised ZeroDivisionError: integer") as caught:
        reference_outputs(workload(lambda x: x / (1 // 0)), {"x": values(3)})
    assert "by position" in caught.value.hint
    with pytest.raises(SpecError, match="the reference returned no tensor"):
        reference_outputs(workload(lambda x: None), {"x": values(3)})
    with pytest.raises(SpecError, match="scaling has no reference"):
        reference_outputs(workload(None), {"x": values(3)})


def test_the_reference_needs_no_gradients():
    (out,) = reference_outputs(workload(lambda x: x * 2), {"x": values(3).requires_grad_()})
    assert not out.requires_grad


# ---- bit by bit ----


def test_other_bits_are_found_where_values_are_equal():
    """Zeros of either sign are one value, and NaNs of one kind are one sequence of bits."""
    got = torch.tensor([0.0, 1.0, float("nan"), 2.0])
    assert other_bits([got], got.clone(), "the twin's") is None
    failure = other_bits(got, torch.tensor([-0.0, 1.0, float("nan"), 2.0]), "the twin's")
    assert failure is not None
    assert (failure.kind, failure.stage) == ("other bits", "verify")
    assert failure.message == "output 0: 25 % of 4 elements have other bits than the twin's"


def test_without_a_default_no_candidate_has_its_bits():
    """It must not pass for want of something to compare with."""
    asked = Question(
        ref=WorkloadRef(call="", kernel="", object="", folder=""), device=nominal("sm_90"), problem=Problem(),
        variables=FrozenMap(), candidates=(), rung=0, num_samples=3, same_bits="default",
    )  # fmt: skip
    answer = GpuMeter()._without_baseline(Candidate(number=0, config=Config()), asked)
    assert answer is not None
    assert answer.why.message.startswith(
        "accept.same_bits is default, and there is no default config that can be built"
    )


# ---- what the reference itself attains ----


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
    scaling, meter = workload(reference), GpuMeter()
    meter._inputs = {"x": values(64).bfloat16()}
    meter._expected = reference_outputs(scaling, meter._inputs)
    (tolerance,) = meter._choose_tolerances(scaling, asked)
    assert tolerance.atol is not None
    assert tolerance.atol < 0.1
    said = [notice for notice in meter.notices if "is wrong in the inputs' own precision" in notice]
    assert len(said) == is_wrong


# ---- outputs of all sizes and kinds ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_huge_value_does_not_let_the_others_through(dtype):
    exact = values(1000)
    exact[7] = 1e20
    assert mismatch(exact.to(dtype), [exact]) is None
    assert mismatch(torch.zeros(1000, dtype=dtype), [exact]) is not None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_are_right_or_wrong(dtype):
    exact = torch.tensor([2**24 if dtype is torch.int32 else 2**53])
    assert mismatch(exact.to(dtype), [exact]) is None
    assert mismatch(exact.to(dtype) + 1, [exact]) is not None
