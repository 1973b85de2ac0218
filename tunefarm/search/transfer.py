"""Transfer: what is known of a kernel's other studies makes one expect of this one's candidates, before any was timed.

A seed and a feature, never a filter: the best expected are tried first, and the surrogate sees what was expected of
every candidate beside its params. Where times do not follow it, it soon counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.problem import Problem
from tunefarm.search.features import (
    Column,
    Vectors,
    config_columns,
    is_number,
    num_warps,
    standardise,
    tile_params,
    whole_numbers,
)
from tunefarm.search.prior import residence
from tunefarm.search.surrogate import Surrogate
from tunefarm.trial import Build, Trial

NUM_EXPECTED = 4
"""Of the best expected so many are tried first; with two, replays need a quarter more to get within 1 %."""

CAP = 2.0
"""Times beyond e to this power of the best of their study count as that."""

NUM_FIT, MOST = 96, 600
"""Points that the model's hyperparameters are fitted on, and points it is given at most: the fastest of each study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Another study of the kernel, or an earlier one of the same.

    Attributes:
        problem: what was competed for.
        device: where.
        configs: what was timed.
        builds: of each, None where it is not known.
        times_ms: of each.
    """

    problem: Problem
    device: Device
    configs: tuple[Config, ...]
    builds: tuple[Build | None, ...]
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What other studies teach a search.

    Attributes:
        pasts: the other studies, each with a time at least.
        configs: the search's candidates.
        problem: what they compete for.
        device: where.
        seed: of the model.
    """

    pasts: Sequence[Past]
    configs: Sequence[Config]
    problem: Problem
    device: Device
    seed: int

    def apply(
        self, points: Vectors, live: Sequence[int], trials: Sequence[Trial], *, with_builds: bool
    ) -> tuple[Vectors, list[int]]:
        """The features with what is expected as one more, and the candidates to try first: the best expected.

        Args:
            points: features of the candidates, shape (num_candidates, num_features).
            live: candidates that may be tried.
            trials: of all candidates.
            with_builds: all that are live are built, and what the builds say counts.
        """
        if not self.pasts:
            return points, []
        expected = self.expect([trial.build for trial in trials] if with_builds else None)
        column = standardise([expected])
        if not column.shape[1]:  # all are expected to be equal
            return points, []
        return np.hstack([points, column]), sorted(live, key=lambda n: expected[n])[:NUM_EXPECTED]

    def expect(self, builds: Sequence[Build | None] | None) -> Vectors:
        """The logarithm of each candidate's time over the best one's, as far as other studies tell.

        Args:
            builds: one entry per candidate, None for one whose build failed; or None without builds.

        Returns:
            Shape (len(configs),); only the order and the distances mean anything.
        """
        rows: list[_Row] = []
        values: list[float] = []
        for past in self.pasts:
            kept = sorted(range(len(past.configs)), key=lambda i: past.times_ms[i])[: max(1, MOST // len(self.pasts))]
            rows += [_Row(past.configs[i], past.builds[i], past.problem, past.device) for i in kept]
            values += [min(CAP, math.log(past.times_ms[i] / past.times_ms[kept[0]])) for i in kept]
        mine: Sequence[Build | None] = builds if builds is not None else [None] * len(self.configs)
        rows += [_Row(c, build, self.problem, self.device) for c, build in zip(self.configs, mine, strict=True)]
        configs = [row.config for row in rows]
        columns = config_columns(configs, [row.build for row in rows] if builds is not None else None)
        columns += _sizes(configs, [row.problem for row in rows])
        columns += [[math.log2(row.device.num_sms) for row in rows]]
        if builds is not None:
            columns += _residence(rows)
        known = range(len(values))
        surrogate = Surrogate(standardise(columns), known, np.array(values), self.seed, num_fit=NUM_FIT)
        return surrogate.predict()[0][len(values) :]


class _Row(NamedTuple):
    config: Config
    build: Build | None
    problem: Problem
    device: Device


def _sizes(configs: Sequence[Config], problems: Sequence[Problem]) -> list[Column]:
    """Sizes of the problem, and how often each side of the tile goes into each."""
    columns: list[Column] = []
    sides = tile_params(configs)
    sizes = [whole_numbers(problem) for problem in problems]
    for dim in sorted({name for each in sizes for name in each}):
        logs = [math.log2(max(1, each.get(dim, 1))) for each in sizes]
        columns.append(logs)
        for name in sides:
            side = [config.params.get(name) for config in configs]
            over = [log - math.log2(s) if is_number(s) and s > 0 else 0.0 for log, s in zip(logs, side, strict=True)]
            columns += [[max(0.0, each) for each in over], [float(each > 0) for each in over]]
    return columns


def _residence(rows: Sequence[_Row]) -> list[Column]:
    """Warps on an SM, waves of blocks, and how full the last one is."""
    found = []
    for config, build, _, device in rows:
        if build is None:
            found.append((math.nan, math.nan, math.nan))
            continue
        resident, waves = residence(build, num_warps(config), device)
        found.append((math.log2(resident * num_warps(config)), math.log2(waves), waves / math.ceil(waves)))
    return [list(column) for column in zip(*found, strict=True)]
