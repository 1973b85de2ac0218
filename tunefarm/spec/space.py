"""SearchSpace: what may be tuned, and which points of it a device and a problem leave.

    BLOCK: [128, 256]          num_warps: {pow2: [1, 8]}          ROWS: {range: [32, 128, 32]}     (both ends belong)

Whole floats given for launch options are integers: `num_warps: [4.0]` means 4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from tunefarm.config import LAUNCH_OPTIONS, Config, Value
from tunefarm.device import Device
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.constraint import FACTS, FUNCTIONS, Expression, device_facts
from tunefarm.spec.grammar import BOOLEAN, SCALAR, Key, Kind, Node, integer, integral, many, named, nearest, section

MAX_VALUES = 4096
MAX_CONFIGS = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One tunable.

    Attributes:
        name: a constexpr parameter of the kernel, or a launch option.
        values: what it may be, in the order of trying.
    """

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The points of a space for one problem and device: `total == len(configs) + sum(removed.values())`.

    Attributes:
        total: points before any constraint.
        configs: those that no constraint removed, in order.
        removed: by the text of each constraint, how many points it was the first to remove.
        unused: (param, value) pairs that no config left has.
    """

    total: int
    configs: tuple[Config, ...]
    removed: FrozenMap[int] = field(default_factory=FrozenMap)
    unused: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Params and constraints, or an explicit list of configs and constraints; it knows no device.

    Attributes:
        params: the tunables; points are their product.
        listed: the points themselves, in place of params.
        constraints: expressions that must be true; a point is judged by them in this order.
        vars: named values for constraints.
        options: which names are launch options; the others are kernel parameters.
        file: where it was written, for messages.
    """

    params: tuple[Param, ...] = ()
    listed: tuple[Config, ...] = ()
    constraints: tuple[Expression, ...] = ()
    vars: FrozenMap[Value] = field(default_factory=FrozenMap)
    options: frozenset[str] = frozenset(LAUNCH_OPTIONS)
    file: str = field(default="", compare=False)

    @property
    def domain(self) -> dict[str, tuple[Value, ...]]:
        """Every name that is tuned, with its values."""
        if not self.listed:
            return {param.name: param.values for param in self.params}
        flats = [config.flat for config in self.listed]
        names = dict.fromkeys(name for flat in flats for name in flat)
        return {name: tuple(dict.fromkeys(flat[name] for flat in flats if name in flat)) for name in names}

    def points(self, variables: Mapping[str, Value], device: Device) -> Points:
        """The configs left for one problem on one device.

        Args:
            variables: the problem's variables.
            device: whose facts the constraints may use.

        Raises:
            SpecError: the space is empty or leaves too many configs; a constraint has no value at some point.
        """
        domain = self.domain
        if not domain or not all(domain.values()):
            raise SpecError("is empty", file=self.file, key="space", hint="give at least one name with one value")
        removed = [0] * len(self.constraints)
        known: dict[str, Value] = {**device_facts(device), **self.vars, **variables}
        source = self._judge_listed(known, removed) if self.listed else self._walk(known, removed)
        configs = tuple(itertools.islice(source, MAX_CONFIGS + 1))
        if len(configs) > MAX_CONFIGS:
            raise SpecError(
                f"leaves more than {MAX_CONFIGS} configs", file=self.file, key="space", hint="add constraints"
            )
        total = len(self.listed) or math.prod(len(values) for values in domain.values())
        counts = FrozenMap(zip((constraint.text for constraint in self.constraints), removed, strict=True))
        return Points(total=total, configs=configs, removed=counts, unused=self.unused(configs))

    def unused(self, configs: Iterable[Config]) -> tuple[tuple[str, Value], ...]:
        """The (name, value) pairs of the domain that none of some configs has."""
        used = {pair for config in configs for pair in config.flat.items()}
        return tuple((name, v) for name, values in self.domain.items() for v in values if (name, v) not in used)

    def _judge_listed(self, known: Mapping[str, Value], removed: list[int]) -> Iterator[Config]:
        for config in self.listed:
            broken = self._broken(range(len(self.constraints)), {**known, **config.flat})
            if broken is None:
                yield config
            else:
                removed[broken] += 1

    def _walk(self, known: dict[str, Value], removed: list[int]) -> Iterator[Config]:
        """All configs in order; a constraint is evaluated as soon as it and those before it have their names."""
        rules = self._rules_by_depth()
        weights = [math.prod(len(param.values) for param in self.params[d:]) for d in range(len(self.params) + 1)]
        chosen: dict[str, Value] = {}

        def descend(depth: int) -> Iterator[Config]:
            broken = self._broken(rules[depth], known)
            if broken is not None:
                removed[broken] += weights[depth]
            elif depth == len(self.params):
                yield self._config(chosen)
            else:
                param = self.params[depth]
                for value in param.values:
                    known[param.name] = chosen[param.name] = value
                    yield from descend(depth + 1)

        return descend(0)

    def _rules_by_depth(self) -> list[list[int]]:
        # Never before an earlier constraint: that one may guard this one from dividing by zero, and a point removed
        # by both is charged to the earlier one.
        position = {param.name: depth + 1 for depth, param in enumerate(self.params)}
        rules: list[list[int]] = [[] for _ in range(len(self.params) + 1)]
        depth = 0
        for index, constraint in enumerate(self.constraints):
            depth = max([depth, *(position.get(name, 0) for name in constraint.names)])
            rules[depth].append(index)
        return rules

    def _broken(self, indices: Collection[int], known: Mapping[str, Value]) -> int | None:
        for index in indices:
            try:
                if not self.constraints[index](known):
                    return index
            except SpecError as e:
                raise SpecError(str(e.args[0]), file=self.file, key=f"constraints[{index}]", hint=e.hint) from None
        return None

    def _config(self, chosen: Mapping[str, Value]) -> Config:
        return Config(
            params=FrozenMap((k, v) for k, v in chosen.items() if k not in self.options),
            options=FrozenMap((k, v) for k, v in chosen.items() if k in self.options),
        )


def classify(
    space: SearchSpace,
    constexprs: Collection[str],
    launch_options: Collection[str],
    *,
    kernel: str = "the kernel",
    toolchain: str = "the installed Triton",
) -> SearchSpace:
    """Says which names of a space are kernel parameters and which are launch options.

    Args:
        space: as written.
        constexprs: tunable `tl.constexpr` parameters of the kernel.
        launch_options: what the backend knows.
        kernel: its name, for messages.
        toolchain: Triton and its version, for messages.

    Raises:
        SpecError: a name is neither.
    """
    names = list(space.domain)
    if unknown := [name for name in names if name not in constexprs and name not in launch_options]:
        these = ", ".join(repr(name) for name in unknown)
        raise SpecError(
            f"{these}: neither a tl.constexpr parameter of {kernel} nor a launch option of {toolchain}",
            file=space.file,
            key=f"space.{unknown[0]}",
            hint=nearest(unknown[0], [*constexprs, *launch_options]),
        )
    # A kernel parameter named like an option is the kernel's: Triton binds it before it looks for options.
    return replace(space, options=frozenset(name for name in names if name not in constexprs))


def read_option(name: str) -> Kind[Any]:
    """The kind of one value of a launch option, or of a kernel parameter of any name."""
    return _OPTIONS.get(name, SCALAR)


def _read_power(node: Node) -> int:
    value = integral(node.value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in _POWERS:
        raise node.error(f"a power of two from 1 to {_POWERS[-1]} belongs here, not {node.shown}", "take 1, 2, 4 or 8")
    return value


def _read_maxnreg(node: Node) -> int | None:
    return None if node.value is None else integer(low=1).read(node)


_POWERS = tuple(1 << i for i in range(11))
_OPTIONS: Mapping[str, Kind[Any]] = {
    "num_warps": Kind(read=_read_power, schema={"enum": list(_POWERS)}),
    "num_ctas": Kind(read=_read_power, schema={"enum": list(_POWERS)}),
    "num_stages": integer(low=0),
    "maxnreg": Kind(read=_read_maxnreg, schema={"anyOf": [{"type": "null"}, integer(low=1).schema]}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    range: Annotated[tuple[int, ...], Key(many(integer(), least=3), "[first, last, step], last included")]
    pow2: Annotated[bool, Key(BOOLEAN, "refuse values that are no powers of two")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Powers:
    pow2: Annotated[
        tuple[int, ...], Key(many(integer(low=1), least=2), "[first, last], both powers of two, both included")
    ]


def _read_range(node: Node) -> tuple[int, ...]:
    spec = _RANGE.read(node)
    if len(spec.range) != 3 or spec.range[2] < 1 or spec.range[0] > spec.range[1]:
        raise node.items()["range"].error(f"{list(spec.range)} is no range", "write [first, last, step], first <= last")
    first, last, step = spec.range
    if (last - first) // step >= MAX_VALUES:
        raise node.error(f"gives more than {MAX_VALUES} values", "take a larger step")
    values = tuple(range(first, last + 1, step))
    if spec.pow2 and (bad := [v for v in values if v < 1 or v & (v - 1)]):
        powers = [v for v in values if v not in bad]
        hint = f"write [{', '.join(map(str, powers))}]" if powers else "use pow2: [first, last]"
        raise node.error(f"pow2 is asked for, but {', '.join(map(str, bad))} are no powers of two", hint)
    return values


def _read_powers(node: Node) -> tuple[int, ...]:
    bounds = _POWERS_FORM.read(node).pow2
    if len(bounds) != 2 or bounds[0] > bounds[1] or any(b & (b - 1) for b in bounds):
        raise node.items()["pow2"].error(
            f"{list(bounds)} is no span of powers of two", "write [first, last], such as [16, 256]"
        )
    return tuple(1 << e for e in range(bounds[0].bit_length() - 1, bounds[1].bit_length()))


_RANGE, _POWERS_FORM = section(_Range), section(_Powers)


def _values(kind: Kind[Any]) -> Kind[tuple[Value, ...]]:
    """The values of one tunable: a list, a range, or a span of powers of two."""
    listed = many(kind, least=1, unique=True)

    def read(node: Node) -> tuple[Value, ...]:
        if not isinstance(node.value, FrozenMap):
            return listed.read(node)
        values = (_read_range if "range" in node.value else _read_powers)(node)
        return tuple(kind.read(Node(value, node.key, node.where)) for value in values)

    return Kind(read=read, schema={"anyOf": [listed.schema, _RANGE.schema, _POWERS_FORM.schema]})


_NAMES: Kind[FrozenMap[Any]] = named(Kind(read=lambda node: node, schema={}), least=1, reserved=[*FUNCTIONS, *FACTS])


def _read_space(node: Node) -> tuple[Param, ...]:
    members: Callable[[Node], FrozenMap[Node]] = _NAMES.read
    return tuple(
        Param(name=name, values=_values(read_option(name)).read(member)) for name, member in members(node).items()
    )


SPACE: Kind[tuple[Param, ...]] = Kind(
    read=_read_space,
    schema={
        **_NAMES.schema,
        "properties": {name: _values(kind).schema for name, kind in _OPTIONS.items()},
        "additionalProperties": _values(SCALAR).schema,
    },
)
"""The `space` of an experiment."""
