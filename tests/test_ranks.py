"""Ranks: several real processes take one pack, or none of them starts; nobody waits for the others in vain."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ranked import ROOT, TIMEOUT_S, World, answers
from runtime_kernels import LADDER, block, make_pack, make_row, own

from tunefarm.errors import UserError
from tunefarm.pack import Pack, dumps
from tunefarm.runtime.activation import activate
from tunefarm.runtime.ranks import _by_rank

NEW = make_pack(own, *LADDER)
OLD = make_pack(own, *(make_row(n, block(1024), bounds=(n // 2, 2 * n)) for n in (256, 1024)))
STOCK = ["BLOCK=64 num_warps=4 num_stages=3"] * 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(World(tmp_path_factory.mktemp("world"), 3)) as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Paths by what is there."""

    def put(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return {
        "new": put("new.json", dumps(NEW)),
        "copy": put("copy.json", json.dumps(json.loads(dumps(NEW)))),
        "old": put("old.json", dumps(OLD)),
        "torn": put("torn.json", dumps(NEW)[:900]),
        "gone": str(tmp_path / "gone.json"),
    }


def told(world: World, first: str, others: str, **more: Any) -> list[dict[str, Any]]:
    """What becomes of it when rank 0 has one file and the others have another, within seconds."""
    others_ = [{"source": others, **more} for _ in world.ranks[1:]]
    found = world.activate({"source": first, **more}, *others_)
    assert all(each["seconds"] < TIMEOUT_S / 3 for each in found)
    return found


def only(found: list[dict[str, Any]], name: str) -> Any:
    """The one value that all ranks gave."""
    (value,) = answers(found, name)
    return json.loads(value)


def short(pack: Pack) -> str:
    return pack.digest[:12]


@pytest.mark.parametrize("group", ["true", "world", "mine"])
def test_ranks_with_one_pack_go_on(world: World, files: dict[str, str], group: str) -> None:
    """Equal is what they hold: path and spelling may differ."""
    found = told(world, files["new"], files["copy"], group=group)
    assert only(found, "error") == ""
    assert only(found, "digest") == NEW.digest
    assert only(found, "said") == []
    assert [each["packs"] for each in found] == [[files["new"]], *[[files["copy"]]] * (len(found) - 1)]


def test_tf_076_ranks_with_different_packs_all_stop_in_the_same_words(world: World, files: dict[str, str]) -> None:
    found = told(world, files["new"], files["old"])
    error = only(found, "error")
    assert error.startswith("UserError: ranks disagree on the pack: ")
    assert f"rank 0: {files['new']} (digest {short(NEW)}); ranks 1-2: {files['old']} " in error
    assert short(OLD) in error
    assert 'on_disagreement="rank0"' in error
    assert only(found, "packs") == []


@pytest.mark.parametrize("defect", ["torn", "gone"])
@pytest.mark.parametrize("strict", [False, True])
def test_tf_076_a_rank_without_a_pack_takes_part(
    world: World, files: dict[str, str], defect: str, strict: bool
) -> None:
    for first, others in ((files[defect], files["new"]), (files["new"], files[defect])):
        error = only(told(world, first, others, strict=strict), "error")
        assert f"none ({files[defect]}: " in error
        assert short(NEW) in error


@pytest.mark.parametrize("theirs", ["old", "torn", "gone"])
def test_tf_076_all_take_the_pack_of_rank_0(world: World, files: dict[str, str], theirs: str) -> None:
    found = told(world, files["new"], files[theirs], on_disagreement="rank0", strict=theirs == "torn")
    assert only(found, "error") == ""
    assert only(found, "digest") == NEW.digest
    assert only(found, "configs") == [f"BLOCK={size} num_warps=4" for size in (128, 256, 512)]
    assert found[0]["packs"] == [files["new"]]
    assert found[1]["packs"] == [f"{files['new']} of rank 0"]
    (said,) = only(found, "said")
    assert said.startswith("ranks disagree on the pack, and all take rank 0's: rank 0: ")


def test_a_rank_that_has_the_pack_of_rank_0_says_nothing(world: World, files: dict[str, str]) -> None:
    sources = [files["new"], files["old"], files["copy"]]
    found = world.activate(*({"source": source, "on_disagreement": "rank0"} for source in sources))
    assert [len(each["said"]) for each in found] == [1, 1, 0]
    assert only(found, "digest") == NEW.digest
    error = only(world.activate(*({"source": source} for source in sources)), "error")
    assert f"ranks 0, 2: {files['new']}" in error


def test_a_pack_that_one_rank_cannot_read_is_taken_by_none(world: World, files: dict[str, str]) -> None:
    """As where another release of tunefarm is installed on a node."""
    others = [{"source": files["old"], "on_disagreement": "rank0"} for _ in world.ranks[2:]]
    asked = {"source": files["new"], "on_disagreement": "rank0"}, {"source": files["old"], "on_disagreement": "rank0"}
    error = only(world.activate(asked[0], {**asked[1], "deaf": True}, *others), "error")
    assert error.startswith("PackError: rank 0's pack cannot be taken by all ranks: rank")
    assert f"rank 1: {files['new']} of rank 0: has version 1, this release reads 8 and 9" in error


def test_without_a_pack_on_rank_0_nobody_has_one(world: World, files: dict[str, str]) -> None:
    """Damaged: as if there were none. Missing, or strict: all stop."""
    found = told(world, files["torn"], files["new"], on_disagreement="rank0")
    assert (only(found, "error"), only(found, "digest"), only(found, "configs")) == ("", "none", STOCK)
    assert f"rank 0 has no pack for the others: {files['torn']}" in only(found, "said")[0]
    for first, strict in (("torn", True), ("gone", False)):
        error = only(told(world, files[first], files["new"], on_disagreement="rank0", strict=strict), "error")
        assert error.startswith(f"PackError: rank 0 has no pack for the others: {files[first]}")


@pytest.mark.parametrize("policy", ["error", "rank0"])
def test_without_a_pack_anywhere_ranks_do_the_same(world: World, files: dict[str, str], policy: str) -> None:
    """A missing file is an error and a damaged one is not, so one of each is an error everywhere."""
    found = told(world, files["torn"], files["torn"], on_disagreement=policy)
    assert (only(found, "error"), only(found, "digest"), only(found, "packs")) == ("", "none", [])
    assert "no rank has a pack: rank" in only(found, "said")[0]
    error = only(told(world, files["torn"], files["gone"], on_disagreement=policy), "error")
    assert error.startswith("PackError: no rank has a pack: rank 0: ")
    assert f"ranks 1-2: {files['gone']}: no such file" in error


def test_ranks_differ_in_what_they_would_do(world: World, files: dict[str, str]) -> None:
    """One would wait for a broadcast that another never makes."""
    policies = ["rank0", *["error"] * (len(world.ranks) - 1)]
    found = world.activate(*({"source": files["new"], "on_disagreement": policy} for policy in policies))
    assert "ranks differ in on_disagreement: rank 0: rank0; ranks 1-2: error" in only(found, "error")


def test_ranks_would_use_one_pack_differently(world: World, files: dict[str, str]) -> None:
    """By the stretched range of a row on one of them, say, where others take the default."""
    terms: list[dict[str, Any]] = [{"on_miss": "nearest"}, *({"on_miss": "default"} for _ in world.ranks[1:])]
    error = only(world.activate(*({"source": files["new"], **each} for each in terms)), "error")
    assert (
        "ranks differ in their terms: rank 0: on_miss='nearest', strict=False, allow_replayed=False; ranks 1-2" in error
    )


def test_a_process_outside_the_group_is_told(world: World, files: dict[str, str]) -> None:
    assert "this process is not in the group" in only(told(world, files["new"], files["new"], group="other"), "error")


def test_a_policy_is_one_of_two(world: World, files: dict[str, str]) -> None:
    found = told(world, files["new"], files["new"], on_disagreement="majority")
    assert only(found, "error") == "UserError: on_disagreement is 'majority' (it is one of error, rank0)"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_never_comes_is_an_error_of_the_farm(tmp_path: Path, files: dict[str, str], leaves: bool) -> None:
    """It has died, or it does something else until the group's own time-out."""
    with closing(World(tmp_path, 2, brief_s=4)) as world:
        if leaves:
            world.tell(1, leave=True)
            world.ranks[1].wait(TIMEOUT_S)
        world.tell(0, source=files["new"], group="brief")
        error = world.hear(0)["error"]
    assert error.startswith("InfrastructureError: a rank could not be asked for its pack: ")
    assert "also one without a pack" in error


def test_a_group_must_be_there(files: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"init_process_group before tunefarm\.activate"):
        activate(files["new"], group=True)


def test_without_a_group_nothing_distributed_is_loaded(files: dict[str, str]) -> None:
    script = f"import sys, tunefarm; tunefarm.activate({files['new']!r}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_a_thousand_ranks_are_told_of_in_a_few_words() -> None:
    assert (
        _by_rank("b" if rank in (5, 7, 8) else "a" for rank in range(1000)) == "ranks 0-4, 6, 9-999: a; ranks 5, 7-8: b"
    )
    assert _by_rank(map(str, range(10))).endswith("rank 7: 7; 2 other answers")
