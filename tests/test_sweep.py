"""Whole sweeps in this process: contests, dispatch, fleet, ledger; the times come from landscapes made up here."""

from __future__ import annotations

import os
import queue
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

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
    write_experiment,
    write_landscape,
)
from rigged import DEADLY, POISON, UNSTEADY, Deadly, Pretended, answer_smoothly, break_finals

import tunefarm.sweep
from tunefarm.config import Config
from tunefarm.errors import SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target
from tunefarm.seams import Fleet
from tunefarm.study import Status
from tunefarm.trial import FINAL, Outcome


def test_a_sweep_from_experiment_to_winners(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """Every chapter: builds for both archs, winners where there are times, results in plan order, a whole ledger."""
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE, devices=BOTH, budget={"trials": 20})
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
        assert result.num_measured == 20 < result.num_candidates
    for result in results[3:]:
        assert (result.num_measured, result.winner, result.source) == (0, None, "")
        assert result.num_built == result.num_candidates
        assert "no sm_80 GPU and no landscape" in result.reason
    assert sum(r.num_compiled for r in results) == 0
    check_ledger(played)


def test_a_driver_that_waits_has_everything_on_the_disk(
    tmp_path: Path, fleet: Fleet, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE, budget={"trials": 20})
    write_landscape(experiment)
    flushed: dict[int, int] = {}

    def note(handle: int) -> None:
        flushed[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    class Watched(queue.Queue[Any]):
        num_asked = 0

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            there = (tmp_path / "ledger.jsonl").stat()
            assert flushed[there.st_ino] == there.st_size
            self.num_asked += 1
            return super().get(block, timeout)

    inbox = Watched()
    monkeypatch.setattr(os, "fsync", note)
    play(experiment, fleet, store, inbox=inbox)
    assert inbox.num_asked > 10


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
        experiment = write_experiment(tmp_path / str(number), space=space, search={"seed": 3}, budget={"trials": 24})
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


def test_a_sweep_that_measures(tmp_path: Path, store: Path) -> None:
    """TF-003: a process that is poisoned by a candidate is replaced; so is one that dies. All others are measured."""
    experiment = write_experiment(tmp_path)
    own = InlineFleet([GPU], num_builders=1)
    try:
        target = Target(device=GPU, meter="gpu")
        played = play(experiment, Pretended(own, answer_smoothly), store, targets=[target])
    finally:
        own.close()
    (result,) = played.results
    assert result.winner is not None
    assert result.winner.config == Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})
    assert (result.source, result.toolchain, result.reference_ms) == ("measured", farm.TOOLCHAIN, 0.05)
    failed = {t.config: t.outcome for t in result.trials if not t.measurements}
    assert failed == {DEADLY: Outcome.CRASHED, POISON: Outcome.ILLEGAL_ACCESS}
    assert played.notices == ["no check"]
    assert result.held_s >= 0.5
    assert played.dispatch.held_s > 0
    check_ledger(played)


@pytest.mark.parametrize("how", ["kills", "poisons"])
def test_finals_are_held_again_without_who_breaks_them(tmp_path: Path, store: Path, how: str) -> None:
    """TF-003: the fastest candidate fails only there. It costs itself the crown, and nobody else."""
    experiment = write_experiment(tmp_path)
    own = InlineFleet([GPU], num_builders=1)
    try:
        rigged = Pretended(own, partial(break_finals, how))
        played = play(experiment, rigged, store, targets=[Target(device=GPU, meter="gpu")])
    finally:
        own.close()
    (result,) = played.results
    assert result.winner is not None
    assert result.winner.config == Config(params={"BLOCK": 128, "MARK": 1}, options={"num_warps": 2})
    (trial,) = [t for t in result.trials if t.config == UNSTEADY]
    assert trial.outcome is (Outcome.CRASHED if how == "kills" else Outcome.ILLEGAL_ACCESS)
    assert sum(t.rung == FINAL for t in result.trials) == 2  # The winner and the default are left.
    (finals,) = events(played.ledger, "finals")
    assert len(finals["configs"]) == len(finals["measurements"])


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
    here = f'__import__("os").getpid() == {os.getpid()}'
    raises = f'    if not {here}:\n        raise ValueError("only on workers")\n'
    kernel = farm.KERNEL.replace("    fill_kernel[", raises + "    fill_kernel[", 1)
    experiment = write_experiment(tmp_path, kernel)
    write_landscape(experiment)
    with pytest.raises(SpecError, match=r"experiment.yaml:1: workload: .*ValueError: only on workers.*kernels.py:\d+"):
        play(experiment, fleet, tmp_path / "cold")
    write_experiment(tmp_path)
    (result,) = play(experiment, fleet, tmp_path / "cold").results
    assert result.status is Status.WINNER
    assert [e["epoch"] for e in events(experiment.with_name("ledger.jsonl"), "epoch")] == [1, 2]


# ---- going on after a crash ----


class Crash(Exception):
    """The driver's end."""


@pytest.mark.parametrize("eager_s", [45.0, 0.0], ids=["all compiled first", "compiled ahead"])
def test_a_sweep_cut_anywhere_goes_on_the_same_way(
    tmp_path: Path, fleet: Fleet, store: Path, monkeypatch: pytest.MonkeyPatch, eager_s: float
) -> None:
    """TF-057: whatever was known when the driver ended, its successors measure the same and decide the same."""
    monkeypatch.setattr(tunefarm.sweep, "EAGER_S", eager_s)
    experiment = write_experiment(tmp_path, problems=THREE[:1], space=LARGE, search={"batch": 3}, budget={"trials": 20})
    write_landscape(experiment)
    builds = store if eager_s else tmp_path / "cold"
    calm = play(experiment, fleet, builds if eager_s else tmp_path / "calm", ledger=tmp_path / "calm.jsonl")
    steps = 0

    def crash() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
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
