"""JSON Schema of packs, for editors, reviewers and other tools.

It knows shapes, types and words; digests are checked by `load_pack` alone.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from tunefarm.device import Device
from tunefarm.pack import FORMAT, LAYERS, SOURCES, VERSIONS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_SCALAR: Schema = {"type": ["boolean", "number", "string", "null"]}
_SHA: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TIME: Schema = {"type": "number", "exclusiveMinimum": 0}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_SCALARS: Schema = {"type": "object", "additionalProperties": _SCALAR}
_KINDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def pack_schema() -> Schema:
    """The schema (2020-12) of a pack."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tunefarm pack",
        "description": "Which config each kernel uses, by device and by the facts of the call.",
        **_object(
            {
                "format": {"const": FORMAT},
                "version": {"enum": list(VERSIONS), "description": "2 for imported rows, code, and Inductor's tables"},
                "digest": _SHA | {"description": "over the digests of all tables"},
                "tables": {"type": "array", "items": {"$ref": "#/$defs/table"}},
            }
        ),
        "$defs": {
            "table": _table(),
            "row": _row(),
            "match": _match(),
            "config": _object({"params": _SCALARS, "options": _SCALARS}),
            "device": _device(),
            "provenance": _provenance(),
        },
    }


def _object(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    # Fields that are not listed are those of newer releases, which readers pass over.
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _table() -> Schema:
    timed = {"properties": {"median_ms": {"type": "number"}, "interval_ms": {"type": "array"}}}
    imported = {"properties": {"provenance": {"properties": {"source": {"const": "imported"}}}}}
    return {
        **_object(
            {
                "kernel": _TEXT,
                "source_hash": _TEXT | {"description": "of the kernel and of what it calls"},
                "device": {"$ref": "#/$defs/device"},
                "key": _SHA | {"description": "over key_parts"},
                "key_parts": {"type": "object", "description": "source_hash, backend_options, triton, capability"},
                "provenance": {"$ref": "#/$defs/provenance"},
                "digest": _SHA | {"description": "over all else in the table"},
                "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}, "description": "the first match wins"},
                "layer": {"enum": list(LAYERS), "description": "who consults it; 1 where it is not given"},
            },
            optional=("layer",),
        ),
        "if": {"not": imported},
        "then": {"properties": {"rows": {"items": timed}}},
    }


def _row() -> Schema:
    interval = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
    config: Schema = {"$ref": "#/$defs/config"}
    return _object(
        {
            "match": {"$ref": "#/$defs/match"},
            "measured_at": _SCALARS | {"description": "the dims of the problem that was measured"},
            "config": config,
            "median_ms": _nullable(_TIME) | {"description": "null only where an imported file does not say"},
            "interval_ms": _nullable(interval) | {"description": "95 % interval of the median"},
            "default": _nullable(config) | {"description": "the config used without tuning"},
            "default_ms": _nullable(_TIME),
            "gain": _nullable(_NUMBER) | {"description": "default_ms / median_ms"},
            "margin": _nullable(_NUMBER) | {"description": "runner-up's median over the winner's, minus 1"},
            "code": _code(),
        },
        optional=("code",),
    )


def _code() -> Schema:
    numbers = {name: {"type": "integer"} for name in ("registers", "spills", "shared_bytes")}
    sha256 = _TEXT | {"description": "of the machine code, without what only debuggers read"}
    return _object({"sha256": sha256, **numbers}) | {"description": "what config compiled to where it was timed"}


def _match() -> Schema:
    bounds = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    dim = {"anyOf": [bounds, _SCALAR], "description": "a value, or [lo, hi]: integers above lo up to hi"}
    return _object({"dims": {"type": "object", "additionalProperties": dim}, "dtypes": _TEXTS, "facts": _TEXTS})


def _device() -> Schema:
    properties = {part.name: {"type": _KINDS[str(part.type)]} for part in fields(Device)}
    return _object(properties, tuple(part.name for part in fields(Device) if part.default is not MISSING))


def _provenance() -> Schema:
    texts = dict.fromkeys(("sweep", "experiment", "timer", "tunefarm", "created"), _TEXT)
    checked = {"type": "boolean", "description": "outputs were compared with a reference's; true if left out"}
    properties = {**texts, "toolchain": _TEXTS, "source": {"enum": list(SOURCES)}, "checked": checked}
    return _object(properties, ("checked",))
