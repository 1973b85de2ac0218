"""Shards: which of several drivers of one sweep competes which studies. They agree without a word between them.

Each driver plans the whole sweep and works out what all of them do: of what is left the costliest goes to whoever has
least. Studies that are to share one config stay together. Every driver keeps a ledger and a pack of its own, and
`tunefarm pack merge` makes one of the packs.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import UserError
from tunefarm.plan import PlannedStudy
from tunefarm.spec.experiment import Experiment

_FORM = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One driver's part of a sweep.

    Attributes:
        number: which, from 1.
        num: of how many.
    """

    number: int
    num: int

    def __str__(self) -> str:
        return f"{self.number}/{self.num}"

    def beside(self, path: Path) -> Path:
        """Where this shard keeps what a whole sweep keeps at `path`: `packs/a.json` becomes `packs/a-2-of-8.json`."""
        if self.num == 1:
            return path
        return path.with_name(f"{path.stem}-{self.number}-of-{self.num}{path.suffix}")


WHOLE = Shard(number=1, num=1)


def parse_shard(text: str) -> Shard:
    """Reads `2/8`: the second of eight.

    Raises:
        UserError: there is no such shard.
    """
    found = _FORM.fullmatch(text)
    hint = "write --shard NUMBER/COUNT with a number from 1 to the count, such as 2/8"
    if found is None:
        raise UserError(f"{text!r} is no shard", key="--shard", hint=hint)
    number, num = (int(part) for part in found.groups())
    if not 1 <= number <= num:
        raise UserError(f"there is no shard {number} of {num}", key="--shard", hint=hint)
    return Shard(number=number, num=num)


def allot(costs: Mapping[str, float], num: int) -> dict[str, int]:
    """To each key the number of a shard, from 1: the costliest first, to whoever has least.

    Args:
        costs: of what is to be shared out, in any order.
        num: of shards.
    """
    loads = [(0.0, number) for number in range(1, num + 1)]
    shares: dict[str, int] = {}
    for key, cost in sorted(costs.items(), key=lambda item: (-item[1], item[0])):
        load, number = heapq.heappop(loads)
        shares[key] = number
        heapq.heappush(loads, (load + cost, number))
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a shard has of an experiment.

    Attributes:
        studies: its own, in the order of the plan.
        num: of studies that the experiment has.
        weight: of its own studies, as a share of all weights of the experiment.
    """

    studies: tuple[PlannedStudy, ...]
    num: int
    weight: float


def take(shard: Shard, plans: Sequence[tuple[Experiment, Sequence[PlannedStudy]]]) -> list[Part]:
    """What a shard has of each experiment; all drivers must be given the same experiments, and find the same devices.

    Args:
        shard: whose.
        plans: experiments of one sweep with all their studies.
    """
    costs: dict[str, float] = {}
    for experiment, planned in plans:
        for study in planned:
            key = _key(experiment, study)
            costs[key] = costs.get(key, 0.0) + _cost(experiment, study)
    shares = allot(costs, shard.num)
    parts = []
    for experiment, planned in plans:
        mine = tuple(study for study in planned if shares[_key(experiment, study)] == shard.number)
        weights = [sum(study.study.weight for study in each) for each in (mine, planned)]
        parts.append(Part(studies=mine, num=len(planned), weight=weights[0] / weights[1] if planned else 0.0))
    return parts


def _key(experiment: Experiment, planned: PlannedStudy) -> str:
    over = experiment.accept.one_config_over
    return f"{experiment.name} {planned.study.family(over) if over else planned.study.key}"


def _cost(experiment: Experiment, planned: PlannedStudy) -> float:
    """About how many candidates are measured; one more, so that studies without any are shared out too."""
    most = experiment.budget.trials
    num = len(planned.candidates)
    return 1.0 + (num if most is None else min(num, most))
