"""The grammar of what users write: values that know where they stand, and kinds that read and describe them.

A `Node` is a piece of a YAML file (or of Python data in its place) with its dotted key and line. A `Kind` reads a node
into a value and holds the JSON Schema of what it reads, so that parser and schema cannot drift apart. A section of
the file is a dataclass whose fields are annotated with `Key`: that is the only list of its keys.
"""

from __future__ import annotations

import dataclasses
import difflib
import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from tunefarm.config import MAX_BITS, Value, is_small
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap

T = TypeVar("T")

NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
"""What may be a name in expressions."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not among `known`: the nearest one, or all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(names)}" if names else "no name is known here"


@dataclass(frozen=True, slots=True)
class Node:
    """A value as written, and where.

    Attributes:
        value: a scalar, a tuple of nodes (a list), or a map of nodes (a mapping).
        key: dotted path inside the file, such as `space.num_warps[0]`.
        where: file and line, such as `softmax.yaml:12`; empty for Python data.
    """

    value: Any
    key: str = ""
    where: str = ""

    @classmethod
    def of(cls, value: Any, key: str = "", where: str = "") -> Node:
        """Wraps plain Python data: dicts, lists or tuples, and scalars."""
        if isinstance(value, Mapping):
            items = {str(k): cls.of(v, join(key, str(k)), where) for k, v in value.items()}
            return cls(FrozenMap(items), key, where)
        if isinstance(value, list | tuple):
            return cls(tuple(cls.of(v, f"{key}[{i}]", where) for i, v in enumerate(value)), key, where)
        return cls(value, key, where)

    @property
    def plain(self) -> Any:
        """The same as plain Python data."""
        if isinstance(self.value, FrozenMap):
            return {k: v.plain for k, v in self.value.items()}
        return [v.plain for v in self.value] if isinstance(self.value, tuple) else self.value

    @property
    def children(self) -> tuple[Node, ...]:
        """The members or elements; none of a scalar."""
        if isinstance(self.value, FrozenMap):
            return tuple(self.value.values())
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def shown(self) -> str:
        """What it is, for messages."""
        if isinstance(self.value, FrozenMap):
            return "a mapping"
        if isinstance(self.value, tuple):
            return "a list"
        if self.value is None:
            return "nothing (null)"
        if isinstance(self.value, bool):
            return f"the boolean {str(self.value).lower()}"
        return f"the text {self.value!r}" if isinstance(self.value, str) else f"{self.value!r}"

    def error(self, message: str, hint: str = "") -> SpecError:
        """The error to raise about this node."""
        return SpecError(message, file=self.where, key=self.key, hint=hint)

    def items(self) -> FrozenMap[Node]:
        """The members of a mapping.

        Raises:
            SpecError: it is none.
        """
        if not isinstance(self.value, FrozenMap):
            raise self.error(f"a mapping belongs here, not {self.shown}", "write `key: value` pairs")
        return self.value

    def elements(self) -> tuple[Node, ...]:
        """The elements of a list.

        Raises:
            SpecError: it is none.
        """
        if not isinstance(self.value, tuple):
            hint = f"write [{self.value}]" if isinstance(self.value, int | float | str) else "write [first, second]"
            raise self.error(f"a list belongs here, not {self.shown}", hint)
        return self.value


def join(key: str, name: str) -> str:
    """The dotted key of a member."""
    return f"{key}.{name}" if key else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """One kind of value.

    Attributes:
        read: gives the value of a node, or raises a SpecError that names its key and line.
        schema: JSON Schema (2020-12) of the nodes it accepts.
    """

    read: Callable[[Node], T]
    schema: Mapping[str, Any]


def integral(value: Value) -> Value:
    """An integer for a float without fraction (4.0, 1e6); anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def text(pattern: str = "", means: str = "text") -> Kind[str]:
    """A non-empty string, matching `pattern` if one is given."""

    def read(node: Node) -> str:
        if not isinstance(node.value, str) or not re.search(pattern or ".", node.value):
            written = isinstance(node.value, str)
            hint = "" if node.value in (None, "") else "use no other characters" if written else "quote it"
            raise node.error(f"{means} belongs here, not {node.shown}", hint)
        return node.value

    return Kind(read=read, schema={"type": "string", "pattern": pattern or "."})


def number(*, low: float | None = None, above: float | None = None, high: float | None = None) -> Kind[float]:
    """A finite number within bounds (`above` is exclusive)."""
    bounds = {"minimum": low, "exclusiveMinimum": above, "maximum": high}

    def read(node: Node) -> float:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise node.error(f"a number belongs here, not {node.shown}", _number_hint(value))
        _check_bits(node)
        if not math.isfinite(value):
            raise node.error(f"a finite number belongs here, not {value}", "leave the key out for no limit")
        _check_bounds(node, value, low, above, high)
        return value

    return Kind(read=read, schema={"type": "number", **{k: v for k, v in bounds.items() if v is not None}})


def integer(*, low: int | None = None, high: int | None = None) -> Kind[int]:
    """An integer within bounds; a float without fraction, such as 1e6, is one."""
    base = number(low=low, high=high)

    def read(node: Node) -> int:
        base.read(node)
        value = whole(node).value
        if not isinstance(value, int):
            raise node.error(f"a whole number belongs here, not {node.shown}", "leave the fraction out")
        return value

    return Kind(read=read, schema={**base.schema, "type": "integer"})


def whole(node: Node) -> Node:
    """The node with an integer for a float without fraction.

    Raises:
        SpecError: it is too large for a kernel, as 1e300 is.
    """
    made = dataclasses.replace(node, value=integral(node.value))
    _check_bits(made)
    return made


def _check_bits(node: Node) -> None:
    if isinstance(node.value, int) and not is_small(node.value):
        raise node.error(f"an integer of {node.value.bit_length()} bits is too large", f"at most {MAX_BITS} bits")


def _number_hint(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d_]+", value) and "_" in value:
        return f"YAML 1.2 has no digit separators: write {value.replace('_', '')}"
    if isinstance(value, str) and re.fullmatch(r"[-+.\deE]+", value):
        return "write it without quotes"
    return "write a number, such as 3 or 1e-3"


def _check_bounds(node: Node, value: float, low: float | None, above: float | None, high: float | None) -> None:
    if low is not None and value < low:
        raise node.error(f"{value} is too small", f"at least {low}")
    if above is not None and value <= above:
        raise node.error(f"{value} is too small", f"more than {above}")
    if high is not None and value > high:
        raise node.error(f"{value} is too large", f"at most {high}")


def _read_boolean(node: Node) -> bool:
    words = {"on": True, "off": False}
    if isinstance(node.value, bool):
        return node.value
    if isinstance(node.value, str) and node.value in words:
        return words[node.value]
    raise node.error(f"true or false belongs here, not {node.shown}", "write true, false, on or off")


def _read_scalar(node: Node) -> Value:
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise node.error(f"a finite number belongs here, not {node.value}", "give a finite one")
    if not isinstance(node.value, bool | int | float | str | None):
        raise node.error(f"a single value belongs here, not {node.shown}", "write a number, a text, true or false")
    _check_bits(node)
    return node.value


BOOLEAN: Kind[bool] = Kind(read=_read_boolean, schema={"enum": [True, False, "on", "off"]})
SCALAR: Kind[Value] = Kind(read=_read_scalar, schema={"type": ["boolean", "number", "string", "null"]})


def choice(*names: str) -> Kind[str]:
    """One of a few words."""

    def read(node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in names:
            raise node.error(
                f"one of {', '.join(names)} belongs here, not {node.shown}", nearest(str(node.value), names)
            )
        return node.value

    return Kind(read=read, schema={"enum": list(names)})


def many(kind: Kind[T], *, least: int = 0, unique: bool = False) -> Kind[tuple[T, ...]]:
    """A list of values of one kind, at least `least` of them, and none twice if `unique`."""

    def read(node: Node) -> tuple[T, ...]:
        elements = node.elements()
        if len(elements) < least:
            raise node.error("is empty" if not elements else f"needs {least} entries", "give at least one entry")
        values: list[T] = []
        for element in elements:
            value = kind.read(element)
            if unique and value in values:
                raise element.error(f"{element.shown} is listed twice", "keep one")
            values.append(value)
        return tuple(values)

    return Kind(read=read, schema={"type": "array", "items": kind.schema, "minItems": least, "uniqueItems": unique})


def named(kind: Kind[T], *, least: int = 0, reserved: Iterable[str] = ()) -> Kind[FrozenMap[T]]:
    """A mapping from names, which expressions can refer to, to values of one kind."""
    taken = {*keyword.kwlist, *reserved}

    def read(node: Node) -> FrozenMap[T]:
        items = node.items()
        if len(items) < least:
            raise node.error("is empty", "give at least one `name: value` pair")
        for name, member in items.items():
            if not re.search(NAME, name) or name in taken:
                raise member.error(f"{name!r} cannot be a name", "use letters, digits and _, and no word of Python's")
        return FrozenMap({name: kind.read(member) for name, member in items.items()})

    names = {"pattern": NAME, "not": {"enum": sorted(taken)}}
    return Kind(
        read=read,
        schema={"type": "object", "propertyNames": names, "additionalProperties": kind.schema, "minProperties": least},
    )


@dataclass(frozen=True, slots=True)
class Key:
    """Annotates a dataclass field as a key of a section: `seed: Annotated[int, Key(integer(), "of the search")] = 0`.

    Attributes:
        kind: of its value.
        doc: one line for people; it goes into the schema.
    """

    kind: Kind[Any]
    doc: str


def keys_of(cls: type[Any]) -> Mapping[str, tuple[Key, bool]]:
    """The fields of a dataclass that are keys of the file, and whether each is required."""
    hints = get_type_hints(cls, include_extras=True)
    required = {
        f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(cls)
    }
    found = {
        name: [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Key)]
        for name, hint in hints.items()
    }
    return {name: (marks[0], required[name]) for name, marks in found.items() if marks}


def read_section(node: Node, cls: type[T], **more: Any) -> T:
    """Reads a mapping into a dataclass whose fields are annotated with `Key`.

    Args:
        node: the mapping.
        cls: the dataclass.
        more: values of its fields that are no keys.

    Raises:
        SpecError: an unknown or missing key, or a value that its kind refuses.
    """
    items, known = node.items(), keys_of(cls)
    for name, member in items.items():
        if name not in known:
            raise member.error("unknown key", nearest(name, known))
    for name, (mark, required) in known.items():
        if required and name not in items:
            raise SpecError("is missing", file=node.where, key=join(node.key, name), hint=f"give the {mark.doc}")
    return cls(**{name: known[name][0].kind.read(member) for name, member in items.items()}, **more)


def section(cls: type[T]) -> Kind[T]:
    """A mapping read into a dataclass whose fields are annotated with `Key`."""
    known = keys_of(cls)
    properties = {name: {"description": mark.doc, **mark.kind.schema} for name, (mark, _) in known.items()}
    needed = [name for name, (_, required) in known.items() if required]
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return Kind(read=lambda node: read_section(node, cls), schema=schema)
