"""On a GPU: kernels that Inductor generates are harvested, swept, and found by a job that benchmarks none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]

TESTS = Path(__file__).parents[1]


def tunefarm(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tunefarm.cli", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["gated_norm", "layer_norm"])
def swept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[dict[str, Any]]]:
    """A function, the pack of a small sweep of each of its kernels, and the kernels."""
    folder = tmp_path_factory.mktemp("generated")
    major, minor = torch.cuda.get_device_capability()
    words = ("harvest", f"{TESTS}/harvested.py:{request.param}", "--out", "harvested", "--device", f"sm_{major}{minor}")
    kernels = json.loads(tunefarm(folder, *words, "--json").splitlines()[-1])["kernels"]
    for kernel in kernels:
        with (folder / kernel["experiment"]).open("a") as file:
            file.write("budget: {trials: 8}\n")
        tunefarm(folder, "sweep", kernel["experiment"], "--fleet", "inline", "--meter", "gpu")
    return request.param, folder / "packs" / "harvested.json", kernels


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    import torch._inductor.config as inductor

    deactivate()
    torch._dynamo.reset()
    with inductor.patch({"force_disable_caches": True}):
        yield
    deactivate()


def test_a_job_finds_every_kernel_and_benchmarks_none(swept, monkeypatch):
    import harvested
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    name, pack, kernels = swept
    # Rows and columns in one kernel, where there are enough.
    assert any("RSPLIT_SIZE" in k["configs"][0] for k in kernels) == (name == "layer_norm")
    benchmarked: list[str] = []
    monkeypatch.setattr(CachingAutotuner, "bench", lambda self, *_, **__: benchmarked.append(self.fn.__name__) or 1.0)
    assert activate(pack).num_rows == len(kernels)
    function, inputs = getattr(harvested, name)()
    gradient = torch.randn_like(inputs[0])

    def run(call: Any) -> list[Any]:
        outputs = call(*inputs)
        return [outputs, *torch.autograd.grad(outputs, inputs, gradient)]

    wanted = run(function)
    got = run(torch.compile(function))
    for mine, theirs in zip(got, wanted, strict=True):
        # Eager rounds to bf16 between operations; the compiled function does so at its end.
        scale = float(theirs.float().abs().mean())
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=0.05, atol=0.05 * scale)
    told = report()
    assert (told.num_hits, told.num_misses, told.never_asked) == (len(kernels), 0, ())
    assert benchmarked == []
