"""`tunefarm pack diff`: what changed between two packs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefarm.cli.tables import time_text
from tunefarm.config import Config, counted
from tunefarm.pack import Row, plain
from tunefarm.pack_diff import Change, RowChange, TableChange
from tunefarm.pack_diff import diff as compare
from tunefarm.pack_reader import load_pack


def diff(
    old: Annotated[Path, typer.Argument(help="The pack as it was.", show_default=False)],
    new: Annotated[Path, typer.Argument(help="The pack as it is.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what changed from OLD to NEW: tables, rows, where they come from. Exit code 0 if nothing did, else 1.

    Example: tunefarm pack diff main.json packs/softmax.json
    """
    changes = compare(load_pack(old), load_pack(new))
    if as_json:
        typer.echo(json.dumps({"equal": not changes, "tables": [_plain(change) for change in changes]}, indent=1))
    else:
        for change in changes:
            for line in _lines(change):
                typer.echo(line)
        typer.echo(_summary(changes))
    if changes:
        raise typer.Exit(1)


def _state(change: TableChange | RowChange) -> str:
    return "added" if change.old is None else "removed" if change.new is None else "changed"


def _lines(change: TableChange) -> Iterator[str]:
    table = change.table
    yield f"{table.kernel} on {table.device.name}: table {_state(change)}"
    yield from (f"    {_text(field)}" for field in change.changes)
    for row in change.rows:
        state = _state(row)
        if state == "changed":
            yield f"  ~ {row.label}"
            yield from (f"      {_text(field)}" for field in row.changes)
        else:
            shown = row.new or row.old
            assert shown is not None
            yield f"  {'+' if state == 'added' else '-'} {_row(shown)}"


def _row(row: Row) -> str:
    gain = f", {row.gain:.2f}x default" if row.gain is not None else ""
    return f"{row.match.label}: {row.config}, {time_text(row.median_ms)}{gain}"


def _text(change: Change) -> str:
    return f"{change.name}: {_value(change.old)} -> {_value(change.new)}"


def _value(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"params", "options"}:
        return str(Config.from_json(value))
    return value if isinstance(value, str) else json.dumps(value)


def _summary(changes: Sequence[TableChange]) -> str:
    if not changes:
        return "equal"
    rows = [_state(row) for change in changes for row in change.rows]
    parts = [f"{counted(rows.count(state), 'row')} {state}" for state in ("added", "removed", "changed")]
    return f"{counted(len(changes), 'table differs', 'tables differ')}: {', '.join(parts)}"


def _plain(change: TableChange) -> dict[str, Any]:
    table = change.table
    return {
        "kernel": table.kernel,
        "device": table.device.key,
        "key": table.key,
        "state": _state(change),
        "changes": {field.name: [field.old, field.new] for field in change.changes},
        "rows": [
            {
                "state": _state(row),
                "calls": row.label,
                "old": None if row.old is None else plain(row.old),
                "new": None if row.new is None else plain(row.new),
                "changes": {field.name: [field.old, field.new] for field in row.changes},
            }
            for row in change.rows
        ],
    }
