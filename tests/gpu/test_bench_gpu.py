"""On a GPU: machine code that a CPU-only process built is launched, checked and timed here, and nothing is compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunefarm.bench import telemetry, worker
from tunefarm.bench.launch import learn
from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, build, measure, probe
from tunefarm.config import Config
from tunefarm.errors import SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import FINAL, PREPARE, Outcome

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs Triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parents[1] / "experiments"
N = 100_000
MIB = 1 << 20

Ask = Callable[..., Answers]


def workload(name: str, file: str = "workloads.py", folder: Path = HERE) -> WorkloadRef:
    return WorkloadRef(call="", kernel="", object=f"{file}:{name}", folder=str(folder))


def config(**flat: Any) -> Config:
    params = {name: flat.pop(name) for name in list(flat) if name.isupper()}
    return Config(params=params, options=flat)


SOFTMAX = workload("workload", "kernels/softmax.py", EXPERIMENTS)
MATMUL = workload("matmuls", "bench_kernels.py", HERE.parent)
BLOCKS = [config(BLOCK=size, num_warps=4) for size in (128, 256, 1024)]


def gpu_fleet(num_builders: int) -> InlineFleet:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[:1]
    return InlineFleet([probe()], visible=visible, num_builders=num_builders)


@pytest.fixture(scope="module")
def fleet() -> Iterator[InlineFleet]:
    """One worker that holds the GPU, and builders that see none."""
    made = gpu_fleet(num_builders=2)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _leave_the_gpu_to_others() -> Iterator[None]:
    """This process measures, too, and would keep the GPU from the fleet's."""
    yield
    worker._watch.release()


@pytest.fixture(scope="module", autouse=True)
def _leave_the_gpu_empty() -> Iterator[None]:
    yield
    for meter in worker._meters.values():
        meter.close()
    torch.cuda.empty_cache()


def prepared(fleet: InlineFleet, ref: WorkloadRef, configs: Sequence[Config], **more: Any) -> Question:
    """A question about configs that a process without a GPU has built."""
    variables = FrozenMap({"n": N, "dtype": "fp32", **more.pop("variables", {})})
    device = probe()
    request = BuildRequest(ref=ref, variables=variables, configs=tuple(configs), target=device.target)
    built = fleet.submit(functools.partial(build, request), "build-0").result(300)
    assert [each.failure for each in built] == [None] * len(configs)
    work = load_workload(ref)
    problem = learn(work, make_inputs(work, variables, "meta"), configs[0], device.target).problem(work.key)
    candidates = tuple(
        Candidate(number=number, config=each.config, build=each.build, artifact=each.artifact)
        for number, each in enumerate(built)
    )
    return Question(
        ref=ref, device=device, problem=problem, variables=variables, candidates=candidates,
        **{"rung": 0, "num_samples": 3, **more},
    )  # fmt: skip


@pytest.fixture
def ask(fleet: InlineFleet) -> Ask:
    """Builds there, measures here."""

    def ask(ref: WorkloadRef, configs: Sequence[Config] = BLOCKS, **more: Any) -> Answers:
        answers = measure(prepared(fleet, ref, configs, **more))
        assert isinstance(answers, Answers), "the process is lost"
        assert answers.num_compiled == 0
        return answers

    return ask


def outcomes(answers: Answers) -> list[Outcome]:
    return [answer.outcome for answer in sorted(answers.answers, key=lambda answer: answer.number)]


def message(answer: Answer) -> str:
    assert answer.failure is not None
    return answer.failure.message


# ---- launched from machine code ----


def check_measured(answers: Answers, count: int, num_samples: int = 3) -> None:
    assert outcomes(answers) == [Outcome.OK] * count
    for answer in answers.answers:
        assert answer.measurement is not None
        assert len(answer.measurement.samples_ms) == num_samples
        assert len(answer.measurement.warmup_ms) == 2
        assert 0 < min(answer.measurement.samples_ms) < 100
        assert (answer.measurement.source, answer.measurement.timer) == ("measured", "cold")
        assert answer.measurement.worker == answers.worker
        assert answer.measurement.busy_s > 0


def test_vector_add_is_measured_and_nothing_is_compiled(ask):
    answers = ask(workload("adding"))
    check_measured(answers, 3)
    assert answers.reference_ms is not None
    assert 0 < answers.reference_ms < 100
    assert answers.notices == ()
    assert {"python", "torch", "triton"} <= answers.toolchain.keys()


@pytest.mark.parametrize("n_cols", [1024, 1000, 257])
def test_softmax_is_measured_and_right(ask, n_cols):
    """TF-038: columns that are no multiple of the block, short rows and rows longer than a block."""
    configs = [
        config(ROWS=1, BLOCK_N=4096, num_warps=4, num_stages=2),
        config(ROWS=4, BLOCK_N=1024, num_warps=4, num_stages=1),
        config(ROWS=2, BLOCK_N=256, num_warps=2, num_stages=3),
    ]
    for rung in (0, 1):
        variables = {"n_rows": 333, "n_cols": n_cols, "dtype": "bf16"}
        check_measured(ask(SOFTMAX, configs, variables=variables, rung=rung, num_samples=5), 3, 5)


def test_configs_that_share_machine_code_are_measured_each(ask, fleet):
    """TF-056: equal binaries of different options; neither is taken for the other."""
    configs = [config(BLOCK=256, num_warps=4, num_stages=stages) for stages in (1, 3)]
    candidates = prepared(fleet, workload("adding"), configs).candidates
    assert len({candidate.artifact.binary for candidate in candidates if candidate.artifact}) == 1
    check_measured(ask(workload("adding"), configs), 2)


def test_compiling_is_counted_where_it_happens(fleet, tmp_path, monkeypatch):
    """So that a zero means something: here the call launches another kernel, which has to be compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    answers = measure(prepared(fleet, workload("adding_twice"), BLOCKS[:1]))
    assert isinstance(answers, Answers)
    assert answers.num_compiled == 1


def test_machine_code_for_another_specialisation_is_refused(fleet):
    """TF-046: what was built for a size divisible by 16 is not launched for another."""
    even, odd = (prepared(fleet, workload("adding"), BLOCKS[:1], variables={"n": n}) for n in (1024, 1001))
    answers = measure(dataclasses.replace(odd, candidates=even.candidates))
    assert isinstance(answers, Answers)
    assert outcomes(answers) == [Outcome.LAUNCH_ERROR]
    assert message(answers.answers[0]).startswith("the call specialises otherwise here than where it was compiled")
    assert answers.num_compiled == 0


# ---- right before fast ----


def test_wrong_kernels_do_not_pass(ask):
    """TF-034, TF-033: off by 0.1, NaN, and two halves of which neither may profit from the other."""
    kinds = ["left", "right", "off", "nan", "none"]
    answers = ask(workload("faults"), [config(FAULT=kind, BLOCK=256, num_warps=4) for kind in kinds])
    assert outcomes(answers) == [Outcome.WRONG_RESULT] * 4 + [Outcome.OK]
    left, right, off, nan = answers.answers[:4]
    for half in (left, right):
        assert f"50 % of {N} elements differ" in message(half)
        assert f"{N // 2} NaN or never written" in message(half)
    assert "max abs 0.1" in message(off)
    assert f"100 % of {N}" in message(nan)
    assert all(answer.measurement is None for answer in answers.answers[:4])


def test_a_declared_tolerance_is_the_workloads_or_the_questions(ask):
    off = [config(FAULT="off", BLOCK=256, num_warps=4)]
    assert outcomes(ask(workload("loose"), off)) == [Outcome.OK]
    assert outcomes(ask(workload("loose"), off, variables={"n": 1024}, atol=0.01)) == [Outcome.WRONG_RESULT]
    assert outcomes(ask(workload("faults"), off, variables={"n": 1024}, atol=0.2)) == [Outcome.OK]


def test_another_shape_than_the_references_is_the_users_fault(ask):
    with pytest.raises(SpecError, match="the call returns tensors of shapes"):
        ask(workload("misshapen"))


def test_outputs_that_nothing_checks_are_noticed(ask):
    (notice,) = ask(workload("unchecked")).notices
    assert "has no reference: its outputs were not checked" in notice


# ---- every launch starts from the same content ----

TRIPLES = [config(FACTOR=factor, BLOCK=256, num_warps=warps) for factor, warps in ((3, 1), (2, 2), (3, 4), (3, 8))]


@pytest.mark.parametrize("name", ["tripling", "tripling_in_place"])
def test_what_works_in_place_is_restored(ask, name):
    """TF-029: also after a candidate that is wrong, on every rung, interleaved, and if the reference works in place."""
    for more in ({"rung": 0}, {"rung": 1, "num_samples": 5}, {"rung": FINAL, "interleaved": True}):
        answers = ask(workload(name), TRIPLES, **more)
        assert outcomes(answers) == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK, Outcome.OK]
        assert answers.notices == ()


def test_writing_where_nobody_said_so_is_noticed(ask):
    """TF-029: no candidate starts from what another left behind, and people are told."""
    for _ in range(2):
        answers = ask(workload("undeclared"), TRIPLES)
        assert outcomes(answers) == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK, Outcome.OK]
        (notice,) = answers.notices
        assert "writes into x: name the kernel's argument in restore or zero" in notice


def test_zeroed_arguments(ask):
    """TF-031: accumulating into memory that nobody cleared is wrong; declared, it is cleared before every launch."""
    for name in ("summing", "summing_into"):
        for more in ({}, {"rung": FINAL, "interleaved": True}):
            answers = ask(workload(name), **more)
            assert outcomes(answers) == [Outcome.OK] * 3
            assert answers.notices == ()
    assert outcomes(ask(workload("summing_dirty"))) == [Outcome.WRONG_RESULT] * 3


# ---- finals ----


def test_finals_are_interleaved(ask):
    configs = [*BLOCKS, config(BLOCK=64, num_warps=1)]
    answers = ask(workload("adding"), configs, rung=FINAL, interleaved=True, num_samples=20)
    check_measured(answers, 4, 20)
    assert {answer.measurement.rung for answer in answers.answers if answer.measurement} == {FINAL}
    medians = [answer.measurement.median_ms for answer in answers.answers if answer.measurement]
    assert max(medians) < 10 * min(medians)


def test_a_wrong_finalist_does_not_stop_the_others(ask):
    configs = [config(FAULT=kind, BLOCK=256, num_warps=4) for kind in ("none", "off", "skip")]
    answers = ask(workload("faults"), configs, rung=FINAL, interleaved=True, num_samples=20)
    assert outcomes(answers) == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK]


# ---- timing ----


def test_cold_times_stay_below_what_the_memory_can_do(ask):
    """TF-048: 256 MiB read and written; nothing of it may come from the cache."""
    device = probe()
    num_bytes = 256 * MIB
    variables = {"n": num_bytes // 4}
    answers = ask(workload("copying"), [config(BLOCK=4096, num_warps=8)], variables=variables, num_samples=15)
    measurement = answers.answers[0].measurement
    assert measurement is not None
    achieved_gbps = 2 * num_bytes / statistics.median(measurement.samples_ms) / 1e6
    assert device.bandwidth_gbps == 0 or 0.4 * device.bandwidth_gbps < achieved_gbps < 1.02 * device.bandwidth_gbps


# ---- what fails is data, and costs nobody else ----


def test_an_illegal_access_costs_a_process_and_one_candidate(fleet):
    """TF-003: the process is replaced; what it had not come to is asked again and measured as ever."""
    configs = [config(FAULT=kind, BLOCK=256, num_warps=4) for kind in ("none", "far", "skip")]
    question = prepared(fleet, workload("faults"), configs)
    worker._watch.release()
    with contextlib.closing(gpu_fleet(num_builders=0)) as own:
        check_replaced(own, question)


def check_replaced(fleet: InlineFleet, question: Question) -> None:
    first = fleet.submit(functools.partial(measure, question), "measure-0").result(300)
    assert outcomes(first) == [Outcome.OK, Outcome.ILLEGAL_ACCESS]
    assert "illegal memory access" in message(first.answers[1])
    rest = dataclasses.replace(question, candidates=(question.candidates[0], question.candidates[2]))
    second = fleet.submit(functools.partial(measure, rest), "measure-0").result(300)
    assert outcomes(second) == [Outcome.OK, Outcome.OK]
    assert second.worker != first.worker
    assert second.startup_s > 0
    third = fleet.submit(functools.partial(measure, rest), "measure-0").result(300)
    assert third.worker == second.worker
    assert third.startup_s == 0


def test_too_much_shared_memory_is_found_when_loading(ask):
    """TF-005: known from the build beforehand; asked nevertheless, it fails alone and leaves the process whole."""
    configs = [
        config(BM=64, BN=64, BK=32, num_warps=4, num_stages=2),
        config(BM=128, BN=256, BK=64, num_warps=8, num_stages=8),
    ]
    variables = {"M": 512, "N": 512, "K": 1024, "dtype": "bf16"}
    answers = ask(MATMUL, configs, variables=variables)
    assert outcomes(answers) == [Outcome.OK, Outcome.OUT_OF_RESOURCES]
    assert answers.answers[1].why.stage == "load"
    assert "shared memory" in message(answers.answers[1])


def test_a_problem_that_does_not_fit_is_named(ask):
    """TF-013: needed and free memory are in the message, of no candidate's stage; the process goes on."""
    before = torch.cuda.memory_allocated()
    answers = ask(workload("copying"), variables={"n": 1 << 42})
    assert outcomes(answers) == [Outcome.DEVICE_OOM] * 3
    assert {answer.why.stage for answer in answers.answers} == {PREPARE}
    assert message(answers.answers[0]).startswith("input x of copy_kernel cannot be made: OutOfMemoryError: ")
    assert "Tried to allocate" in message(answers.answers[0])
    assert "is free" in message(answers.answers[0])
    assert torch.cuda.memory_allocated() <= before
    check_measured(ask(workload("copying")), 3)


def test_memory_does_not_grow_with_candidates(ask):
    """TF-010: neither those that fail nor those that succeed keep tensors."""
    ask(workload("copying"))
    before = torch.cuda.memory_allocated()
    kinds = ["none", "off", "skip", "nan", "left"]
    configs = [config(FAULT=kind, BLOCK=size, num_warps=4) for kind in kinds for size in (128, 256, 512)]
    variables = {"n": 4 * MIB}

    def used() -> int:
        ask(workload("faults"), configs, variables=variables)
        return torch.cuda.memory_allocated()

    first = used()
    torch.cuda.reset_peak_memory_stats()
    assert abs(used() - first) <= MIB
    # What comparing one candidate takes, and not what fifteen would keep.
    assert torch.cuda.max_memory_allocated() - first < 14 * 16 * MIB
    ask(workload("copying"))
    assert abs(torch.cuda.memory_allocated() - before) <= MIB


# ---- the GPU itself ----


def test_the_live_device():
    device = probe()
    properties = torch.cuda.get_device_properties(0)
    assert device.live
    assert device.vendor == "nvidia"
    assert device.name == properties.name
    assert device.capability == torch.cuda.get_device_capability(0)
    assert device.target == 10 * properties.major + properties.minor
    assert device.num_sms == properties.multi_processor_count > 0
    assert 48 * 1024 <= device.shared_bytes <= 512 * 1024
    assert device.registers == 65536
    assert (device.warp_size, device.max_threads) == (32, 1024)
    assert device.memory_bytes > MIB
    assert device.l2_bytes > 0
    assert device.bandwidth_gbps == 0 or 100 < device.bandwidth_gbps < 20_000


def test_telemetry_of_the_live_device():
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    seen = telemetry.sample()
    if seen:
        assert seen["sm_mhz"] > 0
        assert 0 < seen["temperature_c"] < 120
        assert isinstance(seen["throttle"], str)
        assert seen["num_processes"] >= 0
    assert "driver" in telemetry.toolchain()
