"""On a GPU: matrix products of torch.compile are tuned here and obeyed in a job, which benchmarks nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from lowered import pack_of

import tunefarm
from tunefarm.config import LIBRARY, Config
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import Gemm
from tunefarm.inductor.gemms import recording_gemms, write_gemms
from tunefarm.pack_reader import load_pack
from tunefarm.runtime.activation import deactivate
from tunefarm.runtime.kernels import live_device
from tunefarm.runtime.reporting import report

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch.compile warns of many things that are not ours
]

SPACE = """
space:
  BLOCK_M: [64, 128]
  BLOCK_N: [64, 128]
  BLOCK_K: [32, 64]
  GROUP_M: [4, 8]
  num_warps: [4, 8]
  num_stages: [3, 4]
"""
TEMPLATE = Config(
    params=FrozenMap(BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, GROUP_M=4), options=FrozenMap(num_warps=8, num_stages=3)
)
"""In no list of Inductor's. K = 544 is no multiple of its BLOCK_K."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    from torch._inductor import utils

    deactivate()
    torch._dynamo.reset()
    # A graph from Inductor's cache asks for nothing, so there would be nothing to count.
    with (getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache)():
        yield
    deactivate()
    torch._dynamo.reset()


def tensors() -> tuple[Any, ...]:
    generator = torch.Generator("cuda").manual_seed(0)

    def made(*size: int) -> Any:
        return torch.randn(size, device="cuda", generator=generator).to(torch.bfloat16)

    return made(1024, 544), made(544, 256), made(256), made(384, 544), made(384)


def products(a: Any, b: Any, bias: Any, weight: Any, offset: Any) -> tuple[Any, ...]:
    return torch.mm(a, b), torch.addmm(bias, a, b), torch.nn.functional.linear(a, weight, offset)


@contextmanager
def benchmarks() -> Iterator[list[str]]:
    """Names of what Inductor benchmarks meanwhile."""
    from torch._inductor.runtime.benchmarking import benchmarker

    found: list[str] = []
    with ExitStack() as stack:
        for name in ("benchmark", "benchmark_gpu", "benchmark_many_gpu", "benchmark_cpu"):
            stock = getattr(type(benchmarker), name, None)
            if stock is not None:
                stack.enter_context(mock.patch.object(type(benchmarker), name, _noting(stock, name, found)))
        yield found


def _noting(stock: Callable[..., Any], name: str, found: list[str]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(name)
        return stock(*args, **kwargs)

    return noted


def recorded(inputs: tuple[Any, ...]) -> Counter[Gemm]:
    with recording_gemms() as calls:
        torch.compile(products)(*inputs)
    torch._dynamo.reset()
    return calls


def check(outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
    expected = products(*(tensor.double() for tensor in inputs))
    for actual, wanted in zip(outputs, expected, strict=True):
        scale = wanted.square().mean().sqrt()
        assert ((actual.double() - wanted).abs().max() / scale).item() < 0.05


def test_products_are_tuned_here_and_obeyed(tmp_path: Path) -> None:
    """The whole way: noted under torch.compile, swept against the library's call, packed, loaded."""
    inputs = tensors()
    calls = recorded(inputs)
    assert {gemm.op for gemm in calls} == {"mm", "addmm"}
    told = write_gemms(calls, tmp_path, archs=[live_device(0).arch], export="pack.json")
    assert not told.left_out
    for path in told.experiments:
        head, rest = path.read_text().split("\nspace:")
        path.write_text(head + SPACE + "\ndevices:" + rest.partition("devices:")[2])
        done = subprocess.run(
            [sys.executable, "-m", "tunefarm.cli", "sweep", str(path), "--fleet", "inline", "--tracking", "none"],
            cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    pack = load_pack(tmp_path / "pack.json")
    assert {(table.kernel, table.layer) for table in pack.tables} == {("mm", 2), ("addmm", 2)}
    rows = [row for table in pack.tables for row in table.rows]
    assert len(rows) == len(calls)
    assert all(row.default == LIBRARY and row.default_ms is not None for row in rows)
    tunefarm.activate(tmp_path / "pack.json", strict=True)
    with benchmarks() as found:
        outputs = torch.compile(products)(*inputs)
    assert found == []
    check(outputs, inputs)
    assert (report().num_hits, report().num_misses) == (sum(calls.values()), 0)


def test_templates_are_used_where_rows_say_so() -> None:
    """Whatever would have won: also with a last block that needs its mask."""
    from torch._inductor.utils import run_and_get_code

    inputs = tensors()
    pack = pack_of(*((gemm, TEMPLATE) for gemm in recorded(inputs)), device=live_device(0))
    tunefarm.activate(pack, strict=True)
    with benchmarks() as found:
        outputs, (code,) = run_and_get_code(torch.compile(products), *inputs)
    assert found == []
    check(outputs, inputs)
    assert "extern_kernels." not in code
    assert code.count("@triton_heuristics.template") == 3
    assert "GROUP_M : tl.constexpr = 4" in code


def test_what_no_row_answers_is_the_librarys_call_and_is_not_timed() -> None:
    from torch._inductor.utils import run_and_get_code

    inputs = tensors()
    calls = recorded(inputs)
    mm = next(gemm for gemm in calls if gemm.op == "mm")
    tunefarm.activate(pack_of((mm, TEMPLATE), device=live_device(0)))
    with benchmarks() as found:
        outputs, (code,) = run_and_get_code(torch.compile(products, mode="max-autotune-no-cudagraphs"), *inputs)
    assert found == []
    check(outputs, inputs)
    assert code.count("@triton_heuristics.template") == 1
    assert code.count("extern_kernels.") >= 2


def test_a_backward_that_is_compiled_in_another_thread_obeys() -> None:
    layer = torch.nn.Linear(544, 256, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1024, 544, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        torch.compile(layer)(x).square().sum().backward()

    with recording_gemms() as calls:
        step()
    torch._dynamo.reset()
    assert len(calls) == 3  # forward, and two of the backward
    tunefarm.activate(pack_of(*((gemm, TEMPLATE) for gemm in calls), device=live_device(0)), strict=True)
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            step()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    assert errors == []
    assert report().num_hits == 3
