"""On a GPU: AOTInductor's packages hold what an active pack says, and packaging benchmarks none of it.

Each packaging is a process of its own: it is native code that is made, loaded and run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HERE = Path(__file__).parent

PACKAGING = """
import faulthandler, sys, tempfile
faulthandler.enable()
sys.path[:0] = [{here!r}, {tests!r}]
import torch
import tunefarm
import test_runtime_gpu as kernels, test_templates_gpu as products
from lowered import pack_of
from tunefarm.runtime.kernels import live_device
from tunefarm.runtime.reporting import report
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

timed = []
stock = CachingAutotuner.bench
CachingAutotuner.bench = lambda self, *a, **k: timed.append(self.fn.__name__) or stock(self, *a, **k)

class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)

def packaged(function, inputs):
    program = torch.export.export(Module(function), inputs, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(program, package_path=folder + "/model.pt2")
        return torch._inductor.aoti_load_package(path)
"""

STOCK = """
x = torch.randn(64, 64, device="cuda")
torch.testing.assert_close(packaged(lambda x: torch.relu(x) + 1, (x,))(x), torch.relu(x) + 1)
"""

KERNEL = """
tunefarm.activate(kernels.make_pack(kernels.own_kernel))
x = torch.randn(kernels.ROWS, 2048, device="cuda")
y, used = packaged(kernels.model_of(kernels.own_kernel), (x,))(x)
torch.testing.assert_close(y, (torch.relu(x) * 3 + 1) * 0.5)
assert tuple(used.tolist()) == kernels.expected(2048), used
assert not [name for name in timed if name.startswith("own_kernel")], timed
assert (report().num_hits, report().num_misses) == (1, 0)
"""

PRODUCTS = """
inputs = products.tensors()
calls = products.recorded(inputs)
tunefarm.activate(pack_of(*((gemm, products.TEMPLATE) for gemm in calls), device=live_device(0)), strict=True)
with products.benchmarks() as found:
    model = packaged(products.products, inputs)
assert found == [], found
products.check(model(*inputs), inputs)
assert report().num_hits == sum(calls.values())
"""


def run(text: str) -> subprocess.CompletedProcess[str]:
    text = PACKAGING.format(here=str(HERE), tests=str(HERE.parent)) + text
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module", autouse=True)
def packaging() -> None:
    """What this torch cannot package without a pack says nothing of packs."""
    done = run(STOCK)
    if done.returncode:
        # Of a process that a signal killed, the frames stand at the beginning, and its modules at the end.
        said = done.stderr[:1500] if done.returncode < 0 else done.stderr[-500:]
        pytest.skip(f"AOTInductor does not work here without a pack either: exit code {done.returncode}, {said}")


@pytest.mark.parametrize("text", [KERNEL, PRODUCTS], ids=["kernel", "products"])
def test_a_package_holds_what_the_pack_says(text: str) -> None:
    done = run(text)
    assert done.returncode == 0, done.stderr[-3000:]
