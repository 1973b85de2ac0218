"""Kernels of packages that know nothing of tunefarm: planned, compiled for sm_90, adopted, and looked up, all for real.

Skipped where a package is not installed: `pip install --no-deps flash-linear-attention fla-core einops adasplash`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_kernels import SM_90, Seen, make_pack

from tunefarm.bench.launch import default_config
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, build
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.export import match_of
from tunefarm.pack import Pack, Row
from tunefarm.plan import PlannedStudy, Target, plan
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.reporting import report
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Outcome

FOLDER = Path(__file__).parents[1] / "experiments" / "third_party"
PACKAGES = {
    "fla_l2norm": ("fla", "fla.modules.norm.l2norm"),
    "adasplash_entmax": ("adasplash", "adasplash.triton_entmax"),
}
pytestmark = pytest.mark.filterwarnings("default")  # what other packages warn of is theirs
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Resolved, PlannedStudy, str]]:
    package, module = PACKAGES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    resolved = open_experiment(FOLDER / f"{request.param}.yaml")
    first, *_ = plan(resolved, [Target(device=SM_90)])
    deactivate()
    torch._dynamo.reset()
    yield resolved, first, module
    deactivate()


class SeenWhole(Seen):
    """One that gives back whatever the graph does, of static shapes."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        super().__call__(graph, inputs)
        outputs: Any = graph.graph.output_node().args[0]
        values = [node.meta["example_value"] for node in outputs]
        return lambda *_: [torch.zeros(value.shape, dtype=value.dtype) for value in values]


def pack_of(resolved: Resolved, study: PlannedStudy, config: Config) -> Pack:
    problem = study.study.problem
    row = Row(
        match=match_of(problem), measured_at=problem.dims, config=config, median_ms=1.0, interval_ms=(1.0, 1.0)
    )  # fmt: skip
    return make_pack(resolved.workload.kernel, row)


def test_its_kernel_compiles_for_a_gpu(opened: tuple[Resolved, PlannedStudy, str]) -> None:
    resolved, study, _ = opened
    request = BuildRequest(
        ref=resolved.experiment.ref, variables=study.study.variables,
        configs=(study.candidates[0], study.candidates[-1]), target=study.study.device.target,
    )  # fmt: skip
    assert [built.outcome for built in build(request)] == [Outcome.OK] * 2


def test_its_kernel_obeys_after_install(
    opened: tuple[Resolved, PlannedStudy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager and traced, with the call of the package's own."""
    resolved, study, module = opened
    workload = resolved.workload
    chosen = next(c for c in study.candidates if c != default_config(workload))
    assert workload.signature.kernel in install(module)
    activate(pack_of(resolved, study, chosen), device=SM_90)
    launched: list[dict[str, Any]] = []
    monkeypatch.setattr(workload.kernel.fn, "run", lambda *_, **passed: launched.append(passed))
    inputs = make_inputs(workload, study.study.variables, "cpu")
    workload.call(**inputs)
    assert {**chosen.params, **chosen.options}.items() <= launched[0].items()
    assert [(hit.launches, hit.graphs) for hit in report().hits] == [(1, 0)]

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    seen = SeenWhole()
    torch.compile(workload.call, backend=seen)(**inputs)
    assert [{**chosen.params, **chosen.options}.items() <= graph[0].items() for graph in seen.graphs] == [True]
    assert [(hit.launches, hit.graphs) for hit in report().hits] == [(1, 1)]
    assert not report().misses
