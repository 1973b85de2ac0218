"""Which ledger somebody means."""

from __future__ import annotations

from pathlib import Path

from tunefarm.document import file_stem
from tunefarm.errors import UserError
from tunefarm.record.scan import LEDGER

SWEEPS = Path("sweeps")
"""Where a sweep keeps its ledger unless it is told another folder."""


def look_up(name: str, sweeps: Path | None = None) -> Path | None:
    """The ledger of a file's path, of a sweep's folder, or of an experiment's name; None where there is none.

    Args:
        name: what somebody wrote.
        sweeps: the folder in which experiments are looked for by name; None where a name means something else.
    """
    given = Path(name)
    if given.is_file():
        return given
    places = [given / LEDGER] + ([sweeps / file_stem(name) / LEDGER] if sweeps and given.name == name else [])
    return next((place for place in places if place.is_file()), None)


def find_ledger(name: str, sweeps: Path = SWEEPS) -> Path:
    """As `look_up`, of what must be there.

    Raises:
        UserError: there is none.
    """
    if (found := look_up(name, sweeps)) is not None:
        return found
    known = sorted(path.parent.name for path in sweeps.glob(f"*/{LEDGER}"))
    hint = f"{sweeps} has {', '.join(known[:12])}" if known else f"there is no ledger in {sweeps}; sweep first"
    raise UserError("no such sweep", file=name, hint=hint)
