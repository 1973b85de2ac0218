"""For notebooks and scripts: a sweep as a call.

from tunefarm.api import sweep

swept = sweep("experiments/softmax.yaml")
swept.winners["softmax sm_90 8192x4096 bf16"].config
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tunefarm.address import public
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.study import StudyResult
from tunefarm.trial import Winner

if TYPE_CHECKING:
    from tunefarm.cli.closing import Ending
    from tunefarm.cli.sweeping import Swept, Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptExperiment:
    """How it went with one experiment.

    Attributes:
        name: of the experiment.
        file: where it is written.
        ledger: where its sweep is recorded; `tunefarm report` reads it.
        tracking: MLflow's URI, or `none`.
        pack: the pack that holds its winners now, or None.
        studies: results, in the order of the experiment.
        error: what broke it, or None.
    """

    name: str
    file: Path
    ledger: Path
    tracking: str
    pack: Path | None = None
    studies: tuple[StudyResult, ...] = field(default=(), repr=False)
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep gave.

    Attributes:
        experiments: how it went with each; none where the shard has no study.
        exit_code: what the command would end with: 0 done, 1 if a study that was measured has no winner, or one of
            several experiments broke.
        facts: of the whole: `wall_s`, `gpu_held_s`, `compiled`, `notices`, ...
    """

    experiments: tuple[SweptExperiment, ...]
    exit_code: int
    facts: FrozenMap[Any] = field(repr=False)

    @property
    def studies(self) -> tuple[StudyResult, ...]:
        """Results of all studies."""
        return tuple(study for experiment in self.experiments for study in experiment.studies)

    @property
    def winners(self) -> Mapping[str, Winner]:
        """Winners by their study's label, such as `softmax sm_90 8192x4096 bf16`; of equal ones the last."""
        return {study.study.label: study.winner for study in self.studies if study.winner is not None}

    @property
    def packs(self) -> tuple[Path, ...]:
        """The packs that hold them, each once."""
        return tuple(dict.fromkeys(experiment.pack for experiment in self.experiments if experiment.pack is not None))


def sweep(
    experiment: str | os.PathLike[str],
    *others: str | os.PathLike[str],
    fleet: str = "ray",
    address: str | None = None,
    meter: str = "auto",
    builders: int | None = None,
    wait_s: float = 120.0,
    sweeps: str | os.PathLike[str] = "sweeps",
    out: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    tracking: str | None = None,
    optuna_storage: str | None = None,
    metrics_port: int | None = None,
    metrics_address: str | None = None,
    metrics_file: str | os.PathLike[str] | None = None,
    shard: str = "",
    quiet: bool = False,
) -> SweepResult:
    """Tunes the kernels of experiments, as `tunefarm sweep` does; in a notebook with the same view of how it goes.

    Interrupted, the same call goes on from the ledger. Workloads are imported as their files are now.

    Args:
        experiment: a file, or a folder of some; relative paths begin at the working directory.
        others: likewise, to be swept side by side.
        fleet: where jobs run, `ray` or `inline`.
        address: a running Ray cluster; with Ray, None stands for `RAY_ADDRESS`, or for one of this machine.
        meter: `gpu`, `replay`, or `auto` for whichever is there.
        builders: build workers; None for one a CPU.
        wait_s: seconds that a cluster is given to show a GPU of each arch.
        sweeps: folder of the ledgers.
        out: one pack for all; None for what the experiments say.
        fresh: forget what earlier sweeps of these names measured.
        tracking: MLflow URI, or `none`; None for what the experiments or `MLFLOW_TRACKING_URI` say.
        optuna_storage: Optuna storage to mirror the studies in, or `none`; None for what the experiments say.
        metrics_port: serve Prometheus metrics on it, at `metrics_address`; `metrics_file` is a .prom file for them.
        shard: only this driver's part of the studies, `2/8`.
        quiet: show nothing.

    Raises:
        UserError: something makes no sense as it was asked for; of what failed, an `InfrastructureError`.
        Exception: whatever broke the only experiment or all of them, or kept the only pack from being written.
    """
    from tunefarm.cli.exposing import Exposure
    from tunefarm.cli.opening import FleetKind, MeterKind, ray_address
    from tunefarm.cli.sweeping import Wish, perform

    experiments = (experiment, *others)
    _check(experiments, builders)
    kind = _one_of(FleetKind, "fleet", fleet)
    wish = Wish(
        experiments=[Path(path) for path in experiments], fleet=kind, address=address or ray_address(kind),
        meter=_one_of(MeterKind, "meter", meter), builders=builders, wait_s=wait_s, sweeps=Path(sweeps),
        out=_path(out), fresh=fresh, tracking=tracking, optuna_storage=optuna_storage,
        shard=shard, command=f"tunefarm.api.sweep({', '.join(repr(str(path)) for path in experiments)})",
    )  # fmt: skip
    exposure = Exposure(port=metrics_port, address=metrics_address, file=_path(metrics_file))
    with _alone(), _imported_anew(wish):
        return _settled(perform(wish, exposure, quiet=quiet), quiet=quiet)


Kind = TypeVar("Kind", bound=enum.StrEnum)


def _one_of(kinds: type[Kind], key: str, said: str) -> Kind:
    try:
        return kinds(said)
    except ValueError:
        raise UserError(f"{said!r} is none", key=key, hint=f"one of {', '.join(kinds)}") from None


def _check(experiments: tuple[str | os.PathLike[str], ...], builders: int | None) -> None:
    if not all(map(os.fspath, experiments)):  # a path of it is the working directory
        raise UserError("an empty name is no experiment", hint="name a file, or a folder of some: '.' is this one")
    if builders is not None and builders < 1:
        raise UserError(f"{builders} are too few", key="builders", hint="at least 1, or None for one a CPU")


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)


_sweeping = threading.Lock()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Refuses a second sweep of this process: what modules a workload is made of is one thing in all its threads.

    Raises:
        UserError: one is at work.
    """
    if not _sweeping.acquire(blocking=False):
        raise UserError("a sweep is at work in this process", hint="wait for it, or name all experiments in one call")
    try:
        yield
    finally:
        _sweeping.release()


@contextlib.contextmanager
def _imported_anew(wish: Wish) -> Iterator[None]:
    """Has modules that workloads are made of imported as they lie there now, and gives this process its own back.

    Workers import what is there; a function that was imported before an edit would be packed as what they measured.
    """
    from tunefarm.cli.order import find_experiments
    from tunefarm.spec.bundling import gathered
    from tunefarm.spec.experiment import load_experiment

    experiments = [load_experiment(file) for file in find_experiments(wish.experiments)]
    files = {path.resolve() for experiment in experiments for path in gathered(experiment)}
    places = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    mine = [name for name, file in places.items() if name != "__main__" and file and Path(file).resolve() in files]
    kept = {name: sys.modules.pop(name) for name in mine}
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.modules.update(kept)


def _settled(swept: Swept, *, quiet: bool) -> SweepResult:
    """What is told and given of it, or raised."""
    from tunefarm.cli.closing import close, exit_code

    broken = [ending.error for ending in swept.endings if ending.error is not None]
    if broken and len(broken) == len(swept.endings):
        for other in broken[1:]:
            broken[0].add_note(f"also broke: {other}")
        raise broken[0]
    if swept.endings and not quiet:
        close(swept.endings, swept.facts, swept.failed, as_json=False, quiet=False)
    if len(swept.endings) == 1:
        for error in swept.failed.values():
            raise error
    return SweepResult(
        experiments=tuple(_experiment(ending, swept.failed) for ending in swept.endings),
        exit_code=exit_code(swept.endings, swept.failed), facts=FrozenMap(swept.facts),
    )  # fmt: skip


def _experiment(ending: Ending, failed: Mapping[str, Exception]) -> SweptExperiment:
    order = ending.order
    return SweptExperiment(
        name=order.spec.name, file=order.file, ledger=order.ledger, tracking=public(order.tracking),
        pack=Path(ending.pack) if ending.pack else None, studies=tuple(ending.results),
        error=ending.error or failed.get(order.export),
    )  # fmt: skip
