"""A pack from anywhere: whatever is done to it, reading it gives a pack or a PackError, and nothing else."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_pack import make_row, make_table

from tunefarm.device import nominal
from tunefarm.document import digest
from tunefarm.errors import PackError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, dumps, seal
from tunefarm.pack_diff import diff
from tunefarm.pack_reader import load_pack
from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, explain, find, shortlist

SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.0, 0.5, 1e308, 10**30, 2**64, "", "x", "16", "\ud800", "é" * 300, "../../x.py:run",
    "__class__", "1e999",
)  # fmt: skip


def whole() -> Pack:
    rows = make_row(16, 8, 45), make_row(1024, 362, 2048), make_row(128, 45, 362)
    return seal(Pack(tables=(make_table(*rows), make_table(make_row(64, 32, 128), device=nominal("sm_80")))))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def mutated(rng: random.Random) -> Any:
    """The pack's JSON with one to three places replaced, removed, doubled or filled with what stands elsewhere."""
    data = json.loads(dumps(whole()))
    for _ in range(rng.randint(1, 3)):
        *way, last = rng.choice([place for place in places(data) if place])
        at = data
        for step in way:
            at = at[step]
        kind = rng.randrange(6)
        if kind == 0:
            del at[last]
        elif kind == 1:
            at[last] = [at[last], at[last]]
        elif kind == 2:
            at[last] = {rng.choice(("a", "", "dims", "params")): at[last]}
        elif kind == 3 and isinstance(at, dict):
            at[rng.choice(("", "é", "__class__", "n", "num_warps"))] = rng.choice(SCALARS)
        elif kind == 4:
            at[last] = rng.choice(([], {}, [[]], [None, 1], [1, 2], [2, 1], {"x": {}}))
        else:
            at[last] = rng.choice(SCALARS)
    return data


def resealed(data: Any) -> Any:
    """With digests that fit, where that can be had: what lies behind the digest must hold too."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        for table in data["tables"]:
            table["key"] = digest(table["key_parts"])
            head = {k: table[k] for k in ("kernel", "source_hash", "device", "key", "key_parts", "provenance")}
            table["digest"] = digest([head, table["rows"]])
        data["digest"] = digest([table["digest"] for table in data["tables"]])
    return data


def used(pack: Pack) -> None:
    """What a job, `pack show` and `pack diff` do with a pack that was read."""
    assert {type(row.match.label) for table in pack.tables for row in table.rows} <= {str}
    offered = Activation(pack=pack, label="p", allow_replayed=True)
    for device in (nominal("sm_90"), replace(nominal("sm_90"), name="other")):
        listed = shortlist([offered], "k", "s" * 64, device, "3.6.0")
        for n in (16, 1023):
            problem = Problem(dims=FrozenMap(n=n, k=64), dtypes=FrozenMap(x="bf16", y="fp32"))
            assert find(listed.offers, problem, {"n"}) or explain(listed.offers, listed.refused, problem, {"n"})
    assert diff(pack, pack) == ()


@pytest.mark.parametrize("sealed", [False, True])
def test_tf_088_090_mutated_packs_are_refused_or_read_and_nothing_else(tmp_path: Path, sealed: bool) -> None:
    rng, path, read = random.Random(20260102), tmp_path / "p.json", 0
    for _ in range(450 if sealed else 400):
        data = mutated(rng)
        path.write_bytes(json.dumps(resealed(data) if sealed else data).encode())
        try:
            loaded = load_pack(path)
        except PackError as error:
            told = str(error)
            assert told.startswith(str(path)), told
            continue
        read += 1
        used(loaded)
        again = dumps(loaded)
        path.write_text(again)
        assert dumps(load_pack(path)) == again
    assert read > 20 if sealed else read < 20


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    rng, path = random.Random(3), tmp_path / "p.json"
    text = dumps(whole()).encode()
    for _ in range(200):
        data = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        with contextlib.suppress(PackError):
            # Where the name of a field that says nothing new was hit, the pack is what it was.
            assert load_pack(path) == whole()
