"""Every experiment's workload: right on the CPU under Triton's interpreter, and compiled for each of its devices."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import interpreted
import pytest

from tunefarm.bench.worker import BuildRequest, build
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config, Value
from tunefarm.device import nominal
from tunefarm.fleet.parcel import open_reply, pack
from tunefarm.fleet.process import LocalProcess
from tunefarm.frozen import FrozenMap
from tunefarm.plan import PlannedStudy, Target, plan
from tunefarm.spec.experiment import Resolved
from tunefarm.spec.sections import ProblemSpec
from tunefarm.trial import Failure, Outcome

FOLDER = Path(__file__).parents[1] / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
NUM_INTERPRETED, NUM_COMPILED = 2, 8
"""Configs tried beside the default, and configs compiled for each device."""

SMALL: Mapping[str, list[dict[str, Value]]] = {
    "add_relu_add": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 3, "n_cols": 4097}],
    "cross_entropy": [{"n_rows": 9, "n_cols": 1000}, {"n_rows": 5, "n_cols": 70001}],
    "layer_norm": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 2, "n_cols": 20000}],
    "layer_norm_backward": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 141, "n_cols": 96}],
    "rms_norm": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 2, "n_cols": 20000}],
    "rope": [
        {"batch": 2, "length": 5, "n_q_heads": 6, "n_k_heads": 2, "head_dim": 64},
        {"batch": 1, "length": 3, "n_q_heads": 5, "n_k_heads": 5, "head_dim": 24},
    ],
    "softmax": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 2, "n_cols": 40001}],
    "swiglu": [{"n_rows": 5, "n_cols": 1000}, {"n_rows": 3, "n_cols": 4097}],
    "vector_add": [{"n_elements": 1000}, {"n_elements": 70001}],
}
"""By experiment, sizes that an interpreter gets through; what they leave out is as in the first problem."""

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


def drawn(study: PlannedStudy, count: int) -> list[Config]:
    """Candidates drawn with a fixed seed."""
    return random.Random(study.study.key).sample(study.candidates, min(count, len(study.candidates)))


@pytest.fixture(scope="module")
def interpreter() -> Iterator[LocalProcess]:
    """A process in which `triton.jit` makes Python functions: that is decided when Triton is imported."""
    process = LocalProcess("interpreter", {"TRITON_INTERPRET": "1"})
    yield process
    process.kill()
    process.bury()


def test_every_experiment_has_small_problems() -> None:
    assert sorted(SMALL) == NAMES


@pytest.mark.parametrize(("name", "small"), CASES)
def test_a_workload_is_right(interpreter: LocalProcess, name: str, small: Mapping[str, Value]) -> None:
    """The default and a few others: what is wrong in the kernel's logic shows without a GPU."""
    resolved = open_experiment(FOLDER / f"{name}.yaml")
    (study,) = planned(resolved, "sm_90", small)
    assert study.default is not None
    configs = [study.default, *drawn(study, NUM_INTERPRETED)]
    job = partial(interpreted.failures, resolved.experiment.ref, study.study.variables, configs)
    found, error = open_reply(interpreter.exchange(pack(job)))
    if error is not None:
        raise error
    wrong: list[tuple[Config, Failure]] = [pair for pair in zip(configs, found, strict=True) if pair[1] is not None]
    assert len(found) == len(configs)
    assert not wrong


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
