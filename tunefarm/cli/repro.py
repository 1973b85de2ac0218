"""`tunefarm repro`: one trial of a sweep as a script of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.ledgers import SWEEPS, find_ledger


def repro(
    sweep: Annotated[
        str, typer.Argument(help="A ledger, folder of a sweep, or name of an experiment swept.", show_default=False)
    ],
    trial: Annotated[str, typer.Argument(help="Number, config text, or `winner`.", show_default=False)],
    experiment: Annotated[
        Path, typer.Option("--experiment", "-e", help="The experiment that was swept.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Script to write.", show_default=False)],
    study: Annotated[str, typer.Option(help="Its study, where the sweep has several.")] = "",
    sweeps: Annotated[Path, typer.Option(help="Folder in which experiments are looked for by name.")] = SWEEPS,
) -> None:
    """Write a Python script that builds, launches, checks and times one TRIAL: torch, Triton and your file is all.

    Without a GPU the script cross-compiles, which is enough to see why a config does not compile.

    Example: tunefarm repro sweeps/fla-matmul winner -e fla-matmul.yaml -o repro.py
    """
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.cli import folders, opening
    from tunefarm.device import Device
    from tunefarm.document import write_atomic
    from tunefarm.errors import UserError
    from tunefarm.plan import Target, plan
    from tunefarm.record.ledger import read_events
    from tunefarm.repro import MARK, choose_study, choose_trial, script, tell, trials

    ledger = find_ledger(sweep, sweeps)
    events = list(read_events(ledger))
    told = tell(events)
    key = choose_study(told, study, str(ledger))
    folders.check_output(out, mark=MARK)
    resolved = opening.open_experiment(experiment)
    planned = plan(resolved, [Target(device=Device.from_json(told[key].device))])
    mine = next((each for each in planned if each.study.key == key), None)
    if mine is None:
        raise UserError(
            f"{experiment} has no study {told[key].label}", file=str(ledger),
            hint="name the experiment that was swept, as it was then",
        )  # fmt: skip
    number = choose_trial(mine, told[key], trial, str(ledger))
    config = trials(mine)[number].key
    outcome = told[key].outcomes.get(config, "not built: the sweep did not come to it")
    epochs = [event["data"]["identity"] for event in events if event["event"] == "epoch"]
    edited = "" if epochs[-1].get("digest") == resolved.experiment.digest else " (edited since the sweep)"
    header = (
        f"Trial {number} of {told[key].label}: {config}",
        f"sweep      {ledger}",
        f"experiment {experiment}{edited}",
        f"outcome    {' '.join(outcome.split())}",
        f"written by {', '.join(f'{name} {version}' for name, version in toolchain().items())}",
    )
    write_atomic(out, script(resolved, mine, number, header).encode())
    typer.echo(f"{out}: trial {number}, {config}: {outcome.splitlines()[0]}")
