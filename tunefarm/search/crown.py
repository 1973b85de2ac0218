"""The crown: who wins the finals, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from tunefarm.config import LIBRARY, Config
from tunefarm.search.features import num_warps, tile_volumes
from tunefarm.trial import Winner, median_interval

NUM_RESAMPLES = 2000
"""At least; a narrower tail takes more, so that ten lie beyond either end of an interval whatever its confidence."""
CONFIDENCE = 0.99
"""Of the interval outside of which one config is better than another; in finals, of all such intervals together."""

Finalist: TypeAlias = tuple[int, Config, tuple[float, ...]]
"""Number, config and samples in ms, one sample per round: sample i of every finalist was taken in round i."""


def crown(
    finalists: Sequence[Finalist], default: Config | None, incumbent: Config | None, min_gain: float, seed: int
) -> Winner:
    """Crowns the winner of interleaved finals.

    A finalist ties with the fastest when the fastest is not better by `is_better`. With k finalists that is asked
    k - 1 times, so each answer may err with an equal share of 1 - `CONFIDENCE` only (Bonferroni; that the fastest was
    picked by the same samples is left out of account). A tied default is kept, and so is one that the fastest beats by
    less than `min_gain`; then the incumbent under the same terms; then, among those that are both tied and within
    `min_gain`, the simplest: fewest warps, fewest stages, smallest tile, first key. The order of `finalists` is of no
    consequence.

    Args:
        finalists: at least one, each with at least one sample.
        default: the config used without tuning, whether or not it is a finalist.
        incumbent: the config that an earlier pack holds for this problem.
        min_gain: fraction by which a new config must be faster to replace what is in use, such as 0.01.
        seed: of the bootstrap.

    Returns:
        The winner with intervals; `margin` is negative when a tie kept a config that another one beat by a hair.
    """
    field = sorted(finalists, key=lambda finalist: finalist[1].key)
    configs = [config for _, config, _ in field]
    samples = [samples_ms for _, _, samples_ms in field]
    medians = np.array([float(np.median(s)) for s in samples])
    fastest = int(medians.argmin())
    rest = [i for i in range(len(field)) if i != fastest]
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(1, len(rest))
    tied = {fastest, *(i for i in rest if not is_better(samples[fastest], samples[i], confidence, seed))}
    near = {i for i in range(len(field)) if i == fastest or medians[i] < medians[fastest] * (1.0 + min_gain)}
    champion, reason = _choose(configs, tied, near, default, incumbent)
    return evidence(configs, samples, champion, default, reason, seed)


def evidence(
    configs: Sequence[Config],
    samples: Sequence[Sequence[float]],
    champion: int,
    default: Config | None,
    reason: str,
    seed: int = 0,
) -> Winner:
    """The winner of a sitting with what it showed.

    Args:
        configs: that sat.
        samples: in ms, one a round, of each.
        champion: index of the winner.
        default: the config used without tuning, whether or not it sat.
        reason: why it won, for people.
        seed: of the bootstrap.
    """
    medians = [float(np.median(s)) for s in samples]
    rivals = [i for i in range(len(configs)) if i != champion]
    runner_up = min(rivals, key=lambda i: medians[i]) if rivals else None
    against = configs.index(default) if default in configs else None
    return Winner(
        config=configs[champion],
        median_ms=medians[champion],
        interval_ms=median_interval(samples[champion]),
        default=default,
        default_ms=None if against is None else medians[against],
        gain=None if against is None else medians[against] / medians[champion],
        gain_interval=None if against is None else ratio_interval(samples[against], samples[champion], 0.95, seed),
        runner_up=None if runner_up is None else configs[runner_up],
        margin=None if runner_up is None else medians[runner_up] / medians[champion] - 1.0,
        reason=reason,
    )


def _choose(
    configs: Sequence[Config], tied: set[int], near: set[int], default: Config | None, incumbent: Config | None
) -> tuple[int, str]:
    """The champion's index and why. `tied` and `near` (within the least gain) both hold the fastest."""
    if len(configs) == 1:
        return 0, "only candidate"
    for name, config in (("default", default), ("incumbent", incumbent)):
        if config in configs and (index := configs.index(config)) in tied | near:
            return index, f"tie: {name} kept" if len(tied | near) > 1 else "faster"
    points = [index for index, config in enumerate(configs) if config != LIBRARY]
    volumes = dict(zip(points, tile_volumes([configs[i] for i in points]), strict=True))

    def simplicity(index: int) -> tuple[int, float, float, str]:
        stages = configs[index].options.get("num_stages")
        return (
            num_warps(configs[index]),
            float(stages) if isinstance(stages, int) else 0.0,
            float(volumes.get(index, 0.0)),
            configs[index].key,
        )

    equals = tied & near
    return min(equals, key=simplicity), "tie: simpler kept" if len(equals) > 1 else "faster"


def is_better(
    faster_ms: Sequence[float], slower_ms: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0
) -> bool:
    """Whether one config is faster than another beyond the noise of their sitting.

    Args:
        faster_ms: its samples in ms, the i-th taken in the same round as the other's i-th.
        slower_ms: the other's.
        confidence: that an equal one is not taken for slower or faster.
        seed: of the bootstrap.
    """
    return ratio_interval(slower_ms, faster_ms, confidence, seed)[0] > 1.0


def ratio_interval(
    slower_ms: Sequence[float], faster_ms: Sequence[float], confidence: float, seed: int = 0
) -> tuple[float, float]:
    """The interval of the ratio of two medians, by bootstrap over the rounds of a sitting.

    The same rounds are drawn for both: what disturbed a round disturbed both, and cancels in the ratio.

    Args:
        slower_ms: samples in ms.
        faster_ms: those of the other; the i-th was taken in the same round.
        confidence: of the interval, such as 0.99.
        seed: of the bootstrap.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 13 (percentile intervals).
    """
    num_rounds = min(len(slower_ms), len(faster_ms))
    num_resamples = max(NUM_RESAMPLES, round(20 / (1.0 - confidence)))
    rounds = np.random.default_rng(seed).integers(num_rounds, size=(num_resamples, num_rounds))
    slower, faster = (np.median(np.asarray(s[:num_rounds])[rounds], axis=1) for s in (slower_ms, faster_ms))
    tail = 50 * (1.0 - confidence)
    low, high = np.percentile(slower / faster, [tail, 100 - tail])
    return float(low), float(high)
