"""The static prior: an order in which candidates are worth trying, before any of them was timed.

A seed, never a filter: it decides who is built, measured and kept among equals first, not who may win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.problem import Problem
from tunefarm.search.features import bounded, is_number, num_warps, work_per_thread
from tunefarm.trial import Build

HEAVY_SPILLS = 16
"""Spilled registers per thread from which a config goes to the end. A few cost little, and a best config may spill."""

HINT = 0.3
"""Weight of what the build says of occupancy and the last wave. In full it decides alone, and replays then begin with
worse representatives than without it: few warps that hold much are often the fastest."""


def blocks_per_sm(build: Build, warps: int, device: Device) -> int:
    """Blocks that fit on one SM at a time; at least 1.

    Registers are handed out per warp in units of 256; an SM has 64 warp slots and 32 block slots.
    Source: CUDA programming guide, table of technical specifications, 8.0 and 9.0.
    """
    registers = warps * math.ceil(max(build.registers, 1) * device.warp_size / 256) * 256
    limits = [32, 64 // warps, device.registers // registers]
    if build.shared_bytes:
        limits.append(device.shared_bytes // build.shared_bytes)
    return max(1, min(limits))


def residence(build: Build, warps: int, device: Device) -> tuple[int, float]:
    """(Blocks that fit on one SM, waves in which the whole grid runs)."""
    resident = blocks_per_sm(build, warps, device)
    return resident, max(1, math.prod(build.grid)) / (device.num_sms * resident)


def order(
    configs: Sequence[Config],
    problem: Problem,
    device: Device,
    builds: Sequence[Build | None] | None = None,
    first: Sequence[int] = (),
) -> list[int]:
    """Candidates from most to least promising.

    Without builds: work per thread near the middle of the space, a moderate number of warps, little padding where a
    param is named after the dim it tiles (`BLOCK_N` and `N`). With builds also occupancy, and how well the last wave
    of blocks fills the device; heavy spills go to the end.

    Args:
        configs: the candidates.
        problem: what they compete for.
        device: where.
        builds: one entry per config, None where it is not built.
        first: indices that come before all others, in this order: the default, the incumbent.

    Returns:
        Indices of all configs, each once. Equals are ordered by config key, so the order of the input is of no
        consequence.
    """
    if not configs:
        return []
    work = np.log2(work_per_thread(configs))
    off_middle = np.abs(work - np.median(work))
    known: Sequence[Build | None] = builds if builds is not None else [None] * len(configs)
    tiled = _tiled(configs, problem)

    def rank(index: int) -> tuple[bool, float, str]:
        config, build = configs[index], known[index]
        score = float(off_middle[index]) + 0.5 * abs(math.log2(num_warps(config)) - 2.5) + _padding(config, tiled)
        if build is not None:
            score += HINT * _underuse(build, num_warps(config), device)
        heavy = build is not None and build.spills > HEAVY_SPILLS
        return heavy, round(score, 6), config.key

    seeds = list(dict.fromkeys(first))
    return seeds + sorted(set(range(len(configs))) - set(seeds), key=rank)


def _tiled(configs: Sequence[Config], problem: Problem) -> list[tuple[str, float]]:
    """(Param, size) of every dim with a size, and every param that is named after it."""
    names = sorted({name for config in configs for name in config.params})
    sizes = [(dim.lower(), bounded(size)) for dim, size in problem.dims.items() if is_number(size) and size > 0]
    return [(name, size) for name in names for dim, size in sizes if dim in name.lower().split("_")]


def _padding(config: Config, tiled: Sequence[tuple[str, float]]) -> float:
    """Factor by which tiles overshoot the dims they are named after, in units of log2."""
    pairs = ((config.params.get(name), size) for name, size in tiled)
    sides = ((bounded(side), size) for side, size in pairs if is_number(side) and side > 0)
    return sum(math.log2(math.ceil(size / side) * side / size) for side, size in sides)


def _underuse(build: Build, warps: int, device: Device) -> float:
    """Penalty in units of log2: few warps on an SM, idle SMs in the last wave, spills."""
    resident, waves = residence(build, warps, device)
    # Eight warps feed all four schedulers; whether more of them pay is for the measurement to say.
    occupancy = min(1.0, resident * warps / 8)
    fill = waves / math.ceil(waves)
    return -math.log2(occupancy) - 0.5 * math.log2(fill) + 0.5 * math.log2(1 + build.spills)
