"""Every experiment's workload: right on the CPU under Triton's interpreter, and compiled for each of its devices."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import interpreted
import numpy
import pytest
import torch
from farm import write_experiment

from tunefarm.bench.build import triton_version
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, build
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config, Value
from tunefarm.device import nominal
from tunefarm.dispatch import Dispatch
from tunefarm.fleet.parcel import open_reply, pack
from tunefarm.fleet.process import LocalProcess
from tunefarm.frozen import FrozenMap
from tunefarm.plan import Call, PlannedStudy, Target, plan
from tunefarm.seams import Fleet
from tunefarm.spec.experiment import Resolved, load_experiment
from tunefarm.spec.sections import ProblemSpec
from tunefarm.trial import Outcome

FOLDER = Path(__file__).parents[1] / "experiments"
sys.path.insert(0, str(FOLDER / "benchmarks"))

import compile_all  # noqa: E402

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NUM_INTERPRETED, NUM_COMPILED = 2, 8
"""Configs tried beside the default, and configs compiled for each device."""
MAX_ELEMENTS = 8 << 20
"""In all inputs of what is tried under the interpreter."""

SMALL: Mapping[str, list[dict[str, Value]]] = {
    "add_relu_add": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 3, "n_cols": 4097}],
    "bmm_add_relu": [
        {"batch": 2, "M": 48, "N": 80, "K": 64, "dtype": "fp16"},
        {"batch": 3, "M": 20, "N": 70, "K": 41, "dtype": "fp16"},
    ],
    "cross_entropy": [
        {"n_rows": 9, "n_cols": 1000},
        {"n_rows": 5, "n_cols": 70001},
        {"n_rows": 9, "n_cols": 1024},
        {"n_rows": 5, "n_cols": 70016},
        {"n_rows": 9, "n_cols": 32},
    ],
    "flash_attention": [
        {"batch": 2, "heads": 2, "kv_heads": 1, "length": 200, "head_dim": 64, "dtype": "fp16"},
        {"batch": 1, "heads": 2, "kv_heads": 2, "length": 77, "head_dim": 128, "dtype": "fp16"},
    ],
    "fused_moe": [
        {"tokens": 40, "experts": 4, "top_k": 2, "hidden": 64, "intermediate": 96, "dtype": "fp16"},
        {"tokens": 3, "experts": 5, "top_k": 3, "hidden": 72, "intermediate": 40, "dtype": "fp16"},
    ],
    "layer_norm": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 2, "n_cols": 20000}],
    "layer_norm_backward": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 141, "n_cols": 96}],
    "matmul": [{"M": 128, "N": 96, "K": 160, "dtype": "fp16"}, {"M": 70, "N": 55, "K": 41, "dtype": "fp16"}],
    "matmul_decode": [{"M": 16, "N": 96, "K": 300, "dtype": "fp16"}, {"M": 3, "N": 55, "K": 41, "dtype": "fp16"}],
    "matmul_fp8": [{"M": 128, "N": 96, "K": 160}, {"M": 70, "N": 64, "K": 48}],
    "matmul_tma": [{"M": 128, "N": 96, "K": 160, "dtype": "fp16"}, {"M": 70, "N": 64, "K": 48, "dtype": "fp16"}],
    "rms_norm": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 2, "n_cols": 20000}],
    "rope": [
        {"batch": 2, "length": 5, "n_q_heads": 6, "n_k_heads": 2, "head_dim": 64},
        {"batch": 1, "length": 3, "n_q_heads": 5, "n_k_heads": 5, "head_dim": 24},
    ],
    "softmax": [
        {"n_rows": 5, "n_cols": 1000},
        {"n_rows": 2, "n_cols": 40001},
        {"n_rows": 5, "n_cols": 1024},
        {"n_rows": 2, "n_cols": 40960},
        {"n_rows": 9, "n_cols": 160},
    ],
    "swiglu": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 3, "n_cols": 4097}],
    "vector_add": [{"n_elements": 1000}, {"n_elements": 70001}],
}
"""By experiment, sizes that an interpreter gets through; what they leave out is as in the first problem."""

CHECKED = [name for name in NAMES if load_experiment(FOLDER / f"{name}.yaml").checks]
CASES = [
    pytest.param(name, small, id=f"{name}-{number}")
    for name in NAMES
    for number, small in enumerate(SMALL.get(name, []))
]


def planned(resolved: Resolved, arch: str, small: Mapping[str, Value] | None = None) -> list[PlannedStudy]:
    """The studies that have candidates, or that of a small problem instead."""
    if small is not None:
        problem = ProblemSpec(variables=FrozenMap(resolved.experiment.problems[0].variables, **small))
        resolved = replace(resolved, experiment=replace(resolved.experiment, problems=(problem,)))
    return [study for study in plan(resolved, [Target(device=nominal(arch))]) if study.candidates]


def num_elements(resolved: Resolved, call: Call) -> int:
    """Of all tensors that a call is made with."""
    made = make_inputs(resolved.workload, call.variables, "meta").values()
    return sum(value.numel() for value in made if hasattr(value, "numel"))


def drawn(study: PlannedStudy, count: int) -> list[Config]:
    """Candidates drawn with a fixed seed."""
    return random.Random(study.study.key).sample(study.candidates, min(count, len(study.candidates)))


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.fixture(scope="module")
def interpreter() -> Iterator[LocalProcess]:
    """A process in which `triton.jit` makes Python functions: that is decided when Triton is imported."""
    if release(triton_version()) < (3, 7) and release(numpy.__version__) >= (2, 4):
        pytest.skip("the interpreter of Triton before 3.7 needs NumPy before 2.4: it makes numbers of arrays")
    process = LocalProcess("interpreter", {"TRITON_INTERPRET": "1"})
    yield process
    process.kill()
    process.bury()


def test_every_experiment_has_small_problems() -> None:
    assert sorted(SMALL) == NAMES


def assert_right(process: LocalProcess, call: Call, configs: Sequence[Config]) -> None:
    found, error = open_reply(process.exchange(pack(partial(interpreted.failures, call.ref, call.variables, configs))))
    if error is not None:
        raise error
    assert len(found) == len(configs)
    assert [pair for pair in zip(configs, found, strict=True) if pair[1] is not None] == [], call.changes


@pytest.mark.parametrize(("name", "small"), CASES)
def test_a_workload_is_right(interpreter: LocalProcess, name: str, small: Mapping[str, Value]) -> None:
    """The default and a few others: what is wrong in the kernel's logic shows without a GPU."""
    (study,) = planned(open_experiment(FOLDER / f"{name}.yaml"), "sm_90", small)
    assert study.default is not None
    assert_right(interpreter, study.call, [study.default, *drawn(study, NUM_INTERPRETED)])


@pytest.mark.parametrize("name", CHECKED)
def test_the_checks_of_an_experiment_hold(interpreter: LocalProcess, name: str) -> None:
    """Made for finalists, of a small problem and for the default: odd sizes, alignments, strides, NaN."""
    resolved = open_experiment(FOLDER / f"{name}.yaml")
    (study,) = planned(resolved, "sm_90", SMALL[name][0])
    assert study.default is not None
    calls = [call for call in study.checks if num_elements(resolved, call) <= MAX_ELEMENTS]
    assert calls
    for call in calls:
        assert_right(interpreter, call, [study.default])


def test_targets_are_read_where_they_lie(interpreter: LocalProcess) -> None:
    resolved = open_experiment(FOLDER / "cross_entropy.yaml")
    job = partial(interpreted.strided_targets, resolved.experiment.ref, resolved.workload.default)
    found, error = open_reply(interpreter.exchange(pack(job)))
    assert error is None
    assert max(found) < 1e-5


def test_experts_may_be_named_in_int32(interpreter: LocalProcess) -> None:
    resolved = open_experiment(FOLDER / "fused_moe.yaml")
    job = partial(interpreted.narrow_routing, resolved.experiment.ref, resolved.workload.default)
    assert open_reply(interpreter.exchange(pack(job))) == (True, None)


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


Q, K, TABLE = meta(2, 5, 6, 64), meta(2, 5, 2, 64), meta(5, 32, dtype=torch.float32)
MISFITS = [
    ("vector_add", (meta(8), meta(7)), "y"),
    ("add_relu_add", (meta(4, 8), meta(7), meta(4, 8)), "bias"),
    ("add_relu_add", (meta(4, 8), meta(8), meta(3, 8)), "c"),
    ("bmm_add_relu", (meta(2, 4, 8), meta(2, 8, 6), meta(6)), "bias"),
    ("cross_entropy", (meta(4, 8), meta(3, dtype=torch.int64)), "target"),
    ("cross_entropy", (meta(4, 8), meta(4, 1, dtype=torch.int64)), "target"),
    ("fused_moe", (meta(4, 8), meta(3, 6, 8), meta(4, 2)), "topk_ids"),
    ("fused_moe", (meta(4, 8), meta(3, 6, 8), meta(5, 2, dtype=torch.int32)), "topk_ids"),
    ("matmul_tma", (meta(16, 12), meta(12, 16)), "rows of a"),
    ("matmul_tma", (meta(16, 16), meta(16, 12)), "rows of b"),
    ("matmul_tma", (meta(16, 16), meta(16, 16)[:, :12]), "rows of b"),
    ("matmul_tma", (meta(16, 24)[:, 1:17], meta(16, 16)), "a"),
    ("rope", (Q, K, TABLE[:4], TABLE), "cos"),
    ("rope", (Q, K, TABLE, TABLE[:, :31]), "sin"),
    ("rope", (Q, meta(1, 5, 2, 64), TABLE, TABLE), "k"),
    ("rope", (meta(2, 5, 6, 63), meta(2, 5, 2, 63), TABLE[:, :31], TABLE[:, :31]), "q"),
    ("swiglu", (meta(4, 7),), "x"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "culprit"), [pytest.param(*m, id=f"{m[0]}-{n}") for n, m in enumerate(MISFITS)]
)
def test_a_call_whose_arguments_do_not_fit_names_the_one(
    name: str, arguments: tuple[torch.Tensor, ...], culprit: str
) -> None:
    """Before anything is launched, and from shapes alone: nothing here has memory to be read."""
    call = open_experiment(FOLDER / f"{name}.yaml").workload.call
    with pytest.raises(ValueError, match=rf"^{name}: {culprit}\b"):
        call(*arguments)


@pytest.mark.parametrize("mask", ["-inf", "least"])
@pytest.mark.parametrize(("n_cols", "block"), [(9001, 2048), (9088, 2048), (9001, 16384), (9088, 16384), (5, 2048)])
@pytest.mark.parametrize(("name", "tolerances"), [("softmax", (1e-6,)), ("cross_entropy", (1e-3, 1e-6))])
def test_a_masked_beginning_is_no_maximum(
    interpreter: LocalProcess, name: str, tolerances: tuple[float, ...], n_cols: int, block: int, mask: str
) -> None:
    """Taken for zero, the maximum of nothing but -inf lets the exponentials of all that follows vanish; multiplied
    before it is subtracted, the least number becomes -inf, and its distance from itself NaN. In rows of several blocks
    or one, of whole cache lines or not, and of less than one.
    """
    resolved = open_experiment(FOLDER / f"{name}.yaml")
    default = resolved.workload.default
    assert default is not None
    config = Config(params={**default.params, "BLOCK_N": block}, options=default.options)
    errors, error = open_reply(
        interpreter.exchange(pack(partial(interpreted.masked_rows, resolved.experiment.ref, config, mask, n_cols)))
    )
    assert error is None
    assert all(found < most for found, most in zip(errors, tolerances, strict=True))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", NAMES)
def test_a_workload_compiles(name: str, arch: str) -> None:
    """Through the job that build workers do; what needs more shared memory than the device has is no failure."""
    resolved = open_experiment(FOLDER / f"{name}.yaml")
    studies = planned(resolved, arch)
    if not studies:
        pytest.skip(f"{arch} can run no candidate of {name}")
    for number, study in enumerate(studies):
        share = NUM_COMPILED // len(studies) + (number < NUM_COMPILED % len(studies))
        request = BuildRequest(
            ref=resolved.experiment.ref,
            variables=study.study.variables,
            configs=tuple(drawn(study, share)),
            target=study.study.device.target,
        )
        for built in build(request):
            assert built.outcome is Outcome.OK, (study.study.label, built.config, built.failure)


def test_a_whole_space_is_compiled_once_and_its_failures_are_counted(fleet: Fleet, tmp_path: Path) -> None:
    """`make compile-all`: equal specialisations share builds, and what a compiler refuses is told by its kind."""
    space = {"BLOCK": [64, 96], "MARK": [0, 1], "num_warps": [1]}
    path = write_experiment(tmp_path, space=space, problems=[{"n": [1024, 4096], "dtype": "fp32"}], devices=["sm_90"])
    counted = compile_all.compile_space(path, "sm_90", Dispatch(fleet))
    # Two problems of five candidates each, the default among them; a block of 96 is no power of two.
    assert (counted.num_candidates, counted.num_builds) == (10, 5)
    assert dict(counted.failures) == {"compile_error: CompilationError": 4}
