"""The benchmark of how many GPUs a driver keeps busy: its crowd loses nothing, and it says what is simulated."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tunefarm.fleet.simulated import Habits

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "benchmarks"))

import scale


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("has_ledger", [False, True])
def test_every_trial_of_the_crowd_ends_once_though_workers_die(
    batch: int, has_ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "DEADLY", 0.02)
    habits = Habits(latency_s=0.01, stragglers=0.01, restart_s=scale.RESTART_S, seed=1)
    terms = scale.Terms(batch=batch, habits=habits, has_ledger=has_ledger, search_s=0.0).at_batch(batch)
    figures = scale.simulate(scale.studies_of(1000, 8), 8, terms)
    assert sum(figures.ended.values()) == figures.num_trials == 1000
    assert set(figures.ended) <= {"ok", "launch_error", "crashed"}
    assert 0 < figures.ended["launch_error"] < 30
    assert figures.whole.busy_s == pytest.approx(100.0, rel=0.2)
    assert figures.whole.restart_s > 0
    assert len(figures.rss_mib) == len(scale.MARKS)


def test_what_the_search_takes_is_charged() -> None:
    terms = scale.Terms(batch=8, habits=Habits(), has_ledger=False, search_s=0.05)
    figures = scale.simulate(scale.studies_of(1000, 8), 8, terms)
    assert figures.driver_s > 50.0
    assert figures.busy < scale.BUSY


@pytest.mark.parametrize(("num_trials", "num_gpus"), [(1, 4), (1000, 2), (10_000, 8), (100, 512)])
def test_studies_hold_all_trials(num_trials: int, num_gpus: int) -> None:
    studies = scale.studies_of(num_trials, num_gpus)
    assert sum(num for _, num in studies) == num_trials
    assert all(1 <= num <= scale.PER_STUDY for _, num in studies)
    assert len({key for key, _ in studies}) == len(studies)


def test_it_says_what_is_simulated_and_how_many_shards_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search so slow that one driver cannot keep eight GPUs busy, and two can."""
    words = ["--trials", "4000", "--gpus", "2", "--fleet", "8", "--batch", "8", "--search-ms", "16", "--cpu-time"]
    monkeypatch.setattr(sys, "argv", ["scale.py", *words])
    monkeypatch.setattr(scale, "DEADLY", 0.0)
    scale.main()
    said = capsys.readouterr().out.splitlines()
    assert "CPU time is charged" in said[0]
    assert any(line == "  the most GPUs at 90%, by doubling: 4" for line in said)
    assert all(line.startswith(("SIMULATED", "  ")) for line in said[1:])
    assert re.match(r"SIMULATED, 2 shards one after the other, 8 GPUs, 4000 trials: busy (9\d|100)\.", said[-1])
