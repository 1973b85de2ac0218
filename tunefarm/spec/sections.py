"""The sections of an experiment file, as values: problems, devices, search, budget, accept, tracking."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tunefarm.config import Value
from tunefarm.device import NOMINAL, RECORDED
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.constraint import FACTS, FUNCTIONS, Expression
from tunefarm.spec.grammar import (
    BOOLEAN,
    NAME,
    SCALAR,
    Key,
    Kind,
    Node,
    choice,
    integer,
    integral,
    many,
    named,
    nearest,
    number,
    section,
    text,
    whole,
)
from tunefarm.spec.inputs import CHANGES, Change, InputSpec, check_dtype, read_expression

MAX_PROBLEMS = 10_000
PATH: Kind[Path] = Kind(read=lambda node: Path(text(means="a path").read(node)), schema=text().schema)
RESERVED = (*FUNCTIONS, *FACTS)
"""Names that expressions already know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSpec:
    """One problem by the experiment's own names.

    Attributes:
        variables: sizes, dtype and whatever else the inputs need. A float without fraction (1e6) is an integer here.
        weight: how much it matters, such as calls in production.
    """

    variables: FrozenMap[Value] = field(default_factory=FrozenMap)
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """A further problem that the finalists of a study must get right.

    Attributes:
        variables: those that differ from the study's; an expression is over the study's.
        inputs: what differs about the inputs.
    """

    variables: FrozenMap[Value | Expression] = field(default_factory=FrozenMap)
    inputs: FrozenMap[Change] = field(default_factory=FrozenMap)

    @property
    def label(self) -> str:
        """What it changes, for people: `M=1, x offset=1`."""
        return ", ".join(
            [
                *(f"{name}={value}" for name, value in self.variables.items()),
                *(
                    f"{name} {key}={_shown(v)}"
                    for name, change in self.inputs.items()
                    for key, v in change.keys.items()
                ),
            ]
        )

    def values(self, variables: FrozenMap[Value]) -> FrozenMap[Value]:
        """The variables of the check for a study.

        Raises:
            SpecError: an expression has no value.
        """
        own = {k: integral(v(variables)) if isinstance(v, Expression) else v for k, v in self.variables.items()}
        return FrozenMap({**variables, **own})

    def changed(self, specs: Mapping[str, InputSpec] | None) -> FrozenMap[InputSpec] | None:
        """The inputs of the check, from those of the workload; None where a function makes them.

        Raises:
            SpecError: an input that is not there, or cannot be changed so.
        """
        if specs is None:
            if self.inputs:
                raise SpecError("the inputs are made by a function", hint="give it another variable instead")
            return None
        for name in self.inputs:
            if name not in specs:
                raise SpecError(f"{name!r} is no input", hint=nearest(name, specs))
        return FrozenMap({n: self.inputs[n].apply(spec) if n in self.inputs else spec for n, spec in specs.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device to tune for; its fields are described by their keys. Of recordings it may also be a name."""

    arch: Annotated[str, Key(choice(*sorted(NOMINAL)), "compute capability, such as sm_90")]
    landscape: Annotated[Path | None, Key(PATH, "recorded measurements to replay, relative to this file")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How candidates are chosen; its fields are described by their keys."""

    sampler: Annotated[
        str, Key(choice("default", "tpe", "gp", "cmaes", "random", "exhaustive"), "who asks for candidates")
    ] = "default"
    seed: Annotated[int, Key(integer(low=0), "of everything that is random")] = 0
    threshold: Annotated[
        float, Key(number(above=0, high=1), "similarity above which two candidates share a bucket")
    ] = 0.8
    batch: Annotated[int, Key(integer(low=1), "candidates asked for at a time")] = 8
    learn_from: Annotated[
        tuple[Path, ...],
        Key(many(PATH, unique=True), "ledgers and landscapes of the same kernel, relative to this file: tried first"),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When to stop, whatever is left to try; its fields are described by their keys."""

    trials: Annotated[int | None, Key(integer(low=1), "measured candidates per study")] = None
    gpu_held_s: Annotated[float | None, Key(number(above=0), "seconds that GPUs are held")] = None
    wall_s: Annotated[float | None, Key(number(above=0), "seconds on the clock")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """What a winner must be; its fields are described by their keys."""

    atol: Annotated[float | None, Key(number(low=0), "absolute tolerance against the reference")] = None
    rtol: Annotated[float | None, Key(number(low=0), "relative tolerance against the reference")] = None
    min_gain: Annotated[float, Key(number(low=0), "gain over the default below which the default is kept")] = 0.01
    same_bits: Annotated[
        str, Key(choice("no", "repeat", "default"), "outputs equal bit by bit: over repeats, or to the default's")
    ] = "no"
    one_config_over: Annotated[
        tuple[str, ...], Key(many(text(NAME, "a variable's name"), unique=True), "variables that share one config")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Where people find the sweep; its fields are described by their keys."""

    uri: Annotated[str, Key(text(), "MLflow tracking URI")] = ""
    experiment: Annotated[str, Key(text(), "name of the MLflow experiment")] = ""
    register: Annotated[
        bool, Key(BOOLEAN, "make the exported pack the candidate of tunefarm.<workload> in MLflow's registry")
    ] = False
    optuna_storage: Annotated[
        str, Key(text(), "Optuna storage that mirrors the studies: journal:FILE, sqlite:///FILE or a database's URL")
    ] = ""


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


_VARIABLES = named(Kind(read=lambda node: node, schema={}), reserved=RESERVED)
_WEIGHT = number(above=0)


def _read_variable(node: Node) -> Value:
    value = SCALAR.read(whole(node))
    if value is None:
        raise node.error("is empty", "give a value or a list of values")
    return value


def _read_problems(node: Node) -> tuple[ProblemSpec, ...]:
    problems: dict[FrozenMap[Value], ProblemSpec] = {}
    if not node.elements():
        raise node.error("is empty", "give at least one problem, such as {M: 4096, dtype: bf16}")
    for entry in node.value:
        for problem in _expand(entry):
            if problem.variables in problems:
                raise entry.error(f"problem {dict(problem.variables)} is given twice", "keep one")
            problems[problem.variables] = problem
        if len(problems) > MAX_PROBLEMS:
            raise entry.error(f"more than {MAX_PROBLEMS} problems", "shorten the lists")
    return tuple(problems.values())


def _expand(entry: Node) -> list[ProblemSpec]:
    items = dict(_VARIABLES.read(entry))
    weight = _WEIGHT.read(items.pop("weight")) if "weight" in items else 1.0
    axes = {name: node.value if isinstance(node.value, tuple) else (node,) for name, node in items.items()}
    for name, nodes in axes.items():
        if not nodes:
            raise items[name].error("is empty", "give at least one value")
        for node in nodes:
            _check_variable(name, node)
    if math.prod(len(nodes) for nodes in axes.values()) > MAX_PROBLEMS:
        raise entry.error(f"more than {MAX_PROBLEMS} problems", "shorten the lists")
    return [
        ProblemSpec(variables=FrozenMap(zip(axes, map(_read_variable, point), strict=True)), weight=weight)
        for point in itertools.product(*axes.values())
    ]


def _check_variable(name: str, node: Node) -> None:
    value = _read_variable(node)
    if name == "dtype":
        try:
            check_dtype(value)
        except SpecError as e:
            raise node.error(str(e.args[0]), e.hint) from None


_VALUE_SCHEMA = {"type": ["boolean", "number", "string"]}
PROBLEMS: Kind[tuple[ProblemSpec, ...]] = Kind(
    read=_read_problems,
    schema={
        "type": "array",
        "minItems": 1,
        "items": {
            **_VARIABLES.schema,
            "properties": {"weight": _WEIGHT.schema},
            "additionalProperties": {
                "anyOf": [_VALUE_SCHEMA, {"type": "array", "minItems": 1, "items": _VALUE_SCHEMA}],
            },
        },
    },
)

_LAYOUTS = "inputs"


def _read_check(node: Node) -> CheckSpec:
    items = dict(_VARIABLES.read(node))
    inputs = CHANGES.read(items.pop(_LAYOUTS)) if _LAYOUTS in items else FrozenMap[Change]()
    if not items and not inputs:
        raise node.error("is empty", "say what differs from the problems, such as {M: M - 1}")
    for name, member in items.items():
        _check_variable(name, member)
    return CheckSpec(variables=FrozenMap({name: _read_changed(name, m) for name, m in items.items()}), inputs=inputs)


def _read_changed(name: str, node: Node) -> Value | Expression:
    return read_expression(node) if isinstance(node.value, str) and name != "dtype" else _read_variable(node)


CHECKS: Kind[tuple[CheckSpec, ...]] = many(
    Kind(
        read=_read_check,
        schema={
            **_VARIABLES.schema, "properties": {_LAYOUTS: CHANGES.schema}, "minProperties": 1,
            "additionalProperties": _VALUE_SCHEMA,
        },
    ),
    unique=True,
)  # fmt: skip

_DEVICE = section(DeviceSpec)
_ARCH = choice(*sorted(NOMINAL))
_REPLAYABLE = choice(*sorted({*NOMINAL, *RECORDED, *(device.arch for device in RECORDED.values())}))
"""What may be named of recordings, too: archs and devices for which nothing is compiled."""


def _read_device(node: Node) -> DeviceSpec:
    if isinstance(node.value, FrozenMap):
        return _DEVICE.read(node)
    is_known = node.value in _REPLAYABLE.schema["enum"]
    return DeviceSpec(arch=(_REPLAYABLE if is_known else _ARCH).read(node))


def _read_devices(node: Node) -> tuple[DeviceSpec, ...]:
    devices = many(Kind(read=_read_device, schema={}), least=1).read(node)
    archs = [device.arch for device in devices]
    for index, arch in enumerate(archs):
        if arch in archs[:index]:
            raise node.elements()[index].error(f"{arch} is listed twice", "keep one")
    return devices


DEVICES: Kind[tuple[DeviceSpec, ...]] = Kind(
    read=_read_devices,
    schema={
        "type": "array", "minItems": 1, "uniqueItems": True,
        "items": {"anyOf": [_REPLAYABLE.schema, _DEVICE.schema]},
    },
)  # fmt: skip


TIMER: Kind[str] = choice("cold", "hot", "graph")
