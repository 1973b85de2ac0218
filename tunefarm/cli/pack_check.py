"""`tunefarm pack check`: whether the rows of a pack are still as fast as when they were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.cli.tables import print_table, time_text
from tunefarm.cli.terminal import console
from tunefarm.config import counted
from tunefarm.errors import UserError
from tunefarm.pack import Pack
from tunefarm.pack_reader import load_pack

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from tunefarm.checkup import Checked

TOLERANCE = 0.05
"""On one card a kernel's medians of two days were up to 5 % apart: softmax of 4096 columns took 35.8 and 37.4 us."""

Experiments = Annotated[
    list[Path],
    typer.Argument(
        metavar="EXPERIMENT...",
        help="Experiment files that launch its kernels, at the problems its rows were measured at.",
        show_default=False,
    ),
]


def check(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The pack.", show_default=False)],
    experiments: Experiments,
    meter: Annotated[MeterKind, typer.Option(help="GPU, replay, or whichever is there.")] = MeterKind.GPU,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="By how much a time may be above the recorded interval, as a fraction.")
    ] = TOLERANCE,
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.INLINE,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Time each row of a PACK beside its default, as in finals, and compare both with what was recorded. On a GPU.

    Exit code 1 if a row is slower than its default, slower than recorded beyond the tolerance, or cannot run any more.
    `tunefarm.testing.check_pack` is the same for pytest.

    Example: tunefarm pack check packs/softmax.json experiments/softmax.yaml
    """
    told, notices = perform(
        file, experiments, meter=meter, tolerance=tolerance, fleet=fleet, address=address, quiet=quiet or as_json
    )
    if as_json:
        typer.echo(json.dumps({"pack": str(file), "rows": [_plain(each) for each in told], "notes": notices}, indent=1))
    else:
        _print(file, told, notices)
    if any(each.is_broken for each in told):
        raise typer.Exit(1)


def perform(
    file: Path, experiments: Sequence[Path], *, meter: MeterKind, tolerance: float, fleet: FleetKind,
    address: str | None, quiet: bool,
) -> tuple[list[Checked], list[str]]:  # fmt: skip
    """What a checkup says of each row of a pack, and what people should know besides.

    Raises:
        UserError: something given makes no sense, or no row could be checked.
        InfrastructureError: no worker could do what must be done.
    """
    from tunefarm.bench.store import BuildStore
    from tunefarm.checkup import Verdict, open_sites, require_kernels
    from tunefarm.checkup import check as check_rows
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch

    pack = load_pack(file)
    opening.check_fleet(fleet, address)
    resolved = [opening.open_experiment(path, ship=True) for path in experiments]
    packed_as = [each.workload.packed_as for each in resolved]
    require_kernels(pack, [name for name, *_ in packed_as], file)
    refs = [each.experiment.ref for each in resolved]
    with opening.meter_fleet(meter, fleet, address, builders=None, refs=refs) as workers:
        live, dispatch = opening.live_devices(workers), Dispatch(workers)
        with Progress(quiet=quiet) as progress:
            store = BuildStore(store_folder())
            sites = open_sites(resolved, pack.tables, dispatch, store, live, meter.value, progress.advance)
            progress.begin(0, pack.num_rows)
            told = check_rows(pack.tables, sites, tolerance)
    if all(each.verdict is Verdict.UNCHECKED for each in told):
        why = "; ".join(dict.fromkeys(each.reason for each in told)) or "it has none"
        raise UserError(f"no row could be checked: {why}", file=str(file), hint=_rows_are_for(pack))
    here = {name: source for name, source, layer in packed_as if layer == 1}
    changed = [t for t in pack.tables if t.layer == 1 and t.source_hash != here.get(t.kernel, t.source_hash)]
    notices = [
        f"the source of {table.kernel} has changed since it was tuned (then {table.source_hash[:12]}, here is "
        f"{here[table.kernel][:12]}): jobs do not use these rows before `tunefarm pack revalidate`"
        for table in changed
    ]
    return told, [*dict.fromkeys(notices), *dispatch.notices]


def _rows_are_for(pack: Pack) -> str:
    devices = sorted({f"{table.device.name} ({table.device.arch})" for table in pack.tables})
    return f"its rows are for {', '.join(devices)}" if devices else "sweep an experiment into it"


def _plain(checked: Checked) -> dict[str, Any]:
    row, now = checked.row, checked.now
    return {
        "kernel": checked.table.kernel,
        "device": checked.table.device.key,
        "calls": row.match.label,
        "config": row.config.to_json(),
        "verdict": checked.verdict.value,
        "reason": checked.reason,
        "source": checked.source,
        "then": {"median_ms": row.median_ms, "interval_ms": row.interval_ms, "default_ms": row.default_ms,
                 "gain": row.gain},
        "now": None if now is None else {
            "median_ms": now.median_ms, "interval_ms": now.interval_ms, "default_ms": now.default_ms,
            "gain": now.gain, "gain_interval": now.gain_interval,
        },
    }  # fmt: skip


def _print(file: Path, told: Sequence[Checked], notices: Sequence[str]) -> None:
    from tunefarm.checkup import Verdict

    out = console()
    for table in dict.fromkeys(each.table for each in told):
        mine = [each for each in told if each.table == table]
        replayed = sorted({each.source for each in mine} & {"replayed"})
        how = " -- REPLAYED from a landscape, nothing was timed" if replayed else ""
        out.print(f"{table.kernel} on {table.device.name} ({table.device.arch}){how}")
        print_table(out, _grid(mine))
    for each in told:
        if each.reason:
            typer.echo(
                f"{each.verdict.value.upper() if each.is_broken else each.verdict.value} {each.label}: {each.reason}"
            )
    for notice in notices:
        typer.echo(f"note: {notice}")
    verdicts = [each.verdict for each in told]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts)
    typer.echo(f"{file}: {counted(len(told), 'row')}: {counts}")


def _grid(told: Sequence[Checked]) -> Grid:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = ("then", "now", "gain then", "gain now")
    for name in ("calls", *numbers, "verdict"):
        grid.add_column(name, justify="right" if name in numbers else "left", no_wrap=name in numbers)
    for each in told:
        row, now = each.row, each.now
        grid.add_row(
            row.match.label,
            time_text(row.median_ms),
            time_text(now.median_ms) if now else "",
            _gain(row.gain),
            _gain(now.gain) if now else "",
            each.verdict.value,
        )
    return grid


def _gain(gain: float | None) -> str:
    return "n/a" if gain is None else f"{gain:.2f}x"
