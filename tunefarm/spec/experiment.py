"""Experiment: one YAML file, read into values and checked; every error names file, line, key and remedy.

Paths of what is read (workload files, landscapes, earlier ledgers) start at the file's folder; what is written (export,
tracking) at the current directory.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tunefarm.config import Value
from tunefarm.device import NOMINAL
from tunefarm.document import digest
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Landscape
from tunefarm.spec.constraint import FACTS, Expression
from tunefarm.spec.grammar import SCALAR, Key, Node, keys_of, many, named, nearest, read_section, section, text
from tunefarm.spec.inputs import EXPRESSION, INPUTS, InputSpec
from tunefarm.spec.sections import (
    CHECKS,
    DEVICES,
    PROBLEMS,
    RESERVED,
    TIMER,
    Accept,
    Budget,
    CheckSpec,
    DeviceSpec,
    ProblemSpec,
    Search,
    Tracking,
)
from tunefarm.spec.space import SPACE, Param, SearchSpace, classify
from tunefarm.spec.tree import read_yaml
from tunefarm.spec.workload import WORKLOAD, Workload, WorkloadRef, call_parameters, check_names, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment file; its fields are described by their keys.

    Attributes:
        path: of the file.
        lines: `file:line` of every key, for messages.
    """

    name: Annotated[
        str, Key(text(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", "a name of letters, digits, . _ -"), "experiment's name")
    ]
    workload: Annotated[WorkloadRef, Key(WORKLOAD, "a Workload object, or its parts")]
    problems: Annotated[tuple[ProblemSpec, ...], Key(PROBLEMS, "problems to tune for; lists expand to products")] = ()
    devices: Annotated[tuple[DeviceSpec, ...], Key(DEVICES, "kinds of device to tune for")] = ()
    project: Annotated[str, Key(text(), "what the experiment belongs to")] = ""
    inputs: Annotated[FrozenMap[InputSpec] | None, Key(INPUTS, "arguments of the workload's call")] = None
    vars: Annotated[FrozenMap[Value], Key(named(SCALAR, reserved=RESERVED), "named values for constraints")] = field(
        default_factory=FrozenMap
    )
    space: Annotated[tuple[Param, ...], Key(SPACE, "tunables; default: the configs of @triton.autotune")] = ()
    constraints: Annotated[
        tuple[Expression, ...], Key(many(EXPRESSION, unique=True), "relations that every candidate must satisfy")
    ] = ()
    search: Annotated[Search, Key(section(Search), "how candidates are chosen")] = field(default_factory=Search)
    budget: Annotated[Budget, Key(section(Budget), "when to stop")] = field(default_factory=Budget)
    accept: Annotated[Accept, Key(section(Accept), "what a winner must be")] = field(default_factory=Accept)
    checks: Annotated[
        tuple[CheckSpec, ...], Key(CHECKS, "further problems that finalists must get right; the rest is the study's")
    ] = ()
    timer: Annotated[
        str, Key(TIMER, "cold: L2 is flushed before each sample; hot: it is not; graph: launches replayed from a graph")
    ] = "cold"
    tracking: Annotated[Tracking, Key(section(Tracking), "where people find the sweep")] = field(
        default_factory=Tracking
    )
    files: Annotated[
        tuple[str, ...], Key(many(text(), unique=True), "files that the workload reads, to be sent to workers with it")
    ] = ()
    export: Annotated[str, Key(text(), "path of the pack, relative to the current directory")] = ""
    path: Path
    lines: FrozenMap[str] = field(default_factory=FrozenMap, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """Where the file lies; what it reads is relative to it."""
        return self.path.parent

    @property
    def digest(self) -> str:
        """SHA-256 of everything in the file that changes results: all of it but files, tracking and export."""
        outside = ("files", "tracking", "export", "path", "lines")
        inside = [f.name for f in fields(self) if f.name not in outside]
        return digest({name: _plain(getattr(self, name), self.folder) for name in inside})

    @property
    def ref(self) -> WorkloadRef:
        """How any process gets hold of the workload."""
        return replace(self.workload, folder=str(self.folder.resolve()), inputs=self.inputs)

    def error(self, key: str, message: str, hint: str = "") -> SpecError:
        """The error to raise about a key of the file; a key not written stands at the nearest one around it."""
        near = key
        while near and near not in self.lines:
            near = re.sub(r"(\[\d+\]|\.?[^.\[]+)$", "", near)
        return SpecError(message, file=self.lines.get(near, str(self.path)), key=key, hint=hint)


NEEDED = ("problems", "devices")
"""Keys that an experiment must have, unless recordings bring them along."""

_OF_A_KERNEL = ("inputs", "checks", "export", "accept.atol", "accept.rtol", "accept.same_bits")
"""Keys that mean nothing where there is no kernel to launch."""


def _plain(value: Any, folder: Path) -> Any:
    if is_dataclass(value):
        # What a bundle holds is no part of the experiment's file.
        return {f.name: _plain(getattr(value, f.name), folder) for f in fields(value) if f.name != "bundle"}
    if isinstance(value, Mapping):
        return {k: _plain(v, folder) for k, v in value.items()}
    if isinstance(value, Path):
        return Path(os.path.relpath(value, folder)).as_posix()
    return [_plain(v, folder) for v in value] if isinstance(value, tuple) else value


def load_experiment(path: str | Path, text: str | None = None) -> Experiment:
    """Reads an experiment file. Nothing is imported and no device is touched.

    Args:
        path: the file.
        text: what it is going to hold; else it is read.

    Raises:
        SpecError: the content makes no sense as written.
        DocumentError: the file is missing, too large or not UTF-8.
    """
    path = Path(path)
    root = read_yaml(path, text)
    lines: dict[str, str] = {}
    _collect(root, lines)
    experiment = read_section(root, Experiment, path=path, lines=FrozenMap(lines))
    _check_whole(experiment, root)
    devices = tuple(
        replace(device, landscape=path.parent / device.landscape) if device.landscape else device
        for device in experiment.devices
    )
    learn_from = tuple(path.parent / known for known in experiment.search.learn_from)
    return replace(experiment, devices=devices, search=replace(experiment.search, learn_from=learn_from))


def _check_whole(experiment: Experiment, root: Node) -> None:
    """Checks what one key says of another."""
    if experiment.workload.landscapes:
        for key in _OF_A_KERNEL:
            if key in experiment.lines:
                message = "a replayed landscape gives tables, never packs: there is no kernel to launch, check or ship"
                raise experiment.error(key, message, "leave it out, or name the kernel as the workload")
        return
    for name in NEEDED:
        if name not in root.items():
            doc = keys_of(Experiment)[name][0].doc
            raise SpecError("is missing", file=root.where, key=name, hint=f"give the {doc}")
    for position, device in enumerate(experiment.devices):
        if device.arch not in NOMINAL:
            message = f"nothing can be compiled for {device.arch}, which is known of recordings only"
            raise experiment.error(f"devices[{position}]", message, f"builds can be made for {', '.join(NOMINAL)}")


def _collect(node: Node, lines: dict[str, str]) -> None:
    lines[node.key] = node.where
    for member in node.children:
        _collect(member, lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded space that is replayed.

    Attributes:
        file: where it lies.
        landscape: what it holds; kernel and device are known.
    """

    file: Path
    landscape: Landscape


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """An experiment with what it names.

    Attributes:
        experiment: the file.
        found: its workload, imported, and completed by what the kernel's `@triton.autotune` declares; None where
            there are recordings in place of a kernel.
        space: with each name known as a kernel parameter or a launch option.
        recordings: in place of a kernel, one a device.
    """

    experiment: Experiment
    found: Workload | None
    space: SearchSpace
    recordings: tuple[Recording, ...] = ()

    @property
    def workload(self) -> Workload:
        """The workload.

        Raises:
            SpecError: there is none, but recordings.
        """
        if self.found is None:
            message = "replays landscapes: there is no kernel to compile, launch or ship"
            raise self.experiment.error("workload", message, "`tunefarm plan` and `sweep` take it; name a kernel here")
        return self.found

    @property
    def name(self) -> str:
        """Of the workload."""
        return self.found.name if self.found is not None else self.kernel

    @property
    def kernel(self) -> str:
        """Name of the kernel, which need not be here."""
        return self.found.signature.kernel if self.found is not None else self.recordings[0].landscape.kernel


def resolve(experiment: Experiment, launch_options: Collection[str], triton_version: str) -> Resolved:
    """Imports the workload and checks every name of the experiment against it.

    Args:
        experiment: the file as read.
        launch_options: the options that the backend knows, by name.
        triton_version: of the Triton whose options these are, for messages.

    Raises:
        SpecError: the workload cannot be imported, or a name is none of the kernel's, space's or problems'.
    """
    try:
        workload = load_workload(experiment.ref)
        check_names(workload)
        space = _space(experiment, workload, launch_options, f"Triton {triton_version}")
    except SpecError as e:
        key = e.key or "workload"
        located = experiment.error(key, str(e.args[0]), e.hint)
        # An error inside the user's own module keeps the line of that module.
        raise located if not e.file else SpecError(str(e.args[0]), file=e.file, key=key, hint=e.hint) from None
    check_expressions(experiment, space)
    _check_inputs(experiment, workload)
    _check_checks(experiment, workload)
    return Resolved(experiment=experiment, found=workload, space=space)


def _space(experiment: Experiment, workload: Workload, options: Collection[str], toolchain: str) -> SearchSpace:
    autotuned = workload.autotuned
    if not experiment.space and autotuned is None:
        raise SpecError(
            "is missing", key="space", hint=f"kernel {workload.signature.kernel} declares no configs either"
        )
    written = SearchSpace(
        params=experiment.space,
        listed=() if experiment.space or autotuned is None else autotuned.configs,
        constraints=experiment.constraints,
        vars=experiment.vars,
    )
    signature = workload.signature
    for name in written.domain:
        if name in signature.computed:
            raise SpecError("is computed by @triton.heuristics", key=f"space.{name}", hint="remove it from one of them")
    space = classify(written, signature.tunable, options, kernel=signature.kernel, toolchain=toolchain)
    return replace(space, file=str(experiment.path))


def check_expressions(experiment: Experiment, space: SearchSpace) -> None:
    """Checks that no name means two things, and that constraints use known ones.

    Raises:
        SpecError: one does.
    """
    variables = {name for problem in experiment.problems for name in problem.variables}
    sources = (("space", set(space.domain)), ("problems", variables), ("vars", set(experiment.vars)))
    for index, (where, names) in enumerate(sources):
        for other, others in sources[index + 1 :]:
            if both := sorted(names & others):
                raise experiment.error(other, f"{both[0]!r} is also a name in {where}", "rename one of them")
    known = {*space.domain, *variables, *experiment.vars, *FACTS}
    for index, constraint in enumerate(experiment.constraints):
        for name in sorted(constraint.names):
            if name not in known:
                raise experiment.error(
                    f"constraints[{index}]", f"{constraint.text!r} has the unknown name {name!r}", nearest(name, known)
                )
            if name in variables:
                _in_all_problems(experiment, name, f"constraints[{index}]")


def _in_all_problems(experiment: Experiment, name: str, key: str) -> None:
    for problem in experiment.problems:
        if name not in problem.variables:
            raise experiment.error(
                key,
                f"{name!r} is no variable of problem {dict(problem.variables)}",
                nearest(name, problem.variables),
            )


def _check_inputs(experiment: Experiment, workload: Workload) -> None:
    for formula in ("num_bytes", "flops"):
        expression: Expression | None = getattr(experiment.workload, formula)
        for variable in sorted(expression.names if expression else ()):
            _in_all_problems(experiment, variable, f"workload.{formula}")
    parameters = call_parameters(workload)
    for name, spec in (workload.specs or {}).items():
        if parameters is not None and name not in parameters:
            message = f"{name!r} is no argument of {getattr(workload.call, '__name__', 'the call')}"
            raise experiment.error(f"inputs.{name}", message, nearest(name, parameters))
        for variable in sorted(spec.names):
            _in_all_problems(experiment, variable, f"inputs.{name}")
        for problem in experiment.problems:
            try:
                spec.check(problem.variables)
            except SpecError as e:
                raise experiment.error(f"inputs.{name}", str(e.args[0]), e.hint) from None


def _check_checks(experiment: Experiment, workload: Workload) -> None:
    for position, check in enumerate(experiment.checks):
        where = f"checks[{position}]"
        for name, value in check.variables.items():
            _known_to_inputs(experiment, workload, name, f"{where}.{name}")
            for variable in sorted(value.names) if isinstance(value, Expression) else ():
                _in_all_problems(experiment, variable, f"{where}.{name}")
        for problem in experiment.problems:
            try:
                changed = check.changed(workload.specs)
                variables = check.values(problem.variables)
                for spec in (changed or {}).values():
                    spec.check(variables)
            except SpecError as e:
                raise experiment.error(where, str(e.args[0]), e.hint) from None
    for name in experiment.accept.one_config_over:
        _in_all_problems(experiment, name, "accept.one_config_over")


def _known_to_inputs(experiment: Experiment, workload: Workload, name: str, key: str) -> None:
    """A check may vary what problems vary, and what else a function that makes the inputs takes."""
    if callable(workload.inputs):
        parameters = inspect.signature(workload.inputs).parameters
        if name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return
    _in_all_problems(experiment, name, key)
