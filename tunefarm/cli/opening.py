"""What several verbs need at the start: experiment, targets, fleet and folders."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm.address import public
from tunefarm.bench.build import launch_options, triton_version
from tunefarm.bench.preload import load_builder, load_meter
from tunefarm.bench.worker import probe
from tunefarm.cli.folders import unpack_all
from tunefarm.cli.packages import lacking, remedy, require
from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, SpecError, UserError
from tunefarm.seams import Fleet
from tunefarm.spec.bundling import bundled
from tunefarm.spec.experiment import Experiment, Resolved, load_experiment, resolve
from tunefarm.spec.recorded import resolve_recorded
from tunefarm.spec.workload import WorkloadRef

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tunefarm.pasts import Story
    from tunefarm.plan import PlannedStudy


class FleetKind(enum.StrEnum):
    """Where jobs run."""

    RAY = "ray"
    INLINE = "inline"


class MeterKind(enum.StrEnum):
    """What answers how long a config takes."""

    AUTO = "auto"
    GPU = "gpu"
    REPLAY = "replay"


def open_experiment(path: Path, text: str | None = None, *, ship: bool = False) -> Resolved:
    """Reads an experiment and imports what it names; see `import_experiment`.

    Args:
        path: its file.
        text: what the file is going to hold; else it is read.
        ship: as for `import_experiment`.

    Raises:
        UserError: something in it makes no sense; nothing was touched then.
    """
    return import_experiment(load_experiment(path, text), ship=ship)


def import_experiment(experiment: Experiment, *, ship: bool = False) -> Resolved:
    """Imports what an experiment names, or reads the recordings that it replays.

    Args:
        experiment: as it was read.
        ship: gather its workload's files, for a fleet opened with its `ref`; else workers must see this machine's.

    Raises:
        UserError: it cannot be, or does not fit together.
    """
    if not experiment.workload.landscapes:
        require("torch", "triton")
    needed = {"cmaes": "cmaes", "gp": "scipy"}.get(experiment.search.sampler)
    if needed and lacking(needed):
        # Optuna itself would say so at the second candidate.
        message = f"the package {needed} is not installed"
        raise experiment.error("search.sampler", message, remedy(needed))
    if experiment.workload.landscapes:
        return resolve_recorded(experiment)
    return resolve(bundled(experiment) if ship else experiment, launch_options(), triton_version())


def has_gpu() -> bool:
    """Whether this machine has a CUDA device; creates no context on it."""
    import torch

    return torch.cuda.device_count() > 0


def check_fleet(kind: FleetKind, address: str | None) -> None:
    """Refuses an address that would not be used.

    Raises:
        UserError: it is given, and the fleet is not Ray's.
    """
    if address and kind is not FleetKind.RAY:
        raise UserError(
            f"{address} is the address of a Ray cluster",
            hint=f"leave out --fleet {kind.value}, or --address and RAY_ADDRESS",
        )


def ray_address(kind: FleetKind) -> str | None:
    """The cluster that this process lies in or was told of, for a fleet of Ray."""
    return os.environ.get("RAY_ADDRESS") if kind is FleetKind.RAY else None


def insecure() -> bool:
    """Whether the user joins Ray clusters that ask for no token: `$TUNEFARM_INSECURE_CLUSTER`."""
    return os.environ.get("TUNEFARM_INSECURE_CLUSTER", "") not in ("", "0")


def open_fleet(
    kind: FleetKind,
    address: str | None,
    *,
    use_gpu: bool,
    builders: int | None,
    refs: Sequence[WorkloadRef] = (),
    replayed: Sequence[Device] = (),
) -> Fleet:
    """Starts the fleet.

    Args:
        kind: Ray or this machine's own processes.
        address: of a Ray cluster; None for a local one.
        use_gpu: whether measuring workers hold GPUs, or replay.
        builders: build workers; None for one a CPU.
        refs: where the workloads are found that it will serve, if that is known.
        replayed: devices that are replayed: nodes of a cluster that are labelled as one replay that one.

    Raises:
        InfrastructureError: it cannot be started.
    """
    supply = supply_of(refs)
    warm = {"build": partial(load_builder, *refs), "measure": partial(load_meter, *refs)}
    if kind is FleetKind.RAY:
        from tunefarm.fleet.ray import RayFleet

        if not use_gpu:
            return RayFleet(address, replayed=replayed, num_builders=builders, supply=supply, insecure=insecure())
        return RayFleet(address, probe=probe, warm=warm, supply=supply, num_builders=builders, insecure=insecure())
    from tunefarm.fleet.inline import InlineFleet

    if not use_gpu:
        return InlineFleet([None], num_builders=builders, supply=supply)
    gpus = _probe(_visible())
    return InlineFleet(list(gpus.values()), visible=list(gpus), num_builders=builders, warm=warm, supply=supply)


def supply_of(refs: Iterable[WorkloadRef]) -> Callable[[], str] | None:
    """What a fleet gives to workers that lack the files of workloads; None where there are none to give."""
    bundles = dict.fromkeys(ref.bundle for ref in refs if ref.bundle is not None)
    return partial(unpack_all, [bundle.files for bundle in bundles]) if bundles else None


def open_builders(
    kind: FleetKind, address: str | None, *, builders: int | None, refs: Sequence[WorkloadRef] = ()
) -> Fleet:
    """Starts a fleet of build workers alone: it holds no GPU.

    Args:
        kind: Ray or this machine's own processes.
        address: of a Ray cluster; None for a local one.
        builders: build workers; None for one a CPU.
        refs: where the workloads are found that it will build.

    Raises:
        InfrastructureError: it cannot be started.
    """
    warm, supply = {"build": partial(load_builder, *refs)}, supply_of(refs)
    if kind is FleetKind.RAY:
        from tunefarm.fleet.ray import RayFleet

        return RayFleet(address, warm=warm, supply=supply, num_measure=0, num_builders=builders, insecure=insecure())
    from tunefarm.fleet.inline import InlineFleet

    return InlineFleet(num_builders=builders, warm=warm, supply=supply)


def _visible() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in named.split(",") if name.strip()] if named else []
    return names or [str(index) for index in range(torch.cuda.device_count())]


def _probe(visible: Sequence[str]) -> dict[str, Device]:
    """The GPUs that work, each asked in a process that ends at once: PyTorch may have to, and this must hold none."""
    from tunefarm.fleet.inline import InlineFleet
    from tunefarm.fleet.post import heard

    scouts = InlineFleet(
        [Device(arch="", name="", num_sms=0, shared_bytes=0)] * len(visible), visible=visible, num_builders=0
    )
    try:
        asked = [(f"GPU {name}", scouts.submit(probe, w.name)) for name, w in zip(visible, scouts.workers, strict=True)]
        told = zip(visible, heard(asked, least=1), strict=True)
        return {name: device for name, device in told if device is not None}
    finally:
        scouts.close()


def live_devices(fleet: Fleet) -> list[Device]:
    """The GPUs that a fleet's workers hold."""
    return [worker.device for worker in fleet.workers if worker.device is not None]


def await_devices(fleet: Fleet, experiments: Iterable[Experiment], patience_s: float) -> None:
    """Waits until a cluster has a GPU of every arch that experiments ask for: nodes may still be starting.

    Args:
        fleet: of the cluster.
        experiments: whose devices; those with a landscape can be replayed.
        patience_s: seconds.

    Raises:
        InfrastructureError: one has not come in time.
    """
    wanted = {device.arch for experiment in experiments for device in experiment.devices if not device.landscape}
    give_up_s = time.monotonic() + patience_s
    while missing := sorted(wanted - {device.arch for device in live_devices(fleet)}):
        if time.monotonic() >= give_up_s:
            here = Counter(f"{device.name} ({device.arch})" for device in live_devices(fleet))
            raise InfrastructureError(
                f"no GPU of {', '.join(missing)} on the cluster within {patience_s:g} s; it has "
                + (", ".join(f"{number} x {name}" for name, number in here.items()) or "none at all"),
                hint="leave the arch out of `devices`, add such a node, or wait longer with --wait",
            )
        time.sleep(0.2)


@contextlib.contextmanager
def gpu_fleet(
    kind: FleetKind, address: str | None, *, builders: int | None, refs: Sequence[WorkloadRef] = ()
) -> Iterator[Fleet]:
    """A fleet whose measuring workers hold GPUs, closed in the end.

    Raises:
        UserError: there is no GPU here, and no cluster was named.
        InfrastructureError: it cannot be started.
    """
    if not has_gpu() and not address:
        raise UserError("this measures on a GPU, and this machine has none", hint="see `tunefarm doctor`")
    workers = open_fleet(kind, address, use_gpu=True, builders=builders, refs=refs)
    try:
        yield workers
    finally:
        workers.close()


@contextlib.contextmanager
def meter_fleet(
    meter: MeterKind, kind: FleetKind, address: str | None, *, builders: int | None, refs: Sequence[WorkloadRef] = ()
) -> Iterator[Fleet]:
    """A fleet that measures as wanted, closed in the end.

    Raises:
        UserError: a GPU is wanted, there is none here, and no cluster was named.
        InfrastructureError: it cannot be started.
    """
    if meter is MeterKind.GPU or (meter is MeterKind.AUTO and (bool(address) or has_gpu())):
        with gpu_fleet(kind, address, builders=builders, refs=refs) as workers:
            yield workers
        return
    workers = open_fleet(kind, address, use_gpu=False, builders=builders, refs=refs)
    try:
        yield workers
    finally:
        workers.close()


def plan_targets(resolved: Resolved, live: Sequence[Device], meter: str = "auto") -> list[PlannedStudy]:
    """The studies of an experiment: on devices as they can be had here, or as they were recorded.

    Args:
        resolved: the experiment.
        live: GPUs at hand.
        meter: see `plan.choose_targets`.

    Raises:
        UserError: it asks for what is not there, or cannot be followed.
    """
    from tunefarm.plan import choose_targets, plan
    from tunefarm.replaying import plan_recorded

    if resolved.recordings:
        return plan_recorded(resolved)
    return plan(resolved, choose_targets(resolved.experiment, live, meter))


def plan_live(resolved: Resolved, fleet: Fleet) -> list[PlannedStudy]:
    """The studies of an experiment on the first of its devices that a fleet holds.

    Raises:
        SpecError: the fleet holds none of them, or the workload's call cannot be followed.
    """
    from tunefarm.plan import choose_targets, plan

    live = live_devices(fleet)
    targets = [target for target in choose_targets(resolved.experiment, live, "gpu") if target.meter]
    if not targets:
        here = ", ".join(f"{device.name} ({device.arch})" for device in live)
        raise resolved.experiment.error("devices", f"none of them is here, but {here}", "name the arch of a GPU here")
    return plan(resolved, targets[:1])


def read_known(resolved: Resolved) -> dict[Path, list[Story]]:
    """What the files that an experiment learns from tell of its kernel, by file, each read once.

    Raises:
        UserError: one cannot be read, or tells of other kernels only.
    """
    from tunefarm.pasts import read_stories

    known: dict[Path, list[Story]] = {}
    for number, file in enumerate(resolved.experiment.search.learn_from):
        try:
            if file.exists() and not file.is_file():
                raise UserError("is no file", file=str(file))
            known.setdefault(file.resolve(), read_stories(file.resolve(), resolved.kernel))
        except UserError as e:
            message, hint = f"{file}: {e.args[0]}", e.hint or "name a ledger or landscape of this kernel that is there"
            raise resolved.experiment.error(f"search.learn_from[{number}]", message, hint) from None
    return known


def optuna_storage(flag: str | None, experiment: Experiment, tracking: str = "") -> str:
    """The Optuna storage that mirrors the studies: the flag's word, then the experiment's; empty for none.

    Args:
        flag: what the command line says.
        experiment: the experiment.
        tracking: the MLflow URI, which must be another.

    Raises:
        SpecError: Optuna cannot write to such a one; it is said of the flag, or of the experiment.
    """
    storage = flag or experiment.tracking.optuna_storage
    if storage in ("", "none"):
        return ""
    from tunefarm.search.storage import check_storage

    try:
        check_storage(storage)
        if storage == tracking:  # Both keep their version in a table of one name, and each takes it for its own.
            message = f"{public(storage)} is MLflow's database in this sweep"
            raise SpecError(message, key="tracking.optuna_storage", hint="name another file or database")
    except SpecError as e:
        raise _said_of("--optuna-storage" if flag else "", e, experiment) from None
    return storage


def tracking_uri(flag: str | None, experiment: Experiment, *, begun: bool = False) -> str:
    """The MLflow URI: the flag's word, then the experiment's, then the environment's, then a local database.

    Args:
        flag: what the command line says.
        experiment: the experiment.
        begun: a driver goes on with a sweep: it waits for no server that is away, and tells it later.

    Raises:
        SpecError: MLflow cannot write there; it is said of the flag, of the experiment, or of the environment.
        InfrastructureError: no server listens there.
    """
    from tunefarm.record.tracking import DEFAULT_URI, check_server, check_uri

    said = {
        "--tracking": flag,
        "": experiment.tracking.uri,
        "MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI"),
    }
    place, uri = next(((place, uri) for place, uri in said.items() if uri), ("", DEFAULT_URI))
    try:
        if uri != "none":
            check_uri(uri)
            check_server(uri)
    except SpecError as e:
        raise _said_of(place, e, experiment) from None
    except InfrastructureError as e:
        if not begun:
            raise
        logger.warning("%s; the sweep goes on", e.args[0])
    return uri


def _said_of(place: str, error: SpecError, experiment: Experiment) -> Exception:
    """An error about a value, said of where it was given: a flag, a variable, or else the experiment's key."""
    from tunefarm.plan import located

    return SpecError(str(error.args[0]), key=place, hint=error.hint) if place else located(error, experiment)
