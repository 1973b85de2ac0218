"""Samplers over a candidate list, each driving a real Optuna study. A door of optuna.

Optuna proposes and people look at its study; the candidate list, the mask of what was asked and the times that the
surrogate learns from are ours, because Optuna repeats itself, proposes what is illegal and cannot correct a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from tunefarm.config import Config, Value
from tunefarm.errors import SpecError
from tunefarm.search.features import Vectors
from tunefarm.search.hints import HINTED, Hints, distributions
from tunefarm.search.outlook import Outlook
from tunefarm.search.pruner import FASTEST, RatioPruner
from tunefarm.search.rungs import LAST
from tunefarm.trial import FAILURES, FINAL, Outcome, Trial

SAMPLERS = ("default", *HINTED, "random", "exhaustive")
"""Names of the samplers, as `search.sampler` of an experiment takes them."""


class ListSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not followed by mypy
    """An Optuna sampler that proposes members of a list.

    Args:
        choose: gives the numbers of up to so many candidates to try next.
        params: every candidate's values by name.
        space: Optuna's distributions by name.
    """

    def __init__(
        self,
        choose: Callable[[int], list[int]],
        params: Sequence[Mapping[str, Value]],
        space: Mapping[str, CategoricalDistribution],
    ) -> None:
        self._choose = choose
        self._params = params
        self._space = dict(space)
        self._queue: deque[int] = deque()
        self.proposed = -1

    def plan(self, num: int) -> int:
        """Chooses a batch at once, so that its members know of each other; returns how many there are."""
        self._queue = deque(self._choose(num))
        return len(self._queue)

    def before_trial(self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial) -> None:
        """Takes the next candidate of the batch; `proposed` holds its number."""
        self.proposed = self._queue.popleft()

    def infer_relative_search_space(
        self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, CategoricalDistribution]:
        """All names: a candidate is proposed whole."""
        return self._space

    def sample_relative(
        self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial, search_space: Mapping[str, Any]
    ) -> dict[str, Value]:
        """The values of the proposed candidate."""
        return dict(self._params[self.proposed])

    def sample_independent(
        self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """The proposed candidate's value of one name."""
        return self._params[self.proposed][param_name]


class StudySampler:
    """Decides which candidates to measure next; never the same one twice. A tenant of `seams.Sampler`.

    The Optuna study holds medians in ms (its samplers only rank them); steps are rungs. What failed or was merged
    is told as FAIL.

    Args:
        name: one of `SAMPLERS`.
        configs: the candidates; numbers are positions in this list.
        points: their features, shape (len(configs), num_features).
        order: the open candidates, most promising first.
        first: those asked before all others, in this order.
        seed: of everything random.

    Raises:
        SpecError: no sampler has that name.
    """

    def __init__(
        self,
        *,
        name: str,
        configs: Sequence[Config],
        points: Vectors,
        order: Sequence[int],
        first: Sequence[int],
        seed: int,
    ) -> None:
        if name not in SAMPLERS:
            raise SpecError(f"unknown sampler {name!r}", key="search.sampler", hint=f"one of {', '.join(SAMPLERS)}")
        self.name = name
        self._points, self._seed = points, seed
        self._order, self._first = list(order), list(first)
        if name == "random":
            self._order = [order[int(i)] for i in np.random.default_rng(seed).permutation(len(order))]
        self._order = list(dict.fromkeys([*first, *self._order]))
        self._open = set(order)
        self._asked: dict[int, optuna.trial.Trial] = {}
        self._trials: dict[int, Trial] = {}
        self._outlook: Outlook | None = None
        self._params = [config.flat for config in configs]
        self._space = distributions(self._params)
        # Optuna's logger is the process's; at its default level it would report every trial.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.hints = Hints(name=name, params=self._params, order=self._order, seed=seed) if name in HINTED else None
        choose = self._by_surrogate if name == "default" else self._by_hints if self.hints else self._in_order
        self._list = ListSampler(choose, self._params, self._space)
        self.study = optuna.create_study(sampler=self._list, pruner=RatioPruner())

    @property
    def open_numbers(self) -> list[int]:
        """Candidates that may still be asked, ascending."""
        return sorted(self._open)

    @property
    def outlook(self) -> Outlook | None:
        """What the times so far promise of the rest; None before the first."""
        if self._outlook is None:
            self._outlook = self.foresee(self._trials)
        return self._outlook

    def foresee(self, trials: Mapping[int, Trial]) -> Outlook | None:
        """The outlook if the candidates asked so far stood so, by number; None without a time. Nothing is learned."""
        if not (times_ms := self._times_ms(trials)):
            return None
        failed = [number for number in self._asked if number in trials and trials[number].outcome in FAILURES]
        return Outlook(self._points, times_ms, failed, self._seed)

    def ask(self, num: int) -> list[int]:
        """Numbers of up to `num` candidates, none asked before; empty when none is open."""
        return [self._begin() for _ in range(self._list.plan(min(num, len(self._open))))]

    def tell(self, trial: Trial) -> None:
        """Learns how a candidate stands, asked or not; the latest word holds."""
        number = trial.number
        if _said(trial) != _said(self._trials.get(number)):
            self._outlook = None
        self._trials[number] = trial
        self._open.discard(number)
        asked = self._asked.get(number)
        if asked is None:
            return
        if trial.measurements and trial.rung != FINAL and trial.rung not in self._steps(asked):
            asked.report(trial.measurements[-1].median_ms, step=trial.rung)
            asked.set_user_attr(FASTEST, min(trial.measurements[-1].samples_ms))
        if trial.outcome in FAILURES or trial.outcome is Outcome.MERGED:
            asked.set_user_attr("outcome", str(trial.outcome))
            self._finish(number, TrialState.FAIL)

    def judge(self, number: int) -> bool:
        """Whether the pruner gives up a candidate at the rung last told. Ends its Optuna trial where that is due."""
        asked = self._asked[number]
        if asked.should_prune():
            self._finish(number, TrialState.PRUNED)
            return True
        if max(self._steps(asked)) == LAST:
            self._finish(number, TrialState.COMPLETE)
        return False

    def put_first(self, numbers: Sequence[int]) -> None:
        """Makes these the next to be asked, be they closed or not."""
        self._first = list(dict.fromkeys([*numbers, *self._first]))
        self._open.update(numbers)

    def close(self, numbers: Sequence[int]) -> None:
        """Takes candidates out of the race unmeasured: they are not asked any more."""
        self._open.difference_update(numbers)

    def _times_ms(self, trials: Mapping[int, Trial]) -> dict[int, float]:
        times_ms = {}
        for number in self._asked:
            trial = trials.get(number)
            stand_in = trial.merged_into if trial is not None and trial.merged_into is not None else number
            known = trials.get(stand_in)
            if known is not None and known.median_ms is not None and known.outcome not in FAILURES:
                times_ms[number] = known.median_ms
        return times_ms

    def _in_order(self, num: int) -> list[int]:
        return [number for number in self._order if number in self._open][:num]

    def _by_surrogate(self, num: int) -> list[int]:
        chosen = [number for number in self._first if number in self._open][:num]
        if len(chosen) == num:
            return chosen
        if self.outlook is None:
            return self._in_order(num)
        return chosen + self.outlook.choose(sorted(self._open.difference(chosen)), num - len(chosen))

    def _by_hints(self, num: int) -> list[int]:
        assert self.hints is not None
        chosen = [number for number in self._first if number in self._open][:num]
        for number in chosen:
            self.hints.begin(number)
        while len(chosen) < num:
            chosen.append(self.hints.propose(self._open.difference(chosen)))
        return chosen

    def _begin(self) -> int:
        """Starts the Optuna trial of the next candidate of the batch."""
        asked = self.study.ask(self._space)
        number = self._list.proposed
        asked.set_user_attr("candidate", number)
        self._asked[number] = asked
        self._open.remove(number)
        return number

    def _steps(self, asked: optuna.trial.Trial) -> list[int]:
        return list(self._frozen(asked).intermediate_values)

    def _finish(self, number: int, state: TrialState) -> None:
        frozen = self._frozen(self._asked[number])
        if frozen.state.is_finished():
            return
        value = frozen.intermediate_values[frozen.last_step] if state == TrialState.COMPLETE else None
        self.study.tell(self._asked[number], value, state=state)
        if self.hints is not None:
            failed = self._trials[number].outcome in FAILURES
            self.hints.learn(number, self._times_ms(self._trials).get(number), failed=failed)

    def _frozen(self, asked: optuna.trial.Trial) -> optuna.trial.FrozenTrial:
        return self.study.get_trials(deepcopy=False)[asked.number]


def _said(trial: Trial | None) -> tuple[Any, ...] | None:
    """All of a trial that an outlook goes by: that it was pruned after all makes no other one."""
    return None if trial is None else (trial.measurements, trial.merged_into, trial.outcome in FAILURES)
