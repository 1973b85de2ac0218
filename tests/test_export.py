"""From winners to packs: which calls a winner is for, and what an earlier pack keeps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm import GPU, write_experiment
from test_pack import make_table

from tunefarm.cli.exporting import find_incumbents
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.errors import PackError, UserError
from tunefarm.export import export, holds, match_of, update, write_export
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Code, Pack, Row, Table, dumps, seal
from tunefarm.pack_reader import load_pack
from tunefarm.plan import Target, plan
from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, find, shortlist
from tunefarm.study import Status, Study, StudyResult
from tunefarm.trial import Build, Trial, Winner

H100, A100 = nominal("sm_90"), nominal("sm_80")
TOOLCHAIN = FrozenMap(torch="2.11.0", triton="3.6.0")


def make_problem(n: int, m: int = 4096, **facts: str) -> Problem:
    known = {name: "div16" for name, value in (("n", n), ("m", m)) if value % 16 == 0}
    return Problem(
        dims=FrozenMap(n=n, m=m), dtypes=FrozenMap(x="bf16", y="bf16"),
        facts=FrozenMap({"x": "div16", "y": "div16", **known, **facts}),
    )  # fmt: skip


def make_result(problem: Problem, block: int = 64, *, device: Device = H100, **changes: Any) -> StudyResult:
    study = Study(workload="w", device=device, problem=problem, variables=FrozenMap(n=problem.dims["n"]))
    winner = Winner(
        config=Config(params={"BLOCK": block}, options={"num_warps": 4}), median_ms=0.1234567, interval_ms=(0.12, 0.13)
    )
    result = StudyResult(
        study=study, status=Status.WINNER, winner=winner, source="measured", toolchain=TOOLCHAIN, timer="cold"
    )
    return replace(result, **changes)


def make_pack(*results: StudyResult, ranges: tuple[str, ...] = ("n",), source: str = "a" * 64) -> Pack:
    return export(
        results, kernel="k", source_hash=source, sweep="s", experiment="e" * 64, created="2026-01-02",
        tunefarm="0.1.0", ranges=ranges,
    )  # fmt: skip


def test_a_pack_holds_what_was_measured_at_a_problem_on_a_device() -> None:
    won, other = make_result(make_problem(256)), make_result(make_problem(512), 128)
    assert won.winner is not None
    pack, config = make_pack(won), won.winner.config
    assert holds(pack, won.study, config)
    assert not holds(pack, other.study, config), "another problem, though a row may match it"
    assert not holds(pack, replace(won.study, device=nominal("sm_80")), config)
    assert other.winner is not None
    assert not holds(pack, won.study, other.winner.config)


def bounds(pack: Pack) -> dict[Any, Any]:
    return {row.measured_at["n"]: row.match.dims["n"] for table in pack.tables for row in table.rows}


def answer(table: Table, problem: Problem) -> int | None:
    offers = shortlist(
        [Activation(pack=Pack(tables=(table,)), label="p")], "k", table.source_hash, table.device, "3.6.0"
    ).offers
    offer = find(offers, problem, {"n", "m", "x", "y"})
    return None if offer is None else int(str(offer.row.config.params["BLOCK"]))


def test_boundaries_are_geometric_means_and_reach_is_a_factor_of_two() -> None:
    pack = make_pack(*(make_result(make_problem(n)) for n in (256, 4096, 512)))
    assert bounds(pack) == {256: (128, 362), 512: (362, 1448), 4096: (1448, 8192)}


def test_dims_that_may_not_range_are_exact() -> None:
    pack = make_pack(*(make_result(make_problem(n)) for n in (256, 512)), ranges=())
    assert bounds(pack) == {256: 256, 512: 512}


def test_a_ladder_is_climbed_for_equal_other_dims_dtypes_and_facts() -> None:
    odd = make_result(make_problem(1000))  # 1000 is no multiple of 16: another ladder
    wide = make_result(replace(make_problem(2048), dtypes=FrozenMap(x="fp32", y="fp32")))
    other = make_result(make_problem(300, m=32))
    pack = make_pack(*(make_result(make_problem(n)) for n in (512, 1024)), odd, wide, other)
    assert bounds(pack) == {
        512: (256, 724), 1024: (724, 2048), 1000: (500, 2000), 2048: (1024, 4096), 300: (150, 600),
    }  # fmt: skip


def test_tf_067_reach_has_a_limit() -> None:
    table = make_pack(*(make_result(make_problem(n), block=n) for n in (16, 32, 64))).tables[0]
    found = {n: answer(table, make_problem(n)) for n in (16, 32, 48, 64, 128, 144, 2048, 0)}
    assert found == {16: 16, 32: 32, 48: 64, 64: 64, 128: 64, 144: None, 2048: None, 0: None}
    assert answer(table, make_problem(-16)) is None
    assert answer(table, make_problem(24)) is None  # not a multiple of 16: no such row was measured


@pytest.mark.parametrize("seed", range(5))
def test_tf_066_every_measured_problem_finds_its_own_row(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    problems = {
        p.key: p
        for p in (make_problem(draw.randint(1, 600), draw.choice([1, 3, 48, 64, 100, 4096])) for _ in range(60))
    }
    results = [make_result(p, block=i) for i, p in enumerate(problems.values())]
    path = tmp_path / "pack.json"
    write_export(path, make_pack(*results, ranges=("n", "m")))
    table = load_pack(path).tables[0]
    assert [answer(table, r.study.problem) for r in results] == list(range(len(results)))


def test_only_facts_that_a_call_can_be_checked_for_are_kept() -> None:
    row = make_pack(make_result(make_problem(512, stride="div16", bias="none"))).tables[0].rows[0]
    assert dict(row.match.facts) == {"n": "div16", "m": "div16", "x": "div16", "y": "div16", "bias": "none"}


def test_tf_075_two_problems_in_one_row_are_an_error_that_names_both() -> None:
    first, second = make_result(make_problem(512, stride="div16")), make_result(make_problem(512))
    with pytest.raises(UserError, match=r"share one row: .*stride=div16.* and .*add the argument"):
        make_pack(first, second)
    assert len(make_pack(first, make_result(make_problem(512), device=A100)).tables) == 2


def test_tf_008_only_winners_give_rows() -> None:
    lost = replace(make_result(make_problem(1024)), status=Status.NO_WINNER, winner=None)
    nominal_only = replace(make_result(make_problem(512), device=A100), status=Status.NOT_MEASURED, winner=None)
    pack = make_pack(make_result(make_problem(512)), lost, nominal_only)
    assert [table.device.arch for table in pack.tables] == ["sm_90"]
    assert list(bounds(pack)) == [512]


def test_tf_130_without_winners_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    write_export(path, make_pack(make_result(make_problem(512))))
    before = path.read_bytes()
    with pytest.raises(UserError, match="no winners"):
        write_export(path, make_pack(replace(make_result(make_problem(512)), status=Status.NO_WINNER, winner=None)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_measured_and_replayed_do_not_mix(tmp_path: Path) -> None:
    measured, replayed = make_result(make_problem(512)), make_result(make_problem(1024), source="replayed")
    with pytest.raises(UserError, match="differ in source"):
        make_pack(measured, replayed)
    path = tmp_path / "pack.json"
    write_export(path, make_pack(measured))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"pack\.json: would mix measured and replayed"):
        write_export(path, make_pack(replayed))
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="nothing says where"):
        make_pack(replace(measured, source=""))


def test_tf_048_one_table_has_one_toolchain_and_timer() -> None:
    for change in ({"toolchain": FrozenMap(triton="3.7.1")}, {"timer": "graph"}):
        with pytest.raises(UserError, match=f"differ in {next(iter(change))}"):
            make_pack(make_result(make_problem(512)), make_result(make_problem(1024), **change))


def test_a_dim_that_ranges_must_be_an_integer_of_the_problem() -> None:
    for name in ("k", "flag"):
        problem = replace(make_problem(512), dims=FrozenMap(n=512, m=1, flag=True))
        with pytest.raises(UserError, match=f"dim {name} may range"):
            make_pack(make_result(problem), ranges=(name,))


def test_numbers_are_short_enough_to_read() -> None:
    assert make_pack(make_result(make_problem(512))).tables[0].rows[0].median_ms == 0.12346


def test_update_replaces_only_what_was_measured_anew() -> None:
    old = make_pack(
        *(make_result(make_problem(n)) for n in (256, 512, 1024)), make_result(make_problem(256), device=A100)
    )
    faster = replace(make_result(make_problem(512), block=128))
    same = make_result(make_problem(1024))
    assert same.winner is not None
    same = replace(same, winner=replace(same.winner, median_ms=0.2))  # confirmed, with other noise
    new = update(old, make_pack(faster, same))
    before = {row.identity: row for row in old.tables[1].rows}
    after = {row.identity: row for row in new.tables[1].rows}
    changed = {identity for identity in before if before[identity] != after[identity]}
    assert {identity[0]["n"] for identity in changed} == {512}
    assert new.tables[0] == old.tables[0]
    kept = [line for line in dumps(new).splitlines() if line.startswith('{"config"')]
    assert len(set(kept) & set(dumps(old).splitlines())) == 3


def test_a_new_neighbour_moves_the_boundaries() -> None:
    old = make_pack(*(make_result(make_problem(n)) for n in (256, 1024)))
    assert bounds(old) == {256: (128, 512), 1024: (512, 2048)}
    assert bounds(update(old, make_pack(make_result(make_problem(512))))) == {
        256: (128, 362), 512: (362, 724), 1024: (724, 2048),
    }  # fmt: skip


def test_a_confirmed_pack_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    results = [make_result(make_problem(n)) for n in (256, 512)]
    write_export(path, make_pack(*results))
    before, inode = path.read_bytes(), path.stat().st_ino
    again = export(
        results, kernel="k", source_hash="a" * 64, sweep="s", experiment="f" * 64, created="2027-01-01",
        tunefarm="0.2.0", ranges=("n",),
    )  # fmt: skip
    assert write_export(path, again) == load_pack(path)
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)


def test_another_triton_keeps_unmeasured_rows_and_another_source_does_not() -> None:
    old = make_pack(*(make_result(make_problem(n)) for n in (256, 512)))
    newer = make_result(make_problem(512), toolchain=FrozenMap(triton="3.7.1"))
    merged = update(old, make_pack(newer))
    assert sorted((t.key_parts["triton"], len(t.rows)) for t in merged.tables) == [("3.6.0", 1), ("3.7.1", 1)]
    assert update(merged, make_pack(newer)) == merged
    rewritten = update(old, make_pack(make_result(make_problem(512)), source="b" * 64))
    assert [t.source_hash[0] for t in rewritten.tables] == ["b"]


def test_a_damaged_pack_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text("{")
    with pytest.raises(PackError, match=r"pack\.json"):
        write_export(path, make_pack(make_result(make_problem(512))))
    assert path.read_text() == "{"


def test_tf_048_rows_of_another_timer_stay_in_a_table_of_their_own() -> None:
    """They are never merged, and the problem that was timed anew has the new row alone."""
    old = make_pack(*(make_result(make_problem(n)) for n in (256, 512)))
    merged = update(old, make_pack(make_result(make_problem(512), timer="graph")))
    rows = {t.provenance.timer: [row.measured_at["n"] for row in t.rows] for t in merged.tables}
    assert rows == {"cold": [256], "graph": [512]}


def test_rows_tell_the_code_that_was_timed_and_no_other() -> None:
    """A replay's times are of another compiler's code than the one at hand."""
    result = make_result(make_problem(1024))
    assert result.winner is not None
    build = Build(binary="b" * 64, registers=40, spills=2, shared_bytes=1024, code="c" * 64)
    result = replace(result, trials=(Trial(number=0, config=result.winner.config, build=build),))
    terms: dict[str, Any] = {
        "kernel": "k", "source_hash": "a" * 64, "sweep": "s", "experiment": "", "created": "", "tunefarm": "0",
    }  # fmt: skip
    for triton, code in (
        ("3.6.0", Code(sha256="c" * 64, registers=40, spills=2, shared_bytes=1024)), ("3.7.1", None), ("", None),
    ):  # fmt: skip
        (table,) = export([result], **terms, triton=triton).tables
        assert [row.code for row in table.rows] == [code]


def test_an_incumbent_is_a_row_of_this_kernel_at_this_problem(tmp_path: Path) -> None:
    """Not one of another kernel whose arguments are called alike, nor of calls of other alignment."""
    resolved = open_experiment(write_experiment(tmp_path))
    (study, *_) = plan(resolved, [Target(device=GPU)])
    problem, config = study.study.problem, study.candidates[0]
    kernel, source, _ = resolved.workload.packed_as
    row = Row(match=match_of(problem), measured_at=problem.dims, config=config, median_ms=1.0, interval_ms=(0.9, 1.1))
    other_facts = {name: fact for name, fact in row.match.facts.items() if name not in problem.dtypes}
    unaligned = replace(row, match=replace(row.match, facts=FrozenMap(other_facts)))
    table = make_table(row, kernel=kernel, device=GPU, source_hash=source)

    def incumbents(**changes: Any) -> dict[str, Config]:
        pack = seal(Pack(tables=(replace(table, **changes),)))
        return find_incumbents(pack, resolved.workload, [study])

    assert incumbents() == incumbents(source_hash="0" * 64) == {study.study.key: config}
    assert incumbents(kernel="other") == incumbents(layer=3) == incumbents(rows=(unaligned,)) == {}
    assert find_incumbents(None, resolved.workload, [study]) == find_incumbents(None, None, [study]) == {}
