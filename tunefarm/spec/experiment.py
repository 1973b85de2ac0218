"""Experiment: one YAML file, read into values and checked; every error names file, line, key and remedy.

The file is YAML 1.2 (core schema): 1e-3 and 1e6 are numbers; on, off, yes and no are text; 010 is ten; 1_000 is text,
so a number written that way is refused. Duplicate keys are refused; merge keys (`<<`) override as they should.
Paths of what is read (workload files, landscapes) start at the file's folder; what is written (export, tracking)
at the current directory.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import yaml

from tunefarm.config import Value
from tunefarm.document import MAX_DEPTH, digest, read_text
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.constraint import FACTS, Expression
from tunefarm.spec.grammar import SCALAR, Key, Node, join, many, named, nearest, read_section, section, text
from tunefarm.spec.inputs import EXPRESSION, INPUTS, InputSpec
from tunefarm.spec.sections import (
    DEVICES,
    PROBLEMS,
    RESERVED,
    TIMER,
    Accept,
    Budget,
    DeviceSpec,
    ProblemSpec,
    Search,
    Tracking,
)
from tunefarm.spec.space import SPACE, Param, SearchSpace, classify
from tunefarm.spec.workload import WORKLOAD, Workload, WorkloadRef, call_parameters, check_names, load_workload

MAX_BYTES = 1 << 20
MAX_NODES = 100_000


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
    problems: Annotated[tuple[ProblemSpec, ...], Key(PROBLEMS, "problems to tune for; lists expand to products")]
    devices: Annotated[tuple[DeviceSpec, ...], Key(DEVICES, "kinds of device to tune for")]
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
    timer: Annotated[str, Key(TIMER, "how samples are taken: cold flushes the L2 cache before each")] = "cold"
    tracking: Annotated[Tracking, Key(section(Tracking), "where MLflow keeps the sweep")] = field(
        default_factory=Tracking
    )
    export: Annotated[str, Key(text(), "path of the pack, relative to the current directory")] = ""
    path: Path
    lines: FrozenMap[str] = field(default_factory=FrozenMap, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """Where the file lies; what it reads is relative to it."""
        return self.path.parent

    @property
    def digest(self) -> str:
        """SHA-256 of everything in the file that changes results: all of it but tracking and export."""
        outside = ("tracking", "export", "path", "lines")
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


def _plain(value: Any, folder: Path) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name), folder) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v, folder) for k, v in value.items()}
    if isinstance(value, Path):
        return Path(os.path.relpath(value, folder)).as_posix()
    return [_plain(v, folder) for v in value] if isinstance(value, tuple) else value


def load_experiment(path: str | Path) -> Experiment:
    """Reads an experiment file. Nothing is imported and no device is touched.

    Raises:
        SpecError: the content makes no sense as written.
        DocumentError: the file is missing, too large or not UTF-8.
    """
    path = Path(path)
    root = read_yaml(path)
    lines: dict[str, str] = {}
    _collect(root, lines)
    experiment = read_section(root, Experiment, path=path, lines=FrozenMap(lines))
    devices = tuple(
        replace(device, landscape=path.parent / device.landscape) if device.landscape else device
        for device in experiment.devices
    )
    return replace(experiment, devices=devices)


def _collect(node: Node, lines: dict[str, str]) -> None:
    lines[node.key] = node.where
    for member in node.children:
        _collect(member, lines)


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars as YAML 1.2's core schema does."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  a table of PyYAML's


_TAG = "tag:yaml.org,2002:"
_CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": r"<<",
}
for _name, _pattern in _CORE.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), None)


def read_yaml(path: Path) -> Node:
    """A YAML file as a tree that knows its lines.

    Raises:
        SpecError: it is empty, no YAML, has duplicate keys, or is too deep or too large once aliases are expanded.
        DocumentError: the file is missing, too large or not UTF-8.
    """
    content = read_text(path, max_bytes=MAX_BYTES)
    try:
        root = yaml.compose(content, Loader=_Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = " ".join(filter(None, (e.context, e.problem)))
        raise SpecError(
            f"is not valid YAML: {problem}", file=where, hint="check indentation, quotes, brackets"
        ) from None
    except yaml.YAMLError as e:
        raise SpecError(f"is not valid YAML: {e}", file=str(path), hint="remove what is no printable text") from None
    except RecursionError:
        raise SpecError(f"is nested deeper than {MAX_DEPTH} levels", file=str(path), hint="flatten it") from None
    if root is None:
        raise SpecError("is empty", file=str(path), hint="start with name, workload, problems and devices")
    return _Tree(path).grow(root, "", 0)


class _Tree:
    """Makes nodes of PyYAML's, which share what aliases repeat."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_nodes = 0

    def grow(self, node: yaml.Node, key: str, depth: int, where: str = "") -> Node:
        where = where or f"{self.path}:{node.start_mark.line + 1}"
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES or depth > MAX_DEPTH:
            limit = f"{MAX_NODES} values" if depth <= MAX_DEPTH else f"{MAX_DEPTH} levels"
            raise SpecError(
                f"holds more than {limit}", file=where, key=key, hint="aliases (*name) repeat what they name"
            )
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return Node(FrozenMap(self._members(node, key, depth)), key, where)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return Node(tuple(self.grow(e, f"{key}[{i}]", depth + 1) for i, e in enumerate(node.value)), key, where)
        return Node(self._scalar(node, key, where), key, where)

    def _members(self, node: yaml.MappingNode, key: str, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Node] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            where = f"{self.path}:{line}"
            name = self._name(name_node, key, where)
            if name in lines:
                message = f"is written twice, on lines {lines[name]} and {line}"
                raise SpecError(message, file=where, key=join(key, name), hint="keep one")
            lines[name] = line
            if name_node.tag == _TAG + "merge":
                merged = self._merged(value_node, key, depth)
            else:
                own[name] = self.grow(value_node, join(key, name), depth + 1, where)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, key: str, depth: int) -> dict[str, Node]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Node] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                where = f"{self.path}:{source.start_mark.line + 1}"
                raise SpecError("<< takes a mapping", file=where, key=key, hint="write <<: *name")
            merged.update(self.grow(source, key, depth + 1).items())
        return merged

    def _name(self, node: yaml.Node, key: str, where: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in (_TAG + "str", _TAG + "merge"):
            shown = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            raise SpecError(
                f"{shown} cannot be a key", file=where, key=key, hint="a key is a name; quote it if it is meant"
            )
        return str(node.value)

    def _scalar(self, node: yaml.Node, key: str, where: str) -> Value:
        kind = node.tag.removeprefix(_TAG)
        content = str(node.value)
        written = isinstance(node, yaml.ScalarNode) and (
            kind == "str" or re.fullmatch(_CORE.get(kind, "(?!)"), content)
        )
        if not written:
            raise SpecError(f"the tag {node.tag} does not belong here", file=where, key=key, hint="leave the tag out")
        try:
            return _READ.get(kind, str)(content)
        except ValueError as e:
            raise SpecError(f"{content[:40]} {e}", file=where, key=key, hint="leave the key out for no limit") from None


def _integer(content: str) -> int:
    if len(content) > 40:
        raise ValueError("has more than 40 digits")
    return int(content[2:], {"0o": 8, "0x": 16}[content[:2]]) if content[:2] in ("0o", "0x") else int(content)


def _float(content: str) -> float:
    value = float(content) if content[-1] in "0123456789." else math.nan  # .inf and .nan
    if not math.isfinite(value):
        raise ValueError("is no finite number")
    return value


_READ: dict[str, Callable[[str], Value]] = {
    "null": lambda _: None, "bool": lambda content: content.lower() == "true", "int": _integer, "float": _float,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """An experiment with what it names.

    Attributes:
        experiment: the file.
        workload: imported, and completed by what the kernel's `@triton.autotune` declares.
        space: with each name known as a kernel parameter or a launch option.
    """

    experiment: Experiment
    workload: Workload
    space: SearchSpace


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
    _check_expressions(experiment, space)
    _check_inputs(experiment, workload)
    return Resolved(experiment=experiment, workload=workload, space=space)


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


def _check_expressions(experiment: Experiment, space: SearchSpace) -> None:
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
