"""`tunefarm sweep`: from experiments to a pack."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.closing import close, close_empty
from tunefarm.cli.exposing import Exposure, MetricsAddress, MetricsFile, MetricsPort
from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.cli.sweeping import Wish, perform


def sweep(
    experiments: Annotated[list[Path], typer.Argument(help="Experiment files, or folders.", show_default=False)],
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.RAY,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    meter: Annotated[MeterKind, typer.Option(help="GPU, replay, or whichever is there.")] = MeterKind.AUTO,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds a cluster is given to show a GPU of each arch.")] = 120.0,
    sweeps: Annotated[Path, typer.Option(help="Folder of the ledgers.")] = Path("sweeps"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="One pack for all, whatever they say.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier sweeps of this name measured.")] = False,
    tracking: Annotated[str | None, typer.Option(help="MLflow URI, or `none`.", show_default=False)] = None,
    optuna_storage: Annotated[
        str | None, typer.Option(help="Optuna storage to mirror the studies in, or `none`.", show_default=False)
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsAddress = None,
    metrics_file: MetricsFile = None,
    shard: Annotated[
        str | None, typer.Option(help="Only this driver's part of the studies: `2/8`.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune the kernels of EXPERIMENTS, log to MLflow and export a pack. Interrupted, the same command goes on.

    Several go on side by side over one fleet. What breaks one of them is said at the end; the others go on.

    Example: tunefarm sweep experiments/softmax.yaml
    """
    wish = Wish(
        experiments=experiments, fleet=fleet, address=address, meter=meter, builders=builders, wait_s=wait,
        sweeps=sweeps, out=out, fresh=fresh, tracking=tracking, optuna_storage=optuna_storage, shard=shard or "",
        command=" ".join(["tunefarm", *sys.argv[1:]]),
    )  # fmt: skip
    exposure = Exposure(port=metrics_port, address=metrics_address, file=metrics_file)
    swept = perform(wish, exposure, quiet=quiet or as_json)
    if not swept.endings:
        close_empty(wish.shard, swept.num_studies, as_json=as_json)
    elif code := close(swept.endings, swept.facts, swept.failed, as_json=as_json, quiet=quiet):
        sys.exit(code)
