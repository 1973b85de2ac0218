"""The Optuna storage that mirrors studies: real files and databases, read back with Optuna itself."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from farm import wait_until
from mirrored import FAILURE, NAME, OWNER, STUDY, WINNER, State, config, lives, mirror, opened, shown, timed, trials

from tunefarm.seams import Mirror, NullMirror
from tunefarm.search.mirror import StorageMirror
from tunefarm.trial import FINAL, PREPARE, Outcome, Trial


@pytest.fixture(params=["journal", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """In a folder that is not there yet."""
    names = {"journal": f"journal:{tmp_path}/new/optuna.log", "sqlite": f"sqlite:///{tmp_path}/new/optuna.db"}
    return names[request.param]


# ---- the contract: who mirrors and who does not are told the same ----


@pytest.mark.parametrize("kind", ["journal", "sqlite", "lost", "none"])
def test_a_mirror_returns_at_once_never_raises_and_is_closed_once_or_twice(kind: str, tmp_path: Path) -> None:
    storages = {"journal": f"journal:{tmp_path}/optuna.log", "sqlite": f"sqlite:///{tmp_path}/optuna.db"}
    lost = f"sqlite:////proc/nowhere/{kind}.db"
    it: Mirror = NullMirror() if kind == "none" else StorageMirror(storages.get(kind, lost), OWNER)
    for num in range(3):
        began = time.monotonic()
        it.show(STUDY, trials(num))
        assert time.monotonic() - began < 5.0
    it.show(STUDY, trials(), WINNER)
    said = it.close(30.0)
    assert bool(said) == (kind == "lost")
    assert it.close(1.0) in ([], said)


# ---- what is shown ----


def test_the_trials_that_have_ended_are_shown_in_optuna_s_words(storage: str) -> None:
    assert mirror(storage, trials()) == []
    study = shown(storage)
    done, pruned, failed = study.trials
    assert (done.state, done.value, done.intermediate_values) == (State.COMPLETE, 1.0, {0: 1.5, 1: 1.0})
    assert (pruned.state, pruned.value, pruned.intermediate_values) == (State.PRUNED, 4.0, {0: 4.0})
    assert (failed.state, failed.value, failed.intermediate_values) == (State.FAIL, None, {})
    assert done.params == {"BLOCK": 64, "num_warps": 4, "maxnreg": None}
    assert done.distributions["BLOCK"].choices == (64, 128, 256, 512, 1024)
    assert done.user_attrs == {
        "candidate": 0, "attempt": 0, "outcome": "ok", "bucket": 2, "config": "BLOCK=64 num_warps=4 maxnreg=None",
    }  # fmt: skip
    assert failed.user_attrs["outcome"] == "out_of_resources"
    assert failed.user_attrs["failure"] == "launch: OutOfResources: shared memory"
    assert study.best_trial.user_attrs["candidate"] == 0
    about = {name: study.user_attrs[name] for name in ("workload", "device", "sweep", "source", "seed")}
    assert about == {
        "workload": "softmax", "device": "NVIDIA H200 (sm_90)", "sweep": "abc", "source": "replayed", "seed": 7,
    }  # fmt: skip
    assert study.user_attrs["problem"]["dims"] == {"n_cols": 4096}


def test_a_study_is_shown_batch_by_batch_while_it_goes_on(storage: str) -> None:
    mirror(storage, trials(0))  # Two that make the tables of a database at once are in each other's way.
    it = StorageMirror(storage, OWNER)
    it.show(STUDY, trials(1))
    assert wait_until(lambda: len(shown(storage).trials) == 1, 30)
    it.show(STUDY, trials(2))
    assert wait_until(lambda: len(shown(storage).trials) == 2, 30)
    assert it.close() == []


def test_the_winner_and_the_finals_stand_with_the_study_and_change_no_trial(storage: str) -> None:
    finalist = trials()[0]
    finalist = replace(finalist, measurements=(*finalist.measurements, timed(FINAL, 0.75)))
    mirror(storage, trials(), [finalist, *trials()[1:]], winner=WINNER)
    study = shown(storage)
    assert study.user_attrs["winner"] == "BLOCK=64 num_warps=4 maxnreg=None"
    assert study.user_attrs["winner_ms"] == 0.75
    assert study.user_attrs["finals_ms"] == {"0": 0.75}
    assert [t.value for t in study.trials] == [1.0, 4.0, None]


# ---- going on ----


def test_going_on_adds_what_is_missing_and_nothing_twice(storage: str) -> None:
    mirror(storage, trials(1))
    assert mirror(storage, trials(1), trials(2), trials()) == []
    assert mirror(storage, trials()) == []
    assert lives(shown(storage)) == [
        (0, 0, "ok", State.COMPLETE),
        (1, 0, "pruned", State.PRUNED),
        (2, 0, "out_of_resources", State.FAIL),
    ]


def test_a_finalist_that_fails_after_all_has_a_second_trial(storage: str) -> None:
    """And a driver that goes on, and hears first of its success again, adds no third."""
    late = replace(trials()[0], outcome=Outcome.WRONG_RESULT, failure=FAILURE)
    mirror(storage, trials(1))
    mirror(storage, [late, *trials(1)[1:]])
    mirror(storage, trials(1))
    mirror(storage, [late, *trials(1)[1:]])
    assert lives(shown(storage)) == [(0, 0, "ok", State.COMPLETE), (0, 1, "wrong_result", State.FAIL)]


def test_what_befell_the_whole_problem_or_was_merged_is_no_trial(storage: str) -> None:
    """The next sweep measures the one, and nobody the other."""
    befallen = replace(FAILURE, stage=PREPARE)
    word = [
        replace(trials()[0], outcome=Outcome.DEVICE_OOM, failure=befallen, measurements=()),
        replace(trials()[1], outcome=Outcome.MERGED, merged_into=0, measurements=()),
        *trials()[2:],
    ]
    mirror(storage, word)
    assert lives(shown(storage)) == [(2, 0, "out_of_resources", State.FAIL)]
    mirror(storage, [trials()[0], *word[1:]])
    assert lives(shown(storage))[1:] == [(0, 0, "ok", State.COMPLETE)]


def test_what_a_dead_driver_left_running_is_ended_and_tried_anew(storage: str) -> None:
    mirror(storage, trials(1))
    left = shown(storage)
    zombie = left.ask({"BLOCK": optuna.distributions.CategoricalDistribution((64, 128, 256, 512, 1024))})
    zombie.set_user_attr("candidate", 1)
    assert [t.state for t in left.trials] == [State.COMPLETE, State.RUNNING]
    assert mirror(storage, trials(2)) == []
    now = shown(storage).trials
    assert [t.state for t in now] == [State.COMPLETE, State.FAIL, State.PRUNED]
    assert (now[2].user_attrs["candidate"], now[2].user_attrs["attempt"]) == (1, 1)


WRITER = """
import sys
sys.path.insert(0, {tests!r})
import time
from mirrored import *
import tunefarm.search.storage
tunefarm.search.storage.WAIT_S = 3
it = StorageMirror({storage!r}, OWNER)
for num in range(10_000):
    word = [Trial(number=n, config=config(n), measurements=(timed(0, 1.0), timed(1, 1.0 + n))) for n in range(400)]
    it.show(STUDY, word[:num % 400 + 1] + [Trial(number=t.number, config=t.config) for t in word[num % 400 + 1:]])
    time.sleep(0.01)
"""


def test_a_writer_killed_at_any_moment_leaves_a_storage_that_is_gone_on_with(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 twice; then each candidate is there once, and no trial is running."""
    monkeypatch.setattr("tunefarm.search.storage.WAIT_S", 3)
    whole = [Trial(number=n, config=config(n), measurements=(timed(0, 1.0), timed(1, 1.0 + n))) for n in range(400)]
    mirror(storage, [replace(trial, measurements=()) for trial in whole])
    seen = 0
    for _ in range(2):
        code = WRITER.format(tests=str(Path(__file__).parent), storage=storage)
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            try:
                assert wait_until(lambda: _num_trials(storage) > seen + 8, 60)  # noqa: B023
            finally:
                process.kill()
        seen = _num_trials(storage)
    assert mirror(storage, whole[:30] + [Trial(number=t.number, config=t.config) for t in whole[30:]]) == []
    study = shown(storage)
    candidates = [t.user_attrs["candidate"] for t in study.trials]
    assert len(candidates) == len(set(candidates)) >= 30
    assert {t.state for t in study.trials} == {State.COMPLETE}


def _num_trials(storage: str) -> int:
    try:
        return len(shown(storage).trials)
    except Exception:  # not there yet
        return 0


# ---- what must not be mixed ----


@pytest.mark.parametrize(
    "other",
    [
        lambda: ({"owner": replace(OWNER, edition="2")}, trials()),
        lambda: ({"owner": replace(OWNER, sweep_id="xyz")}, trials()),
        lambda: ({}, [*trials(), Trial(number=5, config=config(2048))]),
        lambda: ({}, trials()[:4]),
    ],
    ids=["measured anew", "another sweep", "a value more", "a value less"],
)
def test_what_does_not_belong_together_is_kept_apart_and_that_is_said(
    storage: str, other: Callable[[], tuple[dict[str, Any], list[Trial]]]
) -> None:
    mirror(storage, trials())
    options, word = other()
    for _ in range(2):
        (notice,) = mirror(storage, word, **options)
        assert notice.endswith(f"holds studies of other spaces or sweeps: {NAME} (2) is this sweep's")
        assert notice.startswith(f"Optuna storage {storage}")
    assert sorted(optuna.get_all_study_names(opened(storage))) == [NAME, f"{NAME} (2)"]
    assert len(shown(storage).trials) == len(shown(storage, f"{NAME} (2)").trials) == 3
    # The first is gone on with as if nothing had been.
    assert mirror(storage, trials()) == []
    assert len(shown(storage).trials) == 3


def test_a_study_that_somebody_else_made_is_left_alone(storage: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    theirs = optuna.create_study(study_name=NAME, storage=opened(storage), direction="maximize")
    theirs.add_trial(optuna.create_trial(value=3.0))
    assert len(mirror(storage, trials())) == 1
    assert [t.value for t in shown(storage).trials] == [3.0]
    assert len(shown(storage, f"{NAME} (2)").trials) == 3


def test_two_studies_of_a_sweep_with_one_label_have_two_names_and_no_notice(storage: str) -> None:
    other = replace(STUDY, device=replace(STUDY.device, name="NVIDIA H100 80GB HBM3"))
    for _ in range(2):
        it = StorageMirror(storage, OWNER)
        it.show(STUDY, trials())
        it.show(other, trials())
        assert it.close() == []
    assert set(optuna.get_all_study_names(storage=opened(storage))) == {NAME, f"{NAME} (2)"}
