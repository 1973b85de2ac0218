"""Other tools on the recorded spaces: Kernel Tuner's own code, and the search that Helion describes, written anew.

They search the list of candidates that random search and Optuna are given: what can be launched, equal binaries once.
A candidate's time is the median of ten of its samples drawn anew for each run, as for those.
"""

from __future__ import annotations

import json
import math
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from recordings import Space
from replays import Run, choices, live, optuna_sampler, redrawn_ms

from tunefarm.errors import UserError

KERNEL_TUNER = "kt"
"""Stands for all of Kernel Tuner's strategies; with a hyphen and a name behind it for one of them."""
UNFIT = ("brute_force", "nsga2", "nsga3", "pyatf_strategies", "skopt")
"""Of its strategies those that cannot be compared: one does not search, two are for several objectives, two are doors
to further tools."""

NAMES = (KERNEL_TUNER, "lfbo", "optuna-cmaes")


def contenders(name: str) -> dict[str, Callable[..., Run]]:
    """The searches that a name stands for, by their names in the table; none if it is no peer's.

    Raises:
        UserError: what it names is not installed, or Kernel Tuner has no such strategy.
    """
    if name == KERNEL_TUNER or name.startswith(f"{KERNEL_TUNER}-"):
        _need("kernel_tuner", "kernel-tuner", name)
        every: dict[str, Callable[..., Run]] = {
            _name(strategy): partial(kernel_tuner, strategy=strategy) for strategy in _strategies()
        }
        if name not in (KERNEL_TUNER, *every):
            raise UserError(f"{name}: no such strategy of Kernel Tuner; {', '.join(every)} are")
        return every if name == KERNEL_TUNER else {name: every[name]}
    if name == "lfbo":
        _need("sklearn", "scikit-learn", name)
        return {name: lfbo}
    if name == "optuna-cmaes":
        _need("cmaes", "cmaes", name)
        return {name: partial(optuna_sampler, make=_cmaes, is_ordinal=True)}
    return {}


def _need(module: str, package: str, name: str) -> None:
    if find_spec(module) is None:
        raise UserError(f"{name} needs {package}, which is not installed", hint=f"pip install {package}")


def _name(strategy: str) -> str:
    return f"{KERNEL_TUNER}-{strategy.replace('_', '-')}"


def _strategies() -> list[str]:
    from kernel_tuner.interface import strategy_map

    return [name for name in strategy_map if name not in UNFIT]


def kernel_tuner(space: Space, seed: int, budget: int, *, strategy: str) -> Run:
    """A strategy of the installed Kernel Tuner in its simulation mode, with its default hyperparameters.

    It replays a cache file that is written for the run, so a config keeps the time drawn for it. What it evaluates
    again is free, as simulation mode has it; some strategies end before the budget does. The seconds are those that
    Kernel Tuner says its strategy took. One seed gives one order, except that `bayes_opt` looks at the clock to decide
    when to predict anew.

    Raises:
        UserError: the strategy breaks down.
    """
    from kernel_tuner.interface import strategy_map, tune_kernel

    numbers, values = live(space), choices(space)
    number_of = {tuple(space.configs[number].flat[name] for name in values): number for number in numbers}

    def is_legal(params: Mapping[str, Any]) -> bool:
        return tuple(params[name] for name in values) in number_of

    # Loads the strategy, which as it loads may draw or keep what is exchanged below.
    _ = strategy_map[strategy].tune
    random.seed(seed)
    np.random.seed(seed)
    with TemporaryDirectory() as folder, warnings.catch_warnings(), _seeded_generators(seed):
        # It finds kernels without arguments or block sizes odd, and populations large for a small space.
        warnings.simplefilter("ignore")
        cache = Path(folder, "cache.json")
        cache.write_text(_cache(space, numbers, values, random.Random(seed)))
        try:
            found, _ = tune_kernel(
                "recorded", "void recorded() {}", (1,), [], values, restrictions=is_legal, lang="C", quiet=True,
                cache=str(cache), simulation_mode=True, parallel=False, strategy=strategy,
                strategy_options={"max_fevals": min(budget, len(numbers))},
            )  # fmt: skip
        except Exception as e:  # of any kind: some strategies index past the end of a small space
            message = f"Kernel Tuner's {strategy} breaks on {space.label}: {type(e).__name__}: {e}"
            raise UserError(message, hint="leave it out with --only") from e
    tried = dict.fromkeys(number_of[tuple(each[name] for name in values)] for each in found)
    ask_s = sum(each.get("strategy_time", 0.0) for each in found) / 1000
    return Run(tried=tuple(tried), num_built=len(tried), ask_s=ask_s)


def _cache(space: Space, numbers: Sequence[int], values: Mapping[str, Sequence[Any]], rng: random.Random) -> str:
    """The recording as one of Kernel Tuner's cache files."""
    known = {}
    for number in numbers:
        flat = {name: space.configs[number].flat[name] for name in values}
        time_ms = redrawn_ms(space, number, rng)
        known[",".join(map(str, flat.values()))] = flat | {
            "time": "RuntimeFailedConfig" if time_ms is None else time_ms
        }
    return json.dumps(
        {
            "device_name": space.device.name, "kernel_name": "recorded", "problem_size": [1],
            "tune_params_keys": list(values), "tune_params": values, "objective": "time", "cache": known,
        }
    )  # fmt: skip


def _seeded_generators(seed: int) -> AbstractContextManager[Any]:
    """While it is entered, a generator that NumPy makes without a seed has this one.

    Two of the strategies begin with Latin hypercubes of SciPy's, which draw from such a generator.
    """
    make = np.random.default_rng
    return mock.patch.object(np.random, "default_rng", lambda asked=None: make(seed if asked is None else asked))


def _cmaes(seed: int) -> Any:
    import optuna

    return optuna.samplers.CmaEsSampler(seed=seed)


Matrix = NDArray[np.float32]

POPULATION, GENERATIONS, COPIES, NEIGHBOURS = 100, 20, 5, 300
BEST = 0.1
"""The share of the measured that counts as good."""
RADIUS = 2
"""Places by which a neighbour may differ in a param."""


def lfbo(space: Space, seed: int, budget: int) -> Run:
    """A search like Helion's default, LFBO tree search, from what is published of it; none of its code.

    A random population is measured. In each generation a random forest learns what sets the fastest 10 % apart, the
    faster the more. 300 neighbours are drawn around the five fastest: a tree of the forest, any, is asked for each
    param on its path to that config which near value it likes best. Those are measured that the forest likes best and
    that do not share their leaves with each other.

    Published are a population of 100, and up to 20 generations in each of which a tenth of the neighbours is measured.
    Here the population is a third of the budget if that is less, and what is left is spent evenly over the 20
    generations. What is illegal, or was measured, becomes the nearest untried candidate.
    """
    numbers, values = live(space), choices(space)
    flats = [space.configs[number].flat for number in numbers]
    points = np.array([[known.index(flat[name]) for name, known in values.items()] for flat in flats], np.float32)
    budget = min(budget, len(numbers))
    rng, times_ms = random.Random(seed), dict[int, float | None]()
    began = time.perf_counter()
    wanted = rng.sample(range(len(numbers)), min(POPULATION, math.ceil(budget / 3)))
    num_each = math.ceil((budget - len(wanted)) / GENERATIONS)
    while True:
        times_ms |= {row: redrawn_ms(space, numbers[row], rng) for row in wanted}
        if len(times_ms) == budget:
            break
        forest = _forest(points, times_ms, seed)
        neighbours = _neighbours(forest, points, times_ms, rng)
        chosen = _promising(forest, points[neighbours], min(num_each, budget - len(times_ms)))
        wanted = [neighbours[each] for each in chosen]
    tried = tuple(numbers[row] for row in times_ms)
    return Run(tried=tried, num_built=len(tried), ask_s=time.perf_counter() - began)


def _forest(points: Matrix, times_ms: Mapping[int, float | None], seed: int) -> Any:
    """Tells the fastest of the measured from the others; what failed is among those."""
    from sklearn.ensemble import RandomForestClassifier

    known = [time_ms for time_ms in times_ms.values() if time_ms is not None]
    limit = float(np.quantile(known, BEST)) if known else 0.0
    gains = np.array([limit - time_ms if time_ms is not None else -1.0 for time_ms in times_ms.values()])
    is_good = gains >= 0
    weights = np.ones(len(gains))
    if gains[is_good].sum() > 0:
        weights[is_good] = gains[is_good] / gains[is_good].mean()
    return RandomForestClassifier(random_state=seed).fit(points[list(times_ms)], is_good, weights)


def _neighbours(forest: Any, points: Matrix, times_ms: Mapping[int, float | None], rng: random.Random) -> list[int]:
    """Untried rows around the fastest."""
    copies = sorted((time_ms, row) for row, time_ms in times_ms.items() if time_ms is not None)[:COPIES]
    last = points.max(0)
    found: list[int] = []
    is_open = np.ones(len(points), bool)
    is_open[list(times_ms)] = False
    for turn in range(min(NEIGHBOURS, int(is_open.sum()))):
        start = points[copies[turn % len(copies)][1]] if copies else points[rng.randrange(len(points))]
        asked = _led(rng.choice(forest.estimators_), start, last, rng)
        off = (np.abs(points - asked) / np.maximum(last, 1)).sum(1)
        found.append(int(np.where(is_open, off, np.inf).argmin()))
        is_open[found[-1]] = False
    return found


def _led(tree: Any, start: Matrix, last: Matrix, rng: random.Random) -> Matrix:
    """Where a tree leads from a point: each param on the path to it takes the near value that the tree likes best."""
    point = start.copy()
    path = tree.tree_.decision_path(point[None]).indices
    for column in dict.fromkeys(tree.tree_.feature[path].tolist()):
        if column < 0:
            continue  # the leaf
        place = int(point[column])
        near = list(range(max(0, place - RADIUS), min(int(last[column]), place + RADIUS) + 1))
        options = np.repeat(point[None], len(near), 0)
        options[:, column] = near
        chances = tree.tree_.predict(options)[:, -1]
        point[column] = rng.choice([each for each, likes in zip(near, chances, strict=True) if likes == chances.max()])
    return point


def _promising(forest: Any, points: Matrix, num: int) -> list[int]:
    """Points to measure: likely good, and each the less wanted the more trees put it beside one that is chosen."""
    chances, leaves = forest.predict_proba(points)[:, -1], forest.apply(points)
    alike, chosen = np.zeros(len(points)), list[int]()
    for _ in range(min(num, len(points))):
        worth = chances * (1 - alike)
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        alike = np.maximum(alike, (leaves == leaves[chosen[-1]]).mean(1))
    return chosen
