"""On a GPU: what counts as right by bits, layout, size and further calls; and what the timers make of short kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from pathlib import Path

import pytest
import test_bench_gpu
from farm import events, play
from test_bench_gpu import (
    EXPERIMENTS,
    HERE,
    MATMUL,
    MIB,
    SOFTMAX,
    TRIPLES,
    config,
    gpu_fleet,
    message,
    outcomes,
    prepared,
    workload,
)

from tunefarm.bench import worker
from tunefarm.bench.gpu import GpuMeter
from tunefarm.bench.loaded import Loaded
from tunefarm.bench.meter import Answers
from tunefarm.bench.worker import measure, probe
from tunefarm.plan import Target
from tunefarm.study import Status
from tunefarm.trial import FINAL, Outcome

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ask, fleet = test_bench_gpu.ask, test_bench_gpu.fleet
_leave_the_gpu_to_others = test_bench_gpu._leave_the_gpu_to_others
_leave_the_gpu_empty = test_bench_gpu._leave_the_gpu_empty
OK, WRONG = Outcome.OK, Outcome.WRONG_RESULT
LONG, BLOCKS = 1 << 20, [config(BLOCK=size, num_warps=4) for size in (128, 256, 1024)]


def exacting(name):
    return workload(name, "exacting.py")


def median_ms(answers: Answers) -> float:
    (answer,) = answers.answers
    assert answer.measurement is not None, answer.failure
    return statistics.median(answer.measurement.samples_ms)


def empty() -> None:
    """Frees what earlier questions of this process left warm."""
    for meter in worker._meters.values():
        meter.close()
    torch.cuda.empty_cache()


# ---- equal bit by bit ----

TOTALS = [
    config(ATOMIC=False, BLOCK=1024, num_warps=4), config(ATOMIC=True, BLOCK=64, num_warps=1),
    config(ATOMIC=True, BLOCK=128, num_warps=2),
]  # fmt: skip


def test_sums_in_any_order_do_not_repeat(ask):
    """Atomics add in the order in which programs arrive: right within the tolerance, and never twice the same."""
    many = {"variables": {"n": LONG}}
    assert outcomes(ask(exacting("totalling"), TOTALS, **many)) == [OK, OK, OK]
    answers = ask(exacting("totalling"), TOTALS, same_bits="repeat", **many)
    assert outcomes(answers) == [OK, WRONG, WRONG]
    for answer in answers.answers[1:]:
        assert answer.why.kind == "other bits"
        assert message(answer).startswith("output 0: 100 % of 1 elements have other bits than those of an equal launch")


def test_bits_of_the_default(ask, fleet):
    """What is within the tolerance and not the default's own answer is out, if that is asked for."""
    kinds = [config(FAULT=kind, BLOCK=512, num_warps=4) for kind in ("none", "off")]
    faults = workload("faults")
    (default,) = prepared(fleet, faults, [config(FAULT="none", BLOCK=128, num_warps=4)]).candidates
    baseline = dataclasses.replace(default, number=-1)
    assert outcomes(ask(faults, kinds, atol=0.2)) == [OK, OK]
    answers = ask(faults, kinds, atol=0.2, same_bits="default", baseline=baseline)
    assert outcomes(answers) == [OK, WRONG]
    assert "have other bits than the default config's" in message(answers.answers[1])


def test_without_a_default_nothing_has_its_bits(ask):
    answers = ask(workload("adding"), same_bits="default")
    assert outcomes(answers) == [WRONG] * 3
    assert "there is no default config that can be built" in message(answers.answers[0])


# ---- tolerances ----


def test_tf_036_a_tolerance_that_the_reference_misses_is_widened_and_said(ask):
    tiles = [config(BM=64, BN=64, BK=32, num_warps=4, num_stages=2)]
    variables = {"M": 256, "N": 256, "K": 4096, "dtype": "bf16"}
    answers = ask(MATMUL, tiles, variables=variables, atol=1e-4, rtol=1e-4)
    assert outcomes(answers) == [OK]
    (notice,) = [notice for notice in answers.notices if "tolerance below attainable" in notice]
    assert "itself misses atol 0.0001, rtol 0.0001 in the inputs' precision" in notice
    attainable = ask(MATMUL, tiles, variables=variables, atol=1.0, rtol=0.05)
    assert outcomes(attainable) == [OK]
    assert not [notice for notice in attainable.notices if "attainable" in notice]


# ---- sizes ----


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [
        (1000, 999, 1001, [WRONG, WRONG]), (512, 512, 500, [WRONG, WRONG]), (1, 1, 1, [WRONG, WRONG]),
        (512, 512, 544, [OK, WRONG]), (1000, 999, 1024, [OK, OK]),
    ],
)  # fmt: skip
def test_tf_038_an_unmasked_loop_is_wrong_for_each_problem_that_its_block_does_not_divide(ask, m, n, k, expected):
    tiles = [config(BM=32, BN=32, BK=size, num_warps=4, num_stages=2) for size in (32, 64)]
    answers = ask(exacting("multiplying"), tiles, variables={"M": m, "N": n, "K": k, "dtype": "bf16"})
    assert outcomes(answers) == expected


def test_beyond_two_to_the_31_elements(ask):
    """Every element is compared, and those that nobody wrote are NaN: right up to the last one."""
    empty()
    free, _ = torch.cuda.mem_get_info()
    if free < 100 << 30:
        pytest.skip(f"needs 100 GiB of free GPU memory for the comparison, there are {free >> 30}")
    adding = workload("workload", "kernels/vector_add.py", EXPERIMENTS)
    configs = [config(BLOCK=4096, STEPS=steps, STAGES=1, KEEP="", num_warps=8) for steps in (1, 4)]
    answers = ask(adding, configs, variables={"n_elements": (1 << 31) + 4099, "dtype": "bf16"})
    assert outcomes(answers) == [OK, OK]
    empty()


# ---- layouts ----

AWARE = [config(AWARE=aware, BLOCK=256, num_warps=4) for aware in (True, False)]


@pytest.mark.parametrize(("name", "expected"), [
    ("dense", [OK, OK]), ("transposed", [OK, WRONG]), ("repeated", [OK, WRONG]),
])  # fmt: skip
def test_a_kernel_that_takes_any_layout_for_dense_is_wrong_for_that_layout_alone(ask, name, expected):
    """TF-044, TF-045: strides are the workload's word, and inputs are made with them, down to stride 0."""
    assert outcomes(ask(exacting(name), AWARE, variables={"rows": 64, "cols": 48})) == expected


def test_tf_045_what_repeats_one_element_is_restored_as_one(ask):
    """In place, over the same element each time: launched often, and still three times the first value."""
    factors = [config(FACTOR=factor, num_warps=1) for factor in (3, 2, 3)]
    for more in ({"rung": 0}, {"rung": FINAL, "interleaved": True, "num_samples": 20}):
        answers = ask(exacting("tripling_repeated"), factors, variables={"n": 64}, **more)
        assert outcomes(answers) == [OK, WRONG, OK]
        assert answers.notices == ()


def test_tf_046_an_unaligned_input_has_machine_code_of_its_own(ask, fleet):
    assert outcomes(ask(exacting("unaligned"))) == [OK] * 3
    aligned, unaligned = (prepared(fleet, ref, BLOCKS[:1]) for ref in (workload("adding"), exacting("unaligned")))
    assert "x" in dict(aligned.problem.facts)
    assert "x" not in dict(unaligned.problem.facts)
    answers = measure(dataclasses.replace(unaligned, candidates=aligned.candidates))
    assert isinstance(answers, Answers)
    assert outcomes(answers) == [Outcome.LAUNCH_ERROR]
    assert "specialises otherwise here than where it was compiled" in message(answers.answers[0])


# ---- timers ----

ROW = [config(ROWS=1, BLOCK_N=1024, num_warps=4, num_stages=1)]
SHORT = {"n_rows": 1, "n_cols": 1024, "dtype": "bf16"}


def test_tf_050_a_graph_of_many_launches_does_not_time_the_launch(ask):
    """One row of 1024: under the cold timer most of the time is the launch's."""
    times = {
        timer: median_ms(ask(SOFTMAX, ROW, variables=SHORT, timer=timer, num_samples=20)) for timer in ("cold", "graph")
    }
    assert times["graph"] < 0.7 * times["cold"]


def test_tf_048_each_result_says_its_timer_and_hot_is_not_cold(ask):
    """16 MiB read and 16 MiB written stay in an L2 of 50 MiB unless they are driven out."""
    times = {}
    for timer in ("cold", "hot", "graph"):
        answers = ask(
            workload("copying"), [config(BLOCK=1024, num_warps=4)], variables={"n": 4 * MIB}, timer=timer,
            num_samples=20,
        )  # fmt: skip
        times[timer] = median_ms(answers)
        assert [a.measurement.timer for a in answers.answers if a.measurement] == [timer]
    assert times["hot"] < times["cold"]


@pytest.mark.parametrize("timer", ["hot", "graph"])
def test_tf_029_what_is_restored_is_restored_under_every_timer(ask, timer):
    for more in ({"rung": 0}, {"rung": FINAL, "interleaved": True, "num_samples": 20}):
        answers = ask(workload("tripling"), TRIPLES, timer=timer, **more)
        assert outcomes(answers) == [OK, WRONG, OK, OK]
        assert answers.notices == ()


@pytest.mark.parametrize(("precision", "count"), [(1.0, 3), (-1.0, 47)])
def test_samples_are_taken_until_the_median_is_known_or_there_are_enough(ask, precision, count):
    """A precision that nothing reaches ends at the greatest number."""
    for interleaved in (False, True):
        answers = ask(
            workload("copying"), BLOCKS[:2], variables={"n": 4 * MIB}, num_samples=3, max_samples=47,
            precision=precision, interleaved=interleaved,
        )  # fmt: skip
        counts = [len(answer.measurement.samples_ms) for answer in answers.answers if answer.measurement]
        assert counts == [count] * 2


def test_those_who_sit_together_write_to_the_same_place(fleet):
    """Two addresses alone make a difference that would pass for one of configs."""
    question = prepared(fleet, workload("copying"), BLOCKS[:2], rung=FINAL, interleaved=True)
    meter = GpuMeter()
    with contextlib.closing(meter):
        meter.prepare(question)
        first = meter._load(question.candidates[0], question)
        assert isinstance(first, Loaded)
        apart = meter._load(question.candidates[1], question)
        shared = meter._load(question.candidates[1], question, first.arguments)
        assert isinstance(apart, Loaded)
        assert isinstance(shared, Loaded)
        assert apart.arguments["y"].data_ptr() != first.arguments["y"].data_ptr()
        assert shared.arguments["y"].data_ptr() == first.arguments["y"].data_ptr()
        first.arguments["y"].fill_(7)
        shared.fire()
        assert torch.equal(shared.arguments["y"], shared.arguments["x"])


# ---- checks, through a whole sweep ----

EXPERIMENT = """\
name: careless
workload: careless.py:workload
problems: [{{n: 16777216, dtype: fp32}}] # bound by memory: the careless ones are as fast
space: {{CARELESS: [0, 1], BLOCK: [512, 1024], num_warps: [4]}}
devices: [{arch}]
checks:
  - {{n: n - 1}}
  - {{inputs: {{x: {{offset: 1}}}}}}
  - {{inputs: {{x: {{special: true}}}}}}
"""


def test_tf_038_a_config_that_is_right_for_round_sizes_alone_does_not_win(tmp_path: Path, store: Path) -> None:
    """It is as fast, and right for the problem itself; a check of one element less shows it."""
    device = probe()
    (tmp_path / "careless.py").write_text((HERE / "careless.py").read_text())
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT.format(arch=device.arch))
    worker._watch.release()
    with contextlib.closing(gpu_fleet(num_builders=2)) as own:
        targets = [Target(device=device, meter="gpu")]
        played = play(tmp_path / "experiment.yaml", own, store, targets=targets)
    (result,) = played.results
    assert result.status is Status.WINNER
    assert result.winner is not None
    assert result.winner.config.params["CARELESS"] == 0
    failed = events(played.ledger, "failed")
    assert failed
    for event in failed:
        assert "CARELESS=1" in event["config"]
        assert event["outcome"] == "wrong_result"
        assert event["failure"]["message"].startswith("check n=n - 1: output 0: ")
        assert "15 NaN or never written" in event["failure"]["message"]
