"""Inputs: what a workload is called with, as written in YAML or in Python.

    x: [M, K]                                        a tensor of the problem's dtype, normally distributed
    w: {shape: [K, "N*2"], dtype: fp8e4nv, init: uniform}
    ids: {shape: [M], dtype: i32, init: uniform, low: 0, high: 64}      integers from low up to, not including, high
    k: {shape: [M, K], strides: [1, M], offset: 1}   transposed, and one element into a larger allocation
    n: {value: M}                                    a scalar; a text is written {value: "'relu'"}

Shape entries and values are numbers or expressions over the problem's variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

from tunefarm.config import Value
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.constraint import Expression
from tunefarm.spec.grammar import (
    BOOLEAN,
    SCALAR,
    Key,
    Kind,
    Node,
    choice,
    integral,
    keys_of,
    many,
    named,
    nearest,
    number,
    section,
    text,
)

FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e4b15", "fp8e4b8", "fp8e5", "fp8e5b16")
INTEGERS = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
DTYPES = FLOATS + INTEGERS
"""Element types in Triton's spelling."""

Size: TypeAlias = int | Expression


def check_dtype(dtype: object) -> str:
    """The element type, if it is one.

    Raises:
        SpecError: it is none.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SpecError(f"{dtype!r} is no element type", hint=f"Triton's spelling: {', '.join(DTYPES)}")
    return dtype


def read_expression(node: Node) -> Expression:
    """An expression, with errors that name its place."""
    if not isinstance(node.value, str):
        raise node.error(f"an expression belongs here, not {node.shown}", "write it as text")
    try:
        return Expression(node.value)
    except SpecError as e:
        raise node.error(str(e.args[0]), e.hint) from None


EXPRESSION: Kind[Expression] = Kind(read=read_expression, schema={"type": "string", "pattern": "."})


def _read_size(node: Node) -> Size:
    size = integral(node.value)
    if isinstance(size, str):
        return read_expression(node)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise node.error(f"a size belongs here, not {node.shown}", "a number from 0, or an expression such as M*2")
    return size


SIZE: Kind[Size] = Kind(
    read=_read_size, schema={"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "."}]}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor to be made for a problem; its fields are described by their keys."""

    shape: Annotated[tuple[Size, ...], Key(many(SIZE), "sizes: numbers, variables or expressions such as M*2")]
    dtype: Annotated[
        str, Key(text(), "element type in Triton's spelling, or a variable that holds one; default: `dtype`")
    ] = ""
    init: Annotated[str, Key(choice("normal", "uniform", "zeros", "ones", "arange"), "how it is filled")] = "normal"
    low: Annotated[float | None, Key(number(), "least value of uniform; 0 if left out")] = None
    high: Annotated[float | None, Key(number(), "bound above uniform values; 1 for floats if left out")] = None
    strides: Annotated[
        tuple[Size, ...] | None, Key(many(SIZE), "elements between neighbours along each dim, 0 to repeat one")
    ] = None
    offset: Annotated[Size, Key(SIZE, "elements before the first in its allocation: an odd one is unaligned")] = 0
    special: Annotated[bool, Key(BOOLEAN, "a NaN and infinities among the values")] = False

    @property
    def names(self) -> frozenset[str]:
        """The variables it refers to, its element type's apart."""
        sizes = (*self.shape, *(self.strides or ()), self.offset)
        return frozenset().union(*(size.names for size in sizes if isinstance(size, Expression)))

    def layout(self, variables: Mapping[str, Value]) -> tuple[tuple[int, ...], int] | None:
        """Strides and offset for a problem, in elements; None for a dense tensor of its own.

        Raises:
            SpecError: one is no whole number from 0, or there are not as many strides as sizes.
        """
        if self.strides is None and self.offset == 0:
            return None
        offset = _whole(self.offset, variables)
        if self.strides is None:
            return _dense(self.sizes(variables)), offset
        if len(self.strides) != len(self.shape):
            raise SpecError(
                f"{len(self.strides)} strides for {len(self.shape)} sizes", hint="give each dim its stride, in elements"
            )
        return tuple(_whole(stride, variables) for stride in self.strides), offset

    def sizes(self, variables: Mapping[str, Value]) -> tuple[int, ...]:
        """Its shape for a problem.

        Raises:
            SpecError: a size is no whole number from 0.
        """
        return tuple(_whole(size, variables) for size in self.shape)

    def dtype_for(self, variables: Mapping[str, Value]) -> str:
        """Its element type for a problem, in Triton's spelling.

        Raises:
            SpecError: neither it nor the problem says one.
        """
        if self.dtype in DTYPES:
            return self.dtype
        name = self.dtype or "dtype"
        if name not in variables:
            raise SpecError(
                f"no element type: {name!r} is neither one nor a variable of the problem",
                hint=nearest(name, [*DTYPES, *variables]) if self.dtype else "give dtype here or in every problem",
            )
        return check_dtype(variables[name])

    def check(self, variables: Mapping[str, Value]) -> None:
        """Raises what making it for a problem would raise.

        Raises:
            SpecError: its shape, element type and filling do not go together.
        """
        self.sizes(variables)
        self.layout(variables)
        dtype = self.dtype_for(variables)
        if self.special and dtype not in FLOATS:
            raise SpecError(f"{dtype} has no NaN", hint="leave special out")
        if dtype in INTEGERS and self.init == "normal":
            raise SpecError(
                f"integers ({dtype}) have no normal distribution", hint="init: uniform with low and high, zeros, arange"
            )
        if dtype in INTEGERS and self.init == "uniform" and self.high is None:
            raise SpecError("uniform integers need a range", hint="give low and high")
        if self.init != "uniform" and not self.low is self.high is None:
            raise SpecError(f"low and high mean nothing with init: {self.init}", hint="use init: uniform")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarSpec:
    """A scalar argument.

    Attributes:
        value: the scalar itself, or an expression over the problem's variables.
    """

    value: Value | Expression

    @property
    def names(self) -> frozenset[str]:
        """The variables it refers to."""
        return self.value.names if isinstance(self.value, Expression) else frozenset()

    def scalar(self, variables: Mapping[str, Value]) -> Value:
        """Its value for a problem.

        Raises:
            SpecError: the expression has no value.
        """
        value: Value = self.value(variables) if isinstance(self.value, Expression) else self.value
        return value

    def check(self, variables: Mapping[str, Value]) -> None:
        """Raises what `scalar` would raise."""
        self.scalar(variables)


InputSpec: TypeAlias = TensorSpec | ScalarSpec


def _dense(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def _whole(size: Size, variables: Mapping[str, Value]) -> int:
    value = integral(size(variables)) if isinstance(size, Expression) else size
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError(f"size {size} is {value!r} for {dict(variables)}", hint="a size is a whole number from 0")
    return value


_SHAPE = many(SIZE)
_TENSOR = section(TensorSpec)
_SCALAR_SCHEMA = {
    "type": "object", "properties": {"value": SCALAR.schema}, "required": ["value"], "additionalProperties": False,
}  # fmt: skip


def _read_input(node: Node) -> InputSpec:
    if isinstance(node.value, tuple):
        return TensorSpec(shape=_SHAPE.read(node))
    items = node.items()
    if "value" not in items:
        return _TENSOR.read(node)
    if len(items) > 1:
        extra = next(name for name in items if name != "value")
        raise items[extra].error("a scalar has a value and nothing else", "leave `value` out for a tensor")
    value = items["value"]
    return ScalarSpec(value=read_expression(value) if isinstance(value.value, str) else SCALAR.read(value))


INPUTS: Kind[FrozenMap[InputSpec]] = named(
    Kind(read=_read_input, schema={"anyOf": [_SHAPE.schema, _TENSOR.schema, _SCALAR_SCHEMA]}), least=1
)


_CHANGES = {name: mark.kind for name, (mark, _) in keys_of(TensorSpec).items()}


@dataclass(frozen=True, slots=True)
class Change:
    """What a check changes about one tensor among the inputs.

    Attributes:
        keys: values of some of its keys.
    """

    keys: FrozenMap[Any]

    def apply(self, spec: InputSpec) -> InputSpec:
        """The input with the change.

        Raises:
            SpecError: it is no tensor.
        """
        if not isinstance(spec, TensorSpec):
            raise SpecError("a scalar has no layout", hint="name a tensor")
        return replace(spec, **self.keys)


def _read_change(node: Node) -> Change:
    items = node.items()
    for name, member in items.items():
        if name not in _CHANGES:
            raise member.error("unknown key", nearest(name, _CHANGES))
    return Change(FrozenMap({name: _CHANGES[name].read(member) for name, member in items.items()}))


CHANGES: Kind[FrozenMap[Change]] = named(
    Kind(
        read=_read_change,
        schema={
            "type": "object", "properties": _TENSOR.schema["properties"], "additionalProperties": False,
            "minProperties": 1,
        },
    ),
    least=1,
)  # fmt: skip
"""Parts of input specs, by the input's name."""
