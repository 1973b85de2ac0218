"""The jobs a fleet carries: they travel as pickles, and what the user did wrong is said by name."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tunefarm import landscape as landscapes
from tunefarm.bench.launch import learn
from tunefarm.bench.meter import Answers, Candidate, Question
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, Built, build, measure, probe
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError, LandscapeError, SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import Outcome

WORKLOAD = """
import torch, triton, triton.language as tl, tunefarm

@triton.jit
def scale_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def scale(x):
    y = torch.empty_like(x)
    scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y

def looking(x):
    return scale(x) if x.sum().item() else x

workload = tunefarm.Workload(call=scale, kernel=scale_kernel, inputs={"x": ["n"]})
blind = tunefarm.Workload(call=looking, kernel=scale_kernel, inputs={"x": ["n"]})
"""
VARIABLES = FrozenMap(n=1000, dtype="bf16")
CONFIGS = tuple(Config(params={"BLOCK": size}, options={"num_warps": 2}) for size in (64, 96, 128))


@pytest.fixture
def ref(tmp_path: Path) -> Callable[[str], WorkloadRef]:
    (tmp_path / "scaling.py").write_text(WORKLOAD)
    return lambda name="workload": WorkloadRef(call="", kernel="", object=f"scaling.py:{name}", folder=str(tmp_path))


def travelled(job: Callable[[], Any]) -> Any:
    """What a job returns whose request and whose answer have both crossed a process boundary."""
    return pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(job))()))


def request(ref: WorkloadRef, target: int = 90) -> functools.partial[tuple[Built, ...]]:
    return functools.partial(build, BuildRequest(ref=ref, variables=VARIABLES, configs=CONFIGS, target=target))


@pytest.mark.parametrize("target", [80, 90])
def test_building(ref, target):
    """TF-014: the config that cannot be compiled fails alone, between two that can."""
    first, odd, last = travelled(request(ref(), target))
    assert [built.config for built in (first, odd, last)] == list(CONFIGS)
    for built, grid in ((first, 16), (last, 8)):
        assert built.outcome is Outcome.OK
        assert built.build.grid == (grid, 1, 1)
        assert built.artifact.binary == built.build.binary
        assert built.artifact.cubin.startswith(b"\x7fELF")
    assert odd.build is None
    assert odd.artifact is None
    assert odd.outcome is Outcome.COMPILE_ERROR
    assert "scale_kernel line 2" in odd.failure.message


def test_what_the_builder_specialises_is_what_the_meter_will_see(ref):
    """The artifact fits the launch that another process learns; a different alignment is another one."""
    work = load_workload(ref())
    artifact = travelled(request(ref()))[0].artifact
    launch = learn(work, make_inputs(work, VARIABLES, "cpu"), CONFIGS[0], 90)
    assert artifact.specialization == launch.specialization
    odd = learn(work, {"x": torch.empty(1001, dtype=torch.bfloat16)[1:]}, CONFIGS[0], 90)
    assert artifact.specialization != odd.specialization


def test_building_in_a_worker_of_a_fleet(ref):
    fleet = InlineFleet(num_builders=1)
    try:
        built = fleet.submit(request(ref()), "build-0").result(120)
        with pytest.raises(SpecError, match=r"the call of scale_kernel raised RuntimeError: .*scaling.py:15\)"):
            fleet.submit(request(ref("blind")), "build-0").result(120)
    finally:
        fleet.close()
    assert [each.outcome for each in built] == [Outcome.OK, Outcome.COMPILE_ERROR, Outcome.OK]


def test_a_workload_that_is_not_there(ref):
    with pytest.raises(SpecError, match="nothing"):
        build(BuildRequest(ref=ref("nothing"), variables=VARIABLES, configs=CONFIGS, target=90))


def question(ref: WorkloadRef, landscape: str = "") -> Question:
    work = load_workload(ref)
    launch = learn(work, make_inputs(work, VARIABLES, "meta"), CONFIGS[0], 90)
    return Question(
        ref=ref, device=nominal("sm_90"), problem=launch.problem(None), variables=VARIABLES,
        candidates=tuple(Candidate(number=n, config=c) for n, c in enumerate(CONFIGS)), rung=0, num_samples=3,
        landscape=landscape,
    )  # fmt: skip


@pytest.fixture
def recording(ref: Callable[[], WorkloadRef], tmp_path: Path) -> str:
    entries = tuple(Entry(config=config, outcome=Outcome.OK, samples_ms=(1.0, 2.0, 3.0)) for config in CONFIGS[:2])
    recorded = Recorded(problem=question(ref()).problem, entries=entries, reference_ms=7.0)
    made = Landscape(
        kernel="scale_kernel", source_hash="0", device=nominal("sm_90"), problems=(recorded,),
        toolchain=FrozenMap(torch="1.2", triton="3.4"),
    )  # fmt: skip
    landscapes.save(made, tmp_path / "recording.json.gz")
    return str(tmp_path / "recording.json.gz")


def test_measuring_from_a_landscape(ref, recording):
    answers = travelled(functools.partial(measure, question(ref(), recording)))
    assert isinstance(answers, Answers)
    assert [answer.outcome for answer in answers.answers] == [Outcome.OK, Outcome.OK, Outcome.SKIPPED]
    assert answers.answers[0].measurement.samples_ms == (1.0, 2.0, 3.0)
    assert answers.answers[0].measurement.worker == "landscape"
    assert dict(answers.toolchain) == {"torch": "1.2", "triton": "3.4"}
    assert (answers.reference_ms, answers.num_compiled, answers.notices) == (7.0, 0, ())
    assert travelled(functools.partial(measure, question(ref(), recording))).startup_s == 0.0


def test_a_replay_needs_no_workload_and_no_torch(ref, recording):
    asked = pickle.dumps(question(ref(), recording)).hex()
    code = f"""
import pickle, sys
sys.path[:] = {sys.path!r}
from tunefarm.bench.worker import measure
answers = measure(pickle.loads(bytes.fromhex("{asked}")))
assert answers.startup_s > 0
assert not {{"torch", "triton"}} & sys.modules.keys(), "slow to start, and absent from a client's install"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_problem_that_the_landscape_lacks(ref, recording):
    other = FrozenMap(n=5, dtype="fp32")
    work = load_workload(ref())
    problem = learn(work, make_inputs(work, other, "meta"), CONFIGS[0], 90).problem(None)
    with pytest.raises(LandscapeError, match="does not hold problem"):
        measure(dataclasses.replace(question(ref(), recording), problem=problem))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_machine_is_at_fault(ref):
    with pytest.raises(InfrastructureError, match="no CUDA device"):
        measure(question(ref()))
    with pytest.raises(InfrastructureError, match="no CUDA device"):
        probe()
