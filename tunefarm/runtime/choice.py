"""What was decided for one kind of call of one kernel. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunefarm.problem import Problem
from tunefarm.runtime.active import Tally
from tunefarm.runtime.lookup import Offer


@dataclass(slots=True, eq=False)
class Choice:
    """What to do for one kind of call.

    Attributes:
        config: the `triton.Config` to launch, or None to fall back.
        offer: the row it comes from, if one does.
        tally: counts its uses.
        problem: the call, as it is counted where the row fails.
        index: the GPU that holds the call's tensors; None where there is none, or no row looks at tensors.
        known: a pack has rows of the kernel for this device, though none for the call.
        proven: it has been launched.
        generation: of the active packs, by which it was made.
    """

    config: Any
    offer: Offer | None
    tally: Tally
    problem: Problem
    index: int | None = None
    known: bool = False
    proven: bool = False
    generation: int = -1


def attempt(
    choice: Choice,
    launch: Callable[[], Any],
    fall_back: Callable[[], Any],
    condemn: Callable[[Choice, Exception], None],
) -> Any:
    """Launches with a row's config; the first time with what the call falls back on at hand.

    Compilers of equal version differ, and so do limits of equal devices. Nothing ran, so nothing is lost; an error of
    the caller's own comes again when falling back.

    Args:
        choice: a row's.
        launch: with the row's config.
        fall_back: launches without it.
        condemn: is told of a row that failed, and raises where no call is to go on without its row.
    """
    if choice.proven:
        return launch()
    try:
        launched = launch()
    except Exception as e:
        launched = fall_back()
        condemn(choice, e)
        return launched
    choice.proven = True
    return launched
