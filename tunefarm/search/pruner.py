"""Our Optuna pruner: a ratio gate against the incumbent after each rung. A door of optuna."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from tunefarm.search.rungs import RUNGS

FASTEST = "fastest_ms"
"""User attribute of an Optuna trial: its fastest sample at the rung last reported."""


class RatioPruner(optuna.pruners.BasePruner):  # type: ignore[misc]  # Optuna is not followed by mypy
    """Prunes a trial of which even the fastest sample is beyond the rung's gate, as a multiple of the incumbent.

    Steps are rung numbers and values are medians in ms. The incumbent is the lowest last value of all other trials
    that have not failed. What disturbs a sample makes it longer: two disturbed ones among three must not end a trial.
    """

    def prune(self, study: optuna.study.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether `trial` should be given up; never without a step, a gate or an incumbent."""
        step = trial.last_step
        if step is None or (gate := RUNGS[step].gate) is None:
            return False
        others = [
            other.intermediate_values[other.last_step]
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number and other.last_step is not None and other.state != TrialState.FAIL
        ]
        return bool(others) and trial.user_attrs.get(FASTEST, trial.intermediate_values[step]) > gate * min(others)
