"""Other tools on recorded spaces: what they may try, what they are told, and what is said where they are missing."""

from __future__ import annotations

import argparse
import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
import pytest
from test_benchmark_search import bowl, entry, write

from tunefarm.errors import UserError

import peers  # isort: skip  # test_benchmark_search has made the folder of benchmarks known
import recordings  # isort: skip
import replays  # isort: skip
import search  # isort: skip

needs_kernel_tuner = pytest.mark.skipif(not find_spec("kernel_tuner"), reason="needs pip install kernel-tuner")


def rough(folder: Path) -> recordings.Space:
    """128 configs: 64 that differ, each a second time with equal machine code; and two that fail, the last when run."""
    entries = [
        entry(2**place, warps, stages, 1.0 + place + warps)
        for place in range(16)
        for warps in (1, 2, 4, 8)
        for stages in (1, 2)
    ]
    entries.append(entry(2**16, 4, 1, 0.1, status="compile_error", ms=[]))
    entries.append(entry(2**16, 8, 1, 0.1, status="wrong_result"))
    (space,) = recordings.load_spaces([write(folder, entries, "rough")])
    return space


FAILING = 129
LAUNCHED = {*range(0, 128, 2), FAILING}
"""The candidates of `rough` that may be tried: of equal ones the first, and the one that fails when it runs."""


@needs_kernel_tuner
def test_every_strategy_of_kernel_tuner_tries_what_can_be_launched_once(tmp_path: Path) -> None:
    space, every = rough(tmp_path), peers.contenders("kt")
    assert {"kt-genetic-algorithm", "kt-pso", "kt-random-sample"} <= set(every)
    for name, run in every.items():
        tried = run(space, 0, 12).tried
        assert 0 < len(tried) == len(set(tried)) <= 12, name
        assert set(tried) <= LAUNCHED, name
    assert set(every["kt-random-sample"](space, 0, 99).tried) == LAUNCHED


@needs_kernel_tuner
@pytest.mark.parametrize("name", ["kt-diff-evo", "kt-genetic-algorithm", "kt-pso", "kt-simulated-annealing"])
def test_a_seed_of_kernel_tuner_gives_one_order(tmp_path: Path, name: str) -> None:
    space = bowl(tmp_path)
    (run,) = peers.contenders(name).values()
    assert run(space, 1, 30).tried == run(space, 1, 30).tried != run(space, 2, 30).tried


@needs_kernel_tuner
@pytest.mark.parametrize("name", ["kt-adaptive-tabu-greywolf", "kt-hybrid-vndx"])
def test_kernel_tuner_hears_the_recorded_times(tmp_path: Path, name: str) -> None:
    """Who chose half of the bowl blindly would be at its bottom half of the times."""
    space = bowl(tmp_path)
    (run,) = peers.contenders(name).values()
    assert sum(space.times_ms.index(1.0) in run(space, seed, 32).tried for seed in range(10)) >= 8


@needs_kernel_tuner
def test_a_strategy_that_breaks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: Any, **terms: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("kernel_tuner.interface.tune_kernel", broken)
    with pytest.raises(UserError, match=r"Kernel Tuner's pso breaks on rough 4096 float32: IndexError: list index out"):
        peers.kernel_tuner(rough(tmp_path), 0, 9, strategy="pso")


@needs_kernel_tuner
def test_a_strategy_that_kernel_tuner_lacks_is_answered_with_those_it_has() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"kt-best: no such strategy of Kernel Tuner; .*kt-pso"):
        search.names("kt-best")


def test_the_cache_for_kernel_tuner_holds_redrawn_times_and_names_failures(tmp_path: Path) -> None:
    entries = [entry(64, 4, 1, 2.0, ms=[9.0, 8.0, *map(float, range(10, 30))]), entry(64, 8, 1, 3.0, status="timeout")]
    (space,) = recordings.load_spaces([write(tmp_path, entries)])
    values = replays.choices(space)
    told = [json.loads(peers._cache(space, [0, 1], values, random.Random(seed)))["cache"] for seed in range(5)]
    assert {each["64,8,1"]["time"] for each in told} == {"RuntimeFailedConfig"}
    times = {each["64,4,1"]["time"] for each in told}
    assert len(times) > 1
    assert times <= set(map(float, range(10, 30)))


@pytest.mark.parametrize(
    ("name", "package"), [("kt", "kernel-tuner"), ("kt-pso", "kernel-tuner"), ("lfbo", "scikit-learn"),
                          ("optuna-cmaes", "cmaes")],
)  # fmt: skip
def test_a_peer_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda module: None)
    with pytest.raises(argparse.ArgumentTypeError, match=f"{name} needs {package}.*pip install {package}"):
        search.names(f"random,{name}")


def test_peers_are_asked_for_by_name(tmp_path: Path) -> None:
    assert search.names("random, lfbo,random") == ["random", "lfbo"]
    with pytest.raises(argparse.ArgumentTypeError, match=r"ktx: no such search; tunefarm, .*, kt, lfbo, optuna-cmaes"):
        search.names("lfbo,ktx")
    assert not {*peers.NAMES} & {*search.DEFAULT}
    space = bowl(tmp_path)
    search._open([tmp_path])
    assert search._run("lfbo", 0, 3, 9).tried == peers.lfbo(space, 3, 9).tried


def test_lfbo_tries_what_can_be_launched_once(tmp_path: Path) -> None:
    space = rough(tmp_path)
    assert len(peers.lfbo(space, 0, 12).tried) == 12
    tried = peers.lfbo(space, 0, 99).tried
    assert sorted(tried) == sorted(LAUNCHED)


def test_lfbo_begins_at_random_and_then_goes_where_it_is_fast(tmp_path: Path) -> None:
    space = bowl(tmp_path)
    runs = [peers.lfbo(space, seed, 24) for seed in range(3)]
    assert runs[0].tried == peers.lfbo(space, 0, 24).tried
    assert len({run.tried[:8] for run in runs}) == 3
    assert all(space.times_ms.index(1.0) in run.tried for run in runs)


def test_lfbo_goes_on_where_nothing_runs_or_all_are_equal(tmp_path: Path) -> None:
    blocks = [2**place for place in range(12)]
    for name, more in {"failing": {"status": "wrong_result"}, "equal": {}}.items():
        entries = [entry(block, 1, 1, 1.0, **more) for block in blocks]
        (space,) = recordings.load_spaces([write(tmp_path, entries, name)])
        assert sorted(peers.lfbo(space, 0, 12).tried) == list(range(12)), name


class Listening(optuna.samplers.RandomSampler):  # type: ignore[misc]  # Optuna is not followed by mypy
    """Keeps how its trials ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.ended: list[tuple[dict[str, Any], str, Any]] = []

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self.ended.append((trial.params, state.name, values))


def test_a_sampler_that_sees_places_hears_the_time_of_what_was_measured_in_its_stead(tmp_path: Path) -> None:
    space, samplers = rough(tmp_path), list[Listening]()

    def make(seed: int) -> Listening:
        samplers.append(Listening(seed))
        return samplers[-1]

    by_place = replays.optuna_sampler(space, 0, 99, make=make, is_ordinal=True)
    by_value = replays.optuna_sampler(space, 0, 99, make=make)
    assert set(by_place.tried) == set(by_value.tried) == LAUNCHED
    assert {state for _, state, _ in samplers[0].ended} == {"COMPLETE"}
    assert {state for _, state, _ in samplers[1].ended} == {"COMPLETE", "FAIL"}
    told = [values[0] for _, _, values in samplers[0].ended]
    failed = by_place.tried.index(FAILING)
    assert told[failed] == 2 * max(told[:failed], default=1.0)
    assert [told[place] for place, number in enumerate(by_place.tried) if number != FAILING] == [
        space.times_ms[number] for number in by_place.tried if number != FAILING
    ]
    assert all(0 <= place <= 16 for params, _, _ in samplers[0].ended for place in params.values())


def test_cmaes_searches_the_list(tmp_path: Path) -> None:
    space = bowl(tmp_path)
    (run,) = peers.contenders("optuna-cmaes").values()
    tried = run(space, 0, 40).tried
    assert len(set(tried)) == len(tried) == 40
    assert tried == run(space, 0, 40).tried
