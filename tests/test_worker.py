"""The jobs a fleet carries: they travel as pickles, and what the user did wrong is said by name."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from farm import GPU
from rigged import ILLEGAL, Deed, Disturbed, Perilous

from tunefarm import landscape as landscapes
from tunefarm.bench import worker
from tunefarm.bench.launch import learn
from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, Built, build, measure, probe
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError, LandscapeError, SpecError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.fleet.parcel import open_will
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.problem import Problem
from tunefarm.seams import Retire
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import PREPARE, Failure, Outcome

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


# ---- a process that is lost, and what it had found out ----

CONTENDED = "contended: 1 other processes computed on the GPU"
KEPT, TWICE = f"kept from a process that was lost, though {CONTENDED}", f"measured twice and still {CONTENDED}"
FIRST, SECOND, LAST = (Config(params={"BLOCK": size, "MARK": 0}, options={"num_warps": 2}) for size in (64, 128, 256))


def poison() -> None:
    raise RuntimeError(ILLEGAL)


def err() -> Failure:
    return Failure(stage="verify", kind="mismatch", message="output 0")


class In:
    """A deed of one sitting of several; a candidate has its turn once in each."""

    def __init__(self, sitting: int, deed: Deed) -> None:
        self._left, self._deed = sitting, deed

    def __call__(self) -> Any:
        self._left -= 1
        return self._deed() if self._left == 0 else None


def sit(times: int, deeds: dict[Any, Deed]) -> Answers | Retire:
    """What a worker finds out on a GPU that is disturbed a number of times, with candidates that do harm."""
    worker._meters["gpu"] = Perilous(deeds)
    worker._watch = Disturbed(CONTENDED, times)  # type: ignore[assignment]
    candidates = tuple(Candidate(number=n, config=config) for n, config in enumerate((FIRST, SECOND, LAST)))
    asked = Question(
        ref=WorkloadRef(call="", kernel="", object="", folder=""), device=GPU, problem=Problem(),
        variables=FrozenMap(n=1000), candidates=candidates, rung=0, num_samples=3,
    )  # fmt: skip
    return measure(asked)


@pytest.fixture(scope="module")
def fleet() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU], num_builders=1)
    yield made
    made.close()


def found(fleet: InlineFleet, times: int, deeds: dict[Any, Deed]) -> tuple[list[tuple[Outcome, str]], list[str]]:
    """How each answer ended and what disturbed it, and the notices: told, or left behind as a will."""
    try:
        answers = fleet.submit(functools.partial(sit, times, deeds), "measure-0").result(60)
    except WorkerLost as lost:
        will = open_will(lost)
        assert will is not None
        answers = will.execute(lost)
    assert isinstance(answers, Answers)
    assert all(a.measurement.worker == answers.worker for a in answers.answers if a.measurement is not None)
    assert [answer.number for answer in answers.answers] == list(range(len(answers.answers)))
    ended = [
        (a.outcome, str(a.measurement.telemetry.get("disturbed", "")) if a.measurement else "") for a in answers.answers
    ]
    return ended, list(answers.notices)


GOOD, DISTURBED = (Outcome.OK, ""), (Outcome.OK, CONTENDED)
POISONED, CRASHED, WRONG = (Outcome.ILLEGAL_ACCESS, ""), (Outcome.CRASHED, ""), (Outcome.WRONG_RESULT, "")


@pytest.mark.parametrize(
    ("times", "deeds", "ended", "notices"),
    [
        (0, {LAST: poison}, [GOOD, GOOD, POISONED], []),
        (1, {LAST: poison}, [DISTURBED, DISTURBED, POISONED], [KEPT]),
        (0, {LAST: os.abort}, [GOOD, GOOD, CRASHED], []),
        (1, {LAST: os.abort}, [DISTURBED, DISTURBED, CRASHED], [KEPT]),
        (1, {LAST: In(2, poison)}, [GOOD, GOOD, POISONED], []),
        (1, {SECOND: In(2, poison)}, [GOOD, POISONED, DISTURBED], [KEPT]),
        (2, {FIRST: err, SECOND: In(2, poison)}, [WRONG, POISONED, DISTURBED], [KEPT]),
        (1, {FIRST: err, LAST: In(2, os.abort)}, [WRONG, GOOD, CRASHED], []),
        (2, {FIRST: err, LAST: In(2, os.abort)}, [WRONG, DISTURBED, CRASHED], [KEPT]),
        (1, {FIRST: err}, [WRONG, GOOD, GOOD], []),
        (2, {FIRST: err}, [WRONG, DISTURBED, DISTURBED], [TWICE]),
    ],
    ids=[
        "poisoned", "poisoned and disturbed", "dead", "dead and disturbed", "poisoned at the end of the second sitting",
        "poisoned within it", "poisoned in it, disturbed", "dead in it", "dead in it, disturbed", "well", "disturbed",
    ],
)  # fmt: skip
def test_what_was_found_outlives_its_process_with_what_was_seen_of_the_gpu(
    fleet: InlineFleet, times: int, deeds: dict[Any, Deed], ended: list[tuple[Outcome, str]], notices: list[str]
) -> None:
    """TF-003, TF-054: whichever sitting it is lost in; and disturbed times are never kept unsaid."""
    assert found(fleet, times, deeds) == (ended, notices)


def test_who_dies_before_the_first_candidate_keeps_what_an_earlier_sitting_found() -> None:
    failure = Failure(stage="verify", kind="mismatch", message="output 0")
    before = Answers(answers=(Answer(number=0, outcome=Outcome.WRONG_RESULT, failure=failure),), busy_s=3.0)
    told = worker._Unprepared(before=before, numbers=(1,)).execute(WorkerLost("gone", death="SIGABRT"))
    assert (told.answers[0], told.busy_s) == (before.answers[0], 3.0)
    assert [(a.number, a.outcome, a.why.stage) for a in told.answers[1:]] == [(1, Outcome.CRASHED, PREPARE)]
