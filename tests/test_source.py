"""The source hash: the same for the same meaning, another for another."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunefarm.errors import SpecError
from tunefarm.source import python_function, source_hash

KERNEL = '''
class jit:
    """Stands for @triton.jit: keeps the function, takes part in nothing."""
    def __init__(self, fn): self.fn = fn

def autotune(**options):
    return lambda kernel: jit(kernel)

SCALE = 2.0

@jit
def twice(x):
    return x * SCALE

@jit
def kernel(x, n, BLOCK: int):
    i = BLOCK + 1
    return twice(x + i) if i < n else x
'''


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ModuleType]:
    num = 0

    def load(code: str, name: str = "") -> ModuleType:
        nonlocal num
        num += 1
        name = name or f"kernel_source_{num}"
        path = tmp_path / f"{name}.py"
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load


def changed(old: str, new: str) -> str:
    assert old in KERNEL
    return KERNEL.replace(old, new)


@pytest.mark.parametrize(
    "code",
    [
        "\n\n# moved down\n" + KERNEL,
        changed("    i = BLOCK + 1", "    # why\n    i = (BLOCK +\n         1)  # what"),
        changed("    i = BLOCK", '    """What it does."""\n    i = BLOCK'),
        changed("    return x * SCALE", "    '''Doubles.'''\n    return x * SCALE"),
        changed("@jit\ndef kernel", "@autotune(configs=[1, 2])\n@jit\ndef kernel"),
        changed("n, BLOCK: int):", "n, BLOCK: int) -> float:"),
        KERNEL + "\nOTHER = 3.0\n",
    ],
    ids=["position", "comments", "docstring", "docstring of a callee", "decorators", "return type", "unrelated"],
)
def test_what_does_not_change_the_meaning_does_not_change_the_hash(code: str, load: Any) -> None:
    assert source_hash(load(code).kernel) == source_hash(load(KERNEL).kernel)


@pytest.mark.parametrize(
    "code",
    [
        changed("i = BLOCK + 1", "i = BLOCK + 2"),
        changed("return x * SCALE", "return x + SCALE"),
        changed("SCALE = 2.0", "SCALE = 3.0"),
        changed("i < n", "i <= n"),
        changed("(x, n, BLOCK: int)", "(x, BLOCK: int, n)"),
    ],
    ids=["body", "callee", "constant of a callee", "comparison", "signature"],
)
def test_what_changes_the_meaning_changes_the_hash(code: str, load: Any) -> None:
    assert source_hash(load(code).kernel) != source_hash(load(KERNEL).kernel)


def test_functions_of_other_modules_are_followed(load: Any) -> None:
    start, rest = KERNEL.split("@jit\ndef kernel")
    hashes = set()
    for i, callee in enumerate([start, start, start.replace("SCALE = 2.0", "SCALE = 3.0")]):
        load(callee, f"kernel_callee_{i}")
        for use in (f"from kernel_callee_{i} import jit, twice", f"import kernel_callee_{i} as ops\njit = ops.jit"):
            body = rest.replace("twice(", "ops.twice(") if "as ops" in use else rest
            hashes.add((use.split()[0], source_hash(load(f"{use}\n@jit\ndef kernel{body}").kernel)))
    assert len(hashes) == 4, "one for each way of calling, and one more where the constant differs"


def test_a_function_that_calls_itself_has_a_hash(load: Any) -> None:
    code = changed("return x * SCALE", "return twice(x) * SCALE")
    assert len(source_hash(load(code).kernel)) == 64


def test_the_hash_is_the_same_in_another_process(load: Any, tmp_path: Path) -> None:
    module = load(KERNEL, "kernel_of_another_process")
    code = (
        "import kernel_of_another_process as k; from tunefarm.source import source_hash; print(source_hash(k.kernel))"
    )
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parents[1])!r}]; {code}"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == source_hash(module.kernel)


def test_a_real_jitted_kernel_has_a_hash_with_and_without_its_autotuner(load: Any) -> None:
    triton = pytest.importorskip("triton")
    code = textwrap.dedent(
        """
        import triton
        import triton.language as tl

        @triton.jit
        def scale(x, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
        """
    )
    plain = load(code).scale
    tuned = load(
        code.replace("@triton.jit", "@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit")
    )
    assert isinstance(tuned.scale, triton.runtime.Autotuner)
    assert source_hash(tuned.scale) == source_hash(plain)
    assert python_function(tuned.scale).__name__ == "scale"


def test_what_has_no_source_is_refused_with_the_remedy() -> None:
    def inner() -> None: ...

    scope: dict[str, Any] = {}
    exec("def made(): pass", scope)
    for kernel, said in (
        (inner, "is defined inside another function"),
        (scope["made"], "source of kernel made cannot be read"),
        (42, "is not a Triton kernel"),
    ):
        with pytest.raises(SpecError, match=said) as caught:
            source_hash(kernel)
        assert caught.value.hint
