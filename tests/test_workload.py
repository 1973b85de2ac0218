import pickle
import subprocess
import sys
import textwrap

import pytest

from tunefarm.errors import SpecError
from tunefarm.spec.inputs import ScalarSpec, TensorSpec
from tunefarm.spec.workload import Workload, WorkloadRef, load_workload

PRELUDE = "import triton, triton.language as tl, tunefarm\n"
KERNEL = (
    PRELUDE
    + """
@triton.jit
def scale_kernel(x, y, n, BLOCK: tl.constexpr):
    pass

def scale(x, factor):
    pass

def make(device, seed, **variables):
    return {}

workload = tunefarm.Workload(call=scale, kernel=scale_kernel, inputs={"x": ["M", "N*2"], "factor": {"value": 2.0}},
                             restore=["y"], tiles=[["BLOCK"]], dots=[["BLOCK", "BLOCK", "BLOCK"]])
made = tunefarm.Workload(call=scale, kernel=scale_kernel, inputs=make, name="made", flops=lambda M, **_: M)
"""
)


@pytest.fixture
def load(tmp_path):
    def load(source, reference="kernels.py:workload", file="kernels.py"):
        (tmp_path / file).write_text(textwrap.dedent(source))
        return load_workload(WorkloadRef(call="", kernel="", object=reference, folder=str(tmp_path)))

    return load


def refused(load, source, says, **more):
    with pytest.raises(SpecError, match=says) as caught:
        load(source, **more)
    assert caught.value.hint
    assert "Traceback" not in str(caught.value)
    return caught.value


def test_a_workload_object(load):
    workload = load(KERNEL)
    assert workload.name == "scale_kernel"
    assert workload.key is None
    assert workload.restore == ("y",)
    assert workload.tiles == (("BLOCK",),)
    assert workload.dots == (("BLOCK", "BLOCK", "BLOCK"),)
    assert isinstance(workload.specs["x"], TensorSpec)
    assert workload.specs["x"].sizes({"M": 2, "N": 3}) == (2, 6)
    assert workload.specs["x"].dtype_for({"dtype": "bf16"}) == "bf16"
    assert workload.specs["factor"] == ScalarSpec(value=2.0)
    assert workload.jitted.fn.__name__ == "scale_kernel"


def test_inputs_may_be_a_function(load):
    workload = load(KERNEL, "kernels.py:made")
    assert workload.specs is None
    assert workload.inputs(device="cpu", seed=0, M=1) == {}
    assert workload.name == "made"


def test_the_same_file_is_imported_once_and_a_changed_one_again(load):
    first = load(KERNEL)
    assert load(KERNEL).kernel is first.kernel
    assert load(KERNEL + "\n# changed\n").kernel is not first.kernel
    assert first.kernel.fn.__module__ in sys.modules


def test_the_folder_can_be_imported_from(load, tmp_path):
    (tmp_path / "beside_me.py").write_text("FACTOR = 3\n")
    assert load("import beside_me\n" + KERNEL).name == "scale_kernel"
    assert str(tmp_path) not in sys.path


def test_parts_of_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "site" / "somelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    ref = WorkloadRef(
        call="somelib.ops:scale", kernel="somelib.ops:scale_kernel", reference="math:sqrt", key=("n",),
        inputs={"x": ["M"]}, folder=str(tmp_path),
    )  # fmt: skip
    workload = load_workload(ref)
    assert workload.call.__name__ == "scale"
    assert workload.reference(4) == 2
    assert workload.key == ("n",)


def test_refs_can_be_sent_to_workers():
    ref = WorkloadRef(call="a:b", kernel="a:c", inputs={"x": TensorSpec(shape=(1,))}, folder="/f")
    assert pickle.loads(pickle.dumps(ref)) == ref


def test_importable_without_torch_and_triton():
    code = (
        "import sys, tunefarm; tunefarm.Workload; from tunefarm.spec import workload;"
        "assert not {'torch', 'triton', 'yaml'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_gpu_at_import_is_one_clear_error_with_line_and_remedy(load):
    """TF-093: a file that asks for the GPU while it is imported, on a machine without one."""
    source = KERNEL + "\nimport torch\nproperties = torch.cuda.get_device_properties(0)\n"
    line = source[: source.index("properties")].count("\n") + 1
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so the import works")
    error = refused(load, source, "cannot be imported.*move what needs one inside a function")
    assert error.file.endswith(f"kernels.py:{line}")


def test_autotune_at_import_needs_no_gpu(load):
    """TF-093: a module-level `@triton.autotune` is read without a driver."""
    tuned = '\ntuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])(scale_kernel)\n'
    tuned += "both = tunefarm.Workload(call=scale, kernel=tuned, inputs=make)\n"
    assert load(KERNEL + tuned, "kernels.py:both").key == ("n",)


@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("a = 1\nb = a +\n", 2, "SyntaxError"),
        ("\nimport no_such_module_anywhere\n", 2, "No module named.*install it"),
        ("def f():\n    raise ValueError('odd')\n\nf()\n", 2, "ValueError: odd"),
        ("import sys\nsys.exit(1)\n", 2, "SystemExit"),
        (PRELUDE + "w = tunefarm.Workload(call=print, kernel=print, inputs={})\n", 2, "not a Triton kernel"),
    ],
)
def test_a_file_that_cannot_be_imported(load, source, line, says):
    """TF-093: file, line, the user's own message and a remedy."""
    error = refused(load, source, says)
    assert error.file.endswith(f"kernels.py:{line}")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("none.py:workload", "none.py cannot be read.*experiment's folder"),
        ("kernels.py:wrkload", "has no 'wrkload'.*did you mean 'workload'"),
        ("kernels.py:scale", "is a function, not a tunefarm.Workload"),
        ("no_such_package.ops:x", "No module named"),
        ("kernels.py", "names no object"),
        ("notebook.ipynb:kern", "module-level function in a .py file"),
    ],
)
def test_references_that_lead_nowhere(load, reference, says):
    refused(load, KERNEL, says, reference=reference)


def test_kernel_by_exec(load):
    """TF-094: no stack trace from inspect."""
    source = PRELUDE + "exec('@triton.jit\\ndef k(x): pass')\nw = 1\n"
    refused(load, source, "must be a module-level function in a .py file", reference="kernels.py:w")


def test_kernel_that_is_a_closure(load):
    """TF-094: a kernel defined inside another function cannot be imported by workers."""
    source = PRELUDE + (
        "def build():\n    @triton.jit\n    def k(x): pass\n    return k\n"
        "workload = tunefarm.Workload(call=print, kernel=build(), inputs={})\n"
    )
    error = refused(load, source, "module-level function in a .py file")
    assert error.file.endswith("kernels.py:6")


def test_names_must_be_a_list(load):
    refused(load, KERNEL.replace('restore=["y"]', 'restore="y"'), "restore is 'y', not names")


def test_bad_inputs_in_python(load):
    error = refused(load, KERNEL.replace('["M", "N*2"]', '["M", "N.x"]'), r"'N.x' is not allowed")
    assert "kernels.py:" in error.file
    assert error.key == "inputs.x[1]"


def test_call_must_be_callable(load):
    refused(load, KERNEL.replace("call=scale,", "call=3,"), "call is not callable")


def test_numbers_from_expressions(load, tmp_path):
    load(KERNEL)
    from tunefarm.spec.constraint import Expression

    ref = WorkloadRef(
        call="kernels.py:scale", kernel="kernels.py:scale_kernel", inputs={"x": ["M"]}, folder=str(tmp_path),
        num_bytes=Expression("4*M"), default={"BLOCK": 64, "num_warps": 2},
    )  # fmt: skip
    workload = load_workload(ref)
    assert workload.num_bytes(M=3, dtype="bf16") == 12.0
    assert workload.flops is None
    assert dict(workload.default.params) == {"BLOCK": 64}
    assert dict(workload.default.options) == {"num_warps": 2}
    assert isinstance(workload, Workload)
