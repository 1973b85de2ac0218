"""Packs of what landscapes of this repository recorded: real times of a real card, without a sweep's minutes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefarm import landscape as landscapes
from tunefarm.cli.opening import open_experiment
from tunefarm.export import export
from tunefarm.pack import Pack, seal
from tunefarm.plan import choose_targets, plan
from tunefarm.search.crown import crown
from tunefarm.source import source_hash
from tunefarm.study import Status, StudyResult

ROOT = Path(__file__).parents[1]
SOFTMAX = ROOT / "experiments/softmax.yaml"


def pack_of(experiment: Path, **changes: Any) -> Pack:
    """The pack of a sweep that measured everything: for each problem the winner of the three fastest and the default.

    Args:
        experiment: with a landscape.
        changes: of each table's provenance.
    """
    resolved = open_experiment(experiment)
    results = []
    for target in choose_targets(resolved.experiment, [], "replay"):
        if target.meter:
            recording = landscapes.load_cached(target.landscape)
            for planned in plan(resolved, [target]):
                entries = [e for e in recording.get(planned.study.problem, "").entries if e.samples_ms]
                entries.sort(key=lambda entry: statistics.median(entry.samples_ms))
                sat = [e for e in entries if e in entries[:3] or e.config == planned.default]
                finalists = [(number, e.config, e.samples_ms) for number, e in enumerate(sat)]
                winner = crown(finalists, planned.default, None, 0.01, 0)
                results.append(
                    StudyResult(
                        study=planned.study, status=Status.WINNER, winner=winner, source="replayed",
                        toolchain=recording.toolchain, timer=recording.timer,
                    )
                )  # fmt: skip
    pack = export(
        results, kernel=resolved.workload.signature.kernel, source_hash=source_hash(resolved.workload.kernel),
        sweep=resolved.experiment.name, experiment=resolved.experiment.digest, created="2026-11-30", tunefarm="0.1.0",
        ranges=resolved.workload.ranges,
    )  # fmt: skip
    tables = tuple(replace(t, provenance=replace(t.provenance, **changes)) for t in pack.tables)
    return seal(Pack(tables=tables))
