"""What an operator may say from outside about a job that uses packs. Read here and nowhere else in the runtime.

TUNEFARM=off                no pack is used, whatever the code says
TUNEFARM_EXCLUDE=a,b        tables of these kernels are not used
TUNEFARM_PACK=SOURCE        what `python -m tunefarm.runtime` activates; several with commas between them
TUNEFARM_ON_MISS=default    and on which terms; also TUNEFARM_STRICT=on, TUNEFARM_ALLOW_REPLAYED=on
TUNEFARM_REPORT=FOLDER      each process writes there what its packs did
TUNEFARM_CAPTURE=FOLDER     and what it launches that could be tuned; `tunefarm capture` says it
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tunefarm.errors import UserError

OFF, ON = ("off", "0", "false", "no"), ("on", "1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The operator's word.

    Attributes:
        off: use no pack.
        exclude: kernels whose tables are not used.
        packs: sources for jobs that name none themselves.
        on_miss, strict, allow_replayed: for those, as `activate` takes them.
        report: folder for reports; empty for none.
        capture: folder for what is launched; empty for none.
    """

    off: bool = False
    exclude: frozenset[str] = frozenset()
    packs: tuple[str, ...] = ()
    on_miss: str = "stock"
    strict: bool = False
    allow_replayed: bool = False
    report: str = ""
    capture: str = ""


def wishes() -> Wishes:
    """What the environment says now.

    Raises:
        UserError: a variable that is on or off is neither.
    """
    return Wishes(
        off=not _is_on("TUNEFARM", default=True),
        exclude=frozenset(_listed("TUNEFARM_EXCLUDE")),
        packs=_listed("TUNEFARM_PACK"),
        on_miss=os.environ.get("TUNEFARM_ON_MISS", "").strip() or "stock",
        strict=_is_on("TUNEFARM_STRICT"),
        allow_replayed=_is_on("TUNEFARM_ALLOW_REPLAYED"),
        report=os.environ.get("TUNEFARM_REPORT", "").strip(),
        capture=os.environ.get("TUNEFARM_CAPTURE", "").strip(),
    )


def _is_on(name: str, *, default: bool = False) -> bool:
    said = os.environ.get(name, "").strip().lower()
    if said not in ("", *ON, *OFF):
        raise UserError(f"{name} is {said!r}", hint="it is on or off")
    return said in ON if said else default


def _listed(name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())


def rank() -> int:
    """The rank that a launcher such as torchrun gave this process; 0 without one."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0
