"""The quick way to launch: what is kept is launched again for calls of the same kind, and for no others.

Nothing is launched here: a stand-in for a compiled kernel tells what it was given. That two calls are of one kind only
if Triton compiles one kernel for both is checked against Triton's own specialisation.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tunefarm.runtime import quick as quick_module
from tunefarm.runtime.activation import deactivate
from tunefarm.runtime.active import ACTIVE, Tally
from tunefarm.runtime.kernels import signature_of
from tunefarm.runtime.quick import MAX_FORMS, UNKNOWN, Quick, know_nothing

FACTOR = tl.constexpr(3)


@triton.jit(do_not_specialize=["seed"])
def kernel(x, y, n, stride, seed, scale, flag, bias=None, MODE: tl.constexpr = "none", BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride, mask=at < n) * scale, mask=at < n)


@triton.jit
def shadowing(x, len, callable, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), len * callable)


CONFIG = triton.Config({"BLOCK": 128}, num_warps=2)


class Compiled:
    """Stands in for a compiled kernel."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def run(self, *args: Any) -> None:
        self.launches.append(args)


class Tuner:
    """Stands in for an adopted autotuner: what the quick way reads of it."""

    def __init__(self) -> None:
        self.fn, self.base_fn, self.best_config = kernel, kernel.fn, None


class Machine:
    """Stands in for the GPU that is current."""

    def __init__(self) -> None:
        self.index = -1  # what tensors on the CPU say of their device
        self.active = self
        self.target = GPUTarget("cuda", 90, 32)

    def get_current_stream(self, index: int) -> str:
        return f"stream of {index}"

    def get_current_target(self) -> GPUTarget:
        return self.target


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: machine.index, raising=False)
    monkeypatch.setattr("triton.runtime.driver", machine)
    return machine


def make_quick() -> Quick:
    made = quick_module.make_quick(Tuner(), signature_of(kernel), ["n"], ACTIVE.generation)
    assert made is not None
    return made


def call(**changes: Any) -> dict[str, Any]:
    x = torch.zeros(64)
    return {"x": x, "y": x, "n": 64, "stride": 5, "seed": 7, "scale": 0.5, "flag": True} | changes


def kept(quick: Quick, values: dict[str, Any], config: Any = CONFIG) -> tuple[Compiled, Tally]:
    compiled, tally = Compiled(), Tally()
    quick.keep(values, config, compiled, tally, -1)
    return compiled, tally


def launch(quick: Quick, values: dict[str, Any], grid: Any = (4,)) -> Any:
    done = (form(grid, **values) for form in quick.forms)
    return next((each for each in done if each is not UNKNOWN), UNKNOWN)


def test_a_call_of_a_kept_kind_is_launched() -> None:
    quick, values = make_quick(), call()
    compiled, tally = kept(quick, values)
    other = call(stride=7, seed=900, scale=1.5)
    assert launch(quick, other, lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 2)) is compiled
    arguments = (other["x"], other["x"], 64, 7, 900, 1.5, True, None, "none", 128)
    assert compiled.launches == [(1, 2, 1, "stream of -1", "function", "metadata", None, None, None, *arguments)]
    assert (tally.launches, quick.tuner.best_config) == (1, CONFIG)
    form, _ = quick.forms
    assert form((3,), other["x"], other["y"], 64, stride=9, seed=3, scale=2.0, flag=True) is compiled
    assert compiled.launches[1][:3] == (3, 1, 1)


FIRST = call()
OTHERS: dict[str, dict[str, Any]] = {
    "dtype": {"x": torch.zeros(64, dtype=torch.float16)},
    "alignment": {"x": torch.zeros(65)[1:]},
    "value of a dim": {"n": 80},
    "divisibility": {"stride": 16},
    "one": {"stride": 1},
    "width": {"stride": 2**31},
    "sign": {"stride": 2**63},
    "class of an integer": {"stride": True},
    "class of a dim": {"n": 64.0},
    "class of a float": {"scale": 2},
    "a flag": {"flag": False},
    "presence": {"bias": torch.zeros(64)},
    "absence": {"y": None},
    "a constexpr": {"MODE": "relu"},
    "class of a constexpr": {"MODE": 1},
    "the config's own": {"BLOCK": 64},
    "an option": {"num_warps": 8},
    "no number": {"n": "64"},
    "no tensor": {"x": [0.0]},
}


@pytest.mark.parametrize("change", OTHERS)
def test_calls_of_other_kinds_go_the_long_way(change: str) -> None:
    quick = make_quick()
    compiled, _ = kept(quick, FIRST)
    assert launch(quick, FIRST | OTHERS[change]) is UNKNOWN
    assert launch(quick, FIRST) is compiled
    assert len(compiled.launches) == 1


def test_two_kinds_only_if_triton_compiles_one_kernel_for_both() -> None:
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    half, odd = torch.zeros(64, dtype=torch.float16), torch.zeros(65)[1:]
    choices: dict[str, tuple[Any, ...]] = {
        "x": (FIRST["x"], torch.zeros(8), half, odd), "n": (64, 80, 1), "stride": (5, 7, 16, 32, 1, 2**31, -(2**31)),
        "seed": (1, 7, 16, 2**40), "scale": (0.5, 1.0, 3), "flag": (True, False, 1), "bias": (None, half),
        "MODE": ("none", "relu", 1),
    }  # fmt: skip
    for (name, values), (also, others) in itertools.combinations(choices.items(), 2):
        calls = [call(**{name: a, also: b}) for a, b in itertools.product(values, others)]
        for first in calls:
            quick = make_quick()
            compiled, _ = kept(quick, first)
            for second in calls:
                if launch(quick, second) is compiled:
                    alike = [str(bind(**values, BLOCK=128)[1]) for values in (first, second)]
                    constants = [{k: v for k, v in values.items() if k == "MODE"} for values in (first, second)]
                    assert alike[0] == alike[1], (first, second)
                    assert constants[0] == constants[1]
            assert launch(quick, first) is compiled


def test_parameters_may_have_names_of_builtins() -> None:
    tuner = Tuner()
    tuner.fn, tuner.base_fn = shadowing, shadowing.fn
    quick = quick_module.make_quick(tuner, signature_of(shadowing), [], ACTIVE.generation)
    assert quick is not None
    values = {"x": torch.zeros(8), "len": 3, "callable": 5}
    compiled, _ = kept(quick, values)
    assert launch(quick, values, lambda meta: (meta["len"],)) is compiled
    assert compiled.launches[0][:3] == (3, 1, 1)


def test_what_is_launched_depends_on_the_device(machine: Machine) -> None:
    quick = make_quick()
    compiled, _ = kept(quick, FIRST)
    machine.index = 1
    assert launch(quick, FIRST) is UNKNOWN
    machine.index = -1
    assert launch(quick, FIRST) is compiled


def test_another_pack_ends_it() -> None:
    quick = make_quick()
    kept(quick, FIRST)
    deactivate()
    assert launch(quick, FIRST) is UNKNOWN


def test_hooks_of_profilers_are_called_by_the_long_way() -> None:
    quick = make_quick()
    compiled, _ = kept(quick, FIRST)

    def hook(*_: Any) -> None: ...

    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        chain.add(hook)
        try:
            assert launch(quick, FIRST) is UNKNOWN
            watched = make_quick()
            kept(watched, FIRST)
            assert watched.forms == (know_nothing,)
        finally:
            chain.remove(hook)
    kernel.add_pre_run_hook(hook)
    try:
        assert launch(quick, FIRST) is UNKNOWN
    finally:
        kernel.pre_run_hooks.remove(hook)
    with knobs.runtime.scope():
        knobs.runtime.debug = True
        assert launch(quick, FIRST) is UNKNOWN
        debugged = make_quick()
        kept(debugged, FIRST)
        assert debugged.forms == (know_nothing,)
    with knobs.compilation.scope():
        knobs.compilation.instrumentation_mode = "consan"
        assert launch(quick, FIRST) is UNKNOWN
    assert launch(quick, FIRST) is compiled


def test_a_changed_global_is_noticed() -> None:
    quick, names = make_quick(), {"FACTOR": 3}
    compiled, _ = kept(quick, FIRST)
    kernel.used_global_vals["FACTOR", id(names)] = (3, names)
    try:
        assert launch(quick, FIRST) is compiled
        names["FACTOR"] = 4
        assert launch(quick, FIRST) is UNKNOWN
    finally:
        kernel.used_global_vals.clear()


def test_what_cannot_be_told_by_its_arguments_is_not_kept() -> None:
    config = triton.Config({"BLOCK": 128}, pre_hook=lambda _: None)
    for values, with_config, compiled in (
        (FIRST, config, Compiled()),
        (FIRST | {"BLOCK": 64}, CONFIG, Compiled()),
        (FIRST | {"num_stages": 2}, CONFIG, Compiled()),
        (FIRST | {"x": object()}, CONFIG, Compiled()),
        (FIRST, CONFIG, None),
        (call(x=1, y=2), CONFIG, Compiled()),
    ):
        quick = make_quick()
        quick.keep(values, with_config, compiled, Tally(), -1)
        assert quick.forms == (know_nothing,)


def test_what_other_backends_compile_in_is_left_to_triton(machine: Machine) -> None:
    """AMD's makes another kernel for tensors of 2 GiB, whose offsets do not fit where a smaller one has them."""
    machine.target = GPUTarget("hip", "gfx942", 64)
    quick = make_quick()
    kept(quick, FIRST)
    assert quick.forms == (know_nothing,)


def test_kinds_and_forms_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_module, "MAX_KEPT", 3)
    quick = make_quick()
    for n in range(2, 40):
        kept(quick, call(n=n))
        assert launch(quick, call(n=n)) is not UNKNOWN
    known = sum(launch(quick, call(n=n)) is not UNKNOWN for n in range(2, 40))
    assert 1 <= known <= 3
    values: tuple[Any, ...] = (1, 0.5, None, True, "a", torch.zeros(1))
    for a, b in itertools.product(values[:3], values[:3]):
        kept(quick, call(stride=a, scale=b))
    assert len(quick.forms) == MAX_FORMS + 1


def test_missing_and_superfluous_arguments_are_errors_that_name_the_kernel() -> None:
    quick = make_quick()
    kept(quick, FIRST)
    form, _ = quick.forms
    with pytest.raises(TypeError, match=r"kernel\(\) missing 2 required positional arguments: 'scale' and 'flag'"):
        form((1,), FIRST["x"], FIRST["y"], 64, 5, 7)
