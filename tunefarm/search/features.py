"""Configs as vectors: what makes two of them alike, and what a surrogate sees of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tunefarm.config import Config, Value, show
from tunefarm.problem import Problem
from tunefarm.trial import Build

Vectors = NDArray[np.float64]
Column: TypeAlias = Sequence[float] | Vectors
LARGEST = 2**64


def is_number(value: Value) -> TypeGuard[int | float]:
    """Whether a value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def bounded(value: int | float) -> float:
    """A number as a float, cut at 64 bits: no kernel tells larger ones apart, and their squares must stay finite."""
    return float(min(max(value, -LARGEST), LARGEST))


def num_warps(config: Config) -> int:
    """Warps of a block; Triton's default of 4 where the config does not say."""
    value = config.options.get("num_warps", 4)
    return value if isinstance(value, int) else 4


def tile_params(configs: Sequence[Config]) -> list[str]:
    """Names of the params that take powers of two only: the sides of the tile, whatever the kernel calls them."""

    def is_side(values: set[Value]) -> bool:
        return all(_is_size(v) and v & (v - 1) == 0 for v in values)

    names = sorted({name for config in configs for name in config.params})
    return [name for name in names if is_side({config.params.get(name) for config in configs})]


def tile_volumes(configs: Sequence[Config]) -> Vectors:
    """Elements of each config's tile: the product of its tile params; 1 without any. Shape (len(configs),)."""
    names = tile_params(configs)
    sides = [[config.params[name] for name in names] for config in configs]
    return np.array([bounded(math.prod(side for side in row if is_number(side))) for row in sides])


def work_per_thread(configs: Sequence[Config]) -> Vectors:
    """Tile elements that fall to one thread, for each config. Shape (len(configs),)."""
    threads = np.array([32.0 * num_warps(config) for config in configs])
    return np.asarray(tile_volumes(configs) / threads)


def features(
    configs: Sequence[Config], builds: Sequence[Build | None] | None = None, problem: Problem | None = None
) -> Vectors:
    """Standardised feature vectors of configs.

    Numeric params and options enter as their logarithm (as they are where zero or less occurs), booleans as 0 and 1,
    everything else one column per value; to these come tile volume and work per thread, the powers of two that are in
    sizes, with a problem which sides of the tile span which of its sizes (a row that fits a block is another kernel
    than one that does not) and, with builds, registers, spills and shared memory. A column that does not vary is left
    out.

    Args:
        configs: any number; all with the same names.
        builds: one per config, None for one whose build failed (it counts as average); or None without builds.
        problem: what the configs compete for, where it is known.

    Returns:
        An array of shape (len(configs), num_features), each column with mean 0 and standard deviation 1.
    """
    if not configs:
        return np.zeros((0, 0))
    columns = config_columns(configs, builds)
    if problem is not None:
        columns += _spans(configs, problem)
    return standardise(columns)


def config_columns(configs: Sequence[Config], builds: Sequence[Build | None] | None) -> list[Column]:
    """What configs, and their builds where there are any, say of themselves; see `features`. NaN where unknown."""
    columns: list[Column] = []
    flats: list[Mapping[str, Value]] = [config.flat for config in configs]
    for name in sorted({name for flat in flats for name in flat}):
        columns += _columns([flat.get(name) for flat in flats])
    columns += [np.log2(tile_volumes(configs)), np.log2(work_per_thread(configs)), *_evenness(configs)]
    return columns + (_resources(builds) if builds is not None else [])


def _evenness(configs: Sequence[Config]) -> list[Column]:
    """For each param of whole sizes that are not all powers of two: the greatest power of two in each, as a logarithm.

    Warps, sectors and banks come in powers of two: 112 is as unlike 128 as it is near.
    """
    columns: list[Column] = []
    for name in sorted({name for config in configs for name in config.params}):
        sizes = [size for config in configs if _is_size(size := config.params.get(name))]
        if len(sizes) == len(configs) and any(size & (size - 1) for size in sizes):
            columns.append([math.log2(size & -size) for size in sizes])
    return columns


def _is_size(value: Value) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def standardise(columns: Sequence[Column]) -> Vectors:
    """Columns as vectors, each with mean 0 and standard deviation 1; those that do not vary are left out."""
    matrix = np.array(columns, dtype=float).T
    spread = np.nanstd(matrix, axis=0)
    varies = spread > 1e-9
    standard = (matrix - np.nanmean(matrix, axis=0))[:, varies] / spread[varies]
    return np.asarray(np.nan_to_num(standard, nan=0.0))


def _spans(configs: Sequence[Config], problem: Problem) -> list[Column]:
    """For each side of the tile and each whole number among the problem's dims: 1 where the side is no smaller."""
    sizes = set(whole_numbers(problem).values())
    sides = [[config.params[name] for config in configs] for name in tile_params(configs)]
    return [[float(is_number(side) and side >= size) for side in column] for column in sides for size in sorted(sizes)]


def whole_numbers(problem: Problem) -> dict[str, int]:
    """The whole numbers among a problem's dims, by name."""
    return {n: size for n, size in problem.dims.items() if isinstance(size, int) and not isinstance(size, bool)}


def _resources(builds: Sequence[Build | None]) -> list[Column]:
    rows = [
        (math.log2(max(b.registers, 1)), math.log2(1 + b.spills), math.log2(1024 + b.shared_bytes)) if b else None
        for b in builds
    ]
    return [[row[column] if row else math.nan for row in rows] for column in range(3)]


def _columns(values: Sequence[Value]) -> list[Column]:
    numbers = [v for v in values if isinstance(v, int | float)]
    if len(numbers) < len(values):
        kinds = sorted({show(v) for v in values})
        return [[float(show(v) == kind) for v in values] for kind in kinds]
    if all(is_number(v) for v in values) and min(numbers) > 0:
        return [[math.log2(v) for v in numbers]]  # of integers of any size
    return [[bounded(v) for v in numbers]]
