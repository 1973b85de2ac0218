"""`tunefarm record`: measure a whole space into a landscape."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.opening import FleetKind
from tunefarm.config import counted


def record(
    experiment: Annotated[Path, typer.Argument(help="Experiment file.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Landscape to write (.json.gz).", show_default=False)],
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.RAY,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each config.")] = 20,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Measure every candidate of an EXPERIMENT on this machine's GPU and write a landscape that can be replayed.

    Example: tunefarm record experiments/softmax.yaml -o experiments/landscapes/softmax_h200.json.gz
    """
    from tunefarm import landscape as landscapes
    from tunefarm.bench.store import BuildStore
    from tunefarm.builds import BuildBoard
    from tunefarm.cli import folders, opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch
    from tunefarm.errands import Errands
    from tunefarm.errors import UserError
    from tunefarm.recording import record as make_recording

    opening.check_fleet(fleet, address)
    resolved = opening.open_experiment(experiment, ship=True)
    if not out.name.endswith(".json.gz"):
        raise UserError("a landscape is gzipped JSON", file=str(out), hint="name it *.json.gz")
    folders.check_output(out)
    began = time.monotonic()
    with opening.gpu_fleet(fleet, address, builders=builders, refs=[resolved.experiment.ref]) as workers:
        planned = opening.plan_live(resolved, workers)
        board = BuildBoard(resolved, BuildStore(store_folder()))
        keys = {board.slot(study.call, config).key for study in planned for config in study.candidates}
        dispatch = Dispatch(workers)
        with Progress(quiet=quiet) as progress:
            progress.begin(len(keys), sum(len(study.candidates) for study in planned))
            errands = Errands(resolved=resolved, dispatch=dispatch, board=board, advance=progress.advance)
            recording = make_recording(errands, planned, samples)
    landscapes.save(recording, out)
    problems = counted(len(recording.problems), "problem")
    configs = counted(sum(len(r.entries) for r in recording.problems), "config")
    typer.echo(
        f"{out}: {problems}, {configs} on {recording.device.name}, "
        f"{out.stat().st_size / 1000:.0f} kB; {time.monotonic() - began:.1f} s, GPU held {dispatch.held_s:.1f} s"
    )
    for notice in (*dispatch.notices, *recording.notices):
        typer.echo(f"note: {notice}")
