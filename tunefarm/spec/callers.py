"""Who launches a kernel, and with what: read from the text of its module, nothing is run.

    n_rows, n_cols = x.shape                    x: [n_rows, n_cols]
    shape = x.shape; n = shape[-1]              x: [x_0, n]
    m, n = a.shape[0], b.size(1)                a: [m, a_1], b: [b_0, n]
    m, n = x.shape[0], x.shape[1] // 2          x: [m, x_1]
    assert a.shape[1] == b.shape[0]             what is equal has one name
    y = torch.empty_like(x); n = y.numel()      x: [n]

What the text does not tell is guessed, and marked as a guess.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.spec.autotuned import Signature

_SAME = ("contiguous", "clone", "detach", "empty_like", "zeros_like", "ones_like", "to")
_OF_TENSORS = (
    "shape", "size", "numel", "stride", "device", "dtype", "contiguous", "view", "reshape", "dim", "ndim",
    "element_size", "is_cuda", "data_ptr", "T",
)  # fmt: skip
_SCALARS = ("int", "float", "bool", "str")
_SIZE = re.compile(r"^[nmk]$|^(n|num)_|stride|size", re.IGNORECASE)
"""How kernels call arguments that are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a function that launches the kernel.

    Attributes:
        name: as the function has it.
        scalar: `int`, `float`, `bool` or `str`; empty for a tensor.
        shape: names of a tensor's dims.
        is_guessed: the text does not tell all of it.
    """

    name: str
    scalar: str = ""
    shape: tuple[str, ...] = ()
    is_guessed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A function that launches the kernel.

    Attributes:
        name: to be found under in its module, such as `softmax` or `Softmax.apply`.
        arguments: those that it must be given, in order.
        left: those that have a default.
        given: arguments of the kernel that its launch names; None where that cannot be read.
    """

    name: str
    arguments: tuple[Argument, ...]
    left: tuple[str, ...] = ()
    given: frozenset[str] | None = None


def find_callers(text: str, names: Sequence[str], signature: Signature) -> tuple[Caller, ...]:
    """The functions of a module that launch a kernel, in order: those that do it themselves, or else autograd's.

    Args:
        text: of the module.
        names: under which the kernel is known there.
        signature: what it takes.
    """
    module = ast.parse(text)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    direct = [
        _caller(function, function.name, launch, signature)
        for function in functions
        if not _is_jitted(function) and (launch := _launch(function, names)) is not None
    ]
    return tuple(direct or _autograd(module, functions, names, signature))


def _autograd(
    module: ast.Module, functions: Sequence[ast.FunctionDef], names: Sequence[str], signature: Signature
) -> Iterator[Caller]:
    """Functions that apply a `torch.autograd.Function` whose forward launches the kernel; the first is it itself."""
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "forward":
                launch = _launch(method, names)
                if launch is not None:
                    found = _caller(method, f"{node.name}.apply", launch, signature)
                    # `apply` takes no argument by name, so a function around it comes first.
                    yield from (
                        replace(_caller(function, function.name, launch, signature), given=found.given)
                        for function in functions
                        if f"{node.name}.apply" in ast.unparse(function)
                    )


def _is_jitted(function: ast.FunctionDef) -> bool:
    return any("triton." in ast.unparse(mark) and "jit" in ast.unparse(mark) for mark in function.decorator_list)


def _launch(function: ast.FunctionDef, names: Sequence[str]) -> ast.AST | None:
    """`kernel[grid](...)`, or the function itself if it only mentions the kernel."""
    mentions = False
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and _name(node.func.value) in names:
            return node
        mentions = mentions or (isinstance(node, ast.Name) and node.id in names)
    return function if mentions else None


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _caller(function: ast.FunctionDef, name: str, launch: ast.AST, signature: Signature) -> Caller:
    given = _given(launch, signature, function.args.kwarg)
    parameters = [*function.args.posonlyargs, *function.args.args]
    if name.endswith(".apply"):
        parameters = parameters[1:]  # the context
    num_needed = len(parameters) - min(len(function.args.defaults), len(parameters))
    needed, left = parameters[:num_needed], parameters[num_needed:]
    for parameter, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        (needed if default is None else left).append(parameter)
    shapes = _Shapes(function, [p.arg for p in needed])
    passed = _passed(launch, signature)
    arguments = [_argument(p, function, shapes, passed) for p in needed]
    known = next((a.shape for a in arguments if a.shape), ("N",))
    return Caller(
        name=name,
        arguments=tuple(a if a.scalar or a.shape else replace(a, shape=known, is_guessed=True) for a in arguments),
        left=tuple(p.arg for p in left),
        given=given,
    )


def _given(launch: ast.AST, signature: Signature, more: ast.arg | None) -> frozenset[str] | None:
    if not isinstance(launch, ast.Call) or any(isinstance(a, ast.Starred) for a in launch.args):
        return None
    names = list(signature.arguments[: len(launch.args)])
    for keyword in launch.keywords:
        # What the function passes on of its own `**config` is nothing, as it is called here.
        if keyword.arg is None and not (more is not None and _name(keyword.value) == more.arg):
            return None
        names += [keyword.arg] if keyword.arg else []
    return frozenset(names)


def _passed(launch: ast.AST, signature: Signature) -> Mapping[str, str]:
    """By what the function passes as it is, the kernel's argument that it becomes."""
    if not isinstance(launch, ast.Call):
        return {}
    pairs = [*zip(launch.args, signature.arguments, strict=False), *((k.value, k.arg or "") for k in launch.keywords)]
    return {node.id: argument for node, argument in pairs if isinstance(node, ast.Name)}


def _argument(p: ast.arg, function: ast.FunctionDef, shapes: _Shapes, passed: Mapping[str, str]) -> Argument:
    said = ast.unparse(p.annotation) if p.annotation is not None else ""
    if said in _SCALARS:
        return Argument(name=p.arg, scalar=said, is_guessed=said != "int")
    shape, is_guessed = shapes.of(p.arg)
    if shape or "Tensor" in said or _is_tensor(p.arg, function):
        return Argument(name=p.arg, shape=shape, is_guessed=is_guessed)
    if _SIZE.search(passed.get(p.arg, "")):
        return Argument(name=p.arg, scalar="int")
    return Argument(name=p.arg, is_guessed=True)


def _is_tensor(name: str, function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute) and _name(node.value) == name and node.attr in _OF_TENSORS
        for node in ast.walk(function)
    )


class _Shapes:
    """What a function calls the dims of its arguments."""

    def __init__(self, function: ast.FunctionDef, parameters: Sequence[str]) -> None:
        self._alias = {name: name for name in parameters}
        self._dims: dict[str, dict[int, str]] = {}
        self._whole: dict[str, tuple[str, ...]] = {}
        self._count: dict[str, str] = {}
        self._kept: dict[str, str] = {}
        nodes = [n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.Assert)]
        for node in sorted(nodes, key=lambda node: node.lineno):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
        for node in nodes:
            if isinstance(node, ast.Assert):
                self._equate(node.test)
        # A dim that has no name of its own, as that of `x.shape[1] // 2`, is a dim all the same.
        self._places: dict[str, set[int]] = {}
        for place in filter(None, map(self._dim, ast.walk(function))):
            self._places.setdefault(place[0], set()).add(place[1])

    def of(self, name: str) -> tuple[tuple[str, ...], bool]:
        """Names of an argument's dims, and whether one of them is a guess; none if nothing is known."""
        if name in self._whole:
            return self._whole[name], False
        dims = self._dims.get(name, {})
        if not dims and name in self._count:
            return (self._count[name],), False
        places = dims.keys() | self._places.get(name, set())
        if not places:
            return (), True
        rank = max(*(at + 1 if at >= 0 else -at for at in places), 2 if min(places) < 0 else 1)
        at = {place % rank: dim for place, dim in dims.items()}
        return tuple(at.get(place, f"{name}_{place}") for place in range(rank)), len(at) < rank

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
        elif isinstance(target, ast.Tuple) and (owner := self._shaped(value)):
            self._whole.setdefault(owner, tuple(_dim(e, f"{owner}_{i}") for i, e in enumerate(target.elts)))
        elif isinstance(target, ast.Name) and (place := self._dim(value)) is not None:
            self._dims.setdefault(place[0], {}).setdefault(place[1], target.id)
        elif isinstance(target, ast.Name) and (owner := self._shaped(value)):
            self._kept[target.id] = owner
        elif isinstance(target, ast.Name) and isinstance(value, ast.Call):
            self._name_call(target.id, value)

    def _name_call(self, target: str, call: ast.Call) -> None:
        if not isinstance(call.func, ast.Attribute):
            return
        method, owner = call.func.attr, self._alias.get(_name(call.func.value), "")
        if method == "numel" and owner:
            self._count.setdefault(owner, target)
        elif method in _SAME and (of := owner or self._alias.get(_name(call.args[0]) if call.args else "", "")):
            self._alias.setdefault(target, of)

    def _shaped(self, node: ast.expr) -> str:
        """The argument whose shape this is; empty if it is something else."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            return "" if node.args else self._alias.get(_name(node.func.value), "")
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return self._alias.get(_name(node.value), "")
        return self._kept.get(_name(node), "")

    def _dim(self, node: ast.AST) -> tuple[str, int] | None:
        """The argument and the place of the dim that this is; None if it is something else."""
        if isinstance(node, ast.Subscript) and (owner := self._shaped(node.value)):
            return _placed(owner, node.slice)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            owner = self._alias.get(_name(node.func.value), "")
            return _placed(owner, node.args[0]) if owner and len(node.args) == 1 else None
        return None

    def _equate(self, test: ast.expr) -> None:
        for node in ast.walk(test):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
                first, second = self._dim(node.left), self._dim(node.comparators[0])
                for known, open_ in ((first, second), (second, first)):
                    if known and open_ and (name := self._known(known)) and not self._known(open_):
                        self._dims.setdefault(open_[0], {})[open_[1]] = name

    def _known(self, place: tuple[str, int]) -> str:
        owner, at = place
        whole = self._whole.get(owner, ())
        return whole[at] if -len(whole) <= at < len(whole) else self._dims.get(owner, {}).get(at, "")


def _placed(owner: str, at: ast.expr) -> tuple[str, int] | None:
    try:
        place: Any = ast.literal_eval(at)
    except ValueError:
        return None
    return (owner, place) if type(place) is int else None


def _dim(node: ast.expr, otherwise: str) -> str:
    name = _name(node.value if isinstance(node, ast.Starred) else node)
    return otherwise if name in ("", "_") else name
