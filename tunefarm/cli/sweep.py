"""`tunefarm sweep`: from an experiment to a pack."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.address import public
from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.config import Config, counted
from tunefarm.errors import TunefarmError
from tunefarm.seams import NullMirror

if TYPE_CHECKING:
    from tunefarm.cli.terminal import Progress
    from tunefarm.device import Device
    from tunefarm.pack import Pack
    from tunefarm.pasts import Story
    from tunefarm.plan import PlannedStudy
    from tunefarm.record.ledger import FileLedger
    from tunefarm.seams import Fleet, Mirror
    from tunefarm.search.transfer import Past
    from tunefarm.spec.experiment import Resolved
    from tunefarm.study import StudyResult


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A sweep as it was ordered, and found sound before any machine was touched."""

    resolved: Resolved
    meter: MeterKind
    ledger: Path
    fresh: bool
    tracking: str
    optuna_storage: str
    store: Path


def sweep(
    experiment: Annotated[Path, typer.Argument(help="Experiment file.", show_default=False)],
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.RAY,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    meter: Annotated[MeterKind, typer.Option(help="GPU, replay, or whichever is there.")] = MeterKind.AUTO,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    sweeps: Annotated[Path, typer.Option(help="Folder of the ledgers.")] = Path("sweeps"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier sweeps of this name measured.")] = False,
    tracking: Annotated[str | None, typer.Option(help="MLflow URI, or `none`.", show_default=False)] = None,
    optuna_storage: Annotated[
        str | None, typer.Option(help="Optuna storage to mirror the studies in, or `none`.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune the kernel of an EXPERIMENT, log to MLflow and export a pack. Interrupted, the same command goes on.

    Example: tunefarm sweep experiments/softmax.yaml
    """
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.terminal import Progress
    from tunefarm.spec.experiment import load_experiment

    began = time.monotonic()
    opening.check_fleet(fleet, address)
    # What needs no PyTorch is checked before anything starts.
    written = load_experiment(experiment)
    uri, path = opening.tracking_uri(tracking, written), sweeps / written.name / "ledger.jsonl"
    storage = opening.optuna_storage(optuna_storage, written, uri)
    order = _Order(
        resolved=opening.import_experiment(written), meter=meter, fresh=fresh, ledger=path, store=store_folder(),
        tracking=uri, optuna_storage=storage,
    )  # fmt: skip
    use_gpu = meter is not MeterKind.REPLAY and (bool(address) or opening.has_gpu())
    known = opening.read_known(order.resolved)  # what cannot be read is said before any work
    planned = _plan(order, [], complete=not use_gpu)
    try:
        with Progress(quiet=quiet or as_json) as progress:
            progress.say(f"starting the fleet ({fleet.value})")
            workers = opening.open_fleet(fleet, address, use_gpu=use_gpu, builders=builders, ref=written.ref)
            try:
                if use_gpu:
                    planned = _plan(order, opening.live_devices(workers), complete=True)
                with contextlib.closing(_open_ledger(order, planned)) as ledger:
                    results, facts = _compete(order, planned, workers, ledger, progress, known)
            finally:
                workers.close()
    except KeyboardInterrupt:
        if path.exists():
            typer.echo("interrupted: what was measured is in the ledger; the same command goes on from there", err=True)
        raise
    facts["wall_s"] = round(time.monotonic() - began, 2)
    _close(results, facts, as_json=as_json, quiet=quiet)


def _plan(order: _Order, live: Sequence[Device], *, complete: bool) -> list[PlannedStudy]:
    """The studies, after refusing whatever can be refused already; `complete`: no further device will show up."""
    from tunefarm.cli.opening import check_output
    from tunefarm.errors import UserError
    from tunefarm.plan import choose_targets, plan, require_meter
    from tunefarm.record.ledger import check_ledger

    spec = order.resolved.experiment
    # With GPUs still to show up, whether their landscapes can be replayed is no matter yet.
    targets = choose_targets(spec, live, order.meter.value if complete else MeterKind.GPU.value)
    planned = plan(order.resolved, targets)
    if complete:
        require_meter(spec, targets)
    if spec.export:
        try:
            check_output(Path(spec.export))
        except UserError as e:
            raise spec.error("export", f"{spec.export} {e.args[0]}", e.hint) from None
    pack = _earlier_pack(spec.export)
    source = "measured" if any(target.meter == "gpu" for target in targets) else "replayed"
    if complete and pack is not None and set(pack.sources) - {source}:
        raise UserError(
            f"holds {' and '.join(pack.sources)} rows, and those of this sweep would be {source}",
            file=spec.export,
            hint="export to another file, or remove this one",
        )
    check_ledger(order.ledger, {"experiment": spec.name})
    return planned


def _earlier_pack(export: str) -> Pack | None:
    from tunefarm.pack import load_pack

    return load_pack(export) if export and Path(export).exists() else None


def _open_ledger(order: _Order, planned: Sequence[PlannedStudy]) -> FileLedger:
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.document import digest
    from tunefarm.record.ledger import open_ledger
    from tunefarm.source import source_hash

    spec, workload = order.resolved.experiment, order.resolved.workload
    conditions = digest(
        [
            source_hash(workload.kernel),
            [_text(part) for part in (workload.call, workload.reference, workload.inputs)],
            [workload.restore, workload.zero, workload.atol, workload.rtol],
            [spec.accept.atol, spec.accept.rtol, spec.accept.same_bits, [check.label for check in spec.checks]],
            [spec.search.seed, spec.timer],
            dict(toolchain()),
            [[t.device.key, t.meter, _fingerprint(t.landscape)] for t in dict.fromkeys(s.target for s in planned)],
        ]
    )
    ledger = open_ledger(order.ledger, {"experiment": spec.name, "digest": spec.digest, "conditions": conditions})
    if order.fresh:
        ledger.append("fresh", {})
    return ledger


def _text(part: Any) -> str:
    """What the user wrote for a part of the workload: an edit of it makes earlier answers worthless."""
    import inspect

    if part is None or not callable(part):
        return repr(part)
    try:
        return inspect.getsource(inspect.unwrap(part))
    except (OSError, TypeError):  # built in, as torch.matmul is: its version stands in the toolchain
        return f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', type(part).__name__)}"


def _fingerprint(landscape: str) -> str:
    import hashlib

    return hashlib.sha256(Path(landscape).read_bytes()).hexdigest() if landscape else ""


def _compete(
    order: _Order, planned: Sequence[PlannedStudy], workers: Fleet, ledger: FileLedger, progress: Progress,
    known: Mapping[Path, Sequence[Story]],
) -> tuple[list[StudyResult], dict[str, Any]]:  # fmt: skip
    from tunefarm.bench.store import BuildStore
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.builds import BuildBoard
    from tunefarm.dispatch import Dispatch
    from tunefarm.record.tracking import Origin, open_tracker
    from tunefarm.schedule.events import Budget
    from tunefarm.sweep import Sweep

    resolved, spec = order.resolved, order.resolved.experiment
    tracker = open_tracker(
        order.tracking,
        Origin(
            workload=spec.tracking.experiment or resolved.workload.name, experiment=spec.name,
            sweep_id=ledger.sweep_id, digest=spec.digest, command=public(" ".join(["tunefarm", *sys.argv[1:]])),
            toolchain=toolchain(), checked=resolved.workload.reference is not None,
        ),
    )  # fmt: skip
    tracker.start()
    board = BuildBoard(resolved, BuildStore(order.store))
    dispatch = Dispatch(workers, budget=Budget(wall_s=spec.budget.wall_s, gpu_held_s=spec.budget.gpu_held_s))
    pasts = _pasts(resolved.workload.signature.kernel, planned, ledger, known)
    if pasts:
        progress.say(f"learning from {counted(len(pasts), 'earlier study', 'earlier studies')} of this kernel")
    mirror = _mirror(order, ledger)
    competition = Sweep(
        resolved, planned, dispatch=dispatch, board=board, ledger=ledger, memo=ledger.memo(), tracker=tracker,
        watcher=progress, num_builders=sum(w.role == "build" for w in workers.workers),
        incumbents=_incumbents(_earlier_pack(spec.export), planned), pasts=pasts, mirror=mirror,
    )  # fmt: skip
    status, patience_s = "FAILED", 60.0
    try:
        results = competition.run_through()
        # Nothing is measured from here on: no GPU is held while MLflow and the pack are written.
        workers.close()
        status = "FINISHED"
    except KeyboardInterrupt:
        status, patience_s = "KILLED", 3.0
        raise
    finally:
        untold = [f"not in MLflow: {label}" for label in tracker.close(status=status, timeout_s=patience_s)]
        untold += mirror.close(patience_s)
    startup_s = sum(contest.tally.startup_s for contest in competition.contests)
    facts = {
        "compiled": board.num_compiled, "from_store": board.num_from_store,
        "build_s": round(board.build_s, 2), "gpu_held_s": round(dispatch.held_s - startup_s, 2),
        "gpu_startup_s": round(startup_s, 2),
        "compiled_by_measuring": sum(r.num_compiled for r in results), "ledger": str(ledger.path),
        "tracking": public(order.tracking), "optuna_storage": public(order.optuna_storage),
        "notices": [*competition.notices, *untold, *_left_out(results)], "pack": "",
    }  # fmt: skip
    try:
        facts["pack"] = _export(resolved, results, ledger)
    except TunefarmError as e:
        # The results are shown first: they are worth more than the file.
        facts["failed"] = e
    return results, facts


def _mirror(order: _Order, ledger: FileLedger) -> Mirror:
    if not order.optuna_storage:
        return NullMirror()
    from tunefarm.document import digest
    from tunefarm.search.mirror import Owner, StorageMirror

    spec = order.resolved.experiment
    # What was measured before under other conditions, or before `--fresh`, is of another edition.
    num_fresh = sum(event["event"] == "fresh" for event in ledger.events())
    return StorageMirror(
        order.optuna_storage,
        Owner(
            experiment=spec.name, sweep_id=ledger.sweep_id, edition=digest([ledger.conditions, num_fresh]),
            seed=spec.search.seed,
        ),
    )  # fmt: skip


def _pasts(
    kernel: str, planned: Sequence[PlannedStudy], ledger: FileLedger, known: Mapping[Path, Sequence[Story]]
) -> list[Past]:
    """What the sweep may learn from its own ledger and from other files, save what is of its own conditions."""
    from tunefarm.pasts import choose_pasts, read_stories

    configs = {config.key: config for study in planned for config in study.candidates}.values()
    path = ledger.path.resolve()
    # Its own comes first, as it is now: where it was read before, `--fresh` was not yet written in it.
    own = {path: read_stories(path, kernel, is_own=True)}
    return [
        past
        for stories in {**own, **known, **own}.values()
        for past in choose_pasts(stories, configs, ledger.conditions)
    ]


def _exportable(results: Sequence[StudyResult]) -> list[StudyResult]:
    """Those with winners. A pack holds times of one kind, and this machine's are worth more than a recording's.

    Winners of finals during which others computed on the GPU are left out: they may have won by that.
    """
    won = [result for result in results if result.winner is not None and not result.disturbed.startswith("contended")]
    return [result for result in won if result.source == "measured"] or won


def _left_out(results: Sequence[StudyResult]) -> list[str]:
    kept = _exportable(results)
    left = [r for r in results if r.winner is not None and r not in kept]
    contended = [
        f"{r.study.label} is not exported ({r.disturbed}): sweep again on a quiet GPU" for r in left if r.disturbed
    ]
    names = sorted({r.study.device.name for r in left if not r.disturbed})
    return contended + [f"replayed winners of {name} are not exported with measured ones" for name in names]


def _incumbents(pack: Pack | None, planned: Sequence[PlannedStudy]) -> dict[str, Config]:
    """What an earlier pack holds for each study's own problem and device."""
    found: dict[str, Config] = {}
    for table in pack.tables if pack is not None else ():
        for study in planned:
            if table.device.key != study.study.device.key:
                continue
            for row in table.rows:
                same = row.measured_at == study.study.problem.dims and row.match.dtypes == study.study.problem.dtypes
                if same and row.config in study.candidates:
                    found.setdefault(study.study.key, row.config)
    return found


def _export(resolved: Resolved, results: Sequence[StudyResult], ledger: FileLedger) -> str:
    import datetime

    from tunefarm import __version__
    from tunefarm.export import export, write_export

    spec = resolved.experiment
    won = _exportable(results)
    if not spec.export or not won:
        return ""
    pack = export(
        won, kernel=resolved.workload.signature.kernel,
        source_hash=resolved.workload.table_source, layer=resolved.workload.layer, sweep=spec.name,
        experiment=spec.digest, created=datetime.date.today().isoformat(), tunefarm=__version__,
        ranges=resolved.workload.ranges, checked=resolved.workload.reference is not None,
    )  # fmt: skip
    written = write_export(Path(spec.export), pack)
    rows = sum(len(table.rows) for table in written.tables)
    ledger.append("export", {"path": spec.export, "digest": written.digest, "rows": rows})
    return spec.export


def _study_json(result: StudyResult) -> dict[str, Any]:
    from dataclasses import asdict

    from tunefarm.trial import to_json

    return {
        "study": result.study.label, "device": result.study.device.name, "status": result.status.value,
        "reason": result.reason, "source": result.source, "candidates": result.num_candidates,
        "built": result.num_built, "measured": result.num_measured, "buckets": result.num_buckets,
        "closed": len(result.closed), "winner": to_json(result.winner), "reference_ms": result.reference_ms,
        "left": asdict(result.left) if result.left is not None else None,
        "removed": dict(result.removed), "outcomes": {k.value: v for k, v in result.outcomes.items()},
        "failures": [[to_json(failure), count] for failure, count in result.failures],
        **result.rate(result.winner.median_ms if result.winner else 0.0),
    }  # fmt: skip


def _close(results: Sequence[StudyResult], facts: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Prints how it went; raises what failed in the end, and exits with 1 if a study is without a winner."""
    from tunefarm.study import Status

    failed = facts.pop("failed", None)
    if as_json:
        typer.echo(json.dumps({"studies": [_study_json(r) for r in results], **facts}, indent=1))
    else:
        _print_closing(results, facts, quiet=quiet)
    if failed is not None:
        raise failed
    if any(result.status is Status.NO_WINNER for result in results):
        sys.exit(1)


def _print_closing(results: Sequence[StudyResult], facts: dict[str, Any], *, quiet: bool) -> None:
    from tunefarm.cli.terminal import closing_table, console, left_line, study_line

    out = console()
    if not quiet:
        out.print(closing_table(results, out.width))
    lines = [study_line(result) for result in results if quiet and result.status.value == "no_winner"]
    replayed = sorted({r.study.device.name for r in results if r.source == "replayed"})
    if replayed:
        lines.append(f"REPLAYED: the times are {', '.join(replayed)}'s, read from a landscape; nothing was timed here.")
    unmeasured = sorted({r.study.device.arch for r in results if r.status.value == "not_measured"})
    if unmeasured:
        lines.append(f"NOT MEASURED: {', '.join(unmeasured)}: compiled and checked only; nothing is exported for it.")
    compiled = counted(facts["compiled"], "config")
    lines.append(f"compiled {compiled} in {facts['build_s']:.1f} CPU s, {facts['from_store']} more in the store")
    if not replayed:
        lines.append(
            f"GPU held {facts['gpu_held_s']:.1f} s, and {facts['gpu_startup_s']:.1f} s of start-up; kernels compiled "
            f"by the measuring process: {facts['compiled_by_measuring']}"
        )
    if on_the_table := left_line(results):
        lines.append(on_the_table)
    lines += [f"wall     {facts['wall_s']:.1f} s", f"ledger   {facts['ledger']}", f"MLflow   {facts['tracking']}"]
    if facts["optuna_storage"]:
        lines.append(f"Optuna   {facts['optuna_storage']}")
    lines.append(f"pack     {facts['pack'] or 'none'}" + (", replayed" if replayed and facts["pack"] else ""))
    lines += [f"note     {notice}" for notice in facts["notices"]]
    out.print("\n".join(lines), markup=False)
