"""How soon searches find the best config of recorded spaces. No GPU.

    python experiments/benchmarks/search.py experiments/landscapes [FOLDER or FILE ...] [--only tunefarm,random]

Every strategy searches every problem with so many seeds; each measurement is drawn from the recorded samples of its
config. A candidate counts as found when its time, the median of all samples of its binary, is within 5, 2 or 1 % of the
least of the problem; a seed that never gets there counts as twice the budget. Candidates with equal binaries count as
one. What others propose twice, or what is illegal, becomes the nearest untried candidate at no cost. Optuna's samplers
have their defaults and see categories.

`--only` can also name peers, which are not in the default set: `kt` is every strategy of an installed Kernel Tuner,
`kt-NAME` one of them (`kt-pso`), `lfbo` a search like Helion's default and `optuna-cmaes` Optuna's CMA-ES on the places
of values.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import peers
from curves import picture
from recordings import Space, load_spaces
from replays import Run, at_random, learning, optuna_sampler, ours
from sitting import end_well, positive

from tunefarm.document import write_atomic
from tunefarm.errors import UserError

AFTER = (10, 20, 30, 50, 100, 200)
WITHIN = (0.05, 0.02, 0.01)
LARGE, BUDGETS = 2000, (60, 200)
"""Candidates from which a space is given the second budget."""


def _tpe(seed: int) -> Any:
    import optuna

    return optuna.samplers.TPESampler(seed=seed)


def _gp(seed: int) -> Any:
    import optuna

    return optuna.samplers.GPSampler(seed=seed)


STRATEGIES: Mapping[str, Callable[..., Run]] = {
    "tunefarm": partial(ours, batch=1),
    "tunefarm-8": partial(ours, batch=8),
    "on-demand": partial(ours, batch=8, on_demand=True),
    "no-buckets": partial(ours, batch=1, threshold=1.0),
    "warm": learning,
    "misled": partial(learning, is_misled=True),
    "random": at_random,
    "optuna-tpe": partial(optuna_sampler, make=_tpe),
    "optuna-gp": partial(optuna_sampler, make=_gp),
}
"""By name. `tunefarm`: one measurement at a time, everything compiled; `tunefarm-8`: batches of 8, as sweeps do;
`on-demand`: compiled when asked for; `no-buckets`: every candidate a bucket of its own; `warm`: knows what searches of
the other problems of the recording measured; `misled`: is told the contrary of it."""
INFORMED = ("warm", "misled")
"""Those that are given the other problems."""

DEFAULT = ("tunefarm", "tunefarm-8", "on-demand", "no-buckets", "warm", "misled", "random", "optuna-tpe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a strategy came to on one problem, over all seeds.

    Attributes:
        strategy, space: names.
        num_candidates, num_distinct: of the space; equal binaries counted once.
        evaluations: by per cent, the median number of candidates measured until one within it was.
        reached: by per cent, share of seeds that got there.
        optimum: after so many candidates, the least time over the best one found; mean over seeds.
        within_2_after_40: share of seeds.
        tried, built, build_s: candidates measured and compiled, and about what compiling took: so many times the mean.
        closed: share of buckets closed at the end; mean.
        lost: share of seeds that closed a bucket over all that is within 1 %.
        ask_ms: of the search itself, for each candidate measured.
    """

    strategy: str
    space: str
    num_candidates: int
    num_distinct: int
    evaluations: dict[int, float]
    reached: dict[int, float]
    optimum: dict[int, float]
    within_2_after_40: float
    tried: float
    built: float
    build_s: float
    closed: float
    lost: float
    ask_ms: float


def score(strategy: str, space: Space, runs: Sequence[Run], budget: int) -> Score:
    """The figures of one strategy on one problem."""
    found = [_found(space, run) for run in runs]
    first = {round(100 * x): [_first(ratios, 1 + x) for ratios in found] for x in WITHIN}
    build_s = statistics.fmean(space.build_s)
    return Score(
        strategy=strategy, space=space.label, num_candidates=len(space.trials), num_distinct=space.num_distinct,
        evaluations={x: statistics.median(n or 2 * budget for n in firsts) for x, firsts in first.items()},
        reached={x: statistics.fmean(n is not None for n in firsts) for x, firsts in first.items()},
        optimum={
            after: statistics.fmean(1 / min(ratios[:after], default=float("inf")) for ratios in found)
            for after in AFTER
            if after <= budget
        },
        within_2_after_40=statistics.fmean(_first(ratios[:40], 1.02) is not None for ratios in found),
        tried=statistics.fmean(len(run.tried) for run in runs),
        built=statistics.fmean(run.num_built for run in runs),
        build_s=statistics.fmean(run.num_built for run in runs) * build_s,
        closed=statistics.fmean(run.num_closed / max(1, run.num_buckets) for run in runs),
        lost=statistics.fmean(run.lost for run in runs),
        ask_ms=1000 * sum(run.ask_s for run in runs) / max(1, sum(len(run.tried) for run in runs)),
    )  # fmt: skip


def _found(space: Space, run: Run) -> list[float]:
    """Of each candidate tried its time over the least; infinite for one that failed."""
    times = (space.times_ms[number] for number in run.tried)
    return [float("inf") if time_ms is None else time_ms / space.best_ms for time_ms in times]


def _first(ratios: Sequence[float], limit: float) -> int | None:
    return next((count for count, ratio in enumerate(ratios, 1) if ratio <= limit), None)


_spaces: list[Space] = []


def _open(paths: Sequence[Path]) -> None:
    _spaces[:] = load_spaces(paths)


def _run(name: str, index: int, seed: int, budget: int) -> Run:
    space = _spaces[index]
    mates = [other for other in _spaces if other.file == space.file and other is not space]
    strategy = STRATEGIES.get(name) or peers.contenders(name)[name]
    return strategy(space, seed, budget, **({"mates": mates} if name in INFORMED else {}))


def compare(
    paths: Sequence[Path], names: Sequence[str], *, seeds: int, least: int, jobs: int, budget: int | None
) -> Iterator[Score]:
    """Scores, problem by problem.

    Raises:
        UserError: no problem has so many candidates.
    """
    _open(paths)
    chosen = [index for index, space in enumerate(_spaces) if len(space.trials) >= least]
    if not chosen:
        raise UserError(f"holds no problem of {least} candidates or more", file=", ".join(map(str, paths)))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_open, initargs=(paths,)) as pool:
        for index in chosen:
            space = _spaces[index]
            limit = budget or BUDGETS[len(space.trials) >= LARGE]
            asked = {name: [pool.submit(_run, name, index, seed, limit) for seed in range(seeds)] for name in names}
            for name, futures in asked.items():
                yield score(name, space, [future.result() for future in futures], limit)


Column: TypeAlias = tuple[str, Callable[[Score], float], str]
COLUMNS: Sequence[Column] = (
    ("to 5 %", lambda s: s.evaluations[5], ".1f"),
    ("to 2 %", lambda s: s.evaluations[2], ".1f"),
    ("to 1 %", lambda s: s.evaluations[1], ".1f"),
    ("got to 1 %", lambda s: 100 * s.reached[1], ".0f"),
    ("2 % after 40", lambda s: 100 * s.within_2_after_40, ".0f"),
    *((f"@{after}", lambda s, after=after: s.optimum.get(after, float("nan")), ".3f") for after in AFTER),
    ("tried", lambda s: s.tried, ".0f"),
    ("built", lambda s: s.built, ".0f"),
    ("build s", lambda s: s.build_s, ".0f"),
    ("closed", lambda s: 100 * s.closed, ".0f"),
    ("lost", lambda s: 100 * s.lost, ".1f"),
    ("ms", lambda s: s.ask_ms, ".1f"),
)  # fmt: skip


def table(scores: Sequence[Score], *, each: bool = False) -> str:
    """A line for each strategy, means over the problems; with `each`, for each problem, too.

    Shares are in per cent, those of the optimum apart. Columns without a value are left out.
    """
    names = list(dict.fromkeys(s.strategy for s in scores))
    rows = [(name, [s for s in scores if s.strategy == name]) for name in names]
    columns = [column for column in COLUMNS if any(column[1](s) == column[1](s) for s in scores)]
    head = "| search | problems | " + " | ".join(title for title, _, _ in columns) + " |"
    lines = [head, "|---|--:" + "|--:" * len(columns) + "|"]
    for name, mine in rows:
        lines.append(_line(name, str(len(mine)), mine, columns))
    for name, mine in rows if each else []:
        lines += [_line(f"{name}: {s.space}", f"{s.num_distinct} of {s.num_candidates}", [s], columns) for s in mine]
    return "\n".join(lines)


def _line(name: str, count: str, scores: Sequence[Score], columns: Sequence[Column]) -> str:
    cells = []
    for _, value, form in columns:
        known = [found for found in map(value, scores) if found == found]
        cells.append(format(statistics.fmean(known), form) if known else "")
    return f"| {name} | {count} | {' | '.join(cells)} |"


def progress(scores: Sequence[Score]) -> dict[str, dict[int, float]]:
    """By strategy, the share of the optimum after so many measurements; means over the problems."""
    curves = {}
    for name in dict.fromkeys(s.strategy for s in scores):
        mine = [s.optimum for s in scores if s.strategy == name]
        curves[name] = {a: statistics.fmean(o[a] for o in mine if a in o) for a in AFTER if any(a in o for o in mine)}
    return curves


def names(text: str) -> list[str]:
    """Names of strategies, separated by commas; one that stands for several becomes those."""
    asked = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join((*STRATEGIES, *peers.NAMES))
    if not asked:
        raise argparse.ArgumentTypeError(f"names none; {known} are")
    try:
        chosen = {name: [name] if name in STRATEGIES else list(peers.contenders(name)) for name in asked}
    except UserError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    if wrong := sorted(name for name, found in chosen.items() if not found):
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: no such search; {known} are")
    return list(dict.fromkeys(name for found in chosen.values() for name in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FOLDER or FILE")
    parser.add_argument(
        "--only", type=names, default=list(DEFAULT), metavar="NAME,...",
        help=f"of {', '.join((*STRATEGIES, *peers.NAMES))}; default: {','.join(DEFAULT)}",
    )  # fmt: skip
    num: dict[str, Any] = {"type": positive, "metavar": "N"}
    parser.add_argument("--seeds", **num, default=30, help="default: %(default)s")
    parser.add_argument("--budget", **num, help="candidates measured at most; default: 60, large: 200")
    parser.add_argument("--least", **num, default=150, help="candidates of a problem; default: 150")
    parser.add_argument("--jobs", **num, default=os.cpu_count(), help="processes; default: one a CPU")
    parser.add_argument("--each", action="store_true", help="a line for each problem, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures for machines")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the picture")
    arguments = parser.parse_args()
    # One thread a process: the matrices are small, and there is a process for each CPU.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scores: list[Score] = []
    began = time.monotonic()
    for found in compare(
        arguments.paths, arguments.only, seeds=arguments.seeds, least=arguments.least, jobs=arguments.jobs,
        budget=arguments.budget,
    ):  # fmt: skip
        scores.append(found)
        reached = f"{found.evaluations[1]:6.1f} to 1 %"
        print(f"{time.monotonic() - began:6.0f} s  {found.space:48s} {found.strategy:26s} {reached}", file=sys.stderr)
        if arguments.json is not None:
            write_atomic(arguments.json, json.dumps([asdict(s) for s in scores], indent=1).encode())
    print(table(scores, each=arguments.each))
    if arguments.svg is not None:
        write_atomic(arguments.svg, picture(progress(scores), AFTER).encode())


if __name__ == "__main__":
    end_well(main)
