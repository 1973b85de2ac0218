"""The build store: what is kept comes back, what is damaged is built again, and writers do not meet."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tunefarm.bench.build import Artifact
from tunefarm.bench.store import BuildStore
from tunefarm.frozen import FrozenMap
from tunefarm.trial import Build

KEYS = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(4)]


def made(text: str = "machine code", warps: int = 4) -> tuple[Build, Artifact]:
    cubin = text.encode() * 100
    binary = hashlib.sha256(cubin).hexdigest()
    build = Build(
        binary=binary, registers=32, spills=1, shared_bytes=1024, grid=(3, 2, 1), build_s=0.5,
        launch=FrozenMap(num_warps=warps, launch_cooperative_grid=False),
    )  # fmt: skip
    metadata = json.dumps({"num_warps": warps, "name": "k", "target": {"arch": 90}})
    return build, Artifact(binary=binary, cubin=cubin, metadata=metadata, specialization=f"s{warps}")


@pytest.fixture
def store(tmp_path: Path) -> BuildStore:
    return BuildStore(tmp_path / "builds")


def files(store: BuildStore, ending: str) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file() and path.name.endswith(ending)]


def test_what_is_kept_comes_back(store):
    build, artifact = made()
    assert store.get(KEYS[0]) is None
    assert not store.folder.exists()
    store.put(KEYS[0], build, artifact)
    again = BuildStore(store.folder).get(KEYS[0])
    assert again is not None
    assert again[0] == build
    assert again[0].identity == build.identity
    assert dataclasses.replace(again[1], metadata="") == dataclasses.replace(artifact, metadata="")
    assert json.loads(again[1].metadata) == json.loads(artifact.metadata)
    assert store.get(KEYS[1]) is None


def test_tf_087_what_nobody_uses_goes_when_the_store_is_full(store):
    """Losers' binaries first of all; what was used within a day stays, however full it is."""
    for number, key in enumerate(KEYS):
        store.put(key, *made(f"machine code {number}", warps=2**number))
    sizes = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    assert store.trim(0) == 0
    for days, key in enumerate(KEYS, 1):
        build, _ = store.get(key)
        for path in files(store, f"{key}.json") + files(store, f"{build.binary}.cubin"):
            os.utime(path, (time.time() - 100_000 * days,) * 2)
    assert store.get(KEYS[3]) is not None, "which is used by that"
    removed = store.trim(sizes // 2)
    assert sizes // 2 <= removed < sizes
    assert [key for key in KEYS if store.get(key)] == [KEYS[0], KEYS[3]]
    assert store.trim(sizes // 2) == 0


def test_equal_binaries_are_kept_once(store):
    for key, warps in zip(KEYS, (1, 2, 4, 8), strict=True):
        store.put(key, *made(warps=warps))
    assert len(files(store, ".cubin")) == 1
    assert len(files(store, ".json")) == 4
    found = [store.get(key) for key in KEYS]
    assert [entry[0].launch["num_warps"] for entry in found if entry] == [1, 2, 4, 8]


DAMAGE = {
    "no cubin": lambda entry, cubin: cubin.unlink(),
    "half a cubin": lambda entry, cubin: cubin.write_bytes(cubin.read_bytes()[:-1]),
    "another cubin": lambda entry, cubin: cubin.write_bytes(b"x" * cubin.stat().st_size),
    "empty": lambda entry, cubin: entry.write_bytes(b""),
    "half": lambda entry, cubin: entry.write_bytes(entry.read_bytes()[:-20]),
    "not UTF-8": lambda entry, cubin: entry.write_bytes(b"\xff\xfe"),
    "a list": lambda entry, cubin: entry.write_text("[1]"),
    "another form": lambda entry, cubin: entry.write_text('{"build": {"binary": 1}}'),
    "a list inside": lambda entry, cubin: entry.write_text('{"build": []}'),
    "a folder": lambda entry, cubin: (entry.unlink(), entry.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_counts_as_none_and_is_mended(store, damage):
    build, artifact = made()
    store.put(KEYS[0], build, artifact)
    (entry,), (cubin,) = files(store, ".json"), files(store, ".cubin")
    damage(entry, cubin)
    assert store.get(KEYS[0]) is None
    if entry.is_dir():
        entry.rmdir()
    store.put(KEYS[0], build, artifact)
    again = store.get(KEYS[0])
    assert again is not None
    assert again[0] == build


def write(folder: Path, number: int) -> int:
    store = BuildStore(folder)
    num_seen = 0
    for round_ in range(10):
        key = KEYS[(number + round_) % len(KEYS)]
        store.put(key, *made())
        num_seen += store.get(key) is not None
    return num_seen


def test_writers_do_not_meet(store):
    """TF-083: several processes writing the same entries: every read finds a whole one, and nothing else is left."""
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        seen = list(pool.map(write, [store.folder] * 4, range(4)))
    assert seen == [10] * 4
    assert {path.suffix for path in store.folder.rglob("*") if path.is_file()} == {".json", ".cubin"}
