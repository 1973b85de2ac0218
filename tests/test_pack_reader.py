"""Reading packs row by row, when somebody asks: nothing that is not looked into costs, and nothing unread is used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_kernels import LADDER, SM_90, make_pack, own
from test_pack import make_row, make_table
from test_pack_fuzz import mutated, resealed, used, whole

from tunefarm.config import CODE_OPTIONS
from tunefarm.document import canonical, digest, one_row_a_line
from tunefarm.errors import PackError
from tunefarm.pack import Pack, Row, bind, dumps, seal, table_head
from tunefarm.pack_reader import load_pack, open_pack, parse_pack
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


def laid_out(data: Any) -> str:
    """The JSON of a pack in the layout of `dumps`, whatever it holds."""
    tables = ",\n".join(
        one_row_a_line({k: v for k, v in table.items() if k != "rows"}, table["rows"], "rows").rstrip()
        for table in data["tables"]
    )
    head = json.dumps({k: v for k, v in data.items() if k != "tables"}).removesuffix("}")
    return f'{head},\n"tables": [\n{tables}\n]}}\n'


def changed(pack: Pack, change: Callable[[Any], Any]) -> str:
    """The text of a pack after a change to its JSON, under digests that fit it."""
    data = json.loads(dumps(pack))
    change(data)
    return laid_out(resealed(data))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "p.json"


def test_both_ways_read_the_same(file: Path) -> None:
    for text in (dumps(whole()), json.dumps(json.loads(dumps(whole())), indent=2), dumps(seal(Pack(tables=())))):
        file.write_text(text)
        opened = open_pack(file)
        assert opened == load_pack(file) == parse_pack(text, where="sent")
        assert dumps(opened) == dumps(load_pack(file))
        assert pickle.loads(pickle.dumps(opened)) == opened
        assert bind(opened.tables) == opened
    assert open_pack(file).tables == ()


def test_rows_count_and_compare_before_and_after_they_are_looked_into(file: Path) -> None:
    pack = seal(Pack(tables=(make_table(make_row(16, 8, 45), make_row(64, 45, 128)), make_table(kernel="empty"))))
    file.write_text(dumps(pack))
    rows, none = (table.rows for table in open_pack(file).tables[::-1])
    assert (len(rows), len(none), open_pack(file).num_rows) == (2, 0, 2)
    assert (rows[0], rows[-1:], list(none)) == (pack.tables[1].rows[0], pack.tables[1].rows[1:], [])
    assert (len(rows), hash(rows)) == (2, hash(pack.tables[1].rows))
    assert rows == pack.tables[1].rows
    assert rows != none


def test_what_nobody_looks_into_is_not_parsed(file: Path) -> None:
    pack = seal(Pack(tables=(make_table(make_row(16, 8, 45)), make_table(make_row(16, 8, 45), kernel="other"))))

    def spoil(data: Any) -> None:
        data["tables"][1]["rows"][0]["median_ms"] = "fast"

    file.write_text(changed(pack, spoil))
    opened = open_pack(file)
    assert opened.tables[0].rows == pack.tables[0].rows
    with pytest.raises(PackError, match=r"p\.json: .*tables\[1\]\.rows\[0\]\.median_ms"):
        tuple(opened.tables[1].rows)
    with pytest.raises(PackError, match=r"p\.json: .*tables\[1\]\.rows\[0\]\.median_ms"):
        load_pack(file)


def rows_of(change: Callable[[list[str]], list[str]]) -> str:
    """A pack whose lines of rows were changed, under the digest of the new lines."""
    text = dumps(seal(Pack(tables=(make_table(make_row(16, 8, 45), make_row(64, 45, 128)),))))
    table = seal(Pack(tables=(make_table(make_row(16, 8, 45), make_row(64, 45, 128)),))).tables[0]
    before, begin, rest = text.partition('"rows": [\n')
    body, end, after = rest.partition("\n]}")
    lines = change(body.split(",\n"))
    new = hashlib.sha256(f"[{canonical(table_head(table))},[{','.join(lines)}]]".encode()).hexdigest()
    body = ",\n".join(lines)
    whole = f"{before}{begin}{body}{end}{after}".replace(table.digest, new)
    return whole.replace(digest([table.digest]), digest([new]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[::-1], r"rows: is not in order"),
        (lambda rows: [rows[0], rows[1].replace(":", ": ", 1)], r"rows\[1\]: is not written as"),
        (lambda rows: [rows[0].replace("0.25", "1e999"), rows[1]], r"rows\[0\]: is not written as"),
        (lambda rows: [rows[0].replace("0.25", "NaN"), rows[1]], "NaN"),
        (lambda rows: [rows[0].replace('"gain":2.0', '"gain":2.0,"gain":2.0'), rows[1]], "appears twice"),
        (lambda rows: ["[" * 40 + "]" * 40, rows[1]], "nested deeper"),
        (lambda rows: ["", rows[1]], "is not valid JSON"),
        (lambda rows: ["3", rows[1]], r"rows\[0\]"),
        (
            lambda rows: [rows[0], rows[1].replace('"median_ms":0.25', '"median_ms":0')],
            r"median_ms: is 0 ms, no time",
        ),
        (
            lambda rows: [rows[0].replace('"gain":2.0', f'"gain":{10**400}'), rows[1]],
            "gain: is an integer of 1329 bits",
        ),
        (
            lambda rows: [rows[0], rows[1].replace('at":{"k":64,"n":64', f'at":{{"k":64,"n":{10**400}')],
            r"measured_at\.n: is an integer",
        ),
        (lambda rows: [rows[0].replace("[8,45]", f"[8,{10**400}]"), rows[1]], r"match\.dims\.n: is an integer of"),
        (
            lambda rows: [rows[0].replace('"n":16}', f'"n":{10**400}}}'), rows[1]],
            r"measured_at\.n: is an integer of 1329",
        ),
        (lambda rows: [rows[0].replace("0.25", str(10**400)), rows[1]], r"rows\[0\]\.median_ms: is an integer of 1329"),
        (lambda rows: [rows[0].replace("0.25", "0.0"), rows[1]], r"rows\[0\]\.median_ms: is 0\.0 ms, no time"),
        (lambda rows: [rows[0].replace("[8,45]", "[45,45]"), rows[1]], r"dims\.n: is \(45, 45\], which holds nothing"),
        (lambda rows: [rows[0].replace(',"n":16}', "}"), rows[1]], r"dims\.n: is a range, and measured_at has no"),
    ],
)
def test_rows_that_no_release_writes_are_refused_though_their_digest_is_right(
    file: Path, change: Callable[[list[str]], list[str]], why: str
) -> None:
    file.write_text(rows_of(lambda rows: rows))
    assert load_pack(file).num_rows == 2
    file.write_text(rows_of(change))
    opened = open_pack(file)
    with pytest.raises(PackError, match=why):
        tuple(opened.tables[0].rows)
    with pytest.raises(PackError, match=why):
        load_pack(file)


def test_a_changed_row_is_noticed_though_nobody_looks_into_it(file: Path) -> None:
    file.write_text(dumps(whole()).replace('"BLOCK":16}', '"BLOCK":17}', 1))
    with pytest.raises(PackError, match="was changed after export"):
        open_pack(file)


def test_tf_088_090_mutated_packs_in_our_own_layout(file: Path) -> None:
    rng, read, late = random.Random(20261130), 0, 0
    for _ in range(400):
        data = mutated(rng)
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            file.write_bytes(laid_out(resealed(data)).encode())
            try:
                opened = open_pack(file)
            except PackError as error:
                told = str(error)
                assert told.startswith(str(file)), told
                continue
            read += 1
            try:
                loaded = load_pack(file)
            except PackError as error:
                told = str(error)
                assert told.startswith(str(file)), told
                late += 1
                continue
            used(loaded)
            assert opened == loaded
    assert read > 20
    assert late > 5


@pytest.mark.parametrize(("part", "name", "value"), [("config.params", "BLOCK", [128]), ("measured_at", "n", 10**400)])
def test_a_job_goes_on_without_rows_that_make_no_sense(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str, name: str, value: Any
) -> None:
    launched: list[int] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))

    def spoil(data: Any) -> None:
        found = data["tables"][0]["rows"][0]
        for step in part.split("."):
            found = found[step]
        found[name] = value

    file.write_text(changed(make_pack(own, *LADDER), spoil))
    with caplog.at_level(logging.WARNING):
        assert activate(file, device=SM_90) is not None
        own[(1,)](torch.zeros(256), torch.zeros(256), 256)
    assert launched == [64]
    assert f"{part}.{name}" in caplog.text
    assert f"{part}.{name}" in report().refused[0]
    with pytest.raises(PackError, match=f"{part}.{name}"):
        activate(file, device=SM_90, strict=True)


@pytest.mark.parametrize("part", ["params", "options"])
@pytest.mark.parametrize("name", sorted(CODE_OPTIONS))
def test_a_row_cannot_have_code_of_a_file_run_in_the_kernels_place(
    part: str, name: str, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, **passed: launched.append((passed["BLOCK"], name in passed)))

    def spoil(data: Any) -> None:
        data["tables"][0]["rows"][0]["config"][part][name] = "/tmp/other.ptx"

    file.write_text(changed(make_pack(own, *LADDER), spoil))
    with pytest.raises(PackError, match=rf"config\.{part}\.{name}: may name a file of code"):
        load_pack(file)
    with caplog.at_level(logging.WARNING):
        activate(file, device=SM_90)
        own[(1,)](torch.zeros(256), torch.zeros(256), 256)
    assert launched == [(64, False)]
    assert f"config.{part}.{name}" in caplog.text


@pytest.mark.parametrize("character", ["\x1b", "\n", "\x7f", "\x9b", "\u202e"])
def test_what_a_terminal_would_obey_is_refused(file: Path, character: str) -> None:
    table = make_table(make_row(16, 8, 45))
    for name, escaped in ((f"k{character}[31m", False), (f"\\{character}", True), ("\\n \\u001b", None)):
        pack = seal(Pack(tables=(replace(table, kernel=name),)))
        file.write_text(json.dumps(json.loads(dumps(pack))) if escaped else dumps(pack))
        if escaped is None:  # a backslash and a letter
            assert load_pack(file).tables[0].kernel == name
            continue
        with pytest.raises(PackError, match=r"p\.json: holds a control character in line"):
            load_pack(file)


def test_rows_are_one_line_each() -> None:
    row: Row = make_row(16, 8, 45)
    assert dumps(seal(Pack(tables=(make_table(row),)))).count('{"config"') == 1
