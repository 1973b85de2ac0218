"""`tunefarm submit`, `status`, `logs` and `cancel`: sweeps on Kubernetes, from a machine that may have no torch."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.ledgers import SWEEPS, find_ledger, look_up
from tunefarm.cli.standing import show_standing
from tunefarm.errors import InfrastructureError, TunefarmError, UserError

if TYPE_CHECKING:
    from tunefarm.fleet.kubernetes import Cluster, JobState
    from tunefarm.fleet.submission import Composed, Submission
    from tunefarm.spec.experiment import Experiment

OVERLAYS = Path("manifests/overlays")
POLL_S = 10.0

Name = Annotated[str, typer.Argument(help="The sweep's name, as `submit` says it.", show_default=False)]
Namespace = Annotated[str, typer.Option(help="Where its jobs are.")]
Context = Annotated[str, typer.Option(help="Context of kubectl's configuration; default: the current one.")]


def submit(
    experiment: Annotated[Path, typer.Argument(help="Experiment file.", show_default=False)],
    overlay: Annotated[str, typer.Option(help="Name of an overlay, or its folder.", show_default=False)],
    project: Annotated[str, typer.Option(help="Where the experiment names no project.")] = "",
    device: Annotated[list[str] | None, typer.Option(help="Of its devices, these alone.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests; ask no cluster.")] = False,
    context: Context = "",
) -> None:
    """Sweep EXPERIMENT on Kubernetes: one job builds on CPUs, then one for each of its devices measures.

    Waits until the build has ended. Interrupted, the same command goes on.

    Example: tunefarm submit experiments/softmax.yaml --overlay prod --project kernels --dry-run
    """
    from tunefarm.fleet.kubernetes import Cluster, render, to_yaml
    from tunefarm.fleet.submission import compose
    from tunefarm.spec.experiment import load_experiment

    spec = load_experiment(experiment)
    if spec.workload.landscapes:
        raise spec.error("workload", "a recording is replayed, which needs no GPU", "sweep it here: `tunefarm sweep`")
    submission = _submission(spec, project, device)
    folder = _overlay(overlay)
    composed = compose(render(folder / "jobs"), submission, str(folder))
    _say_bound(composed)
    if composed.gpu_hours > composed.cap_gpu_hours:
        message = f"may cost {composed.gpu_hours:.1f} GPU hours, and {folder} allows {composed.cap_gpu_hours:g}"
        raise spec.error("budget", message, "give it a smaller wall_s, or name fewer devices with --device")
    if dry_run:
        typer.echo(to_yaml(composed.documents), nl=False)
        if not composed.is_built:
            typer.echo("note: the image's digest is zero: build it first, see manifests/image", err=True)
        return
    if not composed.is_built:
        hint = "build the image, and write its digest there"
        raise UserError("has the digest zero for tunefarm", file="manifests/image/kustomization.yaml", hint=hint)
    _create(composed, Cluster(namespace=composed.namespace, context=context))


def status(
    name: Annotated[
        str, typer.Argument(help="What `submit` says, or folder of a local sweep.", show_default=False)
    ],
    namespace: Namespace = "tunefarm", context: Context = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:  # fmt: skip
    """How a sweep stands: the jobs of one on Kubernetes (exit code 1 if one of them failed), or a local one's studies.

    Example: tunefarm status kernels--softmax; tunefarm status sweeps/softmax
    """
    # Names on a cluster have no slash.
    if ledger := find_ledger(name) if "/" in name else look_up(name):
        show_standing(ledger, as_json=as_json)
        return
    try:
        jobs = _jobs(_cluster(name, namespace, context), name)
    except TunefarmError as e:
        if (ledger := look_up(name, SWEEPS)) is not None:  # a name alone is a cluster's
            e.hint = f"the sweep of this machine is `tunefarm status {ledger.parent}`"
        raise
    if as_json:
        typer.echo(json.dumps([asdict(job) for job in jobs], indent=1))
    else:
        typer.echo("\n".join(_line(job) for job in jobs))
    if any(job.status == "failed" for job in jobs):
        raise typer.Exit(1)


def logs(
    name: Name, namespace: Namespace = "tunefarm", context: Context = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they say more.")] = False,
) -> None:  # fmt: skip
    """What the drivers of a submitted sweep say.

    Example: tunefarm logs kernels--softmax --follow
    """
    cluster = _cluster(name, namespace, context)
    _jobs(cluster, name)  # of one that is not there kubectl says nothing, and that all is well
    if code := cluster.logs(name, follow=follow):
        raise InfrastructureError(f"kubectl logs ended with {code}", hint="`tunefarm status` says how its jobs are")


def cancel(name: Name, namespace: Namespace = "tunefarm", context: Context = "") -> None:
    """End a submitted sweep and remove its jobs. Ledger, builds and packs stay where they are.

    Example: tunefarm cancel kernels--softmax
    """
    cluster = _cluster(name, namespace, context)
    removed = cluster.delete(name)
    if not removed:
        raise _unknown(cluster, name)
    typer.echo("\n".join(f"removed {what}" for what in removed))


def _cluster(name: str, namespace: str, context: str) -> Cluster:
    from tunefarm.fleet.kubernetes import NAME, Cluster

    for what, text in (("sweep", name), ("namespace", namespace)):
        if not NAME.fullmatch(text):  # it goes into a selector
            raise UserError(f"{text!r} is no {what}'s name", hint="`submit` says a sweep's name")
    return Cluster(namespace=namespace, context=context)


def _jobs(cluster: Cluster, name: str) -> list[JobState]:
    if jobs := cluster.jobs(name):
        return jobs
    raise _unknown(cluster, name)


def _unknown(cluster: Cluster, name: str) -> UserError:
    return UserError(f"there is no sweep {name} in namespace {cluster.namespace}", hint="`submit` says a sweep's name")


def _submission(spec: Experiment, project: str, only: list[str] | None) -> Submission:
    from tunefarm.fleet.submission import Submission
    from tunefarm.spec.belongings import belongings

    if not (project := project or spec.project):
        hint = "write `project: TEAM`, or give --project: names begin with it, so that teams do not collide"
        raise spec.error("project", "is missing", hint)
    if project != (spec.project or project):
        raise spec.error("project", f"is {spec.project}, and --project says {project}", "leave one of them out")
    archs = [device.arch for device in spec.devices]
    for arch in only or ():
        if arch not in archs:
            raise UserError(f"--device {arch}: {spec.path} names {', '.join(archs)}", hint="choose among these")
    paths = belongings(spec)
    root = Path(os.path.commonpath([path.parent for path in paths]))
    limits = [limit for limit in (spec.budget.wall_s, spec.budget.gpu_held_s) if limit is not None]
    return Submission(
        project=project, experiment=spec.name, main=paths[0].relative_to(root).as_posix(),
        files={path.relative_to(root).as_posix(): path.read_bytes() for path in paths},
        # As long as it measures at least one GPU is held, so held seconds bound the clock's too.
        capabilities=[arch for arch in archs if not only or arch in only], budget_s=min(limits, default=None),
    )  # fmt: skip


def _overlay(name: str) -> Path:
    folder = Path(name) if "/" in name or name.startswith(".") else OVERLAYS / name
    if not (folder / "jobs" / "kustomization.yaml").is_file():
        there = sorted(path.parents[1].name for path in OVERLAYS.glob("*/jobs/kustomization.yaml"))
        hint = f"choose among {', '.join(there)}" if there else "stand in a checkout of tunefarm, or name a folder"
        raise UserError(f"--overlay {name}: {folder / 'jobs'} holds no kustomization.yaml", hint=hint)
    return folder


def _say_bound(composed: Composed) -> None:
    typer.echo(f"sweep    {composed.name} in namespace {composed.namespace}", err=True)
    for bound in composed.bounds:
        cost = f"{bound.num_gpus} GPUs x {bound.deadline_s / 3600:.2f} h x {bound.num_attempts} attempts"
        typer.echo(f"at most  {cost}: {bound.gpu_hours:.1f} GPU hours ({bound.job})", err=True)
    typer.echo(f"in all   {composed.gpu_hours:.1f} GPU hours of {composed.cap_gpu_hours:g} allowed", err=True)


def _create(composed: Composed, cluster: Cluster) -> None:
    """Creates what is not there, the measuring jobs once the build is done."""
    files = composed.shared[0]["metadata"]["name"]
    for job in cluster.jobs(composed.name):
        if job.files != files or job.status == "failed":
            what = "failed" if job.status == "failed" else "was submitted with other files"
            hint = f"`tunefarm cancel {composed.name}` removes it; its ledger and builds stay"
            raise UserError(f"{job.name} is there already, and {what}", hint=hint)
    cluster.create([*composed.shared, composed.build])
    typer.echo(f"building {composed.build['metadata']['name']}; no GPU is asked for before it has ended", err=True)
    last = ""
    while (job := _building(cluster, composed)).status != "succeeded":
        if job.status == "failed":
            raise InfrastructureError(
                f"{job.name} failed: {job.message or 'no reason given'}", hint=f"see `tunefarm logs {composed.name}`"
            )
        if job.status != last:
            typer.echo(_line(job), err=True)
        last = job.status
        time.sleep(POLL_S)
    cluster.create(composed.measure)
    typer.echo("\n".join(_line(job) for job in cluster.jobs(composed.name)))


def _building(cluster: Cluster, composed: Composed) -> JobState:
    """How the job is that builds."""
    name = composed.build["metadata"]["name"]
    for job in cluster.jobs(composed.name):
        if job.name == name:
            return job
    raise InfrastructureError(f"{name} is no longer there", hint="somebody has cancelled it: submit it again")


def _line(job: JobState) -> str:
    started = f"since {job.started}" if job.started else ""
    return f"{job.status:9} {job.name}  {started}  {job.message}".rstrip()
