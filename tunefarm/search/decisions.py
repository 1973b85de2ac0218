"""What a study's search asks for and decides, in values, with its reasons in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.config import counted
from tunefarm.search.buckets import Bucket
from tunefarm.search.outlook import Outlook
from tunefarm.search.rungs import RUNGS
from tunefarm.trial import Outcome, Trial

CLOSING_SIGMAS = 3.0
"""A bucket closes when even this many standard deviations better than expected, its best member loses. Where one of
the times known was a greater surprise than that, it takes as many as that was: see `Outlook.wary`."""

CLOSING_RATIO, CLOSING_CLEAN = 1.5, 3
"""A bucket also closes when so many members without spills are all slower than this multiple of the incumbent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A candidate to measure.

    Attributes:
        number: of the candidate.
        rung: how far, see `rungs.RUNGS`.
    """

    number: int
    rung: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Something that the search decided.

    Attributes:
        kind: `pruned`, `promoted`, `merged` (of a trial) or `bucket_closed`.
        number: of the trial, or of the bucket.
        reason: for people.
    """

    kind: str
    number: int
    reason: str


def equals(trials: Sequence[Trial], claim: Callable[[Trial], Any]) -> list[tuple[Trial, Trial]]:
    """Trials that the GPU could not tell from another, each with that one: among equals the first by `claim` is kept.

    What was measured stays as it is.
    """
    alike: dict[object, list[Trial]] = {}
    for trial in trials:
        if trial.build is not None and trial.outcome is not Outcome.MERGED:
            alike.setdefault(trial.build.identity, []).append(trial)
    ranked = (sorted(each, key=claim) for each in alike.values())
    pairs = ((trial, first) for first, *others in ranked for trial in others)
    return [(trial, first) for trial, first in pairs if trial.outcome is Outcome.OK and not trial.measurements]


def merged(trial: Trial, into: Trial) -> Decision:
    """The GPU could not tell two trials apart: one stands for both."""
    reason = f"same binary, grid and launch as #{into.number} ({into.config})"
    return Decision(kind="merged", number=trial.number, reason=reason)


def pruned(trial: Trial, best_ms: float) -> Decision:
    """A trial beyond the gate of its rung."""
    rung = RUNGS[trial.rung]
    return Decision(
        kind="pruned",
        number=trial.number,
        reason=f"{_time(trial, best_ms)} after rung {rung.number}; the gate is {rung.gate}x",
    )


def promoted(trial: Trial, best_ms: float, rung: int) -> Decision:
    """A trial within the gate of its rung climbs to the next."""
    fastest = min(trial.measurements[-1].samples_ms) / best_ms
    reason = f"{_time(trial, best_ms)}, its fastest sample {fastest:.2f}x: on to rung {rung}"
    return Decision(kind="promoted", number=trial.number, reason=reason)


def _time(trial: Trial, best_ms: float) -> str:
    time_ms = trial.median_ms or math.nan
    return f"{time_ms:.4g} ms, {time_ms / best_ms:.2f}x the incumbent's {best_ms:.4g} ms"


def closing(bucket: Bucket, trials: Sequence[Trial], open_numbers: Sequence[int], outlook: Outlook) -> Decision | None:
    """Closes a bucket whose open members have no case left; None if one has.

    Args:
        bucket: one with open members.
        trials: all trials by number.
        open_numbers: the bucket's members that may still be asked.
        outlook: what is expected of them.
    """
    best_ms = math.exp(outlook.best)
    clean = [
        time_ms / best_ms
        for trial in (trials[number] for number in bucket.members)
        if (time_ms := trial.median_ms) is not None and not (trial.build and trial.build.spills)
    ]
    sigmas = outlook.wary(CLOSING_SIGMAS)
    if len(clean) >= CLOSING_CLEAN and min(clean) > CLOSING_RATIO:
        evidence = f"{counted(len(clean), 'member')} measured, the fastest at {min(clean):.2f}x the incumbent"
    elif (bound := float(outlook.bound(sigmas, list(open_numbers)).min())) > 1.0:
        evidence = f"its best open member is at {bound:.2f}x the incumbent or slower ({sigmas:.1f} sigma)"
    else:
        return None
    reason = f"{evidence}; {len(open_numbers)} of {counted(len(bucket.members), 'member')} left unmeasured"
    return Decision(kind="bucket_closed", number=bucket.number, reason=reason)
