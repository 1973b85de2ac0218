"""What `tunefarm sweep` was asked to do: experiments read and found sound before any machine is touched."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.cli.opening import MeterKind
from tunefarm.document import file_stem
from tunefarm.errors import UserError
from tunefarm.record.scan import LEDGER
from tunefarm.shards import WHOLE, Shard

if TYPE_CHECKING:
    from tunefarm.device import Device
    from tunefarm.pack import Pack
    from tunefarm.pasts import Story
    from tunefarm.plan import PlannedStudy
    from tunefarm.record.ledger import FileLedger
    from tunefarm.search.transfer import Past
    from tunefarm.spec.experiment import Experiment, Resolved

SUFFIXES = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment to be swept.

    Attributes:
        file: where it is written.
        resolved: what it says.
        meter: what is to answer how long a config takes.
        ledger: where it is recorded.
        fresh: forget what was measured.
        tracking: MLflow URI, or `none`.
        optuna_storage: where its studies are mirrored, or empty.
        export: the pack for its winners, or empty.
        known: what the files that it learns from tell of its kernel.
        shard: which of several drivers this one is; ledger and pack are its own then.
        whole: the pack for the winners of all shards, or empty.
        weight: of this shard's studies, as a share of those of the experiment.
    """

    file: Path
    resolved: Resolved
    meter: MeterKind
    ledger: Path
    fresh: bool
    tracking: str
    optuna_storage: str
    export: str
    known: Mapping[Path, Sequence[Story]]
    shard: Shard = WHOLE
    whole: str = ""
    weight: float = 1.0

    @property
    def spec(self) -> Experiment:
        """The experiment as it is written."""
        return self.resolved.experiment

    @property
    def mlflow_experiment(self) -> str:
        """Where its sweeps are in MLflow: as it says, or under its workload's name, after its project's."""
        names = (self.spec.project, self.resolved.name)
        return self.spec.tracking.experiment or ".".join(name for name in names if name)

    @property
    def registered_as(self) -> str:
        """The model of MLflow's registry that its pack is a version of; empty for none."""
        names = ("tunefarm", self.spec.project, self.resolved.name)
        return ".".join(name for name in names if name) if self.spec.tracking.register else ""


def find_experiments(places: Sequence[Path]) -> list[Path]:
    """The experiment files that a command names, each once; a folder stands for those in it, by name.

    Raises:
        UserError: a folder holds none.
    """
    files: dict[Path, Path] = {}
    for place in places:
        found = [place]
        if place.is_dir():
            found = sorted(file for file in place.iterdir() if file.suffix in SUFFIXES and file.is_file())
            if not found:
                raise UserError("holds no experiment (*.yaml)", file=str(place), hint="name one, or a folder with some")
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values())


@contextlib.contextmanager
def about(file: Path, files: Sized) -> Iterator[None]:
    """Says of every complaint which of several experiments it is about."""
    try:
        yield
    except UserError as e:
        if len(files) == 1 or str(file) in str(e):
            raise
        raise UserError(str(e), file=str(file)) from None


def take_orders(
    files: Sequence[Path], *, meter: MeterKind, sweeps: Path, fresh: bool, tracking: str | None,
    optuna_storage: str | None, out: Path | None, shard: Shard = WHOLE,
) -> list[Order]:  # fmt: skip
    """Reads experiments and imports what they name.

    Raises:
        UserError: one of them makes no sense; nothing was touched then.
    """
    from tunefarm.cli import folders, opening
    from tunefarm.spec.experiment import load_experiment

    if out is not None:
        folders.check_output(out)
        earlier_pack(str(out))
    written: dict[str, tuple[Path, Experiment, str, str]] = {}
    # What needs no PyTorch is checked before anything starts.
    for file in files:
        spec = load_experiment(file)
        if spec.name in written:
            other = written[spec.name][0]
            raise spec.error("name", f"{other} is called {spec.name} too: they would share one ledger", "rename one")
        uri = opening.tracking_uri(tracking, spec, begun=ledger_file(sweeps, spec, shard).exists())
        written[spec.name] = file, spec, uri, opening.optuna_storage(optuna_storage, spec, uri)
    orders = []
    for file, spec, uri, storage in written.values():
        with about(file, files):
            _check_replayed(spec, meter, out)
            resolved = opening.import_experiment(spec, ship=True)
            known = opening.read_known(resolved)  # what cannot be read is said before any work
        export = spec.export if out is None else str(out)
        orders.append(
            Order(
                file=file, resolved=resolved, meter=meter, ledger=ledger_file(sweeps, spec, shard), fresh=fresh,
                tracking=uri, optuna_storage=storage, export=_export(export, shard),
                known=known, shard=shard, whole=export,
            )
        )  # fmt: skip
    return orders


def _check_replayed(spec: Experiment, meter: MeterKind, out: Path | None) -> None:
    """Refuses flags that want of recordings what only a kernel can give."""
    if not spec.workload.landscapes:
        return
    if out is not None:
        message = f"a replayed landscape gives tables, never packs, and --out {out} names a pack"
        raise spec.error("workload", message, "leave --out out, or name the kernel as the workload")
    if meter is MeterKind.GPU:
        message = "a replayed landscape has no kernel that --meter gpu could launch"
        raise spec.error("workload", message, "leave --meter gpu out, or name the kernel as the workload")


def _export(whole: str, shard: Shard) -> str:
    return str(shard.beside(Path(whole))) if whole and shard.num > 1 else whole


def take_part(
    orders: Sequence[Order], planned: Sequence[Sequence[PlannedStudy]]
) -> tuple[list[Order], list[list[PlannedStudy]], int]:  # fmt: skip
    """What this driver's shard has of what was ordered: orders of which it has studies, these, and of how many."""
    from tunefarm.shards import take

    parts = take(orders[0].shard, [(order.spec, studies) for order, studies in zip(orders, planned, strict=True)])
    mine = [
        (replace(order, weight=part.weight), list(part.studies))
        for order, part in zip(orders, parts, strict=True)
        if part.studies or order.shard.num == 1
    ]
    return [order for order, _ in mine], [studies for _, studies in mine], sum(part.num for part in parts)


def ledger_file(sweeps: Path, spec: Experiment, shard: Shard) -> Path:
    """Where a sweep, or its shard, is recorded."""
    return shard.beside(sweeps / file_stem(spec.name)) / LEDGER


def plan_order(order: Order, live: Sequence[Device], *, complete: bool) -> list[PlannedStudy]:
    """The studies, after refusing whatever can be refused already; `complete`: no further device will show up."""
    from tunefarm.cli.folders import check_output
    from tunefarm.cli.opening import plan_targets
    from tunefarm.plan import require_meter

    spec = order.spec
    # With GPUs still to show up, whether their landscapes can be replayed is no matter yet.
    planned = plan_targets(order.resolved, live, order.meter.value if complete else MeterKind.GPU.value)
    targets = list(dict.fromkeys(study.target for study in planned))
    if complete:
        require_meter(spec, targets)
    if order.export:
        try:
            check_output(Path(order.export))
        except UserError as e:
            if order.whole != spec.export:
                raise
            raise spec.error("export", f"{order.export} {e.args[0]}", e.hint) from None
    pack = earlier_pack(order.export)
    source = "measured" if any(target.meter == "gpu" for target in targets) else "replayed"
    if complete and pack is not None and set(pack.sources) - {source}:
        raise UserError(
            f"holds {' and '.join(pack.sources)} rows, and those of this sweep would be {source}",
            file=order.export,
            hint="export to another file, or remove this one",
        )
    return planned


def check_free(order: Order) -> None:
    """Refuses a ledger that another driver holds, or that is another's, before machines are taken.

    Raises:
        LedgerError: see `open_ledger`.
    """
    from tunefarm.cli.mounts import say_doubts
    from tunefarm.record.ledger import check_ledger

    check_ledger(order.ledger, {"experiment": order.spec.name})
    say_doubts("the ledger is", [order.ledger.parent], "let one driver at a time go on with a sweep, or name --sweeps")


def earlier_pack(export: str) -> Pack | None:
    """The pack that a sweep would update; None if there is none."""
    return _load(export, Path(export).stat().st_mtime_ns) if export and Path(export).exists() else None


@functools.lru_cache(maxsize=2)
def _load(path: str, written_ns: int) -> Pack:
    # Each of many experiments asks for it twice.
    from tunefarm.pack_reader import load_pack

    return load_pack(path)


def open_ledger(order: Order, planned: Sequence[PlannedStudy]) -> FileLedger:
    """The ledger of an order, for what is planned now.

    Raises:
        LedgerError: it is damaged, or another driver holds it.
    """
    from tunefarm.bench.telemetry import toolchain
    from tunefarm.document import digest
    from tunefarm.record import ledger as ledgers

    spec = order.spec
    conditions = digest(
        [
            *_about_workload(order.resolved),
            [spec.accept.atol, spec.accept.rtol, spec.accept.same_bits, [check.label for check in spec.checks]],
            [spec.search.seed, spec.timer],
            dict(toolchain()),
            [[t.device.key, t.meter, _fingerprint(t.landscape)] for t in dict.fromkeys(s.target for s in planned)],
        ]
    )
    identity = {"experiment": spec.name, "digest": spec.digest, "conditions": conditions}
    if order.shard.num > 1:
        identity["shard"] = str(order.shard)
    ledger = ledgers.open_ledger(order.ledger, identity)
    if order.fresh:
        ledger.append("fresh", {})
    return ledger


def _about_workload(resolved: Resolved) -> list[Any]:
    """What of the workload makes earlier answers worthless if it changes; of recordings their content tells."""
    from tunefarm.source import source_hash

    workload = resolved.found
    if workload is None:
        return [resolved.kernel]
    return [
        source_hash(workload.kernel),
        [_text(part) for part in (workload.call, workload.reference, workload.inputs)],
        *([_text(workload.library)] if workload.library is not None else []),
        [workload.restore, workload.zero, workload.atol, workload.rtol],
    ]


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


def find_pasts(
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
