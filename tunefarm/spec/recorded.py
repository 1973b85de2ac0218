"""Recordings in the place of a kernel: which files, of what, and what of them an experiment asks for."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tunefarm.config import Config, Value
from tunefarm.device import Device, recorded
from tunefarm.errors import LandscapeError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Landscape, Recorded
from tunefarm.landscape_reader import load_cached
from tunefarm.problem import Problem
from tunefarm.spec.experiment import Experiment, Recording, Resolved, check_expressions
from tunefarm.spec.grammar import nearest
from tunefarm.spec.sections import ProblemSpec
from tunefarm.spec.space import SearchSpace
from tunefarm.spec.workload import LandscapeSpec
from tunefarm.trial import Outcome


def resolve_recorded(experiment: Experiment) -> Resolved:
    """Reads the recordings that an experiment replays, and checks every name of it against them.

    Returns:
        The experiment with the problems it takes from them; its space is what is recorded.

    Raises:
        UserError: a file is missing, damaged or of another kernel, or the experiment asks for what none of them holds.
    """
    recordings = _wanted(experiment, _read_all(experiment))
    _check_params(experiment, recordings)
    problems = _problems(experiment, recordings)
    experiment = replace(experiment, problems=problems, timer=_timer(experiment, recordings))
    listed = dict.fromkeys(config for each in recordings for config in _configs(each.landscape))
    space = SearchSpace(
        listed=tuple(listed), constraints=experiment.constraints, vars=experiment.vars, file=str(experiment.path)
    )
    _check_space(experiment, space)
    check_expressions(experiment, space)
    resolved = Resolved(experiment=experiment, found=None, space=space, recordings=tuple(recordings))
    default_of(resolved)
    return resolved


def default_of(resolved: Resolved) -> Config | None:
    """The config that the experiment calls the default; None if it names none.

    Raises:
        SpecError: no recording has it.
    """
    named = resolved.experiment.workload.default
    if named is None:
        return None
    found = next((config for config in resolved.space.listed if config.flat == dict(named)), None)
    if found is None:
        names = ", ".join(resolved.space.domain)
        raise resolved.experiment.error(
            "workload.default", f"{dict(named)} is no config of the recordings", f"give a recorded value for {names}"
        )
    return found


def variables_of(problem: Problem) -> FrozenMap[Value]:
    """A recorded problem by the names that an experiment may use for it."""
    dtypes = sorted({_DTYPES.get(dtype, dtype) for dtype in problem.dtypes.values()})
    return FrozenMap({**problem.dims, **({"dtype": dtypes[0]} if len(dtypes) == 1 else {})})


_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}
"""Element types as PyTorch spells them, in Triton's spelling."""


def _configs(landscape: Landscape) -> Iterator[Config]:
    return (entry.config for each in landscape.problems for entry in each.entries if entry.outcome != Outcome.ILLEGAL)


# ---- files ----


def _read_all(experiment: Experiment) -> list[Recording]:
    specs = experiment.workload.landscapes
    # A single one may be written without a list.
    keys = [f"workload.landscape[{n}]" for n in range(len(specs))] if len(specs) > 1 else ["workload"]
    recordings: dict[Path, Recording] = {}
    for key, spec in zip(keys, specs, strict=True):
        for file in _files(experiment, key, spec):
            try:
                landscape = _identified(load_cached(str(file)), spec, str(file))
            except UserError as e:
                raise experiment.error(key, f"{e.file or file}: {e.args[0]}", e.hint) from None
            if file.resolve() in recordings:
                raise experiment.error(key, f"{file} is named twice", "keep one")
            recordings[file.resolve()] = Recording(file=file, landscape=landscape)
    _check_distinct(experiment, keys[0].removesuffix("[0]"), list(recordings.values()))
    return list(recordings.values())


def _files(experiment: Experiment, key: str, spec: LandscapeSpec) -> list[Path]:
    path = experiment.folder / spec.file
    if path.is_file() or not glob.has_magic(spec.file):
        return [path]
    files = [Path(found) for found in sorted(glob.glob(str(path), recursive=True)) if Path(found).is_file()]
    if not files:
        raise experiment.error(
            key, f"no file matches {spec.file}", f"the pattern starts at {experiment.folder}: mend it, or name a file"
        )
    return files


def _identified(landscape: Landscape, spec: LandscapeSpec, file: str) -> Landscape:
    """The landscape with what the experiment tells of it where its file does not."""
    device = landscape.device
    if not device.arch:
        known = recorded(spec.device)
        if known is None:
            said = f"names device {device.name!r}, of which no more is known" if device.name else "names no device"
            raise LandscapeError(said, file=file, hint="write {file: ..., device: ...} with a device that is known")
        device = replace(known, name=device.name or known.name)
    if not landscape.kernel and not spec.kernel:
        raise LandscapeError("names no kernel", file=file, hint="write {file: ..., kernel: NAME}")
    return replace(landscape, device=device, kernel=landscape.kernel or spec.kernel)


def _check_distinct(experiment: Experiment, key: str, recordings: Sequence[Recording]) -> None:
    first = recordings[0]
    devices: dict[str, Recording] = {}
    for each in recordings:
        if each.landscape.kernel != first.landscape.kernel:
            raise experiment.error(
                key, f"{first.file} records kernel {first.landscape.kernel}, {each.file} {each.landscape.kernel}",
                "one experiment is about one kernel: write another one for the other",
            )  # fmt: skip
        if each.landscape.source_hash != first.landscape.source_hash:
            raise experiment.error(
                key, f"{first.file} and {each.file} record different sources of {each.landscape.kernel}",
                "one experiment is about one kernel: record one of them again, or write an experiment for each",
            )  # fmt: skip
        other = devices.setdefault(each.landscape.device.key, each)
        if other is not each:
            raise experiment.error(
                key, f"{other.file} and {each.file} are both of {each.landscape.device.name}", "keep one of them"
            )


# ---- what is asked for ----


def _wanted(experiment: Experiment, recordings: Sequence[Recording]) -> list[Recording]:
    """The recordings of the devices named; all of them if none is."""
    if not experiment.devices:
        return list(recordings)
    kept: list[Recording] = []
    for position, spec in enumerate(experiment.devices):
        if spec.landscape is not None:
            key = f"devices[{position}].landscape"
            raise experiment.error(key, "the workload names the recordings", f"write {spec.arch} alone")
        mine = [each for each in recordings if _is(each.landscape.device, spec.arch)]
        if not mine:
            known = ", ".join(f"{each.landscape.device.name} ({each.landscape.device.arch})" for each in recordings)
            raise experiment.error(f"devices[{position}]", f"no recording is of {spec.arch}", f"they are of {known}")
        kept += [each for each in mine if each not in kept]
    return kept


def _is(device: Device, word: str) -> bool:
    known = recorded(word)
    return device.arch == word or (known is not None and replace(known, name=device.name) == recorded(device.name))


def _timer(experiment: Experiment, recordings: Sequence[Recording]) -> str:
    timers = {each.landscape.timer: each.file for each in recordings}
    if len(timers) > 1:
        told = ", ".join(f"{file} with timer {timer}" for timer, file in timers.items())
        raise experiment.error("workload", f"recorded differently: {told}", "write an experiment for each timer")
    (timer,) = timers
    if "timer" in experiment.lines and experiment.timer != timer:
        raise experiment.error("timer", f"the recordings' timer is {timer}, not {experiment.timer}", "leave it out")
    return timer


def _check_params(experiment: Experiment, recordings: Sequence[Recording]) -> None:
    """Every config of every recording must have all params of the kernel."""
    first = next((config for each in recordings for config in _configs(each.landscape)), None)
    if first is None:
        raise experiment.error("workload", f"{recordings[0].file} holds no config", "name another recording")
    names = set(first.flat)
    for each in recordings:
        for config in _configs(each.landscape):
            if config.flat.keys() != names:
                odd = sorted(config.flat.keys() ^ names)[0]
                raise experiment.error(
                    "workload", f"{each.file}: some configs have {odd} and some have not, such as {config}",
                    "record one space only, or name recordings of one",
                )  # fmt: skip


def _problems(experiment: Experiment, recordings: Sequence[Recording]) -> tuple[ProblemSpec, ...]:
    """The recorded problems that are asked for; all of them if none is. Who names some variables means all others."""
    found = list(dict.fromkeys(variables_of(e.problem) for each in recordings for e in each.landscape.problems))
    if not experiment.problems:
        return tuple(ProblemSpec(variables=variables) for variables in found)
    kept: dict[FrozenMap[Value], ProblemSpec] = {}
    names = {name for variables in found for name in variables}
    for spec in experiment.problems:
        for name in spec.variables:
            if name not in names:
                raise experiment.error("problems", f"{name!r} is no variable of the recordings", nearest(name, names))
        mine = [v for v in found if all(name in v and v[name] == value for name, value in spec.variables.items())]
        if not mine:
            known = "; ".join(str(dict(variables)) for variables in found[:5])
            raise experiment.error("problems", f"no recording holds {dict(spec.variables)}", f"they hold {known}")
        for variables in mine:
            kept.setdefault(variables, replace(spec, variables=variables))
    return tuple(kept.values())


def _check_space(experiment: Experiment, space: SearchSpace) -> None:
    domain = space.domain
    for param in experiment.space:
        if param.name not in domain:
            raise experiment.error(f"space.{param.name}", "is no param of the recordings", nearest(param.name, domain))
        for value in param.values:
            if value not in domain[param.name]:
                known = ", ".join(map(str, domain[param.name]))
                raise experiment.error(f"space.{param.name}", f"{value} was not recorded", f"recorded are {known}")


def recorded_at(recording: Recording, variables: FrozenMap[Value]) -> Recorded | None:
    """The problem of a recording that has these variables; None if it lacks it."""
    return next((each for each in recording.landscape.problems if variables_of(each.problem) == variables), None)
