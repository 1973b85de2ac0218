"""`tunefarm aa`: the noise floor of a machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.opening import FleetKind

if TYPE_CHECKING:
    from tunefarm.noise import Noise, Unmeasured


def aa(
    experiment: Annotated[Path, typer.Argument(help="Experiment file.", show_default=False)],
    num: Annotated[int, typer.Option("--num", "-n", min=1, help="Comparisons of each problem.")] = 20,
    problems: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.INLINE,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Time the default config of an EXPERIMENT against itself, by turns as in finals, to show what is noise here.

    A slowdown is planted, too: how often is it found when one side's samples are multiplied by 1.03?

    Example: tunefarm aa experiments/softmax.yaml
    """
    from tunefarm.bench.store import BuildStore
    from tunefarm.builds import BuildBoard
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch
    from tunefarm.errands import Errands
    from tunefarm.noise import Noise, measure_noise

    opening.check_fleet(fleet, address)
    resolved = opening.open_experiment(experiment, ship=True)
    with opening.gpu_fleet(fleet, address, builders=None, refs=[resolved.experiment.ref]) as workers:
        planned = opening.plan_live(resolved, workers)[:problems]
        board = BuildBoard(resolved, BuildStore(store_folder()))
        dispatch = Dispatch(workers)
        with Progress(quiet=quiet or as_json) as progress:
            progress.begin(len(planned), num * len(planned))
            errands = Errands(resolved=resolved, dispatch=dispatch, board=board, advance=progress.advance)
            told = list(measure_noise(errands, planned, num))
    found = [noise for noise in told if isinstance(noise, Noise)]
    if as_json:
        typer.echo(json.dumps([_json(noise) for noise in told], indent=2))
    else:
        errors = [f"error: {other.error}" for other in told if not isinstance(other, Noise)]
        notices = [*dispatch.notices, *(notice for noise in found for notice in noise.notices)]
        _print(found, [*errors, *(f"note: {notice}" for notice in dict.fromkeys(notices))])
    if len(found) < len(told):
        raise typer.Exit(1)


def _json(noise: Noise | Unmeasured) -> dict[str, object]:
    from dataclasses import asdict

    from tunefarm.noise import Noise

    if not isinstance(noise, Noise):
        return {"study": noise.study.label, "device": noise.study.device.name, "error": str(noise.error)}
    return {
        "study": noise.study.label, "device": noise.study.device.name, "config": noise.config.to_json(),
        "claimed": noise.num_claimed, "found": noise.num_found, "floor": noise.floor,
        "comparisons": [asdict(comparison) for comparison in noise.comparisons],
    }  # fmt: skip


def _print(found: Sequence[Noise], lines: Sequence[str]) -> None:
    """The table of what was found, if anything was, and lines below it."""
    from rich.table import Table

    from tunefarm.cli.tables import print_table
    from tunefarm.cli.terminal import console
    from tunefarm.noise import PLANTED
    from tunefarm.search.crown import CONFIDENCE

    table = Table(title="The default config against itself", title_justify="left", box=None, pad_edge=False)
    for heading in ("study", "time us", "comparisons", "called better", f"x{PLANTED} found", "floor", "worst"):
        table.add_column(heading, justify="left" if heading == "study" else "right")
    for noise in found:
        worst = max(abs(c.ratio - 1) for c in noise.comparisons)
        table.add_row(
            noise.study.label, f"{1e3 * statistics.median(c.median_ms for c in noise.comparisons):.1f}",
            str(len(noise.comparisons)), str(noise.num_claimed), str(noise.num_found), f"{noise.floor:.2%}",
            f"{worst:.2%}",
        )  # fmt: skip
    out = console()
    if total := sum(len(noise.comparisons) for noise in found):
        print_table(out, table)
        out.print(
            f"{sum(n.num_claimed for n in found)} of {total} comparisons called one of two equals better; at "
            f"{CONFIDENCE:.0%} confidence about {(1 - CONFIDENCE) * total:.0f} are. The planted slowdown is one side's "
            f"samples multiplied by {PLANTED}. The floor is half the interval of a ratio: a smaller gain is not told "
            "from none.",
        )
    for line in lines:
        out.print(line)
