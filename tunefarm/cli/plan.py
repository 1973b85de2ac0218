"""`tunefarm plan`: what a sweep would do, without a GPU and without compiling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefarm.cli.packages import lacking, remedy
from tunefarm.config import counted
from tunefarm.outline import OutlinedStudy, outline
from tunefarm.plan import PlannedStudy

UNMEASURABLE = "note: a sweep needs a GPU of one of these devices, or a landscape of one; it will refuse without."
UNTOLD = "no default, no buckets, and nothing that only the kernel knows."


def plan(
    experiments: Annotated[list[Path], typer.Argument(help="Experiment files, or folders.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the studies of EXPERIMENTS: candidates, what each rule removed, buckets. No GPU, no compiling.

    Where torch or Triton is missing, kernels are not imported, and the file's own space is counted.

    Example: tunefarm plan experiments/softmax.yaml
    """
    from tunefarm.cli.order import about, find_experiments

    files = find_experiments(experiments)
    documents = []
    for file in files:
        with about(file, files):
            documents.append(_document(file))
    if as_json:
        several = {"experiments": documents}
        typer.echo(json.dumps(documents[0] if len(files) == 1 else several, indent=1))
        return
    for file, document in zip(files, documents, strict=True):
        if len(files) > 1:
            typer.echo(f"{file}:")
        for study in document["studies"]:
            _print(study)
        if not any(study["meter"] in ("gpu", "replay") for study in document["studies"]):
            typer.echo(UNMEASURABLE)
        if lacks := document.get("without"):
            typer.echo(f"note: {lacks} is not installed here, so this is what the file alone tells: {UNTOLD}")
            typer.echo(f"      {remedy(lacks)} plans all of it")


def _document(file: Path) -> dict[str, Any]:
    from tunefarm.cli import opening
    from tunefarm.spec.experiment import load_experiment

    experiment = load_experiment(file)
    lacks = "" if experiment.workload.landscapes else lacking("torch", "triton")
    if lacks:
        return {
            "experiment": experiment.name,
            "without": lacks,
            "studies": [_describe_outlined(study, experiment.name) for study in outline(experiment)],
        }
    resolved = opening.open_experiment(file, ship=True)
    if not lacking("optuna"):
        opening.optuna_storage(None, resolved.experiment)
    studies = opening.plan_targets(resolved, [])
    opening.read_known(resolved)  # a sweep would refuse what cannot be read
    threshold = resolved.experiment.search.threshold
    return {
        "experiment": resolved.experiment.name,
        "studies": [_describe(study, threshold) for study in studies],
    }


def _describe(study: PlannedStudy, threshold: float) -> dict[str, Any]:
    buckets: int | None = 0
    if study.candidates and lacking("numpy", "optuna"):
        buckets = None
    elif study.candidates:
        from tunefarm.search.search import StudySearch

        search = StudySearch(
            configs=study.candidates, problem=study.study.problem, device=study.study.device, default=study.default,
            threshold=threshold,
        )  # fmt: skip
        buckets = len(search.form_buckets())
    default_extra = study.num_points and len(study.candidates) + sum(study.removed.values()) - study.num_points
    return {
        "study": study.study.label,
        "device": study.study.device.name,
        "meter": study.target.meter or "none: compiled and checked only",
        "landscape": study.target.landscape,
        "skipped": study.skipped,
        "points": study.num_points,
        "removed": dict(study.removed),
        "added_default": int(default_extra),
        "candidates": len(study.candidates),
        "unused": [f"{name}={value}" for name, value in study.unused],
        "idle": list(study.idle),
        "recorded": study.is_recorded,
        "default": None if study.default is None else str(study.default),
        "buckets": buckets,
    }


def _describe_outlined(study: OutlinedStudy, name: str) -> dict[str, Any]:
    values = " ".join(f"{variable}={value}" for variable, value in study.variables.items())
    return {
        "study": f"{name} {study.target.device.arch} {values}",
        "device": study.target.device.name,
        "meter": study.target.meter or "none: compiled and checked only",
        "landscape": study.target.landscape,
        "skipped": "" if study.num_points else "its space is the kernel's declared configs",
        "points": study.num_points,
        "removed": dict(study.removed),
        "candidates": study.num_candidates,
        "recorded": False,
        "buckets": None,
    }


def _print(study: dict[str, Any]) -> None:
    if study["skipped"]:
        typer.echo(f"{study['study']}: skipped: {study['skipped']}")
        return
    buckets = "" if study["buckets"] is None else f", {counted(study['buckets'], 'bucket')}"
    typer.echo(f"{study['study']}: {counted(study['candidates'], 'candidate')}{buckets}")
    source = f" of {study['landscape']}" if study["recorded"] else ""
    typer.echo(f"  device      {study['device']}; times from: {study['meter']}{source}")
    typer.echo(f"  space       {counted(study['points'], 'point')}")
    for rule, count in study["removed"].items():
        typer.echo(f"  removed     {count} by {rule}")
    if "default" not in study:
        return
    if study["added_default"]:
        typer.echo("  added       1, the default, which is no point of the space")
    unknown = "none is named" if study["recorded"] else "unknown or illegal here"
    typer.echo(f"  default     {study['default'] or unknown}")
    if study["unused"]:
        typer.echo(f"  warning     no candidate uses {', '.join(study['unused'])}")
    if study["idle"]:
        typer.echo(f"  warning     the kernel makes no use of {', '.join(study['idle'])}, which its key names")
