import sys

import pytest

from tunefarm.config import Config
from tunefarm.errors import SpecError
from tunefarm.spec.autotuned import read_autotuned, signature_of
from tunefarm.spec.importing import import_object
from tunefarm.spec.workload import WorkloadRef, load_workload

SOURCE = """
import triton
import triton.language as tl

def hook(nargs):
    nargs["seen"] = nargs["BLOCK"]

def hook2(nargs):
    pass

def early(configs, named, **keywords):
    return [c for c in configs if c.kwargs["BLOCK"] <= named["n"]]

def broken(configs, named, **keywords):
    return [triton.Config({"BLOCK": 1})]

def raising(configs, named, **keywords):
    raise KeyError("n")

def model(**arguments):
    return 1.0

def configs(*hooks, **more):
    blocks = (64, 128, 64)
    return [triton.Config({"BLOCK": b}, num_warps=w, num_stages=2, pre_hook=h, **more)
            for b, w, h in zip(blocks, (2, 4, 2), hooks or (None, None, None))]

@triton.jit
def plain(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass

heuristics = triton.heuristics({"EVEN": lambda nargs: nargs["n"] % nargs["BLOCK"] == 0})
tuned = triton.autotune(configs(), key=["n"], reset_to_zero=["y_ptr"], restore_value=["x_ptr"],
                        prune_configs_by={"early_config_prune": early, "perf_model": model, "top_k": 2})
inside = tuned(heuristics(plain))
outside = heuristics(tuned(plain))
hooked = triton.autotune(configs(hook, hook, hook), key=["n"])(plain)
differing = triton.autotune(configs(hook, hook2, None), key=["n"])(plain)
partly = triton.autotune(configs(hook, None, hook), key=["n"])(plain)
own_hook = triton.autotune(configs(), key=["n"], pre_hook=lambda nargs, reset_only=False: None)(plain)
overriding = triton.autotune(configs(ir_override="k.ttgir"), key=["n"])(plain)
linking = triton.autotune([triton.Config({"BLOCK": 64, "extern_libs": "k.bc"})], key=["n"])(plain)
clustered = triton.autotune(configs(num_ctas=2) + configs(), key=["n"])(plain)
broken_prune = triton.autotune(configs(), key=["n"], prune_configs_by={"early_config_prune": broken})(plain)
raising_prune = triton.autotune(configs(), key=["n"], prune_configs_by={"early_config_prune": raising})(plain)
odd_value = triton.autotune([triton.Config({"BLOCK": [1, 2]})], key=["n"])(plain)
twice = triton.autotune(configs(), key=["n"])(hooked)

def call(x, n):
    pass
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.py").write_text(SOURCE)
    plain = import_object("kernels.py:plain", str(folder))
    return sys.modules[plain.fn.__module__]


SMALL = Config(params={"BLOCK": 64}, options={"num_warps": 2, "num_stages": 2})
LARGE = Config(params={"BLOCK": 128}, options={"num_warps": 4, "num_stages": 2})


@pytest.mark.parametrize("name", ["inside", "outside"])
def test_everything_is_read_through_heuristics(kernels, name):
    kernel = getattr(kernels, name)
    autotuned = read_autotuned(kernel)
    assert autotuned.configs == (SMALL, LARGE)
    assert (autotuned.key, autotuned.restore, autotuned.zero) == (("n",), ("x_ptr",), ("y_ptr",))
    assert autotuned.early_config_prune is kernels.early
    assert autotuned.perf_model is kernels.model
    assert autotuned.top_k == 2
    assert autotuned.pre_hook is None
    signature = signature_of(kernel)
    assert signature.kernel == "plain"
    assert signature.arguments == ("x_ptr", "y_ptr", "n", "BLOCK", "EVEN")
    assert signature.constexprs == ("BLOCK", "EVEN")
    assert signature.tunable == ("BLOCK",)


def test_a_plain_kernel_declares_nothing(kernels):
    assert read_autotuned(kernels.plain) is None
    assert signature_of(kernels.plain).tunable == ("BLOCK", "EVEN")


def test_shared_pre_hook_is_included(kernels):
    hook = read_autotuned(kernels.hooked).pre_hook
    nargs = {"BLOCK": 64}
    hook(nargs)
    assert nargs["seen"] == 64


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("differing", "different pre_hooks.*give all of them one"),
        ("partly", "different pre_hooks"),
        ("own_hook", "runs only while tuning.*restore_value"),
        ("overriding", "ir_override"),
        ("linking", "extern_libs"),
        ("odd_value", "BLOCK"),
        ("twice", "autotuned twice"),
    ],
)
def test_refused_with_a_reason(kernels, name, says):
    with pytest.raises(SpecError, match=says) as caught:
        read_autotuned(getattr(kernels, name))
    assert "plain" in str(caught.value)


def test_clusters_are_kept_where_declared(kernels):
    options = [config.options.get("num_ctas") for config in read_autotuned(kernels.clustered).configs]
    assert options == [2, 2, 1, 1]


def test_early_config_prune_is_obeyed(kernels):
    autotuned = read_autotuned(kernels.inside)
    assert autotuned.prune(autotuned.configs, {"n": 100}, {}) == (SMALL,)
    assert autotuned.prune(autotuned.configs, {"n": 1000}, {}) == (SMALL, LARGE)
    assert autotuned.prune([LARGE], {"n": 1000}, {}) == (LARGE,)


@pytest.mark.parametrize(
    ("name", "says"), [("broken_prune", "not given"), ("raising_prune", "raising raised KeyError")]
)
def test_a_prune_that_misbehaves(kernels, name, says):
    autotuned = read_autotuned(getattr(kernels, name))
    with pytest.raises(SpecError, match=says):
        autotuned.prune(autotuned.configs, {"n": 1}, {})


def test_workload_is_completed(kernels, tmp_path):
    (tmp_path / "kernels.py").write_text(SOURCE)
    ref = WorkloadRef(call="kernels.py:call", kernel="kernels.py:inside", folder=str(tmp_path), inputs={"x": ["M"]})
    workload = load_workload(ref)
    assert (workload.key, workload.restore, workload.zero) == (("n",), ("x_ptr",), ("y_ptr",))
    assert workload.default == SMALL
