"""The queries of dashboards and rules, and what they ask for."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).parents[1] / "dashboards"
RULES: dict[str, Any] = yaml.safe_load((ROOT / "rules.yaml").read_text())
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(ROOT.glob("*.json"))}


def generator() -> ModuleType:
    """`dashboards/generate.py`, which is a script beside its table."""
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(ROOT))


@dataclass(frozen=True)
class Asked:
    """One query.

    Attributes:
        place: for people, the same in every process.
        expr: PromQL, without anything of Grafana's.
    """

    place: str
    expr: str


def substituted(expr: str, rate_interval: str = "5m") -> str:
    """An expression as Grafana sends it with every variable on All."""
    return expr.replace("$__rate_interval", rate_interval).replace("$instance", ".*").replace(
        "$experiment", ".*"
    ).replace("$job", ".*")  # fmt: skip


def panels(rate_interval: str = "5m") -> list[Asked]:
    """Every query of every panel."""
    return [
        Asked(f"{name}: {panel['title']} {target['refId']}", substituted(target["expr"], rate_interval))
        for name, board in BOARDS.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def rules() -> list[Asked]:
    """Every rule's."""
    return [
        Asked(f"rules: {rule.get('alert') or rule['record']}", rule["expr"])
        for group in RULES["groups"]
        for rule in group["rules"]
    ]


def selectors(expr: str) -> list[tuple[str, set[str]]]:
    """(metric, labels matched) of everything that an expression selects; alternatives of a name one by one."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: object) -> None:
        vector = node.vector_selector if isinstance(node, promql_parser.MatrixSelector) else node
        if isinstance(vector, promql_parser.VectorSelector):
            matchers = {matcher.name: matcher.value for matcher in vector.matchers.matchers}
            names = [vector.name] if vector.name else matchers.pop("__name__").split("|")
            found.extend((name, set(matchers)) for name in names)

    promql_parser.walk(promql_parser.parse(expr), visit)
    return list(dict.fromkeys((name, frozenset(labels)) for name, labels in found))  # type: ignore[arg-type]


def grouped(expr: str) -> set[str]:
    """Labels that aggregations keep."""
    found: set[str] = set()

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found
