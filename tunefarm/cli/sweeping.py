"""A sweep as a command or a notebook asks for it: from the files it names to packs, and how it went with each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.address import public
from tunefarm.cli.closing import Ending
from tunefarm.cli.exposing import Exposure, exposed
from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.config import counted
from tunefarm.errors import Fenced, TunefarmError
from tunefarm.seams import NullMirror

if TYPE_CHECKING:
    from tunefarm.builds import BuildBoard
    from tunefarm.cli.order import Order
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch
    from tunefarm.gauges import Gauges
    from tunefarm.plan import PlannedStudy
    from tunefarm.record.ledger import FileLedger
    from tunefarm.seams import Fleet, Mirror, Tracker
    from tunefarm.sweep import Sweep

_GOES_ON = "what was measured is in the ledger; the same command goes on from there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants swept, and how.

    Attributes:
        experiments: files, or folders of some.
        fleet: where jobs run.
        address: of a running Ray cluster, or None.
        meter: what is to answer how long a config takes.
        builders: build workers; None for one a CPU.
        wait_s: seconds that a cluster is given to show a GPU of each arch.
        sweeps: folder of the ledgers.
        out: one pack for all, whatever they say; None for what they say.
        fresh: forget what earlier sweeps of these names measured.
        tracking: MLflow URI, or `none`; None for what they say.
        optuna_storage: likewise, of Optuna's storage.
        shard: the part of the studies that is this driver's, `2/8`; empty for all.
        command: how it was asked for, for people.
    """

    experiments: Sequence[Path]
    fleet: FleetKind = FleetKind.RAY
    address: str | None = None
    meter: MeterKind = MeterKind.AUTO
    builders: int | None = None
    wait_s: float = 120.0
    sweeps: Path = Path("sweeps")
    out: Path | None = None
    fresh: bool = False
    tracking: str | None = None
    optuna_storage: str | None = None
    shard: str = ""
    command: str = "tunefarm sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How it went.

    Attributes:
        endings: by experiment; none where the shard has no study.
        facts: of the whole.
        failed: by path, why a pack could not be written.
        num_studies: of all shards.
    """

    endings: Sequence[Ending]
    facts: Mapping[str, Any]
    failed: Mapping[str, Exception]
    num_studies: int


def perform(wish: Wish, exposure: Exposure, *, quiet: bool) -> Swept:
    """Sweeps. What breaks one of several experiments stands in its ending; the others go on.

    Args:
        wish: what is wanted.
        exposure: where metrics are to be seen.
        quiet: show no progress.

    Raises:
        UserError: something makes no sense as it was asked for; nothing was touched then.
        InfrastructureError: the fleet cannot be started, or no worker could do what must be done.
        KeyboardInterrupt: as it came; the ledger has what was measured until then.
    """
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.order import find_experiments, take_orders
    from tunefarm.cli.terminal import Progress
    from tunefarm.shards import WHOLE, parse_shard

    began = time.monotonic()
    opening.check_fleet(wish.fleet, wish.address)
    part = parse_shard(wish.shard) if wish.shard else WHOLE
    ordered = take_orders(
        find_experiments(wish.experiments), meter=wish.meter, sweeps=wish.sweeps, fresh=wish.fresh,
        tracking=wish.tracking, optuna_storage=wish.optuna_storage, out=wish.out, shard=part,
    )  # fmt: skip
    store = store_folder()
    has_kernel = any(order.resolved.found is not None for order in ordered)  # recordings are replayed wherever it is
    use_gpu = has_kernel and wish.meter is not MeterKind.REPLAY and (bool(wish.address) or opening.has_gpu())
    plan = _plan(ordered, [], complete=not use_gpu)
    endings: list[Ending] = []
    facts: dict[str, Any] = {}
    failed: dict[str, Exception] = {}
    if plan.orders or use_gpu:
        with exposed(exposure) as gauges, Progress(quiet=quiet, named=len(ordered) > 1) as progress:
            progress.say(f"starting the fleet ({wish.fleet.value})")
            around = _Around(progress=progress, gauges=gauges, store=store, command=wish.command)
            workers = _open(ordered, plan, wish, use_gpu=use_gpu)
            live = partial(opening.live_devices, workers) if use_gpu else None
            plan, endings, facts, failed = _hold(ordered, plan, workers, live, around)
    facts |= {"wall_s": round(time.monotonic() - began, 2)}
    facts |= {"shard": str(part), "of": plan.num} if wish.shard else {}
    return Swept(endings=endings, facts=facts, failed=failed, num_studies=plan.num)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What all experiments of a sweep share beside the fleet."""

    progress: Progress
    gauges: Gauges
    store: Path
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What this driver has to do: orders, the studies of each, and of how many studies these are its shard."""

    orders: Sequence[Order]
    studies: Sequence[Sequence[PlannedStudy]]
    num: int


def _open(ordered: Sequence[Order], plan: _Plan, wish: Wish, *, use_gpu: bool) -> Fleet:
    """The fleet, with a GPU of each arch if they are to come from a cluster."""
    from tunefarm.cli import opening

    kernels = [order for order in ordered if order.resolved.found is not None]
    refs, specs = [order.spec.ref for order in kernels], [order.spec for order in kernels]
    builders = wish.builders if kernels else 0  # Recordings are not built.
    replayed = {s.target.device.key: s.target.device for mine in plan.studies for s in mine if s.target.landscape}
    workers = opening.open_fleet(
        wish.fleet, wish.address, use_gpu=use_gpu, builders=builders, refs=refs, replayed=list(replayed.values())
    )
    try:
        if use_gpu and wish.address:
            opening.await_devices(workers, specs, wish.wait_s)
    except BaseException:
        workers.close()
        raise
    return workers


def _plan(ordered: Sequence[Order], live: Sequence[Any], *, complete: bool) -> _Plan:
    from tunefarm.cli.order import about, check_free, plan_order, take_part

    planned = []
    for order in ordered:
        with about(order.file, ordered):
            planned.append(plan_order(order, live, complete=complete))
    orders, mine, num = take_part(ordered, planned)
    for order in orders:
        with about(order.file, ordered):
            check_free(order)
    return _Plan(orders=orders, studies=mine, num=num)


def _hold(
    ordered: Sequence[Order], plan: _Plan, workers: Fleet, live: Callable[[], Sequence[Any]] | None, around: _Around
) -> tuple[_Plan, list[Ending], dict[str, Any], dict[str, Exception]]:  # fmt: skip
    """How it went, and the plan by which it did: `live` tells of GPUs that only the fleet knows of."""
    try:
        if live is not None:
            plan = _plan(ordered, live(), complete=True)
        return plan, *_compete(plan, workers, around)
    except KeyboardInterrupt:
        if any(order.ledger.exists() for order in plan.orders):
            print(f"interrupted: {_GOES_ON}", file=sys.stderr)
        raise
    finally:
        workers.close()


@dataclass(slots=True, eq=False, kw_only=True)
class _Entrant:
    """An order that is being swept, and what is open for it."""

    order: Order
    ledger: FileLedger
    tracker: Tracker
    mirror: Mirror
    sweep: Sweep


def _compete(plan: _Plan, workers: Fleet, around: _Around) -> tuple[list[Ending], dict[str, Any], dict[str, Exception]]:
    """How it went with each order, facts of all, and by path why a pack could not be written."""
    from tunefarm.bench.store import BuildStore
    from tunefarm.builds import BuildBoard

    if not plan.orders:
        return [], {}, {}
    endings = [Ending(order=order) for order in plan.orders]
    entrants: dict[int, _Entrant] = {}
    builds = BuildStore(around.store)
    board = BuildBoard(plan.orders[0].resolved, builds)
    dispatches: list[Dispatch] = []
    untold: list[str] = []
    try:
        for number, ending in enumerate(endings):
            try:
                entrants[number] = _enter(ending.order, plan.studies[number], around, named=len(endings) > 1)
            except TunefarmError as e:  # a ledger that another driver holds
                ending.error = e
        status, patience_s = "FAILED", 60.0
        try:
            for group in _groups(list(entrants.values())):
                dispatches.append(_run(group, workers, board, around))
            # Nothing is measured from here on: no GPU is held while MLflow and the pack are written.
            workers.close()
            builds.trim()
            status = "FINISHED"
            for number, entrant in entrants.items():
                endings[number].error = entrant.sweep.error
                # What broke before its end exports nothing, as if it stood alone; the ledger keeps it.
                endings[number].results = [] if entrant.sweep.error else entrant.sweep.results
            failed, left_out = _export(entrants, endings)
        except KeyboardInterrupt:
            status, patience_s = "KILLED", 3.0
            raise
        finally:
            for_mlflow_s = patience_s
            for number, entrant in entrants.items():
                error, pack = entrant.sweep.error, endings[number].pack
                how = status if error is None else "" if isinstance(error, Fenced) else "FAILED"
                left = entrant.tracker.close(status=how, timeout_s=for_mlflow_s, pack=Path(pack) if pack else None)
                # A server that is away is waited for once, not once for each experiment: all write at the same time.
                for_mlflow_s = min(patience_s, 3.0) if left else for_mlflow_s
                untold += [f"not in MLflow: {label}" for label in left]
                untold += entrant.mirror.close(patience_s)
        facts = _facts([e.sweep for e in entrants.values()], dispatches, board)
        facts["notices"] += [*untold, *left_out]
        return endings, facts, failed
    finally:
        for entrant in entrants.values():
            entrant.ledger.close()


def _enter(order: Order, planned: Sequence[PlannedStudy], around: _Around, *, named: bool) -> _Entrant:
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.cli.exporting import find_incumbents
    from tunefarm.cli.order import earlier_pack, find_pasts, open_ledger
    from tunefarm.record.tracking import Origin, open_tracker
    from tunefarm.sweep import Sweep, Watchers

    resolved, spec = order.resolved, order.spec
    ledger = open_ledger(order, planned)
    tracker = open_tracker(
        order.tracking,
        Origin(
            workload=order.mlflow_experiment, experiment=spec.name,
            sweep_id=ledger.sweep_id, digest=spec.digest, command=public(around.command),
            toolchain=toolchain(), checked=resolved.found is not None and resolved.found.reference is not None,
            registered_as=order.registered_as, ledger=ledger.path, conditions=ledger.conditions,
        ),
    )  # fmt: skip
    around.gauges.mirrored(tracker)
    pasts = find_pasts(resolved.kernel, planned, ledger, order.known)
    if pasts:
        name = f"{spec.name}: " if named else ""
        around.progress.say(
            f"{name}learning from {counted(len(pasts), 'earlier study', 'earlier studies')} of this kernel"
        )
    mirror = _mirror(order, ledger)
    earlier = earlier_pack(order.whole) or earlier_pack(order.export)
    competition = Sweep(
        resolved, planned, ledger=ledger, memo=ledger.memo(), tracker=tracker,
        watcher=Watchers(around.progress, around.gauges),
        incumbents=find_incumbents(earlier, resolved.found, planned), pasts=pasts, mirror=mirror,
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


def _run(group: Sequence[_Entrant], workers: Fleet, board: BuildBoard, around: _Around) -> Dispatch:
    from tunefarm.dispatch import Dispatch
    from tunefarm.schedule.events import Budget
    from tunefarm.sweep import run_through

    # A budget of time stands alone in its group.
    limits = group[0].order.spec.budget
    held_s = None if limits.gpu_held_s is None else limits.gpu_held_s * group[0].order.weight
    budget = Budget(wall_s=limits.wall_s, gpu_held_s=held_s)
    dispatch = Dispatch(workers, budget=budget, pulse=around.gauges.pulse)
    around.gauges.follow(dispatch, board)
    around.progress.view.follow(lambda: dispatch.standing)
    num_builders = sum(worker.role == "build" for worker in workers.workers)
    run_through(
        [entrant.sweep for entrant in group], dispatch=dispatch, board=board, watcher=around.progress,
        num_builders=num_builders,
    )  # fmt: skip
    return dispatch


def _export(entrants: dict[int, _Entrant], endings: Sequence[Ending]) -> tuple[dict[str, Exception], list[str]]:
    """Why packs could not be written, by path, and what was left out of those that were."""
    from tunefarm.cli.exporting import Harvest, answered_twice, export_all, left_out

    by_path: dict[str, list[int]] = {}
    for number, entrant in entrants.items():
        by_path.setdefault(entrant.order.export, []).append(number)
    failed: dict[str, Exception] = {}
    notices: list[str] = []
    for path, numbers in by_path.items():
        shipped = [number for number in numbers if entrants[number].order.resolved.found is not None]
        notices += left_out([result for number in shipped for result in endings[number].results])
        harvests = [
            Harvest(
                order=entrants[n].order,
                ledger=entrants[n].ledger,
                results=endings[n].results,
                cuts=entrants[n].sweep.cuts,
            )
            for n in numbers
        ]
        notices += answered_twice(harvests) if path else []
        try:
            if path and export_all(path, harvests):
                for number in numbers:
                    endings[number].pack = path if any(r.winner for r in endings[number].results) else ""
        except TunefarmError as e:
            failed[path] = e
    return failed, notices


def _facts(sweeps: Sequence[Sweep], dispatches: Sequence[Dispatch], board: BuildBoard) -> dict[str, Any]:
    startup_s = sum(contest.tally.startup_s for sweep in sweeps for contest in sweep.contests)
    notices = [*board.notices, *(notice for dispatch in dispatches for notice in dispatch.notices)]
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
