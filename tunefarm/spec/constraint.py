"""Expressions over params, dims and device facts: parsed, checked, and evaluated by walking their tree.

Allowed are numbers, text, names, `+ - * / // % **`, comparisons (chained too), `and`, `or`, `not`, `a if c else b`,
and the functions min, max, abs and cdiv. Each means what it means in Python. Nothing else can be written: no attribute,
no subscript, no other call.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tunefarm.config import Value
from tunefarm.device import Device
from tunefarm.errors import SpecError

Evaluator: TypeAlias = Callable[[Mapping[str, Any]], Any]

MAX_CHARS = 2000
MAX_BITS = 4096


def cdiv(a: int, b: int) -> int:
    """Division rounded up, as Triton's `cdiv`."""
    return -(-a // b)


def _power(base: Any, exponent: Any) -> Any:
    # Python would fill the memory with the digits of 9**9**9.
    if isinstance(base, int) and exponent * max(1, abs(base).bit_length()) > MAX_BITS:
        raise ValueError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the power is not a real number")
    return result


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "cdiv": cdiv}
"""What may be called."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power,
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


FACTS: Mapping[str, str] = {
    "num_sms": "num_sms", "shared_bytes": "shared_bytes", "l2_bytes": "l2_bytes", "registers": "registers",
    "max_threads": "max_threads", "warp_size": "warp_size", "memory_bytes": "memory_bytes", "capability": "target",
}  # fmt: skip
"""Names of the device facts, and the attributes of `Device` they stand for; capability is 90 for sm_90."""


def device_facts(device: Device) -> dict[str, Value]:
    """What expressions may know of a device, by name."""
    return {name: getattr(device, attribute) for name, attribute in FACTS.items()}


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression; equal texts are equal expressions.

    Attributes:
        text: as written.

    Raises:
        SpecError: it is not in the language.
    """

    text: str

    def __post_init__(self) -> None:
        _parse(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The names it refers to."""
        return _parse(self.text)[1]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value, given a value for each of its names.

        Raises:
            SpecError: it has no value here: a division by zero, text in arithmetic, a name without a value.
        """
        evaluate, names = _parse(self.text)
        try:
            return evaluate(values)
        except KeyError as e:
            raise SpecError(f"{self.text!r} needs {e.args[0]!r}, which has no value here") from None
        except (ArithmeticError, TypeError, ValueError, RecursionError) as e:
            here = ", ".join(f"{name}={values[name]!r}" for name in sorted(names) if name in values)
            raise SpecError(
                f"{self.text!r} has no value for {here or 'these constants'}: {e}",
                hint="guard it, as in `BK > 0 and K % BK == 0`",
            ) from None

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Evaluator, frozenset[str]]:
    if len(text) > MAX_CHARS:
        raise SpecError(f"expression of {len(text)} characters", hint=f"at most {MAX_CHARS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        evaluate = _build(tree.body)
    except SyntaxError as e:
        message = f"{text[:80]!r} is not an expression: {e.msg}"
        raise SpecError(message, hint="compare with ==, <=, <, >=, > or !=") from None
    except (ValueError, RecursionError, MemoryError) as e:
        raise SpecError(f"{text[:80]!r} is not an expression: {e.__class__.__name__}") from None
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
    return evaluate, frozenset(names)


def _build(node: ast.expr) -> Evaluator:
    match node:
        case ast.Constant(value=bool() | int() | str() | None as value):
            return lambda _: value
        case ast.Constant(value=float() as real) if math.isfinite(real):
            return lambda _: real
        case ast.Name(id=name) if name not in FUNCTIONS:
            return operator.itemgetter(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _arithmetic(_ARITHMETIC[type(op)], [_build(left), _build(right)])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _build(operand)
            return lambda values: not inner(values)
        case ast.UnaryOp(op=unary, operand=operand) if type(unary) in _UNARY:
            return _arithmetic(_UNARY[type(unary)], [_build(operand)])
        case ast.BoolOp(op=join, values=parts):
            return _boolean(isinstance(join, ast.And), [_build(part) for part in parts])
        case ast.Compare(left=first, ops=ops, comparators=rest) if all(type(op) in _COMPARISONS for op in ops):
            return _chain([_COMPARISONS[type(op)] for op in ops], [_build(part) for part in (first, *rest)])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, yes, no = _build(test), _build(body), _build(orelse)
            return lambda values: yes(values) if condition(values) else no(values)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _arithmetic(FUNCTIONS[name], [_build(arg) for arg in args])
    raise SpecError(
        f"{ast.unparse(node)!r} is not allowed in an expression",
        hint="arithmetic, comparisons, and/or/not, min, max, abs and cdiv are",
    )


def _arithmetic(function: Callable[..., Any], parts: list[Evaluator]) -> Evaluator:
    def evaluate(values: Mapping[str, Any]) -> Any:
        operands = [part(values) for part in parts]
        for operand in operands:
            # Text times a number would be a longer text, and text % anything a format.
            if not isinstance(operand, int | float):
                raise TypeError(f"{operand!r} is not a number")
        return function(*operands)

    return evaluate


def _boolean(is_and: bool, parts: list[Evaluator]) -> Evaluator:
    def evaluate(values: Mapping[str, Any]) -> Any:
        result: Any = is_and
        for part in parts:
            result = part(values)
            if bool(result) is not is_and:
                break
        return result

    return evaluate


def _chain(compare: list[Callable[[Any, Any], bool]], parts: list[Evaluator]) -> Evaluator:
    def evaluate(values: Mapping[str, Any]) -> bool:
        left = parts[0](values)
        for test, part in zip(compare, parts[1:], strict=True):
            right = part(values)
            if not test(left, right):
                return False
            left = right
        return True

    return evaluate
