"""One config for several problems: what a batch-invariant job asks for, and what it costs.

Studies that differ only in the variables named by `accept.one_config_over` share their winner. The winners of all,
their runners-up and the default sit once more in every study; the config that is right everywhere and loses least
against each study's own best, in the geometric mean, is taken for all of them.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TypeAlias

from tunefarm.config import Config
from tunefarm.contest import Contest
from tunefarm.search.crown import evidence, is_better
from tunefarm.study import Status, StudyResult
from tunefarm.trial import to_json
from tunefarm.wants import Got, Want

Member: TypeAlias = tuple[Contest, StudyResult]


def families(members: Sequence[Member], over: Collection[str]) -> list[list[Member]]:
    """Studies that are to share one config: equal in all variables but those named, on one device.

    Args:
        members: contests with their results; those without a winner belong nowhere.
        over: names of variables.

    Returns:
        Families of two and more.
    """
    found = grouped(members, lambda result: result.study.family(over))
    for family in found:
        for contest, result in family if any(result.winner for _, result in family) else ():
            if result.winner is None:
                contest.tally.notices[f"{result.study.label} has no winner, and no share in the others' config"] = None
    with_winners = ([(c, result) for c, result in family if result.winner is not None] for family in found)
    return [family for family in with_winners if len(family) > 1]


def grouped(members: Iterable[Member], key: Callable[[StudyResult], str]) -> list[list[Member]]:
    """Those of one key side by side, in the order in which they come."""
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(key(member[1]), []).append(member)
    return list(found.values())


def unify(family: Sequence[Member], over: Sequence[str]) -> Generator[Want, Got, list[StudyResult]]:
    """Lets a family agree on one config.

    Returns:
        The results of its members, with the shared winner; without one where none is right for all.
    """
    default, incumbent = family[0][0].planned.default, family[0][0].incumbent
    winners = [result.winner for _, result in family if result.winner is not None]
    pool = [config for winner in winners for config in (winner.config, winner.runner_up) if config is not None]
    in_use = [config for config in (default, incumbent) if config is not None]
    sittings = []
    for contest, _ in family:
        assert contest.finals is not None
        sat = yield from contest.finals.sit([*dict.fromkeys([*pool, *in_use])], "unified")
        sittings.append({config: measurement.samples_ms for config, measurement in sat.items()})
    costs = [_costs(sat) for sat in sittings]
    shared = [config for config in costs[0] if all(config in others for others in costs)]
    if not shared:
        return [_without(member, over) for member in family]
    mean = {config: math.prod(1 + others[config] for others in costs) ** (1 / len(costs)) for config in shared}
    chosen = min(shared, key=lambda config: (mean[config], config.key))
    experiment = family[0][0].experiment
    for config in in_use:
        if config in mean:
            is_near = mean[config] <= mean[chosen] * (1 + experiment.accept.min_gain)
            if is_near or not any(is_better(sat[chosen], sat[config], seed=experiment.search.seed) for sat in sittings):
                chosen = config
                break
    return [
        _with(member, sat, chosen, cost[chosen], over)
        for member, sat, cost in zip(family, sittings, costs, strict=True)
    ]


def _costs(sat: Mapping[Config, Sequence[float]]) -> dict[Config, float]:
    """By config, the share by which it is slower than the study's own best in the same sitting."""
    if not sat:
        return {}
    medians = {config: statistics.median(samples) for config, samples in sat.items()}
    best = min(medians.values())
    return {config: found / best - 1 for config, found in medians.items()}


def _with(
    member: Member, sat: Mapping[Config, Sequence[float]], chosen: Config, cost: float, over: Sequence[str]
) -> StudyResult:
    contest, result = member
    configs = list(sat)
    reason = f"one config over {', '.join(over)}: {cost:.1%} behind its own best"
    winner = evidence(
        configs, [sat[config] for config in configs], configs.index(chosen), contest.planned.default, reason,
        contest.experiment.search.seed,
    )  # fmt: skip
    contest.minutes.note("winner", winner=to_json(winner))
    assert contest.finals is not None
    return dataclasses.replace(result, winner=winner, reason=reason, trials=contest.finals.search.trials)


def _without(member: Member, over: Sequence[str]) -> StudyResult:
    contest, result = member
    reason = f"no config is right for all values of {', '.join(over)}"
    contest.minutes.note("no_winner", status=Status.NO_WINNER.value, reason=reason)
    return dataclasses.replace(result, status=Status.NO_WINNER, winner=None, reason=reason)
