"""The published schema takes what the reader takes, and refuses malformed fields as it does."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_pack import PROVENANCE, make_row, make_table
from test_pack_fuzz import mutated, resealed, whole
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.errors import PackError
from tunefarm.pack import Code, Pack, dumps, seal
from tunefarm.pack_reader import load_pack
from tunefarm.pack_schema import pack_schema

VALIDATOR = jsonschema.Draft202012Validator(pack_schema())


def test_it_is_a_schema_and_printed_by_the_command() -> None:
    jsonschema.Draft202012Validator.check_schema(pack_schema())
    assert json.loads(CliRunner().invoke(app, ["pack", "schema"]).output) == pack_schema()


def test_real_packs_are_valid() -> None:
    untimed = replace(make_row(16, 8, 32), median_ms=None, interval_ms=None, default=None, default_ms=None, gain=None)
    imported = make_table(untimed, provenance=replace(PROVENANCE, source="imported", checked=False))
    code = Code(sha256="c" * 64, registers=40, spills=2, shared_bytes=1024)
    coded = make_table(replace(make_row(16, 8, 32), code=code))
    for pack in (whole(), seal(Pack(tables=())), seal(Pack(tables=(imported,))), seal(Pack(tables=(coded,)))):
        VALIDATOR.validate(json.loads(dumps(pack)))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["version"], 3), (["format"], "other"), (["digest"], "0"), (["tables"], {}), (["tables", 0, "rows", 0], 3),
        (["tables", 0, "rows", 0, "config"], None), (["tables", 0, "rows", 0, "median_ms"], None),
        (["tables", 0, "rows", 0, "config", "params", "BLOCK"], [1]),
        (["tables", 0, "rows", 0, "match", "dims", "n"], [1, 2, 3]),
        (["tables", 0, "rows", 0, "match", "dims", "n"], ["016", "abc"]),
        (["tables", 0, "rows", 0, "match", "dtypes", "x"], 16), (["tables", 0, "device", "num_sms"], "many"),
        (["tables", 0, "provenance", "source"], "guessed"), (["tables", 0, "provenance", "checked"], "no"),
    ],
)  # fmt: skip
def test_tf_069_a_malformed_field_is_refused(place: list[Any], value: Any) -> None:
    data = json.loads(dumps(whole()))
    at = data
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    assert not VALIDATOR.is_valid(data)


def test_what_the_reader_takes_the_schema_takes(tmp_path: Path) -> None:
    rng, path, read = random.Random(7), tmp_path / "p.json", 0
    for _ in range(150):
        text = json.dumps(resealed(mutated(rng)))
        path.write_text(text)
        try:
            load_pack(path)
        except PackError:
            continue
        read += 1
        VALIDATOR.validate(json.loads(text))
    assert read > 5
