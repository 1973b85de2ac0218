"""Winners of one or several experiments on their way into packs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunefarm import __version__

if TYPE_CHECKING:
    from tunefarm.cli.order import Order
    from tunefarm.config import Config
    from tunefarm.pack import Pack
    from tunefarm.plan import PlannedStudy
    from tunefarm.ranges import Cuts
    from tunefarm.record.ledger import FileLedger
    from tunefarm.spec.workload import Workload
    from tunefarm.study import StudyResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What a sweep brought in."""

    order: Order
    ledger: FileLedger
    results: Sequence[StudyResult]
    cuts: Mapping[str, Cuts]


def exportable(results: Sequence[StudyResult]) -> list[StudyResult]:
    """Those with winners. A pack holds times of one kind, and this machine's are worth more than a recording's.

    Winners of finals during which others computed on the GPU are left out: they may have won by that.
    """
    won = [result for result in results if result.winner is not None and not result.disturbed.startswith("contended")]
    return [result for result in won if result.source == "measured"] or won


def left_out(results: Sequence[StudyResult]) -> list[str]:
    """What is not exported though it has a winner, and why."""
    kept = exportable(results)
    left = [r for r in results if r.winner is not None and r not in kept]
    contended = [
        f"{r.study.label} is not exported ({r.disturbed}): sweep again on a quiet GPU" for r in left if r.disturbed
    ]
    names = sorted({r.study.device.name for r in left if not r.disturbed})
    return contended + [f"replayed winners of {name} are not exported with measured ones" for name in names]


def answered_twice(harvests: Sequence[Harvest]) -> list[str]:
    """What several experiments have a winner for, of which a pack holds one."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for harvest in harvests:
        kernel, source, _ = harvest.order.resolved.workload.packed_as
        for study in (result.study for result in exportable(harvest.results)):
            place = kernel, source, study.device.key, study.problem.key
            found.setdefault(place, {})[harvest.order.spec.name] = study.label
    return [
        f"{' and '.join(names)} each have a winner for {next(reversed(names.values()))}: the pack holds the last one's"
        for names in found.values()
        if len(names) > 1
    ]


def find_incumbents(pack: Pack | None, workload: Workload | None, planned: Sequence[PlannedStudy]) -> dict[str, Config]:
    """What an earlier pack holds for each study's own problem and device.

    Args:
        pack: the pack.
        workload: of the studies; None if they replay recordings in place of one.
        planned: the studies.
    """
    from tunefarm.export import is_of

    if pack is None or workload is None:
        return {}
    kernel, source, layer = workload.packed_as
    # An edition before this one of a kernel is in use all the same; Inductor names many kernels alike.
    tables = [
        t for t in pack.tables if (t.kernel, t.layer) == (kernel, layer) and (layer == 1 or t.source_hash == source)
    ]
    found: dict[str, Config] = {}
    for table in tables:
        for study in (study for study in planned if study.study.device.key == table.device.key):
            for row in table.rows:
                if is_of(row, study.study.problem) and row.config in study.entrants:
                    found.setdefault(study.study.key, row.config)
    return found


def export_all(path: str, harvests: Sequence[Harvest]) -> bool:
    """Writes the winners of sweeps into one pack, or updates the one that is there; False if there are none.

    Raises:
        UserError: they may not share a pack.
        PackError: the file that is there is not a sound pack; it is left as it is.
    """
    from tunefarm.bench.build import triton_version
    from tunefarm.export import export, join, write_export

    kept = exportable([result for harvest in harvests for result in harvest.results])
    packs, sources = [], set()
    for harvest in harvests:
        spec, workload = harvest.order.spec, harvest.order.resolved.workload
        kernel, source, layer = workload.packed_as
        sources.add(source)
        if won := [result for result in harvest.results if result in kept]:
            packs.append(
                export(
                    won, kernel=kernel, source_hash=source, layer=layer, sweep=spec.name,
                    experiment=spec.digest, created=datetime.date.today().isoformat(), tunefarm=__version__,
                    ranges=workload.ranges, checked=workload.reference is not None, triton=triton_version(),
                    cuts=harvest.cuts,
                )
            )  # fmt: skip
    if not packs:
        return False
    written = write_export(Path(path), join(packs), current=sources)
    rows = sum(len(table.rows) for table in written.tables)
    for harvest in harvests:
        harvest.ledger.append("export", {"path": path, "digest": written.digest, "rows": rows})
    return True
