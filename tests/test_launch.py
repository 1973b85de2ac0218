"""Interception: everything about a production launch is learned without a GPU, and nothing is left behind."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import weakref
from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.launch import default_config, intercept, learn
from tunefarm.config import Config
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.spec.workload import Workload

MINE = Config(params={"BLOCK": 1024}, options={"num_warps": 16})
WRAPPED = [k.tuned_kernel, k.own_kernel, k.heuristics_outside, k.heuristics_inside]


def meta(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def workload(kernel: Any, call: Any = None, **more: Any) -> Workload:
    return Workload(call=call or (lambda x: k.launch(kernel, x)), kernel=kernel, inputs={"x": ["N"]}, **more)


def refused(work: Workload, says: str, x: Any = None, config: Config | None = MINE) -> SpecError:
    with pytest.raises(SpecError, match=says) as caught:
        learn(work, {"x": meta(1000) if x is None else x}, config, 90)
    assert caught.value.hint
    return caught.value


# ---- the config enters where production's would ----


def test_a_plain_kernel_is_launched_with_the_config():
    launch = learn(k.scaling, {"x": meta(1000)}, MINE, 90)
    assert launch.config == MINE
    assert launch.grid == (1, 1, 1)
    assert launch.constants == {(3,): 1024}
    assert launch.options.num_warps == 16
    assert list(launch.arguments) == ["x", "y", "n", "BLOCK"]
    assert launch.signature == {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}


def test_the_default_of_a_plain_kernel_is_what_the_call_passes():
    launch = learn(k.scaling, {"x": meta(1000)}, None, 90)
    assert launch.config == Config(params={"BLOCK": 256}, options={"num_warps": 8})
    assert launch.grid == (4, 1, 1)
    assert default_config(k.scaling) is None


@pytest.mark.parametrize("kernel", WRAPPED, ids=["triton", "tunefarm", "heuristics outside", "heuristics inside"])
def test_an_autotuned_kernel_is_launched_with_the_config_or_its_first(kernel):
    work = workload(kernel)
    mine, first = (learn(work, {"x": meta(1000)}, config, 90) for config in (MINE, None))
    assert (mine.arguments["BLOCK"], mine.options.num_warps, mine.grid) == (1024, 16, (1, 1, 1))
    default = default_config(work)
    assert default is not None
    assert first.arguments["BLOCK"] == default.params["BLOCK"] in (32, 64)
    assert first.options.num_warps == default.options["num_warps"]


@pytest.mark.parametrize("kernel", [k.heuristics_inside, k.heuristics_alone])
def test_heuristics_compute_from_the_config_that_is_tried(kernel):
    for block, even in ((250, True), (256, False)):
        launch = learn(workload(kernel), {"x": meta(1000)}, Config(params={"BLOCK": block}), 90)
        assert launch.arguments["EVEN"] is even


def test_heuristics_around_autotune_compute_from_the_call():
    for n, even in ((640, True), (1000, False)):
        assert learn(workload(k.heuristics_outside), {"x": meta(n)}, MINE, 90).arguments["EVEN"] is even


def test_arguments_may_come_by_position_or_by_name():
    """TF-063: the same launch however it is written; the config wins over a constexpr passed by position."""

    def positional(x):
        y = torch.empty_like(x)
        k.scale_kernel[(7,)](x, y, x.numel(), 512)
        return y

    def named(x):
        y = torch.empty_like(x)
        k.scale_kernel[lambda meta: (7,)](n=x.numel(), y=y, x=x, BLOCK=512)
        return y

    inputs = {"x": meta(1000)}
    launches = [learn(workload(k.scale_kernel, call), inputs, MINE, 90) for call in (positional, named)]
    assert len({launch.specialization for launch in launches}) == 1
    assert launches[0].problem(None) == launches[1].problem(None)
    assert {launch.grid for launch in launches} == {(7, 1, 1)}
    assert learn(workload(k.scale_kernel, positional), inputs, None, 90).config == Config(params={"BLOCK": 512})


@pytest.mark.parametrize(
    ("grid", "seen"), [((3,), (3, 1, 1)), ([3, 4], (3, 4, 1)), (lambda meta: (3, meta["BLOCK"], 5), (3, 1024, 5))]
)
def test_grids(grid, seen):
    def call(x):
        k.scale_kernel[grid](x, x, x.numel(), BLOCK=1)

    assert learn(workload(k.scale_kernel, call), {"x": meta(1000)}, MINE, 90).grid == seen


def test_a_call_may_make_arguments_from_the_config():
    def call(x, config):
        parts = torch.empty(config["SPLIT"], x.numel(), device=x.device)
        k.split_kernel[(1,)](x, parts, x.numel(), BLOCK=16)
        return parts

    work = workload(k.split_kernel, call)
    for split in (1, 4):
        launch = learn(work, {"x": meta(16)}, Config(params={"SPLIT": split}), 90)
        assert launch.arguments["parts"].shape == (split, 16)
        assert launch.arguments["SPLIT"] == split
    assert "give the workload a default" in str(refused(work, "takes a config", config=None))


def test_a_shared_pre_hook_sets_arguments_from_the_config():
    work = workload(k.descriptor_kernel, k.with_descriptors)
    for size in (64, 256):
        launch = learn(work, {"x": meta(1024, dtype=torch.float16)}, Config(params={"BLOCK": size}), 90)
        assert launch.signature["x"].startswith(f"tensordesc<fp16[{size}]")
        assert launch.grid == (1024 // size, 1, 1)
        # The block is the config's: all configs compete for one problem.
        assert launch.problem(None) == Problem(dtypes=FrozenMap(x="fp16", y="fp16"))


# ---- the problem ----


def test_problem_facts():
    def call(x, bias=None, stride=1):
        k.bias_kernel[(1,)](x, bias, x, x.shape[0], stride, 0.5, BLOCK=16)

    work = workload(k.bias_kernel, call)
    launch = learn(work, {"x": meta(1024, dtype=torch.bfloat16)}, None, 90)
    problem = launch.problem(None)
    assert dict(problem.dims) == {"n": 1024, "stride": 1}
    assert dict(problem.dtypes) == {"x": "bf16", "y": "bf16"}
    assert dict(problem.facts) == {"x": "div16", "y": "div16", "bias": "none", "n": "div16", "stride": "one"}
    with_bias = learn(work, {"x": meta(1000), "bias": meta(1000, dtype=torch.int64), "stride": 3}, None, 90)
    assert dict(with_bias.problem(("n", "bias", "BLOCK")).dims) == {"n": 1000, "BLOCK": 16}
    assert dict(with_bias.problem(None).facts) == {"x": "div16", "y": "div16", "bias": "div16"}
    assert dict(with_bias.problem(None).dtypes) == {"x": "fp32", "y": "fp32", "bias": "i64"}


def test_views_with_odd_offsets_and_strides_are_seen():
    """TF-046: an unaligned view is another problem, and another specialisation, than an aligned one."""
    aligned, odd = (learn(k.scaling, {"x": meta(1025)[start:]}, MINE, 90) for start in (0, 1))
    assert dict(aligned.problem(None).facts) == {"x": "div16", "y": "div16"}
    assert dict(odd.problem(None).facts) == {"y": "div16", "n": "div16"}
    shifted = learn(k.scaling, {"x": meta(1028)[4:]}, MINE, 90)
    assert dict(shifted.problem(None).facts) == {"x": "div16", "y": "div16", "n": "div16"}

    def strided(x):
        k.bias_kernel[(1,)](x, None, x, x.shape[0], x.stride(0), 1.0, BLOCK=16)

    column = learn(workload(k.bias_kernel, strided), {"x": meta(8, 48)[:, 0]}, None, 90)
    assert dict(column.problem(None).dims) == {"n": 8, "stride": 48}
    assert column.problem(None).facts["stride"] == "div16"


def test_specialization_tells_binaries_apart():
    """TF-056: configs that differ only in num_warps never share a build; sizes of one kind do."""

    def key(n: int, dtype: Any = torch.float32, target: int = 90, **options: Any) -> str:
        config = Config(params={"BLOCK": 64}, options={"num_warps": 4, **options})
        return learn(k.scaling, {"x": meta(n, dtype=dtype)}, config, target).specialization

    assert key(1024) == key(4096)
    assert key(1001) == key(1003)
    different = [key(1024), key(1001), key(1), key(1024, torch.float16), key(1024, num_warps=8), key(1024, num_ctas=2)]
    different.append(key(1024, target=80))
    assert len(set(different)) == len(different)


# ---- what cannot be followed ----


@pytest.mark.parametrize("count", [0, 2])
def test_a_call_launches_its_kernel_once(count):
    def call(x):
        for _ in range(count):
            k.launch(k.scale_kernel, x, BLOCK=64)

    refused(workload(k.scale_kernel, call), f"launched scale_kernel {count} times")


def test_a_call_that_looks_at_values_is_refused_with_its_line():
    def call(x):
        if x.sum().item() > 0:
            return k.launch(k.scale_kernel, x, BLOCK=64)
        return x

    line = inspect.getsourcelines(call)[1] + 1
    assert "no .item()" in str(refused(workload(k.scale_kernel, call), rf"{__file__}:{line}\)"))


def test_the_line_is_the_users_not_torchs():
    def call(x):
        return torch.nn.functional.layer_norm(x, (3,))

    line = inspect.getsourcelines(call)[1] + 1
    refused(workload(k.scale_kernel, call), rf"{__file__}:{line}\)")


def test_unknown_and_doubled_arguments_are_refused():
    refused(workload(k.scale_kernel, lambda x: k.launch(k.scale_kernel, x, BLOCKS=64)), "BLOCKS")
    refused(workload(k.scale_kernel, lambda x: k.scale_kernel[(1,)](x, x, 1, 2, 3)), "too many positional")


# ---- nothing runs, nothing stays ----


def test_other_kernels_of_the_call_do_not_run_on_tensors_without_memory():
    """Plain, autotuned and heuristic ones, and our own, inside one call, before and after the one that is tuned."""

    def call(x):
        for other in WRAPPED:
            x = k.launch(other, x)
        k.sort_kernel[(1,)](x, x, x.numel(), BLOCK=16)
        y = k.launch(k.scale_kernel, x, BLOCK=64)
        return k.launch(k.heuristics_alone, y, BLOCK=64)

    assert learn(workload(k.scale_kernel, call), {"x": meta(1000)}, MINE, 90).grid == (1, 1, 1)


def state() -> list[Any]:
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    inner = [kernel.fn for kernel in WRAPPED]
    kernels = [k.scale_kernel, *WRAPPED, *inner]
    return [JITFunction.run, Autotuner.run, *("run" in kernel.__dict__ for kernel in kernels)]


def test_run_is_restored_also_after_an_exception():
    before = state()
    assert not any(had is True for had in before)
    for kernel in (k.scale_kernel, *WRAPPED):
        refused(workload(kernel, lambda x: 1 / 0), "ZeroDivisionError")

        def call(x, kernel=kernel):
            k.launch(kernel, x, BLOCK=64) if kernel is k.scale_kernel else k.launch(kernel, x)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            learn(workload(kernel, call), {"x": meta(10)}, MINE, 90)
    assert state() == before


def test_a_run_of_ones_own_survives(monkeypatch):
    def mine(*args, **kwargs):
        return "mine"

    monkeypatch.setattr(k.scale_kernel, "run", mine, raising=False)
    seen: list[Any] = []
    with intercept(k.scaling, MINE, 90, seen.append):
        k.scale(meta(10))
    assert len(seen) == 1
    assert k.scale_kernel.run is mine


def test_no_gpu_driver_is_touched():
    code = """
import bench_kernels as k, torch
from triton.runtime import driver
from tunefarm.bench.launch import learn
learn(k.scaling, {"x": torch.empty(1000, device="meta")}, None, 90)
assert not torch.cuda.is_initialized()
assert driver._active is None
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_launch_keeps_nothing_alive_that_it_does_not_hold():
    x = meta(1000)
    gone = weakref.ref(x)
    learn(k.scaling, {"x": x}, MINE, 90)
    refused(workload(k.scale_kernel, lambda x: 1 / 0), "ZeroDivisionError", x)
    del x
    gc.collect()
    assert gone() is None
