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
from tunefarm.config import counted
from tunefarm.record.account import Fate
from tunefarm.trial import to_json

if TYPE_CHECKING:
    from tunefarm.record.account import Account, StudyAccount


def show_standing(path: Path, *, as_json: bool) -> None:
    """Prints how the sweep of a ledger stands.

    Raises:
        LedgerError: the file is unreadable, or no ledger.
    """
    from tunefarm.record.reading import read_account

    found = read_account(path)
    driver, packs = _driver(found), list(dict.fromkeys(pack for pack, _ in found.exports))
    if as_json:
        studies = [_json(study) for study in found.competitions]
        told = {"experiment": found.experiment, "driver": driver, "at_s": found.ended_s, "packs": packs}
        typer.echo(json.dumps({**told, "damaged_lines": found.num_damaged, "studies": studies}, indent=1))
        return
    typer.echo(f"sweep    {found.experiment}: {driver}; last word {_ago(time.time() - found.ended_s)} ago")
    for study in found.competitions:
        typer.echo(_line(study))
    done = sum(study.is_over for study in found.competitions)
    typer.echo(f"in all   {done} of {counted(len(found.competitions), 'study', 'studies')}")
    if found.num_damaged:
        typer.echo(f"damaged  {counted(found.num_damaged, 'line')} of the ledger could not be used")
    for pack in packs:
        typer.echo(f"pack     {pack}")


def _driver(found: Account) -> str:
    if found.host != socket.gethostname():
        return f"driver on {found.host}"
    return "running" if _is_alive(found.pid) else "ended" if found.is_over else "not running"


def _is_alive(pid: int) -> bool:
    if pid <= 0:  # signals go to groups there
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _line(study: StudyAccount) -> str:
    verb = "replayed" if study.source == "replayed" else "measured"
    parts = [f"{study.label}: {study.stage}", f"{_num_measured(study)} of {study.num_candidates} {verb}"]
    num_failed = study.count(Fate.FAILED)
    parts += [f"{num_failed} failed"] if num_failed else []
    if study.winner:
        gain = f" {study.winner.gain:.2f}x default" if study.winner.gain is not None else ""
        parts.append(f"best {study.winner.config} {time_text(study.best_ms)}{gain}")
    elif study.best_ms is not None:
        parts.append(f"best {time_text(study.best_ms)}")
    return ", ".join(parts) + (f": {study.reason}" if study.reason else "")


def _num_measured(study: StudyAccount) -> int:
    return sum(bool(entry.measurements) for entry in study.candidates)


def _json(study: StudyAccount) -> dict[str, Any]:
    return {
        "study": study.label, "status": study.status, "candidates": study.num_candidates,
        "measured": _num_measured(study), "failed": study.count(Fate.FAILED), "rung": study.rung,
        "best_ms": study.best_ms, "source": study.source,
        "winner": to_json(study.winner) if study.winner else None, "reason": study.reason,
    }  # fmt: skip


def _ago(seconds: float) -> str:
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
