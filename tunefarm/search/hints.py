"""Hints: what one of Optuna's own samplers proposes, and the open candidate nearest to it. A door of optuna.

A proposal is only a hint because Optuna repeats itself and proposes what is illegal, pending or closed. A sampler works
in a study of its own, in the distributions that suit it; the study that people look at holds the real configs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from tunefarm.config import Value, show
from tunefarm.search.features import is_number

Distributions: TypeAlias = dict[str, CategoricalDistribution]


class OneThread(GPSampler):  # type: ignore[misc]  # Optuna is not followed by mypy
    """Optuna's Gaussian process on one thread: for some dozen points threads cost ten times what they save."""

    def sample_relative(
        self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial, search_space: Mapping[str, Any]
    ) -> dict[str, Any]:
        """As Optuna does, which by itself spares only the fit the threads and not the search for the best point."""
        import torch

        num = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return dict(super().sample_relative(study, trial, search_space))
        finally:
            torch.set_num_threads(num)


def _numbers(choices: Sequence[Value]) -> bool:
    return all(is_number(value) for value in choices)


# How each is made from a seed, and which names it gets as whole numbers, namely positions in their sorted values. TPE
# is no worse on categories than on numbers (measured on recorded spaces); a Gaussian process needs distances where
# there are any; CMA-ES leaves categories to chance.
HINTED: dict[str, tuple[Callable[[int], BaseSampler], Callable[[Sequence[Value]], bool]]] = {
    "tpe": (lambda seed: TPESampler(seed=seed), lambda choices: False),
    "gp": (lambda seed: OneThread(seed=seed, warn_independent_sampling=False), _numbers),
    "cmaes": (lambda seed: CmaEsSampler(seed=seed, warn_independent_sampling=False), lambda choices: True),
}

PENALTY = math.log(2.0)
"""A failed candidate is told to take this much longer, as a logarithm, than the slowest known."""

_GENERATION = "cma:"
"""CMA-ES keeps its state, and to which generation a trial belongs, in system attributes that begin so."""


def distributions(params: Sequence[Mapping[str, Value]]) -> Distributions:
    """Optuna's distributions: each name with the values that occur, numbers ascending."""
    space = {}
    for name in sorted({name for flat in params for name in flat}):
        values = {show(flat[name]): flat[name] for flat in params if name in flat}
        space[name] = CategoricalDistribution(sorted(values.values(), key=_ascending))
    return space


def _ascending(value: Value) -> tuple[bool, float, str]:
    return (False, float(value), "") if is_number(value) else (True, 0.0, show(value))


class Hints:
    """Candidates hinted at by an Optuna sampler, which learns logarithms of times in ms.

    What was pruned is told with the time it had: GP and CMA-ES would not hear of it otherwise. What failed is told with
    a time worse than all others rather than as FAIL, which all three ignore: they would propose the same region again.

    Args:
        name: one of `HINTED`.
        params: every candidate's values by name.
        order: candidates, most promising first, which decides between equally near ones.
        seed: of everything random.

    Attributes:
        study: in which Optuna's sampler works; trials that came to nothing carry `snapped_to`.
    """

    def __init__(self, *, name: str, params: Sequence[Mapping[str, Value]], order: Sequence[int], seed: int) -> None:
        make, is_ordinal = HINTED[name]
        self.study = optuna.create_study(sampler=make(seed % 2**32))  # NumPy takes no larger seed from Optuna
        choices = {n: list(distribution.choices) for n, distribution in distributions(params).items()}
        self._ordinal = {n for n, values in choices.items() if is_ordinal(values)}
        self._space = {
            n: IntDistribution(0, len(values) - 1) if n in self._ordinal else CategoricalDistribution(values)
            for n, values in choices.items()
        }
        self._position = {n: {show(value): i for i, value in enumerate(values)} for n, values in choices.items()}
        self._params = [
            {n: self._position[n][show(value)] if n in self._ordinal else value for n, value in flat.items()}
            for flat in params
        ]
        self._at = np.array([self._place(own) for own in self._params])
        self._order = np.array(order, dtype=int)
        self._begun: dict[int, int] = {}
        self._worst: float | None = None

    def propose(self, is_open: Collection[int]) -> int:
        """Begins the trial of the open candidate nearest to what the sampler proposes; returns its number."""
        hint = self.study.ask(self._space)
        ranked = self._order[np.isin(self._order, list(is_open))]
        # Rounded, so that the order decides between equally near ones and not the last bit of a sum.
        distance = np.abs(self._at[ranked] - self._place(hint.params)).sum(axis=1).round(9)
        number = int(ranked[int(distance.argmin())])
        if self._params[number] == hint.params:
            self._begun[number] = hint.number
            return number
        hint.set_user_attr("snapped_to", number)
        system_attrs = self.study.get_trials(deepcopy=False)[hint.number].system_attrs
        kept = {k: v for k, v in system_attrs.items() if k.startswith(_GENERATION)}
        self.study.tell(hint, state=TrialState.FAIL)
        self.begin(number, kept)
        return number

    def begin(self, number: int, system_attrs: Mapping[str, Any] | None = None) -> None:
        """Begins the trial of a candidate that nobody had to propose."""
        self._begun[number] = len(self.study.get_trials(deepcopy=False))
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params=self._params[number],
                distributions={n: self._space[n] for n in self._params[number]},
                system_attrs=dict(system_attrs or {}),
            )
        )

    def learn(self, number: int, time_ms: float | None, *, failed: bool) -> None:
        """Ends the trial of a candidate; a second word on it changes nothing.

        Args:
            number: of the candidate.
            time_ms: how long it takes, None where that is not known.
            failed: it cannot run. Without a time and without a failure it is one that stands for nothing.
        """
        if (trial := self._begun.pop(number, None)) is None:
            return
        value = None if time_ms is None else math.log(time_ms)
        if value is not None:
            self._worst = value if self._worst is None else max(value, self._worst)
        elif failed and self._worst is not None:
            value = self._worst + PENALTY
        # Before the first time there is nothing that a failure could be said to be slower than.
        self.study.tell(trial, value, state=TrialState.COMPLETE if value is not None else TrialState.FAIL)

    def _place(self, own: Mapping[str, Any]) -> list[float]:
        """Where params are, per name as a share of the steps between the first value and the last."""
        place = []
        for name in self._space:
            positions = self._position[name]
            at = own[name] if name in self._ordinal else positions[show(own[name])]
            place.append(at / max(1, len(positions) - 1))
        return place
