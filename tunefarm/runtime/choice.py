"""What was decided for the calls of one kernel. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import Config
from tunefarm.problem import Problem
from tunefarm.runtime.active import Tally
from tunefarm.runtime.lookup import Offer, Shortlist


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


@dataclass(slots=True, kw_only=True, eq=False)
class Ties:
    """What ties a kernel to the packs of one generation. A launch keeps to one of them, whoever changes the packs.

    Attributes:
        generation: of the active packs; of no packs, -1.
        dims: scalar arguments that rows name.
        tensors: tensor arguments that rows name, absent ones included.
        defaults: values of such arguments for calls that leave them out.
        configs: declared configs, then those of the packs.
        positions: where among them the packs' configs stand.
        memo: choices by kind of call.
        lists: rows by number of the GPU.
        prune: what torch.compile traces, once it has asked for it.
    """

    generation: int = -1
    dims: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    configs: Sequence[Any] = ()
    positions: Mapping[Config, int] = field(default_factory=dict)
    memo: dict[Any, Choice] = field(default_factory=dict)
    lists: dict[int | None, Shortlist] = field(default_factory=dict)
    prune: Any = None


def attempt(
    choice: Choice,
    launch: Callable[[], Any],
    fall_back: Callable[[], Any] | None,
    condemn: Callable[[Choice, Exception], None],
) -> Any:
    """Launches with a row's config; the first time with what the call falls back on at hand.

    Compilers of equal version differ, and so do limits of equal devices. Nothing ran, so nothing is lost; an error of
    the caller's own comes again when falling back.

    Args:
        choice: a row's.
        launch: with the row's config.
        fall_back: launches without it; None where nothing but a row may answer.
        condemn: is told of a row that failed, and raises where nothing but a row may answer.
    """
    if choice.proven:
        return launch()
    try:
        launched = launch()
    except Exception as e:
        if fall_back is None:
            condemn(choice, e)
            raise
        launched = fall_back()
        condemn(choice, e)
        return launched
    choice.proven = True
    return launched
