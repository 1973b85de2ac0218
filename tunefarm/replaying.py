"""The plan of a sweep whose workload is recorded: no kernel is called, the candidates are what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.bench.worker import Built
from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Recorded
from tunefarm.landscape_reader import load_cached
from tunefarm.plan import PlannedStudy, Target
from tunefarm.spec.experiment import Experiment, Recording, Resolved
from tunefarm.spec.recorded import default_of, recorded_at
from tunefarm.spec.sections import ProblemSpec
from tunefarm.study import Study
from tunefarm.trial import Outcome


def plan_recorded(resolved: Resolved) -> list[PlannedStudy]:
    """The studies of a sweep that replays recordings, device by device.

    Raises:
        SpecError: a constraint has no value at some config.
    """
    # A recording that lacks a problem has no study of it.
    return [
        _plan_study(resolved, recording, recorded, spec)
        for recording in resolved.recordings
        for spec in resolved.experiment.problems
        if (recorded := recorded_at(recording, spec.variables)) is not None
    ]


def recorded_builds(planned: PlannedStudy) -> dict[Config, Built]:
    """What the recording of a study tells of its builds; empty where there is a kernel to build."""
    if not planned.is_recorded:
        return {}
    recorded = load_cached(planned.target.landscape).get(planned.study.problem, planned.target.landscape)
    return {
        entry.config: Built(config=entry.config, build=entry.build)
        if entry.failure is None or entry.failure.stage != "build"
        else Built(config=entry.config, outcome=entry.outcome, failure=entry.failure)
        for entry in recorded.entries
    }


def _plan_study(resolved: Resolved, recording: Recording, recorded: Recorded, spec: ProblemSpec) -> PlannedStudy:
    experiment, device = resolved.experiment, recording.landscape.device
    configs = [entry.config for entry in recorded.entries if entry.outcome is not Outcome.ILLEGAL]
    removed = {"illegal when it was recorded": len(recorded.entries) - len(configs)}
    configs, left_out = _narrowed(experiment, configs)
    points = replace(resolved.space, listed=tuple(configs)).points(spec.variables, device) if configs else None
    candidates = points.configs if points is not None else ()
    default = default_of(resolved)
    if default is not None and default not in (entry.config for entry in recorded.entries):
        default = None
    if default is not None and candidates and default not in candidates:
        candidates = (default, *candidates)
    removed |= {**left_out, **(points.removed if points is not None else {})}
    return PlannedStudy(
        study=Study(
            workload=resolved.name, device=device, problem=recorded.problem, variables=spec.variables,
            weight=spec.weight, called=device.short_name,
        ),
        target=Target(device=device, meter="replay", landscape=str(recording.file)),
        ref=experiment.ref,
        candidates=candidates,
        default=default,
        num_points=len(recorded.entries),
        removed=FrozenMap({rule: count for rule, count in removed.items() if count}),
        num_bytes=recorded.num_bytes,
        flops=recorded.flops,
    )  # fmt: skip


def _narrowed(experiment: Experiment, configs: list[Config]) -> tuple[list[Config], Mapping[str, int]]:
    """The configs within the experiment's own space, and how many each of its params removed."""
    removed: dict[str, int] = {}
    for param in experiment.space:
        kept = [config for config in configs if config.flat[param.name] in param.values]
        removed[f"space.{param.name}"] = len(configs) - len(kept)
        configs = kept
    return configs, removed
