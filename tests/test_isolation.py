"""No candidate can harm a sweep: each fault costs its candidate, and at most one process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import GPU, check_ledger, events, play, write_experiment
from rigged import ILLEGAL, Pretended, measure_perilously

import tunefarm.builds
from tunefarm.config import Config
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FINAL, Failure, Outcome

# ---- deeds of candidates on the GPU ----


def raise_(error: BaseException) -> None:
    raise error


def die_of(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    time.sleep(60)


def abort_in_the_driver() -> None:
    print("driver: assertion failed", file=sys.stderr, flush=True)
    os.abort()


SPACE: dict[str, list[object]] = {"BLOCK": [64, 128, 256], "MARK": [0, 1, 2, 3], "num_warps": [2]}
MEMORY = "CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has a total capacity of 16 GiB of which 12 GiB is free"

Expected = tuple[Callable[[], Any], Outcome, str, str]
STICKY: list[Expected] = [
    (abort_in_the_driver, Outcome.CRASHED, "SIGABRT", "driver: assertion failed"),
    (partial(die_of, signal.SIGSEGV), Outcome.CRASHED, "SIGSEGV", "no last words"),
    (partial(os._exit, 7), Outcome.CRASHED, "exit code 7", "no last words"),
    (partial(time.sleep, 60), Outcome.TIMEOUT, "hung", "no answer within 1 s"),
    (partial(raise_, RuntimeError(ILLEGAL)), Outcome.ILLEGAL_ACCESS, "RuntimeError", "CUDA error: an illegal"),
]
HARMLESS: list[Expected] = [
    (partial(sys.exit, 3), Outcome.USER_ERROR, "SystemExit", "3"),
    (partial(raise_, KeyError("n")), Outcome.USER_ERROR, "KeyError", "'n'"),
    (partial(raise_, RuntimeError(MEMORY)), Outcome.DEVICE_OOM, "RuntimeError", "CUDA out of memory"),
]


def config(block: int, mark: int) -> Config:
    return Config(params={"BLOCK": block, "MARK": mark}, options={"num_warps": 2})


def failures(result: StudyResult) -> dict[Config, tuple[Outcome, Failure]]:
    return {trial.config: (trial.outcome, trial.failure) for trial in result.trials if trial.failure is not None}


def test_every_fault_of_a_candidate_gets_its_outcome_and_costs_a_process_at_most(tmp_path: Path, store: Path) -> None:
    """TF-003, TF-020: crashes, an exit, a hang, a sticky error and harmless ones, beside good configs."""
    places = [config(block, mark) for block in (128, 256) for mark in range(4)]
    expected = dict(zip(places, [*STICKY, *HARMLESS], strict=True))
    experiment = write_experiment(tmp_path, space=SPACE, devices=["sm_90"])
    own = InlineFleet([GPU], num_builders=1)
    deeds = {bad: deed for bad, (deed, *_) in expected.items()}
    fleet = Pretended(own, partial(measure_perilously, deeds, tmp_path / "roll"))
    began = time.monotonic()
    try:
        played = play(experiment, fleet, store, targets=[Target(device=GPU, meter="gpu")])
    finally:
        own.close()
    (result,) = played.results
    assert result.status is Status.WINNER
    found = failures(result)
    assert found.keys() == expected.keys()
    for bad, (_, outcome, kind, message) in expected.items():
        told, failure = found[bad]
        assert (told, failure.stage, failure.kind) == (outcome, "launch", kind), failure
        assert failure.message.startswith(message), failure
    assert "in abort_in_the_driver" in found[config(128, 0)][1].detail
    # The four good ones and the default are measured; each answer stands once in the ledger.
    assert result.num_measured == 5
    check_ledger(played)
    assert len(events(played.ledger, "failed")) == len(expected)
    # What a process found before it died has its name, too.
    assert all(e["measurement"]["worker"] for e in events(played.ledger, "measured"))
    processes = set((tmp_path / "roll").read_text().split())
    assert len(processes) <= 2 + len(STICKY), "one to begin with, one for the finals"
    assert played.dispatch.notices == []
    assert time.monotonic() - began < 120, "a lease alone is longer"


@pytest.mark.parametrize(
    ("deed", "outcome"),
    [(partial(time.sleep, 60), Outcome.TIMEOUT), (os.abort, Outcome.CRASHED)],
    ids=["hang", "crash"],
)
def test_a_finalist_that_harms_the_sitting_is_found_among_the_others(
    tmp_path: Path, store: Path, deed: Callable[[], Any], outcome: Outcome
) -> None:
    """While they take turns nobody is blamed: each then sits alone, and the rest sit together again."""
    experiment = write_experiment(tmp_path, space={**SPACE, "MARK": [0]}, devices=["sm_90"])
    guilty = config(128, 0)  # the fastest
    own = InlineFleet([GPU], num_builders=1)
    fleet = Pretended(own, partial(measure_perilously, {(FINAL, guilty): deed}, tmp_path / "roll"))
    try:
        (result,) = play(experiment, fleet, store, targets=[Target(device=GPU, meter="gpu")]).results
    finally:
        own.close()
    assert result.winner is not None
    assert result.winner.config != guilty
    assert [(bad, told) for bad, (told, _) in failures(result).items()] == [(guilty, outcome)]
    # One measures, one dies with the finals, one of the guilty alone; a fresh one may follow each.
    assert len(set((tmp_path / "roll").read_text().split())) <= 5


# ---- the compiler ----

KERNEL = farm.KERNEL.replace(
    "    i = tl.program_id(0)",
    """\
    wide: tl.constexpr = meddle(MARK)
    i = tl.program_id(0)""",
).replace(
    "@triton.jit",
    """\
@triton.constexpr_function
def meddle(mark):
    import os
    def dive():
        return dive() + 1
    if mark == 1:
        os.abort()
    if mark == 2:
        raise SystemExit("out of the compiler")
    while mark == 3:
        pass
    if mark == 4:
        dive()
    if mark == 5:
        raise FileNotFoundError("tuning.txt")
    if mark == 6:
        raise MemoryError
    if mark == 7:
        raise KeyboardInterrupt
    return mark


@triton.jit""",
    1,
)


def test_a_compiler_that_crashes_exits_or_hangs_costs_that_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF-001, TF-020: whatever is raised in it, and one worker at most."""
    monkeypatch.setattr(tunefarm.builds, "BUILD_FLOOR_S", 4.0)
    monkeypatch.setattr(tunefarm.builds, "HOPELESS", 1.0)
    space = {"BLOCK": [64, 128], "MARK": [0, 1, 2, 3, 4, 5, 6, 7], "num_warps": [4]}
    problems = [{"n": [1000, 3000], "dtype": "fp32"}]
    experiment = write_experiment(
        tmp_path, KERNEL, space=space, problems=problems, devices=["sm_90"],
        constraints=["MARK == 0 or BLOCK == 128"],
    )  # fmt: skip
    own = InlineFleet([], num_builders=1)
    try:
        played = play(experiment, own, tmp_path / "cold")
    finally:
        own.close()
    said = {
        1: (Outcome.CRASHED, "SIGABRT", "no last words"),
        2: (Outcome.COMPILE_ERROR, "SystemExit", "out of the compiler"),
        3: (Outcome.COMPILE_TIMEOUT, "hung", "no answer within 4 s"),
        4: (Outcome.COMPILE_ERROR, "CompilationError", "maximum recursion depth exceeded"),
        5: (Outcome.COMPILE_ERROR, "CompilationError", "tuning.txt"),
        6: (Outcome.COMPILE_ERROR, "CompilationError", "MemoryError"),
        7: (Outcome.COMPILE_ERROR, "KeyboardInterrupt", "KeyboardInterrupt"),
    }
    for result in played.results:
        found = {bad.params["MARK"]: how for bad, how in failures(result).items()}
        assert found.keys() == said.keys()
        for mark, (outcome, kind, words) in said.items():
            told, failure = found[mark]
            assert (told, failure.stage, failure.kind) == (outcome, "build", kind), failure
            assert words in failure.message, failure
            assert len(failure.message) <= 400
        for mark in (1, 3):
            assert f"({tmp_path}/kernels.py:" in found[mark][1].message
    # Studies that share a specialisation share the fault: nothing is compiled, and nobody killed, twice.
    assert played.board.num_compiled == 9
    assert played.dispatch.notices == []
