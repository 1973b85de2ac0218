"""Inputs: what a workload is called with, as written in YAML or in Python.

    x: [M, K]                                        a tensor of the problem's dtype, normally distributed
    w: {shape: [K, "N*2"], dtype: fp8e4nv, init: uniform}
    ids: {shape: [M], dtype: i32, init: uniform, low: 0, high: 64}      integers from low up to, not including, high
    n: {value: M}                                    a scalar; a text is written {value: "'relu'"}

Shape entries and values are numbers or expressions over the problem's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from tunefarm.config import Value
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.constraint import Expression
from tunefarm.spec.grammar import SCALAR, Key, Kind, Node, choice, integral, many, named, nearest, number, section, text

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

    @property
    def names(self) -> frozenset[str]:
        """The variables it refers to, its element type's apart."""
        return frozenset().union(*(size.names for size in self.shape if isinstance(size, Expression)))

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
        dtype = self.dtype_for(variables)
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
