"""`tunefarm pack`: looking into packs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.pack_bisect import bisect
from tunefarm.cli.pack_check import check
from tunefarm.cli.pack_diff import diff
from tunefarm.cli.pack_interop import export_pack, import_pack
from tunefarm.cli.pack_merge import merge, merge_driver
from tunefarm.cli.pack_revalidate import revalidate
from tunefarm.cli.pack_verify import verify
from tunefarm.cli.pack_which import which
from tunefarm.cli.terminal import console, time_text
from tunefarm.config import counted
from tunefarm.pack import Row, Table
from tunefarm.pack_reader import load_pack
from tunefarm.pack_schema import pack_schema

if TYPE_CHECKING:
    from rich.table import Table as Grid

app = typer.Typer(help="Look into config packs.", no_args_is_help=True)
app.command()(verify)
app.command()(which)
app.command()(diff)
app.command()(merge)
app.command()(merge_driver)
app.command()(bisect)
app.command()(check)
app.command()(revalidate)
app.command("import")(import_pack)
app.command("export")(export_pack)


@app.callback()
def pack() -> None:
    """Look into config packs."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="the pack")],
    as_json: Annotated[bool, typer.Option("--json", help="the pack as one line of JSON")] = False,
) -> None:
    """Show what a pack holds and where it comes from, after checking that nobody changed it."""
    loaded = load_pack(file)
    if as_json:
        typer.echo(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
        return
    out = console()
    rows, tables = counted(loaded.num_rows, "row"), counted(len(loaded.tables), "table")
    out.print(f"{file}: {rows} in {tables}, digest {loaded.digest[:12]}")
    for table in loaded.tables:
        for line in _heading(table):
            out.print(line)
        out.print(_grid(table.rows))


@app.command()
def schema() -> None:
    """Print the JSON Schema of packs.

    Example: tunefarm pack schema > pack.schema.json
    """
    typer.echo(json.dumps(pack_schema(), indent=1))


def _heading(table: Table) -> list[str]:
    origin, device = table.provenance, table.device
    replayed = " -- REPLAYED from a landscape, not measured by this sweep" if origin.source == "replayed" else ""
    unchecked = "" if origin.checked else ", outputs not checked: the workload has no reference"
    if origin.source == "imported":
        replayed, unchecked = " -- IMPORTED from another tool's file, not measured by tunefarm", ""
    tools = ", ".join(f"{name} {version}" for name, version in sorted(origin.toolchain.items()))
    return [
        "",
        f"{table.kernel} on {device.name} ({device.arch}, {device.num_sms} SMs){replayed}",
        f"  source {table.source_hash[:12]}  key {table.key[:12]}  timer {origin.timer}  {tools}",
        f"  sweep {origin.sweep} of {origin.created}, tunefarm {origin.tunefarm}{unchecked}",
    ]


def _grid(rows: Sequence[Row]) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = {"time", "default", "gain", "margin"}
    for name in ("calls", "config", "time", "default", "gain", "margin"):
        grid.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        grid.add_row(
            row.match.label,
            str(row.config),
            time_text(row.median_ms),
            time_text(row.default_ms),
            f"{row.gain:.2f}x" if row.gain is not None else "n/a",
            f"{row.margin:.1%}" if row.margin is not None else "n/a",
        )
    return grid
