"""Replication: who wins the finals on one GPU must hold against the default on a second one, if there is one.

Cards of one kind differ by some percent, and not by one factor for all kernels; a row of a pack is for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.config import Config
from tunefarm.search.crown import evidence, is_better
from tunefarm.trial import Measurement, Winner

EVENT = "replicated"


def second(present: Sequence[str], worker: str) -> str:
    """Another worker than the one on which the finals were held; empty if there is none."""
    return next((name for name in present if worker and name != worker), "")


def pair(winner: Winner) -> tuple[Config, ...]:
    """Who sits on the second GPU; nobody where the default has won, or there is none that runs."""
    if winner.default is None or winner.default_ms is None or winner.config == winner.default:
        return ()
    return winner.config, winner.default


def upheld(
    winner: Winner, finals: Mapping[Config, Measurement], replica: Mapping[Config, Measurement], seed: int
) -> Winner:
    """The winner, or the default where that is better on the second GPU.

    Args:
        winner: of the finals.
        finals: what was measured in them, by config.
        replica: what was measured on the second GPU; who could not be timed there is left out.
        seed: of the bootstrap.
    """
    new, old = (replica.get(config) for config in pair(winner))
    if old is None or (new is not None and not is_better(old.samples_ms, new.samples_ms, seed=seed)):
        return winner
    assert winner.default is not None
    configs = sorted(finals, key=lambda config: config.key)
    samples = [finals[config].samples_ms for config in configs]
    reason = "not confirmed on a second GPU: default kept"
    return evidence(configs, samples, configs.index(winner.default), winner.default, reason, seed)
