"""The plan of a sweep: its studies, each with its candidates and with what removed the others. No GPU, no compiling."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tunefarm import landscape as landscapes
from tunefarm.bench.launch import Launch, default_config, learn
from tunefarm.bench.legality import illegal, screen, unsupported
from tunefarm.bench.tensors import make_inputs
from tunefarm.config import LIBRARY, Config, Value
from tunefarm.device import Device, nominal
from tunefarm.errors import LandscapeError, SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.source import source_hash, unread
from tunefarm.spec.experiment import Experiment, Resolved
from tunefarm.spec.sections import DeviceSpec, ProblemSpec
from tunefarm.spec.workload import Workload, WorkloadRef
from tunefarm.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device of the plan and how its times will be had.

    Attributes:
        device: the device.
        meter: `gpu`, `replay`, or empty when there is nothing to measure with.
        landscape: the file to replay.
    """

    device: Device
    meter: str = ""
    landscape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A production call with given inputs on a device: what is built, checked and measured.

    Attributes:
        ref: where the workload is found, with inputs of its own where they differ from the experiment's.
        device: on which it runs.
        variables: the experiment's names for its problem.
        problem: what was learned of it.
        changes: what tells a check from its study, for people; empty for the study's own call.
    """

    ref: WorkloadRef
    device: Device
    variables: FrozenMap[Value]
    problem: Problem
    changes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStudy:
    """A study before anything is built.

    Attributes:
        study: what is competed for.
        target: on what, and how it is measured.
        ref: where its workload is found.
        checks: further calls that its finalists must get right.
        candidates: legal configs, the default among them if it is legal and no library's call.
        default: the config used without tuning, or the library's call; None if it is unknown or illegal.
        num_points: points of the space.
        removed: how many of them each rule or constraint removed.
        unused: values of the space that no candidate uses.
        idle: key arguments that the kernel's body does not mention: problems that differ in them alone are alike.
        skipped: why there is nothing to tune, or empty.
        num_bytes: compulsory traffic of a call, 0 where unknown.
        flops: arithmetic of a call, 0 where unknown.
    """

    study: Study
    target: Target
    ref: WorkloadRef
    checks: tuple[Call, ...] = ()
    candidates: tuple[Config, ...] = ()
    default: Config | None = None
    num_points: int = 0
    removed: FrozenMap[int] = field(default_factory=FrozenMap)
    unused: tuple[tuple[str, Value], ...] = ()
    idle: tuple[str, ...] = ()
    skipped: str = ""
    num_bytes: float = 0.0
    flops: float = 0.0

    @property
    def is_recorded(self) -> bool:
        """Whether a recording stands in the place of a kernel, so that nothing can be built."""
        return bool(self.ref.landscapes)

    @property
    def entrants(self) -> tuple[Config, ...]:
        """All who compete: the candidates, and the library's call if there is one."""
        return (*self.candidates, LIBRARY) if self.default == LIBRARY else self.candidates

    @property
    def call(self) -> Call:
        """The call that the study is about."""
        study = self.study
        return Call(ref=self.ref, device=study.device, variables=study.variables, problem=study.problem)


def choose_targets(experiment: Experiment, live: Sequence[Device], meter: str = "auto") -> list[Target]:
    """What each device entry of an experiment stands for here.

    Args:
        experiment: whose devices.
        live: GPUs at hand.
        meter: `auto` (a live GPU if there is one, else the landscape), `gpu`, or `replay`.

    Raises:
        SpecError: a landscape of another arch, or `meter` asks for what is not there.
        LandscapeError: a landscape cannot be read.
    """
    targets: list[Target] = []
    for position, spec in enumerate(experiment.devices):
        for target in _targets_of(experiment, spec, position, live, meter):
            # By key: two cards of a kind may differ by some bytes of memory and compete as one.
            if target.device.key not in [t.device.key for t in targets]:
                targets.append(target)
    return targets


def _targets_of(
    experiment: Experiment, spec: DeviceSpec, position: int, live: Sequence[Device], meter: str
) -> list[Target]:
    found = [device for device in live if device.arch == spec.arch]
    if found and meter != "replay":
        return [Target(device=device, meter="gpu") for device in dict.fromkeys(found)]
    if spec.landscape is not None and meter != "gpu":
        if not spec.landscape.exists():
            raise experiment.error(
                f"devices[{position}].landscape",
                f"{spec.landscape}: no such file",
                "record it with `tunefarm record` on a GPU, or leave the key out",
            )
        recording = landscapes.load_cached(str(spec.landscape))
        if recording.device.arch != spec.arch:
            raise experiment.error(
                f"devices[{position}].landscape",
                f"{spec.landscape} was recorded on {recording.device.arch}, not {spec.arch}",
                "name a landscape of this arch",
            )
        return [Target(device=recording.device, meter="replay", landscape=str(spec.landscape))]
    return [Target(device=nominal(spec.arch))]


def require_meter(experiment: Experiment, targets: Sequence[Target]) -> None:
    """Refuses a sweep in which nothing at all could be measured.

    Raises:
        SpecError: there is no GPU of any wanted arch, and no landscape.
    """
    if not any(target.meter for target in targets):
        archs = ", ".join(dict.fromkeys(target.device.arch for target in targets))
        named = any(device.landscape for device in experiment.devices)
        raise experiment.error(
            "devices",
            f"nothing to measure with: no GPU of {archs} here, and "
            + ("the landscapes named are not to be replayed" if named else "no landscape is named"),
            "run on such a GPU, or "
            + ("leave out --meter gpu" if named else "give an entry `landscape: FILE` recorded with `tunefarm record`"),
        )


def _check_landscape(planned: PlannedStudy) -> None:
    """Refuses to replay what nobody recorded.

    Raises:
        LandscapeError: the landscape lacks the problem, or has it at another size.
    """
    file, study = planned.target.landscape, planned.study
    recorded = landscapes.load_cached(file).get(study.problem, file)
    if reason := recorded.differs(study.variables, planned.num_bytes, planned.flops):
        raise LandscapeError(
            f"holds problem {study.problem.label} as it was recorded {reason}", file=file,
            hint="the kernel's key does not tell the two apart: record this one with `tunefarm record` on a GPU",
        )  # fmt: skip


def plan(resolved: Resolved, targets: Sequence[Target]) -> list[PlannedStudy]:
    """The studies of a sweep, device by device, in the order of the experiment's problems.

    Raises:
        SpecError: the workload's call cannot be followed for some problem.
        LandscapeError: a landscape is stale or lacks a problem.
    """
    studies: list[PlannedStudy] = []
    for target in targets:
        try:
            mine = [_plan_study(resolved, target, spec) for spec in resolved.experiment.problems]
        except SpecError as e:
            raise located(e, resolved.experiment) from None
        if target.meter == "replay":
            kernel = resolved.workload.kernel
            landscapes.load_cached(target.landscape).check(
                resolved.workload.signature.kernel, source_hash(kernel), resolved.experiment.timer, target.landscape
            )
            for study in mine:
                if not study.skipped:
                    _check_landscape(study)
        studies += mine
    _check_distinct(resolved.experiment, studies)
    return studies


def narrowed(
    resolved: Resolved, planned: PlannedStudy, variables: FrozenMap[Value], entrants: Collection[Config]
) -> PlannedStudy | None:
    """A study of other variables in which only some compete; None if there is nothing to run.

    Args:
        resolved: the experiment.
        planned: a study of it, whose device and default are those of the new one.
        variables: in the place of its own.
        entrants: configs; those that are no candidates there are left out.

    Raises:
        SpecError: the workload's call cannot be followed there.
        LandscapeError: it is to be replayed, and the landscape lacks the problem.
    """
    study = _plan_study(resolved, planned.target, ProblemSpec(variables=variables, weight=planned.study.weight))
    if study.skipped:
        return None
    if planned.target.meter == "replay":
        _check_landscape(study)
    return replace(study, candidates=tuple(c for c in study.candidates if c in entrants), checks=())


def _check_distinct(experiment: Experiment, studies: Sequence[PlannedStudy]) -> None:
    """Refuses two problems that the kernel's key cannot tell apart: they would share answers, and one row of a pack."""
    seen: dict[str, PlannedStudy] = {}
    for study in studies:
        other = seen.setdefault(study.study.key, study)
        if other is not study:
            raise experiment.error(
                "problems",
                f"{dict(other.study.variables)} and {dict(study.study.variables)} are one problem to the kernel "
                f"({study.study.problem.key})",
                "drop one, or add the argument in which they differ to the kernel's key",
            )


def located(error: Exception, experiment: Experiment) -> Exception:
    """An error of the workload, said of the experiment that names it where it says no place itself."""
    if not isinstance(error, SpecError) or error.file:
        return error
    return experiment.error(error.key or "workload", str(error.args[0]), error.hint)


def _plan_study(resolved: Resolved, target: Target, spec: ProblemSpec) -> PlannedStudy:
    workload, device = resolved.workload, target.device
    variables = spec.variables
    if empty := empty_reason(workload, variables):
        return _skipped(resolved, target, spec, _empty_problem(variables), empty)
    launch = learn(workload, make_inputs(workload, variables, "meta"), workload.default, device.target)
    problem = launch.problem(workload.key)
    if reason := unsupported(device, problem.dtypes.values()):
        return _skipped(resolved, target, spec, problem, reason)
    points = resolved.space.points(variables, device)
    default = _default(workload, launch, resolved)
    configs = _with_untuned(_prune(workload, launch, points.configs), default)
    candidates, broken = screen(configs, workload, device, problem.dtypes.values())
    if default is not None and illegal(default, workload, device, problem.dtypes.values()):
        default = None
    if workload.library is not None:
        default = LIBRARY
    elif default is not None and candidates and default not in candidates:
        candidates = (default, *candidates)
    removed = {**points.removed, **broken}
    if pruned := len(points.configs) - len(configs):
        removed["early_config_prune of the kernel"] = pruned
    return PlannedStudy(
        study=Study(
            workload=workload.name, device=device, problem=problem, variables=variables, weight=spec.weight
        ),
        target=target,
        ref=resolved.experiment.ref,
        checks=_checks(resolved, device, variables),
        candidates=candidates,
        default=default,
        num_points=points.total,
        removed=FrozenMap(removed),
        unused=resolved.space.unused(candidates),
        idle=tuple(name for name in problem.dims if name in unread(workload.kernel)),
        num_bytes=_estimate(workload, "num_bytes", variables),
        flops=_estimate(workload, "flops", variables),
    )  # fmt: skip


def _skipped(resolved: Resolved, target: Target, spec: ProblemSpec, problem: Problem, reason: str) -> PlannedStudy:
    study = Study(
        workload=resolved.workload.name, device=target.device, problem=problem, variables=spec.variables,
        weight=spec.weight,
    )  # fmt: skip
    return PlannedStudy(study=study, target=target, ref=resolved.experiment.ref, skipped=reason)


def _checks(resolved: Resolved, device: Device, variables: FrozenMap[Value]) -> tuple[Call, ...]:
    """The calls that a study's finalists must get right besides its own; those without elements are left out."""
    calls = []
    for position, check in enumerate(resolved.experiment.checks):
        inputs = check.changed(resolved.workload.specs)
        workload = resolved.workload if inputs is None else replace(resolved.workload, inputs=inputs)
        own = check.values(variables)
        if own == variables and not check.inputs:
            continue
        try:
            if empty_reason(workload, own):
                continue
            launch = learn(workload, make_inputs(workload, own, "meta"), workload.default, device.target)
        except SpecError as e:
            raise resolved.experiment.error(f"checks[{position}]", str(e.args[0]), e.hint) from None
        ref = resolved.experiment.ref
        calls.append(
            Call(
                ref=replace(ref, inputs=inputs) if check.inputs else ref, device=device, variables=own,
                problem=launch.problem(workload.key), changes=check.label,
            )
        )  # fmt: skip
    return tuple(calls)


def empty_reason(workload: Workload, variables: FrozenMap[Value]) -> str:
    """Why a call launches nothing: an input without elements; empty if there is none."""
    import torch

    for name, value in make_inputs(workload, variables, "meta").items():
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            return f"empty problem: input {name} has shape {list(value.shape)}"
    return ""


def _empty_problem(variables: FrozenMap[Value]) -> Problem:
    return Problem(dims=FrozenMap({k: v for k, v in variables.items() if k != "dtype"}))


def _prune(workload: Workload, launch: Launch, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    autotuned = workload.autotuned
    if autotuned is None or autotuned.early_config_prune is None or not set(configs) <= set(autotuned.configs):
        # The kernel's own pruning knows only the configs it declares; a space of one's own stands by itself.
        return configs
    return autotuned.prune(configs, {n: v for n, v in launch.arguments.items() if n not in launch.config.params}, {})


def _default(workload: Workload, launch: Launch, resolved: Resolved) -> Config | None:
    """The config used without tuning, with a value for every name of the space; None where one is unknown.

    What neither the workload nor the call says has the value that the launch had: the compiler's own default for an
    option, the kernel's for a parameter.
    """
    declared = default_config(workload)
    names = resolved.space.domain
    flat = declared.flat if declared else {n: v for n, v in launch.config.flat.items() if n in names}
    for name in names:
        if name not in flat and hasattr(launch.options, name):
            flat[name] = getattr(launch.options, name)
        elif name not in flat and name in launch.arguments:
            flat[name] = launch.arguments[name]
    return workload.signature.config(flat) if flat.keys() >= names.keys() else None


def _with_untuned(configs: Sequence[Config], default: Config | None) -> tuple[Config, ...]:
    """The configs with what the default sets and the space does not tune, so that all of them say the same things."""
    if default is None:
        return tuple(configs)
    return tuple(
        Config(params=FrozenMap(default.params, **config.params), options=FrozenMap(default.options, **config.options))
        for config in configs
    )


def _estimate(workload: Workload, what: str, variables: FrozenMap[Value]) -> float:
    formula = getattr(workload, what)
    if formula is None:
        return 0.0
    try:
        return float(formula(**variables))
    except Exception as e:
        raise SpecError(
            f"{what} of {workload.name} raised {type(e).__name__}: {e}",
            hint=f"it is called with the problem's variables: {', '.join(variables)}",
        ) from None
