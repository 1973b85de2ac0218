"""`tunefarm init`: a first experiment for a kernel that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.config import counted
from tunefarm.errors import UserError

if TYPE_CHECKING:
    from tunefarm.spec.draft import Draft


def init(
    target: Annotated[
        str, typer.Argument(help="The kernel: FILE.py:KERNEL or PACKAGE.MODULE:KERNEL.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Experiment to write; default: NAME.yaml, here.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write an experiment for TARGET, a kernel with @triton.autotune or @triton.jit, from what it and its module say.

    Space and key are the autotuner's. Lines that nobody but you can know say FILL IN. No file is written over.

    Example: tunefarm init mylib/ops.py:matmul_kernel
    """
    from tunefarm.cli import folders
    from tunefarm.cli.packages import require
    from tunefarm.document import write_atomic
    from tunefarm.spec.draft import draft

    require("torch", "triton")
    if out is not None:
        folders.check_new(out)
    made = draft(target, Path() if out is None else out.parent, arch=_arch_here())
    path = out or Path(f"{made.name}.yaml")
    folders.check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = _planned(path, made)
    write_atomic(path, made.text.encode())
    if as_json:
        lines = [{"line": number, "what": what} for number, what in made.open_lines]
        typer.echo(json.dumps({"experiment": str(path), **made.facts, "fill_in": lines, "plan": state}, indent=1))
        return
    typer.echo(f"wrote    {path}")
    for word, fact in made.facts.items():
        typer.echo(f"{word:8} {fact}")
    for number, what in made.open_lines:
        typer.echo(f"fill in  line {number}: {what}")
    typer.echo(f"plan     {state}")
    typer.echo(f"next     tunefarm plan {path}")


def _planned(path: Path, made: Draft) -> str:
    """How far the plan of it comes as it stands."""
    from tunefarm.cli.opening import open_experiment, plan_targets

    try:
        studies = plan_targets(open_experiment(path, made.text), [])
    except UserError as e:
        return f"not yet: {e}"
    candidates = counted(sum(len(study.candidates) for study in studies), "candidate")
    return f"{candidates} in {counted(len(studies), 'study', 'studies')}"


def _arch_here() -> str:
    """The arch of this machine's first GPU; empty if there is none."""
    import torch

    return "sm_{}{}".format(*torch.cuda.get_device_capability(0)) if torch.cuda.device_count() else ""
