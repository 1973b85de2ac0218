"""`tunefarm misses`: what a job missed becomes an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.config import counted

if TYPE_CHECKING:
    from tunefarm.missed import Found
    from tunefarm.spec.experiment import Resolved


def misses(
    reports: Annotated[Path, typer.Argument(help="Folder that TUNEFARM_REPORT named.", show_default=False)],
    experiment: Annotated[
        Path, typer.Option("--experiment", "-e", help="Experiment of the kernel that missed.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Experiment to write (.yaml).", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write an experiment of the calls that no row answered in a job, weighted with how often.

    Workload, inputs and space are those of an EXPERIMENT of the kernel; a sweep of the new one fills the same pack.

    Example: tunefarm misses reports -e experiments/softmax.yaml -o softmax-misses.yaml
    """
    from tunefarm.cli import folders, opening
    from tunefarm.errors import UserError
    from tunefarm.missed import MARK, Found, Solver, read_misses

    missed, num_reports = read_misses(reports)
    resolved = opening.open_experiment(experiment)
    folders.check_output(out, mark=MARK)
    (kernel, *_), solver = resolved.workload.packed_as, Solver(resolved)
    found: list[Found] = []
    left: list[tuple[str, str]] = []
    for miss in missed:
        answer = solver.solve(miss) if miss.kernel == kernel else f"{experiment} is about {kernel}"
        if isinstance(answer, Found):
            found.append(answer)
        else:
            left.append((miss.label, answer))
    notes = _write(out, resolved, found) if found else []
    if as_json:
        problems = [{"problem": f.missed.label, "variables": dict(f.variables)} for f in found]
        told = {"experiment": str(out) if found else "", "reports": num_reports, "problems": problems}
        typer.echo(json.dumps({**told, "left": [{"call": c, "reason": r} for c, r in left], "notes": notes}, indent=1))
    else:
        for each in found:
            typer.echo(f"{each.missed.label}\n  as {_shown(each)}")
        for call, reason in left:
            typer.echo(f"left out {call}\n  {reason}")
        for note in notes:
            typer.echo(f"note: {note}")
    if not found:
        raise UserError(
            f"none of {counted(len(missed), 'missed call')} is one of {experiment}'s kernel {kernel} that it can make",
            file=str(reports),
            hint="name an experiment of the kernel that missed",
        )
    if not as_json:
        typer.echo(f"{out}: {counted(len(found), 'missed call')} of {counted(num_reports, 'report')}")


def _shown(found: Found) -> str:
    variables = ", ".join(f"{name}={value}" for name, value in found.variables.items())
    if not found.assumed:
        return variables
    return f"{variables} ({', '.join(found.assumed)} as in the experiment: the report does not tell)"


def _write(out: Path, resolved: Resolved, found: list[Found]) -> list[str]:
    """Writes the experiment if it plans to what was missed, and returns what people should know."""
    from tunefarm.cli.opening import open_experiment
    from tunefarm.document import write_atomic
    from tunefarm.errors import InfrastructureError, LandscapeError
    from tunefarm.missed import rewrite
    from tunefarm.plan import choose_targets, plan
    from tunefarm.spec.tree import read_yaml

    source = resolved.experiment.path
    document = read_yaml(source).plain
    notes: list[str] = []
    for keep in (True, False):
        text = rewrite(document, found, source=source.parent, folder=out.parent, keep_landscapes=keep)
        try:
            made = open_experiment(out, text)
            planned = plan(made, choose_targets(made.experiment, []))
            break
        except LandscapeError as e:
            if not keep:
                raise
            notes.append(f"{e.file} is left out, so that a sweep of it needs a GPU: {e.args[0]}")
    keys = {study.study.problem.key for study in planned}
    if keys != {each.problem.key for each in found}:
        raise InfrastructureError(f"{out} would not plan to the calls that were missed", hint="please report this")
    write_atomic(out, text.encode())
    return notes
