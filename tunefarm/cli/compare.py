"""`tunefarm compare`: whether a pack is as fast as another, for people and for CI. No GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.address import file_fault
from tunefarm.cli.ledgers import look_up
from tunefarm.cli.tables import print_table, time_text
from tunefarm.cli.terminal import console
from tunefarm.config import counted
from tunefarm.errors import UserError
from tunefarm.pack import Pack
from tunefarm.pack_compare import Compared, ComparedTables, Standing, count
from tunefarm.pack_compare import compare as compare_packs
from tunefarm.record.store import sqlite_path

if TYPE_CHECKING:
    from rich.table import Table as Grid

_SOURCE = "A pack, a folder of packs, `pkg:PACKAGE`, `models:/NAME@ALIAS`, or a sweep's folder: the pack it exported."

RegistryUri = Annotated[
    str, typer.Option("--tracking", envvar="MLFLOW_TRACKING_URI", help="Of MLflow, whose registry is meant.")
]


def compare(
    old: Annotated[str, typer.Argument(help=_SOURCE, show_default=False)],
    new: Annotated[str, typer.Argument(help="What is compared with it.", show_default=False)],
    tracking: RegistryUri = "sqlite:///mlflow.db",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show by how much each row of NEW is faster or slower than OLD's, and whether that is beyond noise.

    Exit code 0 if NEW is as fast or faster, 1 if a row is slower beyond noise.

    Example: tunefarm compare main.json packs/softmax.json
    """
    tables = compare_sources(old, new, tracking)
    standings = count(tables)
    if as_json:
        typer.echo(json.dumps({"old": old, "new": new, **plain(tables)}, indent=1))
    else:
        print_compared(tables)
        typer.echo(summary(tables))
    if standings[Standing.SLOWER]:
        raise typer.Exit(1)


def compare_sources(old: str, new: str, registry: str) -> tuple[ComparedTables, ...]:
    """The rows of two sources side by side.

    Raises:
        UserError: one of them cannot be read, or no time of one can be compared with any of the other.
    """
    tables = compare_packs(open_source(old, registry), open_source(new, registry))
    standings = count(tables)
    if not any(standings[s] for s in (Standing.SAME, Standing.FASTER, Standing.SLOWER)):
        reasons = dict.fromkeys(row.reason for table in tables for row in table.rows if row.reason)
        why = "; ".join(reasons) or "they hold no row for the same problem of one kernel and device"
        raise UserError(f"{old} and {new} cannot be compared: {why}", hint="`tunefarm pack diff` shows what differs")
    return tables


def open_source(source: str, registry: str) -> Pack:
    """The pack that a source names.

    Raises:
        UserError: there is none, or part of it is damaged.
    """
    from tunefarm.runtime.sources import find_packs

    if source.startswith("models:"):
        check_database(registry)
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"  # a pack is a small file, and the terminal is ours
    ledger = look_up(source) if Path(source).is_dir() else None
    found = find_packs(_exported(ledger) if ledger else source, thoroughly=True, registry=registry)
    if found.damaged:
        raise found.damaged[0]
    assert found.pack is not None, "a source of which nothing is damaged holds a pack"
    return found.pack


def check_database(uri: str) -> None:
    """Sees whether a registry that is a file is there: MLflow would make an empty one.

    Raises:
        UserError: it is not, or is something else.
    """
    if (database := sqlite_path(uri)) is None:
        return
    fault = file_fault(database) if database.exists() else "there is no such database"
    if fault:
        raise UserError(fault, file=str(database), hint="name another one with --tracking")


def _exported(ledger: Path) -> Path:
    """The pack that a sweep exported last, as it was then."""
    from tunefarm.pack_reader import load_pack
    from tunefarm.record.ledger import read_events

    exports = [event["data"] for event in read_events(ledger) if event["event"] == "export"]
    if not exports:
        raise UserError("this sweep has exported no pack", file=str(ledger), hint="give its experiment an `export`")
    path = Path(exports[-1]["path"])
    if not path.is_file():
        raise UserError(f"the pack of this sweep, {path}, is not there", file=str(ledger), hint="stand where it ran")
    if load_pack(path).digest != exports[-1]["digest"]:
        raise UserError(
            f"{path} has changed since this sweep exported it", file=str(ledger), hint="name the pack that you mean"
        )
    return path


def print_compared(tables: Sequence[ComparedTables]) -> None:
    """Tables of rows, each under its kernel and device."""
    out = console()
    for table in tables:
        if table.rows:
            out.print(f"{table.table.kernel} on {table.table.device.name} ({table.table.device.arch})", markup=False)
            for change in table.changes:
                if change.name.startswith(
                    ("source_hash", "provenance.toolchain", "provenance.timer", "provenance.sou")
                ):
                    out.print(f"  {change.name}: {change.old} -> {change.new}", markup=False)
            print_table(out, _grid(table.rows))


def _grid(rows: Sequence[Compared]) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("calls", "was", "is", "change", "", "config"):
        grid.add_column(name, justify="right" if name in ("was", "is", "change") else "left")
    for row in rows:
        grid.add_row(
            row.row.match.label.replace("[", r"\["),
            time_text(row.old.median_ms) if row.old is not None else "",
            time_text(row.new.median_ms) if row.new is not None else "",
            f"{row.change:+.1%}" if row.change is not None else "",
            "\n".join(filter(None, (row.standing.value, row.reason))),
            "\n".join(_moved(row)),
        )
    return grid


def _moved(row: Compared) -> Iterator[str]:
    """The config, after the one whose place it took; and the calls whose answer it was, where these are others now."""
    if row.old is not None and row.new is not None:
        if row.old.config != row.new.config:
            yield str(row.old.config)
            yield f"-> {row.new.config}"
        else:
            yield str(row.new.config)
        if row.old.match != row.new.match:
            yield f"was for {row.old.match.label}".replace("[", r"\[")
    else:
        yield str(row.row.config)


def summary(tables: Sequence[ComparedTables]) -> str:
    """One line: how many rows stand how."""
    standings = count(tables)
    both = sum(number for standing, number in standings.items() if standing not in (Standing.GONE, Standing.NEW))
    parts = [f"{number} {standing}" for standing, number in standings.items() if number]
    moved = sum(
        row.old is not None and row.new is not None and row.old.config != row.new.config
        for table in tables
        for row in table.rows
    )
    return f"{counted(both, 'row')} in both: {', '.join(parts)}; {moved} with another config"


def plain(tables: Sequence[ComparedTables]) -> dict[str, Any]:
    """Counts and rows as plain data."""
    rows = [
        {
            "kernel": table.table.kernel,
            "device": table.table.device.key,
            "calls": row.row.match.label,
            "measured_at": dict(row.row.measured_at),
            "standing": row.standing.value,
            "reason": row.reason,
            "change": None if row.change is None else round(row.change, 6),
            "old": _side(row.old),
            "new": _side(row.new),
        }
        for table in tables
        for row in table.rows
    ]
    return {"counts": {standing.value: number for standing, number in count(tables).items()}, "rows": rows}


def _side(row: Any) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "config": row.config.to_json(), "median_ms": row.median_ms, "gain": row.gain, "margin": row.margin,
        "interval_ms": None if row.interval_ms is None else list(row.interval_ms),
    }  # fmt: skip
