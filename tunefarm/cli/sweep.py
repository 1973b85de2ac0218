"""`tunefarm sweep`: from experiments to a pack."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.address import public
from tunefarm.cli.closing import Ending, close
from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.config import counted
from tunefarm.errors import Fenced, TunefarmError
from tunefarm.seams import NullMirror

if TYPE_CHECKING:
    from tunefarm.builds import BuildBoard
    from tunefarm.cli.order import Order
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch
    from tunefarm.plan import PlannedStudy
    from tunefarm.record.ledger import FileLedger
    from tunefarm.record.tracking import Tracker
    from tunefarm.seams import Fleet, Mirror
    from tunefarm.sweep import Sweep


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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune the kernels of EXPERIMENTS, log to MLflow and export a pack. Interrupted, the same command goes on.

    Several go on side by side over one fleet. What breaks one of them is said at the end; the others go on.

    Example: tunefarm sweep experiments/softmax.yaml
    """
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.order import find_experiments, take_orders
    from tunefarm.cli.terminal import Progress

    began = time.monotonic()
    opening.check_fleet(fleet, address)
    orders = take_orders(
        find_experiments(experiments), meter=meter, sweeps=sweeps, fresh=fresh, tracking=tracking,
        optuna_storage=optuna_storage, out=out,
    )  # fmt: skip
    store = store_folder()
    use_gpu = meter is not MeterKind.REPLAY and (bool(address) or opening.has_gpu())
    planned = _plan(orders, [], complete=not use_gpu)
    try:
        with Progress(quiet=quiet or as_json, named=len(orders) > 1) as progress:
            progress.say(f"starting the fleet ({fleet.value})")
            refs = [order.spec.ref for order in orders]
            replayed = {s.target.device.key: s.target.device for study in planned for s in study if s.target.landscape}
            workers = opening.open_fleet(
                fleet, address, use_gpu=use_gpu, builders=builders, refs=refs, replayed=list(replayed.values())
            )
            try:
                if use_gpu and address:
                    opening.await_devices(workers, [order.spec for order in orders], wait)
                if use_gpu:
                    planned = _plan(orders, opening.live_devices(workers), complete=True)
                endings, facts, failed = _compete(orders, planned, workers, progress, store)
            finally:
                workers.close()
    except KeyboardInterrupt:
        if any(order.ledger.exists() for order in orders):
            typer.echo("interrupted: what was measured is in the ledger; the same command goes on from there", err=True)
        raise
    facts["wall_s"] = round(time.monotonic() - began, 2)
    close(endings, facts, failed, as_json=as_json, quiet=quiet)


def _plan(orders: Sequence[Order], live: Sequence[Any], *, complete: bool) -> list[list[PlannedStudy]]:
    from tunefarm.cli.order import about, plan_order

    planned = []
    for order in orders:
        with about(order.file, orders):
            planned.append(plan_order(order, live, complete=complete))
    return planned


@dataclass(slots=True, eq=False, kw_only=True)
class _Entrant:
    """An order that is being swept, and what is open for it."""

    order: Order
    ledger: FileLedger
    tracker: Tracker
    mirror: Mirror
    sweep: Sweep


def _compete(
    orders: Sequence[Order], planned: Sequence[Sequence[PlannedStudy]], workers: Fleet, progress: Progress, store: Path
) -> tuple[list[Ending], dict[str, Any], dict[str, Exception]]:
    """How it went with each order, facts of all, and by path why a pack could not be written."""
    from tunefarm.bench.store import BuildStore
    from tunefarm.builds import BuildBoard

    endings = [Ending(order=order) for order in orders]
    entrants: dict[int, _Entrant] = {}
    board = BuildBoard(orders[0].resolved, BuildStore(store))
    dispatches: list[Dispatch] = []
    untold: list[str] = []
    try:
        for number, ending in enumerate(endings):
            try:
                entrants[number] = _enter(ending.order, planned[number], progress, named=len(orders) > 1)
            except TunefarmError as e:  # a ledger that another driver holds
                ending.error = e
        status, patience_s = "FAILED", 60.0
        try:
            for group in _groups(list(entrants.values())):
                dispatches.append(_run(group, workers, board, progress))
            # Nothing is measured from here on: no GPU is held while MLflow and the pack are written.
            workers.close()
            status = "FINISHED"
        except KeyboardInterrupt:
            status, patience_s = "KILLED", 3.0
            raise
        finally:
            for entrant in entrants.values():
                error = entrant.sweep.error
                how = status if error is None else "" if isinstance(error, Fenced) else "FAILED"
                left = entrant.tracker.close(status=how, timeout_s=patience_s)
                untold += [f"not in MLflow: {label}" for label in left]
                untold += entrant.mirror.close(patience_s)
        for number, entrant in entrants.items():
            endings[number].error = entrant.sweep.error
            # What broke before its end exports nothing, as if it stood alone; the ledger keeps it.
            endings[number].results = [] if entrant.sweep.error else entrant.sweep.results
        failed, left_out = _export(entrants, endings)
        facts = _facts([e.sweep for e in entrants.values()], dispatches, board)
        facts["notices"] += [*untold, *left_out]
        return endings, facts, failed
    finally:
        for entrant in entrants.values():
            entrant.ledger.close()


def _enter(order: Order, planned: Sequence[PlannedStudy], progress: Progress, *, named: bool) -> _Entrant:
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.cli.exporting import find_incumbents
    from tunefarm.cli.order import earlier_pack, find_pasts, open_ledger
    from tunefarm.record.tracking import Origin, open_tracker
    from tunefarm.sweep import Sweep

    resolved, spec = order.resolved, order.spec
    ledger = open_ledger(order, planned)
    tracker = open_tracker(
        order.tracking,
        Origin(
            workload=spec.tracking.experiment or resolved.workload.name, experiment=spec.name,
            sweep_id=ledger.sweep_id, digest=spec.digest, command=public(" ".join(["tunefarm", *sys.argv[1:]])),
            toolchain=toolchain(), checked=resolved.workload.reference is not None,
        ),
    )  # fmt: skip
    pasts = find_pasts(resolved.workload.signature.kernel, planned, ledger, order.known)
    if pasts:
        name = f"{spec.name}: " if named else ""
        progress.say(f"{name}learning from {counted(len(pasts), 'earlier study', 'earlier studies')} of this kernel")
    mirror = _mirror(order, ledger)
    competition = Sweep(
        resolved, planned, ledger=ledger, memo=ledger.memo(), tracker=tracker, watcher=progress,
        incumbents=find_incumbents(earlier_pack(order.export), planned), pasts=pasts, mirror=mirror,
    )  # fmt: skip
    return _Entrant(order=order, ledger=ledger, tracker=tracker, mirror=mirror, sweep=competition)


def _groups(entrants: Sequence[_Entrant]) -> Iterator[list[_Entrant]]:
    """Who goes on side by side: all, save those with a budget of time, who have the fleet to themselves."""
    timed = [
        e for e in entrants if e.order.spec.budget.wall_s is not None or e.order.spec.budget.gpu_held_s is not None
    ]
    if rest := [entrant for entrant in entrants if entrant not in timed]:
        yield rest
    yield from ([entrant] for entrant in timed)


def _run(group: Sequence[_Entrant], workers: Fleet, board: BuildBoard, progress: Progress) -> Dispatch:
    from tunefarm.dispatch import Dispatch
    from tunefarm.schedule.events import Budget
    from tunefarm.sweep import run_through

    # A budget of time stands alone in its group.
    limits = group[0].order.spec.budget
    dispatch = Dispatch(workers, budget=Budget(wall_s=limits.wall_s, gpu_held_s=limits.gpu_held_s))
    num_builders = sum(worker.role == "build" for worker in workers.workers)
    run_through(
        [entrant.sweep for entrant in group], dispatch=dispatch, board=board, watcher=progress,
        num_builders=num_builders,
    )  # fmt: skip
    return dispatch


def _export(entrants: dict[int, _Entrant], endings: Sequence[Ending]) -> tuple[dict[str, Exception], list[str]]:
    """Why packs could not be written, by path, and what was left out of those that were."""
    from tunefarm.cli.exporting import Harvest, export_all, left_out

    by_path: dict[str, list[int]] = {}
    for number, entrant in entrants.items():
        by_path.setdefault(entrant.order.export, []).append(number)
    failed: dict[str, Exception] = {}
    notices: list[str] = []
    for path, numbers in by_path.items():
        notices += left_out([result for number in numbers for result in endings[number].results])
        harvests = [
            Harvest(
                order=entrants[n].order,
                ledger=entrants[n].ledger,
                results=endings[n].results,
                cuts=entrants[n].sweep.cuts,
            )
            for n in numbers
        ]
        try:
            if path and export_all(path, harvests):
                for number in numbers:
                    endings[number].pack = path if any(r.winner for r in endings[number].results) else ""
        except TunefarmError as e:
            failed[path] = e
    return failed, notices


def _facts(sweeps: Sequence[Sweep], dispatches: Sequence[Dispatch], board: BuildBoard) -> dict[str, Any]:
    startup_s = sum(contest.tally.startup_s for sweep in sweeps for contest in sweep.contests)
    notices = [notice for dispatch in dispatches for notice in dispatch.notices]
    notices += [notice for sweep in sweeps for notice in sweep.notices]
    return {
        "compiled": board.num_compiled, "from_store": board.num_from_store,
        "build_s": round(board.build_s, 2),
        "gpu_held_s": round(sum(dispatch.held_s for dispatch in dispatches) - startup_s, 2),
        "gpu_startup_s": round(startup_s, 2),
        "compiled_by_measuring": sum(result.num_compiled for sweep in sweeps for result in sweep.results),
        "notices": list(dict.fromkeys(notices)),
    }  # fmt: skip


def _mirror(order: Order, ledger: FileLedger) -> Mirror:
    if not order.optuna_storage:
        return NullMirror()
    from tunefarm.document import digest
    from tunefarm.search.mirror import Owner, StorageMirror

    spec = order.spec
    # What was measured before under other conditions, or before `--fresh`, is of another edition.
    num_fresh = sum(event["event"] == "fresh" for event in ledger.events())
    return StorageMirror(
        order.optuna_storage,
        Owner(
            experiment=spec.name, sweep_id=ledger.sweep_id, edition=digest([ledger.conditions, num_fresh]),
            seed=spec.search.seed,
        ),
    )  # fmt: skip
