"""`tunefarm build`: compile what a sweep will need into the build store, on CPUs, and end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.cli.opening import FleetKind
from tunefarm.config import counted

if TYPE_CHECKING:
    from tunefarm.seams import Fleet
    from tunefarm.spec.experiment import Resolved


def build(
    experiments: Annotated[list[Path], typer.Argument(help="Experiment files, or folders.", show_default=False)],
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.RAY,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    checks: Annotated[bool, typer.Option(help="Also what the checks of finalists launch.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Compile every candidate of EXPERIMENTS, for each arch they name, into the build store. No GPU is held.

    A sweep that finds them there compiles nothing. Interrupted, the same command goes on.

    Example: tunefarm build experiments/softmax.yaml
    """
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.order import about, find_experiments

    opening.check_fleet(fleet, address)
    files = find_experiments(experiments)
    resolved = []
    for file in files:
        with about(file, files):
            resolved.append(opening.open_experiment(file, ship=True))
    if all(each.found is None for each in resolved):
        message = "a recording is replayed, and nothing is built for it"
        raise resolved[0].experiment.error("workload", message, "name an experiment with a kernel")
    store = store_folder()
    workers = opening.open_builders(fleet, address, builders=builders, refs=[r.experiment.ref for r in resolved])
    try:
        documents = [_stock(each, workers, store, checks=checks, quiet=quiet or as_json) for each in resolved]
    finally:
        workers.close()
    if as_json:
        typer.echo(json.dumps({"store": str(store), "experiments": documents}, indent=1))
        return
    for document in documents:
        typer.echo(_line(document))
    typer.echo(f"store    {store}")


def _stock(resolved: Resolved, workers: Fleet, store: Path, *, checks: bool, quiet: bool) -> dict[str, Any]:
    from tunefarm.bench.store import BuildStore
    from tunefarm.builds import BuildBoard
    from tunefarm.cli.terminal import counting
    from tunefarm.dispatch import Dispatch
    from tunefarm.plan import choose_targets, plan
    from tunefarm.stocking import fill

    began = time.monotonic()
    builds = BuildStore(store)
    board = BuildBoard(resolved, builds)
    studies = [study for study in plan(resolved, choose_targets(resolved.experiment, [], "gpu")) if not study.skipped]
    with counting(f"{resolved.experiment.name}: compiling", quiet=quiet) as moved:
        stock = fill(studies, board, Dispatch(workers), checks=checks, moved=moved)
    builds.trim()
    return {
        "experiment": resolved.experiment.name, "studies": len(studies), "candidates": stock.num_candidates,
        "builds": stock.num_builds, "compiled": stock.num_compiled, "failures": dict(stock.failures),
        "build_s": round(board.build_s, 2), "wall_s": round(time.monotonic() - began, 2),
    }  # fmt: skip


def _line(stock: dict[str, Any]) -> str:
    studies = counted(stock["studies"], "study", "studies")
    builds = counted(stock["builds"], "build")
    text = (
        f"{stock['experiment']}: {counted(stock['candidates'], 'candidate')} in {studies}, {builds} with their checks: "
        f"{stock['compiled']} compiled in {stock['build_s']} CPU s, {stock['builds'] - stock['compiled']} in the store"
    )
    failed = ", ".join(f"{count} x {kind}" for kind, count in stock["failures"].items())
    return f"{text}; no use: {failed}" if failed else text
