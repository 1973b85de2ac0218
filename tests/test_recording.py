"""Recording: a whole space into a landscape that can be replayed. The GPU is made up, the rest is real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import GPU, TOOLCHAIN, play, smooth, write_experiment
from rigged import DEADLY, POISON, Pretended, answer_smoothly

from tunefarm import landscape as landscapes
from tunefarm.bench.meter import Question
from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.dispatch import Dispatch
from tunefarm.errands import Errands
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.landscape import Entry, Landscape
from tunefarm.plan import Target, plan
from tunefarm.recording import record
from tunefarm.seams import Fleet
from tunefarm.trial import Outcome


def answer_never(question: Question) -> Any:
    raise InfrastructureError("no power")


def answer_nothing(question: Question) -> Any:
    raise SpecError("the reference of fill raised ValueError: no")


def answer_by_default(question: Question) -> Any:
    assert question.baseline is not None
    assert question.baseline.artifact is not None
    return answer_smoothly(question)


@pytest.fixture
def own() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU], num_builders=2)
    yield made
    made.close()


def record_on(fleet: Fleet, experiment: Path, store: Path, told: list[tuple[str, int]] | None = None) -> Landscape:
    resolved = open_experiment(experiment)
    planned = plan(resolved, [Target(device=GPU, meter="gpu")])
    board = BuildBoard(resolved, BuildStore(store / "builds"))
    seen = told if told is not None else []
    errands = Errands(
        resolved=resolved, dispatch=Dispatch(fleet), board=board, advance=lambda what, count: seen.append((what, count))
    )
    return record(errands, planned, 7)


def test_every_candidate_is_recorded_and_the_landscape_replays(
    tmp_path: Path, own: InlineFleet, fleet: Fleet, store: Path
) -> None:
    """TF-001, TF-003: what fails is recorded as what it is, and costs no other candidate its place."""
    broken = farm.KERNEL.replace("    i = tl", "    if MARK == 3:\n        tl.static_assert(False)\n    i = tl")
    space = {"BLOCK": [64, 128, 256], "MARK": [0, 1, 3], "num_warps": [1, 2]}
    experiment = write_experiment(tmp_path, broken, space=space, problems=[{"n": [0, 1000], "dtype": "fp32"}])
    told: list[tuple[str, int]] = []
    made = record_on(Pretended(own, answer_smoothly), experiment, store, told)
    landscapes.save(made, tmp_path / "recording.json.gz")
    assert landscapes.dumps(landscapes.load(tmp_path / "recording.json.gz")) == landscapes.dumps(made)
    assert (made.device, made.toolchain, made.timer, made.kernel) == (GPU, TOOLCHAIN, "cold", "fill_kernel")
    (recorded,) = made.problems
    assert recorded.reference_ms == 0.05
    assert recorded.num_bytes == 4000
    by_config = {entry.config: entry for entry in recorded.entries}
    assert len(by_config) == len(recorded.entries) == 19  # 18 points and the default
    assert by_config.pop(DEADLY).outcome is Outcome.CRASHED
    assert by_config.pop(POISON).outcome is Outcome.ILLEGAL_ACCESS
    for config, entry in by_config.items():
        check_entry(config, entry)
    # Nobody is told twice of one candidate, and of all that were started.
    assert sum(count for what, count in told if what == "measured") == 13
    assert sum(count for what, count in told if what == "built") == 19

    (_, result) = play(experiment, fleet, store).results
    assert result.winner is not None
    assert result.winner.config == Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})
    assert result.source == "replayed"


def check_entry(config: Config, entry: Entry) -> None:
    if config.params["MARK"] == 3:
        assert entry.outcome is Outcome.COMPILE_ERROR
        assert entry.failure is not None
        assert "tl.static_assert(False)" in entry.failure.message
        assert entry.samples_ms == ()
        return
    assert entry.outcome is Outcome.OK
    assert entry.build is not None
    assert entry.build.grid == (-(-1000 // int(str(config.params["BLOCK"]))), 1, 1)
    assert entry.samples_ms == (smooth(config, {"n": 1000}),) * 7
    assert entry.warmup_ms == (1.0,)


def test_a_machine_s_fault_is_no_candidate_s(tmp_path: Path, own: InlineFleet, store: Path) -> None:
    with pytest.raises(InfrastructureError, match="a job was given up: lost 5 times: no power"):
        record_on(Pretended(own, answer_never), write_experiment(tmp_path), store)


def test_a_workload_that_cannot_be_measured_is_the_user_s_to_mend(
    tmp_path: Path, own: InlineFleet, store: Path
) -> None:
    with pytest.raises(SpecError, match=r"experiment.yaml:1: workload: the reference of fill raised ValueError"):
        record_on(Pretended(own, answer_nothing), write_experiment(tmp_path), store)


def test_candidates_are_compared_with_the_default_where_that_is_the_reference(
    tmp_path: Path, own: InlineFleet, store: Path
) -> None:
    space = {"BLOCK": [64, 128], "MARK": [0], "num_warps": [4]}
    made = record_on(Pretended(own, answer_by_default), write_experiment(tmp_path, farm.AS_DEFAULT, space=space), store)
    assert [entry.outcome for entry in made.problems[0].entries] == [Outcome.OK] * 2
