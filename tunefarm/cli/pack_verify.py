"""`tunefarm pack verify`: whether the rows of a pack fit the kernels as they are now. No GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.cli.tables import print_table
from tunefarm.cli.terminal import console
from tunefarm.config import counted
from tunefarm.errors import UserError
from tunefarm.pack import Pack, Table
from tunefarm.pack_reader import load_pack

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from tunefarm.audit import Finding


def verify(
    file: Annotated[Path, typer.Argument(help="The pack.", show_default=False)],
    kernels: Annotated[
        list[Path],
        typer.Option(
            help="Experiment file that launches a kernel of the pack, at the problems its rows were measured at; "
            "may be given several times.",
            show_default=False,
        ),
    ],
    arch: Annotated[
        list[str] | None, typer.Option(help="Only tables of this arch, such as sm_90; may be given several times.")
    ] = None,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check on a CPU that kernels are what a pack was tuned for, and that each row compiles and fits its device.

    A row is compiled by following the call of an experiment, because no pack and no kernel says how it is launched.
    Exit code 1 if any row fails.

    Example: tunefarm pack verify packs/softmax.json --kernels experiments/softmax.yaml
    """
    tables = _of_archs(load_pack(file), arch or [], file)
    if not any(table.rows for table in tables):
        raise UserError("holds no row to verify", file=str(file), hint="name a pack with rows, or remove it")
    findings = _audit(tables, kernels, builders)
    failed = [finding for finding in findings if finding.reason]
    if as_json:
        typer.echo(json.dumps({"pack": str(file), "rows": [_describe(finding) for finding in findings]}, indent=1))
    else:
        _print(tables, findings)
        for finding in failed:
            typer.echo(f"FAILED {finding.label}: {finding.reason}")
        rows = counted(sum(len(table.rows) for table in tables), "row")
        good = sum(finding.row is not None and not finding.reason for finding in findings)
        typer.echo(f"{file}: {good} of {rows} verified, {counted(len(failed), 'failure')}")
    if failed:
        raise typer.Exit(1)


def _of_archs(pack: Pack, archs: Sequence[str], file: Path) -> list[Table]:
    there = sorted({table.device.arch for table in pack.tables})
    for arch in archs:
        if arch not in there:
            raise UserError(f"has no table for {arch}", file=str(file), hint=f"--arch may be {', '.join(there)}")
    return [table for table in pack.tables if not archs or table.device.arch in archs]


def _audit(tables: Sequence[Table], kernels: Sequence[Path], builders: int | None) -> list[Finding]:
    from tunefarm.audit import audit
    from tunefarm.bench.store import BuildStore
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.dispatch import Dispatch
    from tunefarm.fleet.inline import InlineFleet

    for path in kernels:
        if path.suffix not in (".yaml", ".yml", ".json"):
            raise UserError(
                "is no experiment", file=str(path),
                hint="--kernels takes an experiment's YAML: it says how the kernel is launched, which no module does",
            )  # fmt: skip
    experiments = [opening.open_experiment(path) for path in kernels]
    fleet = InlineFleet(num_builders=builders)  # its processes start with the first build that no store has
    try:
        return audit(tables, experiments, Dispatch(fleet), BuildStore(store_folder()))
    finally:
        fleet.close()


def _describe(finding: Finding) -> dict[str, Any]:
    row, build = finding.row, finding.build
    return {
        "kernel": finding.table.kernel,
        "device": finding.table.device.name,
        "calls": None if row is None else row.match.label,
        "config": None if row is None else row.config.to_json(),
        "registers": None if build is None else build.registers,
        "spills": None if build is None else build.spills,
        "shared_bytes": None if build is None else build.shared_bytes,
        "binary": None if build is None else build.binary,
        "failure": finding.reason or None,
    }


def _print(tables: Sequence[Table], findings: Sequence[Finding]) -> None:
    from tunefarm.bench.build import triton_version

    out, here = console(), triton_version()
    for table in tables:
        tuned = table.key_parts.get("triton", "unknown")
        differs = "" if tuned == here else f"; tuned under {tuned}"
        out.print(
            f"{table.kernel} on {table.device.name} ({table.device.arch}): compiled by Triton {here}{differs}",
        )
        rows = [finding for finding in findings if finding.table is table and finding.row is not None]
        if rows:
            print_table(out, _grid(rows))


def _grid(findings: Sequence[Finding]) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("calls", "config", "registers", "spills", "shared", "verdict"):
        grid.add_column(name, justify="right" if name in ("registers", "spills", "shared") else "left")
    for finding in findings:
        assert finding.row is not None
        build = finding.build
        numbers = ("", "", "") if build is None else (build.registers, build.spills, build.shared_bytes)
        grid.add_row(
            finding.row.match.label,
            str(finding.row.config),
            *map(str, numbers),
            "FAILED" if finding.reason else "ok",
        )
    return grid
