"""The build board: each build once, whoever wants it."""

from __future__ import annotations

import errno
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from farm import GPU, KERNEL, write_experiment

from tunefarm.bench.build import Artifact
from tunefarm.bench.store import BuildStore
from tunefarm.bench.worker import BuildRequest, Built, build
from tunefarm.builds import BUILD_FLOOR_S, BUILD_TIMEOUT_S, BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.plan import PlannedStudy, Target, plan
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Build, Failure, Outcome

CONFIG = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    return open_experiment(write_experiment(tmp_path, problems=[{"n": [1000, 4096, 5000], "dtype": "fp32"}]))


@pytest.fixture
def planned(resolved: Resolved) -> list[PlannedStudy]:
    return plan(resolved, [Target(device=GPU), Target(device=nominal("sm_80"))])


def test_studies_that_the_compiler_cannot_tell_apart_share_builds(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """1000 and 5000 are no multiples of 16, 4096 is; each has its own grid, and each arch its own build."""
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    slots = [board.slot(study.call, CONFIG) for study in planned]
    keys = [slot.key for slot in slots]
    assert keys[0] == keys[2]
    assert keys[3] == keys[5]
    assert len(set(keys)) == 4
    assert [slot.grid for slot in slots[:3]] == [(8, 1, 1), (32, 1, 1), (40, 1, 1)]
    assert board.slot(planned[0].call, CONFIG) is slots[0]


def test_what_was_built_is_found_with_each_study_s_grid(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """A later sweep finds it in the store, at no cost."""
    first, _, third = planned[:3]
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    slot = board.slot(first.call, CONFIG)
    assert board.find(slot, CONFIG) is None
    (built,) = build(slot.request)
    board.put(slot.key, built)
    assert built.build is not None
    assert (board.num_compiled, board.num_from_store, board.build_s) == (1, 0, built.build.build_s)

    later = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    for known in (board, later):
        found = known.find(known.slot(third.call, CONFIG), CONFIG)
        assert found is not None
        assert found.config == CONFIG
        assert found.build is not None
        assert found.build.grid == (40, 1, 1)
        assert found.build.binary == built.build.binary
        assert found.artifact is not None
        assert built.artifact is not None
        assert found.artifact.cubin == built.artifact.cubin
    assert (later.num_compiled, later.num_from_store, later.build_s) == (0, 1, 0.0)
    assert later.find(later.slot(first.call, CONFIG), CONFIG) is not None
    assert later.num_from_store == 1


def test_a_failure_is_known_to_this_sweep_and_not_kept(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """It may have been the machine's: a later sweep tries again."""
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    slot = board.slot(planned[0].call, CONFIG)
    failure = Failure(stage="build", kind="PTXASError", message="no")
    board.put(slot.key, Built(config=Config(), outcome=Outcome.COMPILE_ERROR, failure=failure))
    found = board.find(slot, CONFIG)
    assert found == Built(config=CONFIG, outcome=Outcome.COMPILE_ERROR, failure=failure)
    assert board.num_compiled == 1
    assert BuildBoard(resolved, BuildStore(tmp_path / "builds")).find(slot, CONFIG) is None


def test_a_config_for_which_the_call_raises_fails_alone(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """The user's own code may refuse some configs; that is data about them, not the end of the sweep."""
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    odd = Config(params={"BLOCK": "wide", "MARK": 0}, options={"num_warps": 2})
    found = board.find(board.slot(planned[0].call, odd), odd)
    assert found is not None
    assert found.failure is not None
    assert (found.outcome, found.failure.stage) == (Outcome.USER_ERROR, "launch")
    assert "raised" in found.failure.message
    assert board.find(board.slot(planned[0].call, CONFIG), CONFIG) is None


def test_a_call_that_ends_the_interpreter_for_a_config_does_not_end_the_driver(tmp_path: Path) -> None:
    """The driver follows each config's call itself."""
    kernel = KERNEL.replace('meta["BLOCK"]),)', 'meta["BLOCK"] if meta["MARK"] == 0 else sys.exit("enough")),)')
    resolved = open_experiment(write_experiment(tmp_path, kernel))
    (planned,) = plan(resolved, [Target(device=GPU)])
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    odd = Config(params={"BLOCK": 128, "MARK": 1}, options={"num_warps": 2})
    found = board.find(board.slot(planned.call, odd), odd)
    assert found is not None
    assert found.failure is not None
    assert found.outcome is Outcome.USER_ERROR
    assert "raised SystemExit: enough" in found.failure.message


def test_patience_follows_the_builds_of_the_sweep_and_travels_late(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """A job that waits for a worker knows what was found out meanwhile."""
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    slot = board.slot(planned[0].call, CONFIG)
    _, call = board.job(slot)

    def sent() -> float:
        travelled = pickle.loads(pickle.dumps(call))
        assert travelled.func is build
        request: BuildRequest = travelled.args[0]
        assert request == replace(slot.request, patience_s=request.patience_s)
        return request.patience_s

    assert sent() == BUILD_TIMEOUT_S
    for seconds, patience_s in ((0.5, BUILD_FLOOR_S), (4.0, 120.0), (0.1, 120.0), (60.0, BUILD_TIMEOUT_S)):
        made = Build(binary="", registers=1, spills=0, shared_bytes=0, build_s=seconds)
        artifact = Artifact(binary="", cubin=b"", metadata="{}", specialization="")
        board.put(f"{seconds}", Built(config=CONFIG, build=made, artifact=artifact))
        assert sent() == patience_s


def test_a_store_that_is_full_costs_the_next_sweep_and_not_this_one(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF-087, TF-083: it is said once, the builds at hand are used, and what lies there stays whole."""

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    slots = [board.slot(study.call, CONFIG) for study in planned[:2]]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        for slot in slots:
            (built,) = build(slot.request)
            board.put(slot.key, built)
    assert board.notices == [f"not all builds are kept in {tmp_path}/builds: No space left on device"]
    assert all(board.find(slot, CONFIG) is not None for slot in slots)
    assert [path for path in (tmp_path / "builds").rglob("*") if path.is_file()] == []
    later = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    assert later.find(later.slot(planned[0].call, CONFIG), CONFIG) is None


def test_a_store_that_cannot_even_be_read_has_nothing(
    resolved: Resolved, planned: list[PlannedStudy], tmp_path: Path
) -> None:
    """TF-085."""
    (tmp_path / "file").write_text("")
    board = BuildBoard(resolved, BuildStore(tmp_path / "file" / "builds"))
    slot = board.slot(planned[0].call, CONFIG)
    assert board.find(slot, CONFIG) is None
    (built,) = build(slot.request)
    board.put(slot.key, built)
    assert len(board.notices) == 1
