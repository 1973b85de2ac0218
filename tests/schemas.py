"""Manifests held against schemas: Kubernetes' own kinds, and what KubeRay and Kueue bring, rules in CEL included."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cel
import jsonschema
import kubernetes_validate
import pytest

ROOT = Path(__file__).parents[1]
CRDS = Path(os.environ.get("TUNEFARM_SHARED", ROOT.parent / "shared")) / "crds"
BUILTIN = ("v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")

needs_crds = pytest.mark.skipif(
    not CRDS.is_dir(), reason="the schemas of KubeRay and Kueue are not here (shared/crds beside the repository)"
)

Schema = dict[str, Any]


@cache
def _schemas() -> dict[tuple[str, str], Schema]:
    """By apiVersion and kind."""
    found = {}
    for path in CRDS.glob("*.json"):
        spec = json.loads(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


@cache
def _validator(version: str, kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_strict(_schemas()[version, kind], root=True))


def _strict(schema: Any, *, root: bool = False) -> Any:
    """The schema in JSON Schema's terms, refusing what an API server would drop in silence."""
    if not isinstance(schema, dict):
        return [_strict(member) for member in schema] if isinstance(schema, list) else schema
    made = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "default"}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    for key in ("properties", "patternProperties"):
        if key in made:
            made[key] = {name: _strict(member) for name, member in made[key].items()}
    for key in ("items", "additionalProperties", "not", "allOf", "anyOf", "oneOf"):
        if key in made:
            made[key] = _strict(made[key])
    knows_all = "properties" in made and "additionalProperties" not in made
    if knows_all and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    if root:
        made["properties"] |= {"metadata": {"type": "object"}, "status": {}}
    return made


def _completed(value: Any, schema: Schema) -> Any:
    """The value as the API server sees it: with defaults, and without what is null."""
    if isinstance(value, list):
        return [_completed(member, schema.get("items", {})) for member in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties")
    full = {name: member["default"] for name, member in properties.items() if "default" in member}
    full |= {name: member for name, member in value.items() if member is not None}
    other = more if isinstance(more, dict) else {}
    return {name: _completed(member, properties.get(name, other)) for name, member in full.items()}


def _broken_rules(value: Any, schema: Schema, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not cel.evaluate(rule["rule"], {"self": value}):
            yield f"{path}: {rule.get('message', rule['rule'])}"
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _broken_rules(member, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        more = schema.get("additionalProperties")
        for name, member in value.items():
            inner = schema.get("properties", {}).get(name, more if isinstance(more, dict) else {})
            yield from _broken_rules(member, inner, f"{path}.{name}")


def faults(document: dict[str, Any]) -> list[str]:
    """What is wrong with a manifest by its schema; empty if nothing is."""
    version, kind = document["apiVersion"], document["kind"]
    name = f"{kind} {document['metadata'].get('name')}"
    if version in BUILTIN:
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as e:
            return [f"{name}: {'.'.join(map(str, e.path))}: {e.message}"]
        return []
    if (version, kind) not in _schemas():
        return [f"{name}: no schema of {version}"]
    schema = _schemas()[version, kind]
    full = _completed(document, schema)
    found = [
        f"{name}: {error.json_path}: {error.message[:300]}" for error in _validator(version, kind).iter_errors(full)
    ]
    return found or [f"{name}: {said}" for said in _broken_rules(full, schema, "")]
