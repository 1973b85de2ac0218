"""Whole sweeps in this process: contests, dispatch, fleet, ledger; the times come from landscapes made up here."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import farm
import pytest
from farm import GPU, Deadly, events, measured, play, smooth, write_experiment, write_landscape

import tunefarm.sweep
from tunefarm.config import Config, Value
from tunefarm.errors import SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.landscape import load
from tunefarm.schedule.events import Budget
from tunefarm.seams import Fleet
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FINAL, Outcome

BOTH = [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"]
THREE = [{"n": [1000, 4096, 5000], "dtype": "fp32"}]
LARGE = {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]}


def regret(result: StudyResult, recording: Path) -> float:
    """How much slower the winner is than the recording's best, as a fraction."""
    recorded = load(recording).find(result.study.problem)
    assert recorded is not None
    assert result.winner is not None
    medians = {e.config: sorted(e.samples_ms)[len(e.samples_ms) // 2] for e in recorded.entries if e.samples_ms}
    return medians[result.winner.config] / min(medians.values()) - 1


def test_a_sweep_from_experiment_to_winners(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """Every chapter: builds for both archs, winners where there are times, results in plan order, a whole ledger."""
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE, devices=BOTH)
    recording = write_landscape(experiment)
    played = play(experiment, fleet, store)
    results = played.results
    assert [r.study.key for r in results] == [p.study.key for p in played.planned]
    assert [r.status for r in results] == [Status.WINNER] * 3 + [Status.NOT_MEASURED] * 3
    for result in results[:3]:
        assert regret(result, recording) <= 0.03
        assert result.source == "replayed"
        assert result.toolchain == farm.TOOLCHAIN
        assert result.winner is not None
        assert result.winner.gain is not None
        assert result.num_measured < result.num_candidates
    for result in results[3:]:
        assert (result.num_measured, result.winner, result.source) == (0, None, "")
        assert result.num_built == result.num_candidates
        assert "no sm_80 GPU and no landscape" in result.reason
    assert sum(r.num_compiled for r in results) == 0
    check_ledger(played)


def check_ledger(played: farm.Played) -> None:
    """Everything the results say stands in the ledger, and nothing twice."""
    found = measured(played.ledger)
    assert len(found) == len(set(found))
    for result in played.results:
        mine = [(config, rung) for study, config, rung in found if study == result.study.key]
        known = [(t.config.key, m.rung) for t in result.trials for m in t.measurements if m.rung != FINAL]
        assert sorted(mine) == sorted(known)
        for event, outcome in (("pruned", Outcome.PRUNED), ("merged", Outcome.MERGED)):
            # A driver that goes on says again what it decides.
            said = {e["config"] for e in events(played.ledger, event) if e["study"] == result.study.key}
            assert said == {t.config.key for t in result.trials if t.outcome is outcome}
        if result.winner is not None:
            (finals,) = [e for e in events(played.ledger, "finals") if e["study"] == result.study.key]
            winner = [e for e in events(played.ledger, "winner") if e["study"] == result.study.key][-1]
            assert winner["winner"]["config"] == result.winner.config.to_json()
            assert result.winner.config.key in finals["configs"]
            assert played.planned[0].default is None or played.planned[0].default.key in finals["configs"]


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


def test_an_empty_problem_is_skipped(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-041."""
    experiment = write_experiment(tmp_path, problems=[{"n": [0, 1000], "dtype": "fp32"}])
    write_landscape(experiment)
    played = play(experiment, fleet, store)
    empty, other = played.results
    assert empty.status is Status.SKIPPED
    assert "input y has shape [0]" in empty.reason
    assert empty.rate(0.0) == {}
    assert other.status is Status.WINNER
    assert [e["study"] for e in events(played.ledger, "skipped")] == [empty.study.key]


def test_the_order_of_the_space_is_of_no_matter(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-056: listed forward, reversed, and shuffled three times."""
    outcomes = set()
    for number in range(5):
        shuffle = random.Random(number).shuffle
        space = {
            name: [1 << e for e in range(4, 10)] if name == "BLOCK" else list(values) for name, values in LARGE.items()
        }
        if number:
            names = list(space)
            (names.reverse if number == 1 else lambda: shuffle(names))()  # noqa: B023
            for values in space.values():
                (values.reverse if number == 1 else lambda: shuffle(values))()  # noqa: B023
            space = {name: space[name] for name in names}
        experiment = write_experiment(tmp_path / str(number), space=space, search={"seed": 3})
        write_landscape(experiment)
        played = play(experiment, fleet, store)
        (result,) = played.results
        assert result.num_measured < result.num_candidates
        outcomes.add((result.winner, tuple(measured(played.ledger))))
    assert len(outcomes) == 1


# ---- what may go wrong with workers ----


def test_only_the_candidate_that_kills_its_process_is_condemned(tmp_path: Path, store: Path) -> None:
    """TF-003: its batch is lost twice, then each candidate is tried by itself."""
    experiment = write_experiment(tmp_path)
    write_landscape(experiment)
    guilty = Config(params={"BLOCK": 256, "MARK": 1}, options={"num_warps": 2})
    own = InlineFleet([None], num_builders=1)
    try:
        played = play(experiment, Deadly(own, (guilty,)), store)
    finally:
        own.close()
    (result,) = played.results
    assert result.status is Status.WINNER
    crashed = [t.config for t in result.trials if t.outcome is Outcome.CRASHED]
    assert crashed == [guilty]
    assert result.num_measured == result.num_candidates - 1
    (failed,) = events(played.ledger, "failed")
    assert (failed["config"], failed["outcome"]) == (guilty.key, "crashed")
    assert "died of SIGKILL" in failed["failure"]["message"]
    check_ledger(played)


@pytest.mark.parametrize("victim", ["measure-0", "build-0"])
def test_a_worker_that_is_killed_costs_nothing_but_time(
    tmp_path: Path, fleet: InlineFleet, store: Path, victim: str
) -> None:
    """TF-057: nothing is lost when only a worker dies."""
    experiment = write_experiment(tmp_path, space=LARGE)
    write_landscape(experiment)
    undisturbed = play(experiment, fleet, store, ledger=tmp_path / "undisturbed.jsonl")
    pids = [fleet.submit(os.getpid, victim).result()]

    def kill() -> None:
        if pids:
            os.kill(pids.pop(), signal.SIGKILL)

    played = play(experiment, fleet, tmp_path / "cold" if victim == "build-0" else store, act=kill)
    assert not pids
    assert played.results[0].winner == undisturbed.results[0].winner
    assert measured(played.ledger) == measured(undisturbed.ledger)


def test_a_call_that_raises_on_workers_only_ends_the_sweep(tmp_path: Path, fleet: Fleet) -> None:
    """One error that names the experiment and the line; the ledger is left as a later driver can use it."""
    raises = '    if sys.argv[0] == "-c":\n        raise ValueError("only on workers")\n'
    kernel = farm.KERNEL.replace("    fill_kernel[", raises + "    fill_kernel[", 1)
    experiment = write_experiment(tmp_path, kernel)
    write_landscape(experiment)
    with pytest.raises(SpecError, match=r"experiment.yaml:1: workload: .*ValueError: only on workers.*kernels.py:\d+"):
        play(experiment, fleet, tmp_path / "cold")
    write_experiment(tmp_path)
    (result,) = play(experiment, fleet, tmp_path / "cold").results
    assert result.status is Status.WINNER
    assert [e["epoch"] for e in events(experiment.with_name("ledger.jsonl"), "epoch")] == [1, 2]


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
        assert spent.dispatch.notices == ["budget gpu_held_s is spent: no more measuring, finals apart"]
        check_ledger(spent)
        rich = play(experiment, own, store)
        assert rich.results[0].num_measured == rich.results[0].num_candidates - len(events(rich.ledger, "merged"))
        assert regret(rich.results[0], recording) <= 0.03
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
    assert other.status is Status.NOT_MEASURED
    assert 0 < played.board.num_compiled < measured_one.num_candidates
    assert not events(played.ledger, "failed")


# ---- going on after a crash ----


class Crash(Exception):
    """The driver's end."""


@pytest.mark.parametrize("eager_s", [45.0, 0.0], ids=["all compiled first", "compiled ahead"])
def test_a_sweep_cut_anywhere_goes_on_the_same_way(
    tmp_path: Path, fleet: Fleet, store: Path, monkeypatch: pytest.MonkeyPatch, eager_s: float
) -> None:
    """TF-057: whatever was known when the driver ended, its successors measure the same and decide the same."""
    monkeypatch.setattr(tunefarm.sweep, "EAGER_S", eager_s)
    experiment = write_experiment(tmp_path, problems=THREE[:1], space=LARGE, search={"batch": 3})
    write_landscape(experiment)
    builds = store if eager_s else tmp_path / "cold"
    calm = play(experiment, fleet, builds if eager_s else tmp_path / "calm", ledger=tmp_path / "calm.jsonl")
    steps = 0

    def crash() -> None:
        nonlocal steps
        steps += 1
        if steps == 7:
            steps = 0
            raise Crash

    num_crashes = 0
    while True:
        try:
            played = play(experiment, fleet, builds, ledger=tmp_path / "cut.jsonl", act=crash)
            break
        except Crash:
            num_crashes += 1
    assert num_crashes > 3
    assert [r.winner for r in played.results] == [r.winner for r in calm.results]
    assert sorted(measured(tmp_path / "cut.jsonl")) == sorted(measured(tmp_path / "calm.jsonl"))
    check_ledger(played)


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


def test_two_devices_have_two_tables(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-005: what fits one device and not another fails there alone, and says how much it wanted."""
    small = replace(GPU, name="Small GPU", shared_bytes=1)
    experiment = write_experiment(tmp_path)
    write_landscape(experiment, device=small)
    (result,) = play(experiment, fleet, store).results
    assert result.study.device == small
