"""Correct before fast: what counts as right, and what does not pass for it."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.meter import Candidate, Question
from tunefarm.bench.verify import (
    Tolerance,
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
    assert "there is no default that can be built" in answer.why.message


def test_the_default_outputs_may_be_the_right_ones(monkeypatch):
    """Within rounding, not bit by bit: kernels that sum in another order are right, too."""
    question = Question(
        ref=WorkloadRef(call="", kernel="", object="", folder=""), device=nominal("sm_90"), problem=Problem(),
        variables=FrozenMap(), candidates=(), rung=0, num_samples=3,
    )  # fmt: skip
    candidate, meter = Candidate(number=0, config=Config()), GpuMeter()
    meter._workload = workload("default")
    answer = meter._without_baseline(candidate, question)
    assert answer is not None
    assert answer.why.kind == "no baseline"
    right = values(64).float()
    monkeypatch.setattr(meter, "_again", lambda *_: [right])
    asked = replace(question, baseline=candidate)
    assert meter._without_baseline(candidate, asked) is None
    assert meter._check(candidate, right * (1 + 2**-22), asked) is None
    failure = meter._check(candidate, right * 1.1, asked)
    assert failure is not None
    assert failure.kind == "mismatch"
    with pytest.raises(SpecError, match="reference is 'defaults'"):
        workload("defaults")


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
