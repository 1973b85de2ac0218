"""A YAML file as a tree of nodes that know their lines.

It is YAML 1.2 (core schema): 1e-3 and 1e6 are numbers; on, off, yes and no are text; 010 is ten; 1_000 is text,
so a number written that way is refused. Duplicate keys are refused; merge keys (`<<`) override as they should.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tunefarm.config import Value
from tunefarm.document import MAX_DEPTH, read_text
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.spec.grammar import Node, join

MAX_BYTES = 1 << 20
MAX_NODES = 100_000


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


def read_yaml(path: Path, text: str | None = None) -> Node:
    """A YAML file as a tree that knows its lines.

    Args:
        path: the file.
        text: what it is going to hold; else it is read.

    Raises:
        SpecError: it is empty, no YAML, has duplicate keys, or is too deep or too large once aliases are expanded.
        DocumentError: the file is missing, too large or not UTF-8.
    """
    content = read_text(path, max_bytes=MAX_BYTES) if text is None else text
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
            hint = "a kernel's integers have 64 bits" if kind == "int" else "leave the key out for no limit"
            raise SpecError(f"{content[:40]} {e}", file=where, key=key, hint=hint) from None


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
