"""One study's way: candidates that fail, budgets that end, incumbents, and what a device cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import farm
import pytest
from farm import (
    BOTH,
    GPU,
    LARGE,
    THREE,
    check_ledger,
    events,
    measured,
    play,
    regret,
    smooth,
    write_experiment,
    write_landscape,
)

from tunefarm.config import Config, Value
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.record.card import card
from tunefarm.schedule.events import Budget
from tunefarm.seams import Fleet
from tunefarm.study import Left, Status
from tunefarm.trial import Outcome


def test_a_problem_of_which_all_candidates_fail_has_no_winner(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-008: with a histogram of the failures; the other problems have theirs."""

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
        return Outcome.OUT_OF_RESOURCES if variables["n"] == 4096 else smooth(config, variables)

    experiment = write_experiment(tmp_path, problems=THREE)
    write_landscape(experiment, time_ms)
    first, second, third = play(experiment, fleet, store).results
    assert (first.status, third.status) == (Status.WINNER, Status.WINNER)
    assert second.status is Status.NO_WINNER
    assert second.winner is None
    ((failure, count),) = second.failures
    assert failure.message == "out_of_resources on purpose"
    assert count == 10
    assert second.outcomes == {Outcome.OUT_OF_RESOURCES: 10}
    assert "10/10 candidates failed alike" in second.reason


@pytest.mark.parametrize(
    "space", [{"BLOCK": [64, 128], "MARK": [0, 1], "num_warps": [2]}, LARGE], ids=["small", "large"]
)
def test_candidates_that_fail_in_different_ways_are_all_tried(
    tmp_path: Path, fleet: Fleet, store: Path, space: dict[str, object]
) -> None:
    kinds = [Outcome.OUT_OF_RESOURCES, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT]

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
        if config.flat["BLOCK"] == 128:
            return smooth(config, variables)
        return kinds[(int(config.flat["BLOCK"] or 0).bit_length() + int(config.flat["MARK"] or 0)) % 3]

    experiment = write_experiment(tmp_path, space=space)
    write_landscape(experiment, time_ms)
    (result,) = play(experiment, fleet, store).results
    assert result.winner is not None
    assert result.winner.config.params["BLOCK"] == 128


TYPO = farm.KERNEL.replace("tl.arange(0, BLOCK)", "tl.arrange(0, BLOCK)")


@pytest.mark.parametrize("devices", [BOTH, ["sm_80"]], ids=["replayed", "not measured"])
def test_a_typo_in_the_kernel_is_said_once_after_ten_failures(
    tmp_path: Path, fleet: Fleet, store: Path, devices: list[object]
) -> None:
    """TF-012: nine tenths of the candidates are never compiled."""
    experiment = write_experiment(tmp_path, TYPO, space=LARGE, devices=devices)
    write_landscape(experiment)
    played = play(experiment, fleet, store)
    for result in played.results:
        assert result.status is Status.NO_WINNER
        assert "10/10 candidates failed alike" in result.reason
        assert "i = tl.program_id(0) * BLOCK + tl.arrange(0, BLOCK)" in result.reason
        ((_, count),) = result.failures
        assert count == 10
        assert result.num_candidates == 48
    assert played.board.num_compiled == 10 * len(devices)


def test_fewer_candidates_than_it_takes_to_give_up_may_all_fail(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(
        tmp_path, TYPO, space={"BLOCK": [64, 128], "MARK": [0], "num_warps": [2, 4]}, devices=BOTH
    )
    write_landscape(experiment)
    for result in play(experiment, fleet, store).results:
        assert result.winner is None
        assert sum(count for _, count in result.failures) == 4
        assert "tl.arrange" in result.failures[0][0].message


# ---- budgets ----


def test_a_budget_of_trials(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, space=LARGE, budget={"trials": 12})
    write_landscape(experiment)
    (result,) = play(experiment, fleet, store).results
    assert result.num_measured == 12
    assert result.winner is not None
    assert "budget of 12 trials used" in result.reason


def test_a_spent_budget_ends_in_finals_among_what_was_measured(tmp_path: Path, store: Path) -> None:
    """No candidate is called a failure for want of money, so a richer sweep can go on."""
    experiment = write_experiment(
        tmp_path, space={**LARGE, "num_warps": [2]}, search={"sampler": "exhaustive", "batch": 2}
    )
    recording = write_landscape(experiment)
    own = InlineFleet([GPU], num_builders=1)  # It replays, but counts as holding a GPU.
    try:
        spent = play(experiment, own, store, budget=Budget(gpu_held_s=0.002))
        (result,) = spent.results
        assert result.status is Status.WINNER
        assert result.reason == "budget gpu_held_s is spent"
        assert 0 < result.num_measured < result.num_candidates
        assert not events(spent.ledger, "failed")
        assert result.outcomes == {Outcome.OK: result.num_measured}
        assert result.left is not None
        num_merged = len(events(spent.ledger, "merged"))
        assert (result.left.limit, result.left.num) == (
            "gpu_held_s", result.num_candidates - num_merged - result.num_measured,
        )  # fmt: skip
        assert events(spent.ledger, "winner")[-1]["left"] == asdict(result.left)
        told = card(result).metrics
        assert told["left"] == result.left.num
        assert told["left_expected_gain"] == pytest.approx(result.left.expected_gain, abs=1e-6)
        assert told["left_plausible_gain"] == pytest.approx(result.left.plausible_gain, abs=1e-6)
        assert "left" not in card(replace(result, left=None)).metrics
        assert spent.dispatch.notices == ["budget gpu_held_s is spent: no more measuring, finals apart"]
        check_ledger(spent)
        rich = play(experiment, own, store)
        assert rich.results[0].num_measured == rich.results[0].num_candidates - len(events(rich.ledger, "merged"))
        assert regret(rich.results[0], recording) <= 0.03
        assert rich.results[0].left == Left(num=0, expected_gain=0.0, plausible_gain=0.0)
        assert events(rich.ledger, "winner")[-1]["left"] == asdict(rich.results[0].left)
        found = measured(rich.ledger)
        assert len(found) == len(set(found))
    finally:
        own.close()


def test_wall_time_that_ends_while_building_leaves_the_rest_unbuilt(tmp_path: Path, fleet: Fleet) -> None:
    experiment = write_experiment(tmp_path, space=LARGE, devices=BOTH)
    write_landscape(experiment)
    played = play(experiment, fleet, tmp_path / "cold", budget=Budget(wall_s=0.3))
    measured_one, other = played.results
    assert measured_one.status is Status.NO_WINNER
    assert measured_one.reason == "budget wall_s is spent"
    assert measured_one.left == Left(num=measured_one.num_candidates, limit="wall_s")
    assert other.status is Status.NOT_MEASURED
    assert 0 < played.board.num_compiled < measured_one.num_candidates
    assert not events(played.ledger, "failed")


# ---- what an earlier pack holds ----


def test_an_incumbent_that_ties_is_kept(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path)
    write_landscape(experiment, lambda config, variables: 0.02 if config.flat["BLOCK"] != 64 else 0.04)
    incumbent = Config(params={"BLOCK": 256, "MARK": 1}, options={"num_warps": 4})
    played = play(experiment, fleet, store)
    assert played.results[0].winner is not None
    assert played.results[0].winner.config != incumbent
    key = played.results[0].study.key
    again = play(experiment, fleet, store, ledger=tmp_path / "other.jsonl", incumbents={key: incumbent})
    assert again.results[0].winner is not None
    assert (again.results[0].winner.config, again.results[0].winner.reason) == (incumbent, "tie: incumbent kept")


# ---- what one device can do and another cannot ----

TRANSPOSE = farm.KERNEL.replace(
    "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    tl.store(y_ptr + i, MARK, mask=i < n)\n",
    """\
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    tl.store(y_ptr + at, tl.trans(tl.load(y_ptr + at, mask=at < n)) + MARK, mask=at < n)
""",
).replace('"BLOCK": 64', '"BLOCK": 16')


def test_what_does_not_fit_fails_on_that_device_alone(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-005: with what it wanted and what there is; each device has its own winner, in its own study."""
    small = replace(GPU, name="Small GPU", shared_bytes=6144)
    experiment = write_experiment(
        tmp_path, TRANSPOSE, space={"BLOCK": [16, 32, 64], "MARK": [0], "num_warps": [4]}, devices=["sm_90"]
    )

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float:
        return 1 / int(str(config.params["BLOCK"]))

    targets = [
        Target(device=device, meter="replay", landscape=str(write_landscape(experiment, time_ms, name, device)))
        for device, name in ((GPU, "large.json.gz"), (small, "small.json.gz"))
    ]
    played = play(experiment, fleet, store, targets=targets)
    on_large, on_small = played.results
    assert on_large.winner is not None
    assert on_large.winner.config.params["BLOCK"] == 64
    assert on_large.failures == []
    assert on_small.winner is not None
    assert on_small.winner.config.params["BLOCK"] == 32
    (trial,) = [t for t in on_small.trials if t.outcome is Outcome.OUT_OF_RESOURCES]
    assert trial.config.params["BLOCK"] == 64
    (failed,) = events(played.ledger, "failed")
    assert (failed["study"], failed["config"]) == (on_small.study.key, trial.config.key)
    assert failed["failure"]["message"].startswith(
        "shared memory: required 16384 bytes (16 KiB), limit 6144 bytes (6 KiB)"
    )


def test_blocks_that_are_no_powers_of_two_fail_one_by_one(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-014: where the workload declares no tile, the compiler says it of each."""
    experiment = write_experiment(
        tmp_path, space={"BLOCK": {"range": [32, 320, 32]}, "MARK": [0], "num_warps": [4]}, devices=BOTH
    )
    write_landscape(experiment)
    played = play(experiment, fleet, store)
    result, other = played.results
    assert sorted(int(str(t.config.params["BLOCK"])) for t in result.trials if t.measurements) == [32, 64, 128, 256]
    ((failure, count),) = result.failures
    assert count == 6
    assert "power of 2" in failure.message
    assert result.status is Status.WINNER
    assert (other.status, other.outcomes) == (Status.NOT_MEASURED, {Outcome.COMPILE_ERROR: 6})
