"""When a study gives up, and what it says then; and a default that cannot run, which is no reason to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from farm import GPU, LARGE, events, play, smooth, tunefarm, write_experiment, write_landscape
from rigged import ILLEGAL, Pretended, measure_perilously

from tunefarm.cli.terminal import closing_table, study_line
from tunefarm.config import Config, Value
from tunefarm.fleet.inline import InlineFleet
from tunefarm.pack_reader import load_pack
from tunefarm.plan import Target
from tunefarm.record.card import card
from tunefarm.seams import Fleet
from tunefarm.search.stopping import NUM_ALIKE, hopeless
from tunefarm.study import Status
from tunefarm.trial import Build, Failure, Measurement, Outcome, Trial

DEFAULT = Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4})
BUILD = Build(binary="", registers=1, spills=0, shared_bytes=0)


def failed(number: int, outcome: Outcome, stage: str, kind: str, message: str) -> Trial:
    return Trial(
        number=number, config=Config(params={"BLOCK": number}), outcome=outcome,
        build=None if stage == "build" else BUILD, failure=Failure(stage=stage, kind=kind, message=message),
    )  # fmt: skip


WRONG = [
    failed(n, Outcome.WRONG_RESULT, "verify", "mismatch", f"output 0: {n + 50} % of 99 elements differ, max abs 0.{n}")
    for n in range(NUM_ALIKE)
]
RAISED = [
    failed(n, Outcome.USER_ERROR, "launch", "ValueError", f"BLOCK {n} is odd (ops.py:12)") for n in range(NUM_ALIKE)
]
KILLED = [failed(n, Outcome.TIMEOUT, "launch", "hung", "no answer within 5 s") for n in range(NUM_ALIKE)]
TOO_LARGE = [
    failed(n, Outcome.OUT_OF_RESOURCES, "load", "OutOfResources", f"shared memory, Required: {n}")
    for n in range(NUM_ALIKE)
]
UNBUILT = [failed(90 + n, Outcome.COMPILE_ERROR, "build", "CompilationError", "k line 2") for n in range(3)]


@pytest.mark.parametrize(
    ("trials", "reason"),
    [
        (WRONG, "10/10 candidates failed alike: verify: mismatch: output 0: 50 % of 99 elements differ, max abs 0.0"),
        (RAISED, "10/10 candidates failed alike: launch: ValueError: BLOCK 0 is odd (ops.py:12)"),
        (KILLED, "10/10 candidates failed alike: launch: hung: no answer within 5 s"),
        # Some others could not be built: that is another matter.
        ([*WRONG, *UNBUILT], "10/10 candidates failed alike: verify: mismatch: output 0: 50 %"),
    ],
    ids=["wrong", "raised", "hung", "wrong beside unbuilt"],
)
def test_failures_of_one_kind_end_a_study(trials: list[Trial], reason: str) -> None:
    """TF-012: with kind, count and the first of them, though their numbers differ."""
    assert hopeless(trials).startswith(reason)


@pytest.mark.parametrize(
    "trials",
    [
        WRONG[1:],
        [*WRONG[1:], RAISED[0]],
        TOO_LARGE,  # Numbers say by how much, and a smaller one may fit.
        [*WRONG, Trial(number=99, config=DEFAULT, build=BUILD, measurements=(
            Measurement(samples_ms=(1.0,), timer="cold", rung=0, source="measured"),))],
        [*UNBUILT, *(Trial(number=n, config=DEFAULT, build=BUILD) for n in range(20))],
    ],
    ids=["too few", "two kinds", "beyond a limit", "one runs", "not launched yet"],
)  # fmt: skip
def test_others_do_not(trials: list[Trial]) -> None:
    assert hopeless(trials) == ""


@pytest.mark.parametrize("outcome", [Outcome.WRONG_RESULT, Outcome.USER_ERROR])
def test_a_sweep_of_nothing_but_one_failure_stops_early(
    tmp_path: Path, fleet: Fleet, store: Path, outcome: Outcome
) -> None:
    experiment = write_experiment(tmp_path, space=LARGE)
    write_landscape(experiment, lambda config, variables: outcome)
    (result,) = play(experiment, fleet, store).results
    assert result.status is Status.NO_WINNER
    assert result.reason.startswith(f"10/10 candidates failed alike: launch: {outcome.value}")
    assert result.outcomes == {outcome: 10}
    assert study_line(result).count(outcome.value) == 2  # kind and words, once


# ---- a problem that the GPU's memory does not hold ----

NEEDED = (
    "CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has a total capacity of 16 GiB of which 12 GiB is free."
)


def run_out(room: Path) -> None:
    if not room.exists():
        raise torch.OutOfMemoryError(NEEDED)


def test_a_problem_too_large_for_the_gpu_ends_its_own_study(tmp_path: Path, store: Path) -> None:
    """TF-013: with needed and free bytes; the others go on, and a later sweep tries again."""
    experiment = write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}], devices=["sm_90"])
    own = InlineFleet([GPU], num_builders=1)
    deeds = {4096: partial(run_out, tmp_path / "room")}
    fleet = Pretended(own, partial(measure_perilously, deeds, tmp_path / "roll"))
    targets = [Target(device=GPU, meter="gpu")]
    try:
        played = play(experiment, fleet, store, targets=targets)
        (tmp_path / "room").touch()
        again = play(experiment, fleet, store, targets=targets)
    finally:
        own.close()
    fits, too_large = played.results
    assert fits.status is Status.WINNER
    assert (too_large.status, too_large.winner) == (Status.NO_WINNER, None)
    assert too_large.reason.startswith("the problem cannot be measured: OutOfMemoryError: input y of fill_kernel")
    assert NEEDED in too_large.reason
    assert too_large.outcomes.keys() == {Outcome.DEVICE_OOM}
    assert not events(played.ledger, "failed")
    assert [result.status for result in again.results] == [Status.WINNER] * 2
    assert len(set((tmp_path / "roll").read_text().split())) == 3, "nobody but finals wants a fresh process"


def spoil() -> None:
    raise torch.AcceleratorError(ILLEGAL)


def test_a_problem_that_loses_the_context_ends_its_own_study(tmp_path: Path, store: Path) -> None:
    """TF-003: inputs or a reference with a fault of their own; the next problem gets a fresh process."""
    experiment = write_experiment(tmp_path, problems=[{"n": [4096, 1000], "dtype": "fp32"}], devices=["sm_90"])
    own = InlineFleet([GPU], num_builders=1)
    fleet = Pretended(own, partial(measure_perilously, {4096: spoil}, tmp_path / "roll"))
    try:
        played = play(experiment, fleet, store, targets=[Target(device=GPU, meter="gpu")])
    finally:
        own.close()
    lost, well = played.results
    assert (lost.status, well.status) == (Status.NO_WINNER, Status.WINNER)
    assert lost.reason.startswith(
        "the problem cannot be measured: AcceleratorError: input y of fill_kernel cannot be made: AcceleratorError: "
        "CUDA error: an illegal memory access"
    )
    assert lost.outcomes.keys() == {Outcome.ILLEGAL_ACCESS}
    assert not events(played.ledger, "failed")


def test_a_problem_that_kills_whoever_prepares_it_ends_its_own_study(tmp_path: Path, store: Path) -> None:
    """After two processes: the first may have been broken itself."""
    experiment = write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}], devices=["sm_90"])
    own = InlineFleet([GPU], num_builders=1)
    fleet = Pretended(own, partial(measure_perilously, {4096: os.abort}, tmp_path / "roll"))
    try:
        played = play(experiment, fleet, store, targets=[Target(device=GPU, meter="gpu")])
    finally:
        own.close()
    fine, deadly = played.results
    assert fine.status is Status.WINNER
    assert deadly.status is Status.NO_WINNER
    assert deadly.reason.startswith("the problem cannot be measured: SIGABRT: no last words")
    assert not events(played.ledger, "failed")
    assert len(set((tmp_path / "roll").read_text().split())) <= 4, "two die of it, and finals have their own"


# ---- a default that cannot run ----


def without_default(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    return Outcome.DEVICE_OOM if config == DEFAULT else smooth(config, variables)


def test_a_default_that_cannot_run_is_reported_and_the_gain_is_not_known(tmp_path: Path, store: Path) -> None:
    """TF-059: never inf and never 0; the rest is tuned and exported."""
    experiment = write_experiment(tmp_path, export="pack.json")
    write_landscape(experiment, without_default)
    done = tunefarm("sweep", "experiment.yaml", "--fleet=inline", "--json", "--tracking=none", "--quiet",
                    folder=tmp_path, store=store)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (study,) = json.loads(done.stdout)["studies"]
    assert study["status"] == "winner"
    assert (study["winner"]["gain"], study["winner"]["default_ms"]) == (None, None)
    (row,) = [row for table in load_pack(tmp_path / "pack.json").tables for row in table.rows]
    assert row.config.params["BLOCK"] == 128
    assert "inf" not in (tmp_path / "pack.json").read_text()


def test_people_read_why_there_is_no_gain(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-059."""
    experiment = write_experiment(tmp_path)
    write_landscape(experiment, without_default)
    (result,) = play(experiment, fleet, store).results
    why = f"the default {DEFAULT} fails: launch: device_oom: device_oom on purpose"
    assert f"gain n/a: {why}" in study_line(result)
    cells: list[Any] = [next(iter(column.cells)) for column in closing_table([result]).columns]
    assert cells[2:4] == ["n/a", "n/a"]
    made = card(result)
    assert not {"gain", "default_time_us"} & made.metrics.keys()
    assert f"not compared with the default {DEFAULT}, which fails" in made.tags["mlflow.note.content"]
