"""How a sweep of this machine stands, read from its ledger while it runs or afterwards."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunefarm.cli.tables import time_text
from tunefarm.config import Config, counted
from tunefarm.errors import LedgerError
from tunefarm.record.scan import LEDGER

if TYPE_CHECKING:
    from tunefarm.record.survey import Survey, SurveyedStudy


def find_ledger(name: str) -> Path | None:
    """The ledger that a name means: a file, a sweep's folder, or none, and then it is a name on a cluster."""
    path = Path(name)
    ledger = path if path.name == LEDGER or path.is_file() else path / LEDGER
    return ledger if ledger.exists() or "/" in name else None  # names on a cluster have no slash


def show_standing(path: Path, *, as_json: bool) -> None:
    """Prints how the sweep of a ledger stands.

    Raises:
        LedgerError: the file is missing, or no ledger.
    """
    from tunefarm.record.ledger import read_events
    from tunefarm.record.survey import survey

    found = survey(read_events(path))
    if not found.drivers:
        raise LedgerError("no driver has begun it", file=str(path), hint="name the folder of a sweep")
    driver = _driver(found)
    if as_json:
        studies = [_json(study) for study in found.studies.values()]
        told = {"experiment": found.experiment, "driver": driver, "at_s": found.at_s, "packs": found.packs}
        typer.echo(json.dumps({**told, "studies": studies}, indent=1))
        return
    typer.echo(f"sweep    {found.experiment}: {driver}; last word {_ago(time.time() - found.at_s)} ago")
    for study in found.studies.values():
        typer.echo(_line(study))
    done = sum(study.status != "open" for study in found.studies.values())
    typer.echo(f"in all   {done} of {counted(len(found.studies), 'study', 'studies')}")
    for pack in found.packs:
        typer.echo(f"pack     {pack}")


def _driver(found: Survey) -> str:
    if found.host != socket.gethostname():
        return f"driver on {found.host}"
    return "running" if _is_alive(found.pid) else "ended" if found.packs else "not running"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _line(study: SurveyedStudy) -> str:
    verb = "replayed" if study.source == "replayed" else "measured"
    parts = [f"{study.label}: {study.stage}", f"{len(study.measured)} of {study.candidates} {verb}"]
    parts += [f"{len(study.failed)} failed"] if study.failed else []
    if study.winner:
        gain = study.winner["gain"]
        times = f" {gain:.2f}x default" if gain is not None else ""
        parts.append(f"best {Config.from_json(study.winner['config'])} {time_text(study.best_ms)}{times}")
    elif study.best_ms is not None:
        parts.append(f"best {time_text(study.best_ms)}")
    return ", ".join(parts) + (f": {study.reason}" if study.reason else "")


def _json(study: SurveyedStudy) -> dict[str, Any]:
    return {
        "study": study.label, "status": study.status, "candidates": study.candidates, "measured": len(study.measured),
        "failed": len(study.failed), "rung": study.rung, "best_ms": study.best_ms, "source": study.source,
        "winner": study.winner or None, "reason": study.reason,
    }  # fmt: skip


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
