"""What was decided for one kind of call of one kernel. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunefarm.runtime.active import Tally
from tunefarm.runtime.lookup import Offer


@dataclass(slots=True, eq=False)
class Choice:
    """What to do for one kind of call.

    Attributes:
        config: the `triton.Config` to launch, or None to fall back.
        offer: the row it comes from, if one does.
        tally: counts its uses.
        index: the GPU that holds the call's tensors; None where there is none, or no row looks at tensors.
        known: a pack has rows of the kernel for this device, though none for the call.
        proven: it has been launched.
        generation: of the active packs, by which it was made.
    """

    config: Any
    offer: Offer | None
    tally: Tally
    index: int | None = None
    known: bool = False
    proven: bool = False
    generation: int = -1
