"""The source hash of a kernel: its meaning as text, and that of everything it calls.

Triton's own cache key holds line numbers and the hash of a shared library, so a comment above a kernel or another
Python makes it miss. This hash holds the syntax of the kernel, of the jitted functions it calls and of the global
constants it reads: without comments, docstrings, positions or decorators. It is the same on every Python release.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tunefarm.errors import SpecError

HOME = "a kernel must be a module-level function in a .py file"
"""What to do about a kernel whose source is not to be had."""

_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_params", "type_ignores", "decorator_list", "returns"})


def python_function(kernel: Any) -> Callable[..., Any]:
    """The Python function inside a jitted kernel, whatever is wrapped around it (autotune, heuristics).

    Raises:
        SpecError: there is none.
    """
    inner = kernel
    for _ in range(16):
        if inspect.isfunction(inner):
            return inner
        inner = getattr(inner, "fn", None)
        if inner is None:
            break
    raise SpecError(f"{kernel!r} is not a Triton kernel", hint="name an object decorated with @triton.jit")


def source_hash(kernel: Any) -> str:
    """SHA-256, in hexadecimal, of the kernel's own text and of what it calls.

    Args:
        kernel: a jitted function, or an autotuner or heuristics around one.

    Raises:
        SpecError: the source cannot be read (a kernel made by exec, in a notebook or inside another function).
    """
    lines: list[str] = []
    seen: set[int] = set()
    _collect(python_function(kernel), lines, seen)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def unread(kernel: Any) -> frozenset[str]:
    """The parameters that a kernel's body does not mention.

    Raises:
        SpecError: the source cannot be read.
    """
    function = python_function(kernel)
    body = _parse(function).body
    named = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return frozenset(inspect.signature(function).parameters.keys() - named)


def _collect(function: Callable[..., Any], lines: list[str], seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    tree = _parse(function)
    lines.append(_dump(tree))
    for name, value in _references(tree, function):
        if inspect.isfunction(getattr(value, "fn", None)) and not _is_triton(value.fn):
            _collect(value.fn, lines, seen)
        else:
            constant = getattr(value, "value", value)
            if _is_constant(constant):
                lines.append(f"{name}={constant!r}")


def _parse(function: Callable[..., Any]) -> ast.FunctionDef:
    name = getattr(function, "__qualname__", repr(function))
    if "<locals>" in name:
        raise SpecError(
            f"kernel {name} is defined inside another function",
            hint=f"{HOME}, so that workers can import it",
        )
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise SpecError(
            f"the source of kernel {name} cannot be read",
            hint=HOME,
        ) from None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise SpecError(f"kernel {name} is not written as a function", hint="write it with `def`")
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return node


def _dump(node: Any) -> str:
    # ast.dump differs between Python releases (new fields, empty lists left out); this does not.
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields if name not in _IGNORED_FIELDS)
        inner = ",".join(f"{name}={_dump(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return "[" + ",".join(_dump(item) for item in node) + "]"
    return repr(node)


def _references(tree: ast.AST, function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What the function's global names (and `module.name`) stand for, in a fixed order."""
    closure = inspect.getclosurevars(function).nonlocals
    scope = {**getattr(function, "__globals__", {}), **closure}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in scope:
            found[node.id] = scope[node.id]
        elif isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            root, *names = path.split(".")
            value = scope.get(root)
            for name in names:
                # Triton's and torch's own are covered by their versions.
                if not isinstance(value, ModuleType) or value.__name__.startswith(("triton", "torch")):
                    value = None
                    break
                value = getattr(value, name, None)
            if value is not None:
                found[path] = value
    yield from sorted(found.items())


def _is_constant(value: Any) -> bool:
    """Whether a global is read into the kernel by value: scalars, Triton's dtypes, and tuples of such."""
    if isinstance(value, tuple):
        return all(_is_constant(getattr(item, "value", item)) for item in value)
    is_dtype = type(value).__name__ == "dtype" and type(value).__module__.startswith("triton")
    return isinstance(value, bool | int | float | str) or is_dtype


def _is_triton(function: Callable[..., Any]) -> bool:
    # Triton's own library functions are covered by its version, which stands beside the hash in every key.
    return getattr(function, "__module__", "").startswith("triton.")
