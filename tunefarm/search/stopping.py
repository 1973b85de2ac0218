"""How far a study goes: what more could be gained, when it cannot go on, and what is left on the table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tunefarm.config import counted
from tunefarm.search.outlook import Outlook
from tunefarm.study import Left
from tunefarm.trial import FAILURES, PREPARE, Failure, Outcome, Trial, describe

NUM_ENUMERATED = 32
"""Up to so many candidates are all measured; a surrogate would have nothing to save."""

MAX_TRIALS = 60
"""Trials measured at most unless the experiment says otherwise; spaces of some hundred candidates need fewer."""

PATIENCE = 2
"""Batches in a row without a plausible gain, after which exploration ends."""

STOPPING_SIGMAS = 2.0
"""How much better than expected an open candidate may plausibly be, when a study considers to stop."""

NEGLIGIBLE = 1e-4
"""Less than this is not expected but noise: studies with no more to gain are equals, whatever their weights."""

NUM_ALIKE = 10
"""Failures in a row, all alike and nothing but failures so far, after which a study gives up."""


def expected_gain(outlook: Outlook, numbers: Sequence[int]) -> float:
    """Fraction of the incumbent's time that the best of some candidates is expected to save; 0 without one."""
    if not numbers:
        return 0.0
    return -math.expm1(-float(outlook.improvement()[list(numbers)].max()))


def plausible_gain(outlook: Outlook, numbers: Sequence[int]) -> float:
    """Fraction of the incumbent's time that the most hopeful of some candidates could plausibly save; 0 without one."""
    if not numbers:
        return 0.0
    return max(0.0, 1.0 - float(outlook.bound(outlook.wary(STOPPING_SIGMAS), list(numbers)).min()))


def left(trials: Sequence[Trial], outlook: Outlook | None, limit: str) -> Left:
    """What a study leaves on the table.

    Args:
        trials: all, by number.
        outlook: what all times of the study promise of the rest; None if there are none.
        limit: that ended the exploration, if one did.
    """
    numbers = [trial.number for trial in trials if trial.outcome is Outcome.OK and not trial.measurements]
    if outlook is None:
        return Left(num=len(numbers), limit=limit)
    return Left(
        num=len(numbers),
        # Rounded, so that a driver that goes on, be it elsewhere, says the same again.
        expected_gain=round(expected_gain(outlook, numbers), 6),
        plausible_gain=round(plausible_gain(outlook, numbers), 6),
        limit=limit,
    )


def exhausted(num_tried: int, num_closed: int) -> str:
    """Why a study ends that has nobody left to ask."""
    if num_closed:
        measured, closed = counted(num_tried, "candidate"), counted(num_closed, "bucket")
        return f"nothing is left open: {measured} measured, {closed} closed"
    tried = "the only candidate" if num_tried == 1 else f"all {num_tried} distinct candidates"
    return f"space exhausted: {tried} tried"


def hopeless(trials: Sequence[Trial]) -> str:
    """Why a study cannot go on: everything tried so far failed, often enough, and in one way. Empty if it can.

    Once candidates have come as far as the GPU, only what befell them there counts: that some others could not be
    built says nothing about these.
    """
    failed = [(t.outcome, t.failure) for t in trials if t.failure is not None and t.outcome in FAILURES]
    if whole := [failure for _, failure in failed if failure.stage == PREPARE]:
        return f"the problem cannot be measured: {whole[0].kind}: {whole[0].message}"
    launched = [(outcome, failure) for outcome, failure in failed if failure.stage != "build"]
    came_further = any(trial.measurements or (trial.build and not launched) for trial in trials)
    judged = launched or failed
    if came_further or len(judged) < NUM_ALIKE or len({_way(*each) for each in judged}) != 1:
        return ""
    return f"{len(judged)}/{len(judged)} candidates failed alike: {describe(judged[0][1])}"


def _way(outcome: Outcome, failure: Failure) -> tuple[str, ...]:
    """Equal for failures that have one cause, as far as their words tell."""
    if outcome is Outcome.WRONG_RESULT:
        return (outcome,)  # By how much they are wrong differs, but hardly why.
    message = failure.message
    if outcome in (Outcome.USER_ERROR, Outcome.CRASHED, Outcome.TIMEOUT):
        # Sizes, addresses, seconds. Elsewhere numbers tell how far a candidate is beyond a limit that others may keep.
        message = re.sub(r"\d+", "#", message)
    return outcome, failure.stage, failure.kind, message
