"""Packs as files: what is written is read back, and nothing damaged, foreign or changed gets through."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import PackError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Code, Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.pack_reader import load_pack

PROVENANCE = Provenance(
    sweep="softmax", experiment="e" * 64, toolchain=FrozenMap(torch="2.11.0", triton="3.6.0"), timer="cold",
    source="measured", tunefarm="0.1.0", created="2026-01-02",
)  # fmt: skip


def make_row(n: int, lo: int, hi: int, **params: Any) -> Row:
    return Row(
        match=Match(
            dims=FrozenMap({"n": (lo, hi), "k": 64}), dtypes=FrozenMap(x="bf16", y="fp32"), facts=FrozenMap(n="div16")
        ),
        measured_at=FrozenMap(n=n, k=64),
        config=Config(params=params or {"BLOCK": n}, options={"num_warps": 4}),
        median_ms=0.25, interval_ms=(0.24, 0.26), default=Config(params={"BLOCK": 16}), default_ms=0.5, gain=2.0,
    )  # fmt: skip


def make_table(*rows: Row, kernel: str = "k", **changes: Any) -> Table:
    device = changes.pop("device", nominal("sm_90"))
    parts = FrozenMap(source_hash="s" * 64, backend_options=FrozenMap(), triton="3.6.0", capability=device.arch)
    return replace(
        Table(
            kernel=kernel, source_hash="s" * 64, device=device, key_parts=parts, provenance=PROVENANCE, rows=rows
        ),
        **changes,
    )  # fmt: skip


@pytest.fixture
def pack() -> Pack:
    rows = make_row(16, 8, 45), make_row(1024, 362, 2048), make_row(128, 45, 362)
    return seal(Pack(tables=(make_table(*rows), make_table(make_row(64, 32, 128), device=nominal("sm_80")))))


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "some.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_round_trip(tmp_path: Path, pack: Pack) -> None:
    text = dumps(pack)
    again = load_pack(written(tmp_path, text))
    assert again == pack
    assert dumps(again) == text


def test_tf_034_a_pack_says_where_outputs_were_not_checked(tmp_path: Path, pack: Pack) -> None:
    assert '"checked"' not in dumps(pack)
    blind = replace(pack.tables[0], provenance=replace(PROVENANCE, checked=False))
    text = dumps(seal(Pack(tables=(blind, pack.tables[1]))))
    again = load_pack(written(tmp_path, text))
    assert sorted(table.provenance.checked for table in again.tables) == [False, True]
    with pytest.raises(PackError, match=r"provenance\.checked: is neither true nor false"):
        load_pack(written(tmp_path, text.replace('"checked": false', '"checked": "no"')))


def test_tf_069_values_keep_their_types(tmp_path: Path) -> None:
    values = {"A": 1, "B": 1.0, "C": True, "D": None, "E": "1", "F": False, "G": 0, "H": 1e-6, "I": -3}
    row = make_row(16, 8, 32, **values)
    again = load_pack(written(tmp_path, dumps(seal(Pack(tables=(make_table(row),)))))).tables[0].rows[0]
    read = dict(again.config.params)
    assert {k: (type(v), v) for k, v in read.items()} == {k: (type(v), v) for k, v in values.items()}
    assert again.match.dims["n"] == (8, 32)
    assert isinstance(again.match.dims["n"], tuple)
    assert type(again.match.dims["k"]) is int


def test_imported_rows_may_lack_times_and_raise_the_version(tmp_path: Path, pack: Pack) -> None:
    untimed = replace(make_row(16, 8, 32), median_ms=None, interval_ms=None)
    table = make_table(untimed, provenance=replace(PROVENANCE, source="imported"))
    text = dumps(seal(Pack(tables=(table,))))
    assert '"version": 2' in text
    assert load_pack(written(tmp_path, text)).tables[0].rows == (untimed,)
    assert '"version": 1' in dumps(pack)


def test_code_is_left_out_where_it_is_not_known_and_raises_the_version(tmp_path: Path, pack: Pack) -> None:
    assert '"code"' not in dumps(pack)
    code = Code(sha256="c" * 64, registers=40, spills=2, shared_bytes=1024)
    first, *others = pack.tables[1].rows
    known = replace(pack.tables[1], rows=(replace(first, code=code), *others))
    text = dumps(seal(Pack(tables=(pack.tables[0], known))))
    assert json.loads(text)["version"] == 2
    again = load_pack(written(tmp_path, text))
    assert [row.code for row in again.tables[1].rows] == [code, None, None]
    assert dumps(again) == text
    data = json.loads(text)
    data["tables"][1]["rows"][0]["code"]["spills"] = "two"
    with pytest.raises(PackError, match=r"tables\[1\].rows\[0\].code.spills: is of the wrong type \(str\)"):
        load_pack(written(tmp_path, json.dumps(data)))


def test_rows_are_in_numeric_order_one_a_line(pack: Pack) -> None:
    lines = [line for line in dumps(pack).splitlines() if line.startswith('{"config"')]
    points = [json.loads(line.removesuffix(","))["measured_at"]["n"] for line in lines]
    # 16 < 128 < 1024, which is not the order of the strings; NVIDIA A100 sorts before NVIDIA H100
    assert points == [64, 16, 128, 1024]


def test_seal_does_not_depend_on_order(pack: Pack) -> None:
    shuffled = Pack(tables=tuple(replace(t, rows=t.rows[::-1]) for t in reversed(pack.tables)))
    assert seal(shuffled) == pack
    assert seal(replace(pack, tables=(pack.tables[0],))).digest != pack.digest


def test_aligned_rows_stand_first() -> None:
    loose = make_row(16, 8, 32)
    aligned = replace(loose, match=replace(loose.match, facts=FrozenMap(n="div16", x="div16", y="div16")))
    assert seal(Pack(tables=(make_table(loose, aligned),))).tables[0].rows == (aligned, loose)


def test_the_key_is_explained(pack: Pack) -> None:
    other = make_table(make_row(16, 8, 32), key_parts=FrozenMap({**pack.tables[1].key_parts, "triton": "3.7.1"}))
    sealed = seal(Pack(tables=(other,))).tables[0]
    assert sealed.key != pack.tables[1].key
    assert {k for k in sealed.key_parts if sealed.key_parts[k] != pack.tables[1].key_parts[k]} == {"triton"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"BLOCK":128', '"BLOCK":256'),
        ('"median_ms":0.25', '"median_ms":0.2'),
        ('"triton": "3.6.0"', '"triton": "3.7.0"'),
        ('"source": "measured"', '"source": "replayed"'),
        ('"digest": "', '"digest": "0'),
    ],
)  # fmt: skip
def test_a_changed_pack_is_refused(tmp_path: Path, pack: Pack, old: str, new: str) -> None:
    text = dumps(pack)
    assert old in text
    with pytest.raises(PackError, match=r"some\.json.*(digest|table)"):
        load_pack(written(tmp_path, text.replace(old, new, 1)))


def broken(pack: Pack, place: list[str | int], value: Any) -> str:
    data = json.loads(dumps(pack))
    at = data
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        (["tables"], {}, "tables"),
        (["tables", 0], [], r"tables\[0\]"),
        (["tables", 0, "rows", 0], 3, r"tables\[0\]\.rows\[0\]"),
        (["tables", 0, "rows", 0, "config"], None, r"rows\[0\]\.config"),
        (["tables", 0, "rows", 0, "config", "params", "BLOCK"], [1], r"rows\[0\]\.config\.params\.BLOCK"),
        (["tables", 0, "rows", 0, "config", "options", "BLOCK"], 1, r"rows\[0\]\.config"),
        (["tables", 0, "rows", 0, "match", "dims", "n"], [1, 2, 3], r"match\.dims\.n"),
        (["tables", 0, "rows", 0, "match", "dims", "n"], ["016", "abc"], r"match\.dims\.n"),
        (["tables", 0, "rows", 0, "match", "dtypes", "x"], 16, r"match\.dtypes\.x"),
        (["tables", 0, "rows", 0, "median_ms"], "fast", r"rows\[0\]\.median_ms"),
        (["tables", 0, "rows", 0, "median_ms"], True, r"rows\[0\]\.median_ms"),
        (["tables", 0, "rows", 0, "median_ms"], None, r"rows\[0\]: has no time"),
        (["tables", 0, "rows", 0, "interval_ms"], None, r"rows\[0\]: has no time"),
        (["tables", 0, "device", "num_sms"], "many", r"device\.num_sms"),
        (["tables", 0, "device", "bandwidth_gbps"], "fast", r"device\.bandwidth_gbps"),
        (["tables", 0, "device", "live"], 1, r"device\.live"),
        (["tables", 0, "provenance", "source"], "guessed", r"provenance\.source"),
        (["tables", 0, "provenance", "toolchain"], None, r"provenance\.toolchain"),
    ],
)  # fmt: skip
def test_tf_069_a_malformed_field_is_named(
    tmp_path: Path, pack: Pack, place: list[str | int], value: Any, key: str
) -> None:
    with pytest.raises(PackError, match=rf"some\.json: .*{key}"):
        load_pack(written(tmp_path, broken(pack, place, value)))


def test_tf_090_damaged_files(tmp_path: Path, pack: Pack) -> None:
    text = dumps(pack)
    for data in (
        text[: len(text) // 2].encode(),
        b"",
        b"\xef\xbb\xbf" + text.encode(),
        b"\xff\xfe{}",
        b"[]",
        b"{}",
        b"3",
    ):
        with pytest.raises(PackError, match=r"some\.json"):
            load_pack(written(tmp_path, data))
    with pytest.raises(PackError, match="no such file"):
        load_pack(tmp_path / "absent.json")


def test_tables_for_inductor_say_so_and_raise_the_version(tmp_path: Path, pack: Pack) -> None:
    layered = seal(Pack(tables=(make_table(make_row(16, 8, 45), layer=3),)))
    assert '"version": 2' in dumps(layered)
    assert '"layer": 3' in dumps(layered)
    assert load_pack(written(tmp_path, dumps(layered))) == layered
    assert "layer" not in dumps(pack)
    for layer, why in ((4, "is 4, not one of 1, 2, 3"), ("3", "wrong type"), (True, "wrong type")):
        with pytest.raises(PackError, match=rf"tables\[0\]\.layer.*{why}"):
            load_pack(written(tmp_path, broken(layered, ["tables", 0, "layer"], layer)))


def test_other_versions_are_refused(tmp_path: Path, pack: Pack) -> None:
    for version in (3, 0, "1", None, True, 1.0):
        with pytest.raises(PackError, match=r"version .* this release reads 1 and 2"):
            load_pack(written(tmp_path, broken(pack, ["version"], version)))


class Trap:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pack ran code')",)


def test_tf_088_nothing_is_run_and_size_and_depth_have_limits(
    tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PackError):
        load_pack(written(tmp_path, pickle.dumps(Trap())))
    with pytest.raises(PackError, match="deeper"):
        load_pack(written(tmp_path, "[" * 100_000))
    with pytest.raises(PackError, match="digest"):
        load_pack(written(tmp_path, broken(pack, ["tables", 0, "kernel"], "../../x.py:__class__")))
    for number in ("1e999", "NaN"):
        with pytest.raises(PackError):
            load_pack(written(tmp_path, dumps(pack).replace("0.25", number, 1)))
    monkeypatch.setattr("tunefarm.pack_reader.MAX_BYTES", 1 << 20)
    with pytest.raises(PackError, match="more than 1 MiB"):
        load_pack(written(tmp_path, b'"' + b"x" * (1 << 21) + b'"'))
