"""A sweep that is interrupted, killed, started twice or started again: the real command, ended by real signals."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import optuna
import pytest
from farm import (
    children,
    command,
    environment,
    events,
    measured,
    running,
    tunefarm,
    wait_until,
    write_experiment,
    write_landscape,
)

ARGUMENTS = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--json")
LEDGER = Path("sweeps/fill/ledger.jsonl")
# One candidate a batch, so that a sweep takes a while.
SLOW: dict[str, Any] = {
    "problems": [{"n": [1000, 4096], "dtype": "fp32"}],
    "space": {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]},
    "search": {"sampler": "tpe", "batch": 1},
    "budget": {"trials": 30},
    "export": "packs/fill.json",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_landscape(write_experiment(tmp_path, **SLOW))
    return tmp_path


def winners(text: str) -> list[Any]:
    return [study["winner"] for study in json.loads(text)["studies"]]


def test_a_killed_sweep_goes_on_where_it_was(folder: Path, store: Path) -> None:
    """TF-057, TF-112: killed three times; nothing is measured twice, and the winners are those of a calm sweep."""
    calm = tunefarm(*ARGUMENTS, "--sweeps", "calm", folder=folder, store=store)
    assert calm.returncode == 0, calm.stderr
    (folder / "packs/fill.json").unlink()
    all_measured = measured(folder / "calm/fill/ledger.jsonl")
    for share in (0.2, 0.5, 0.75):
        with running(*ARGUMENTS, folder=folder, store=store) as process:
            enough = share * len(all_measured)
            assert wait_until(lambda: len(measured(folder / LEDGER)) >= enough or process.poll() is not None)  # noqa: B023
            assert process.poll() is None, "too fast to be killed"
            workers = children(process.pid)
            process.send_signal(signal.SIGKILL)
        assert workers
        assert wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in workers))  # noqa: B023
    last = tunefarm(*ARGUMENTS, folder=folder, store=store)
    assert last.returncode == 0, last.stderr
    assert winners(last.stdout) == winners(calm.stdout)
    found = measured(folder / LEDGER)
    assert len(found) == len(set(found))
    assert set(found) == set(all_measured)
    assert len({e["epoch"] for e in events(folder / LEDGER, "measured")}) >= 3
    assert (folder / "packs/fill.json").exists()


def test_a_finished_sweep_started_again_measures_nothing(folder: Path, store: Path) -> None:
    """Nor does it change the pack; `--fresh` measures again."""
    first = tunefarm(*ARGUMENTS, folder=folder, store=store)
    assert first.returncode == 0, first.stderr
    before, pack = measured(folder / LEDGER), (folder / "packs/fill.json").read_bytes()
    again = tunefarm(*ARGUMENTS, folder=folder, store=store)
    assert again.returncode == 0, again.stderr
    assert measured(folder / LEDGER) == before
    assert len(events(folder / LEDGER, "finals")) == 2
    assert winners(again.stdout) == winners(first.stdout)
    assert (folder / "packs/fill.json").read_bytes() == pack
    fresh = tunefarm(*ARGUMENTS, "--fresh", folder=folder, store=store)
    assert fresh.returncode == 0, fresh.stderr
    assert len(measured(folder / LEDGER)) > 1.5 * len(before)
    assert len(events(folder / LEDGER, "finals")) == 4


def test_a_second_driver_is_refused_and_the_first_goes_on(folder: Path, store: Path) -> None:
    with running(*ARGUMENTS, folder=folder, store=store) as process:
        assert wait_until(lambda: len(events(folder / LEDGER, "study")) > 0)
        # Held still, so that it cannot be done before the second one has started.
        process.send_signal(signal.SIGSTOP)
        second = tunefarm(*ARGUMENTS, folder=folder, store=store)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60)
    assert second.returncode == 2
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert line.startswith(f"error: {LEDGER}: is being written by pid {process.pid} on ")
    assert "give the same command again" in line
    assert process.returncode == 0, err
    assert len(winners(out)) == 2
    assert {e["epoch"] for e in events(folder / LEDGER)} == {1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_a_scheduler_end_it_in_one_line_that_says_how_to_go_on(
    folder: Path, store: Path, number: signal.Signals
) -> None:
    with running(*ARGUMENTS, folder=folder, store=store) as process:
        assert wait_until(lambda: len(measured(folder / LEDGER)) > 3)
        workers = children(process.pid)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err == "interrupted: what was measured is in the ledger; the same command goes on from there\n"
    assert workers
    assert not any(Path(f"/proc/{pid}/cwd").exists() for pid in workers)
    assert not (folder / "packs").exists()
    again = tunefarm(*ARGUMENTS, folder=folder, store=store)
    assert again.returncode == 0, again.stderr
    found = measured(folder / LEDGER)
    assert len(found) == len(set(found))


IN_LITTLE_ROOM = 'mount -t tmpfs -o size=64k tmpfs sweeps || exit 77; "$@"; code=$?; cp -r sweeps kept; exit $code'


def test_a_full_disk_ends_it_in_one_line_and_with_more_room_it_goes_on(folder: Path, store: Path) -> None:
    """On a real file system that is too small for the ledger."""
    (folder / "sweeps").mkdir()
    line = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_LITTLE_ROOM, "sh", *command(*ARGUMENTS)]
    try:
        full = subprocess.run(
            line, cwd=folder, env=environment(store), capture_output=True, text=True, timeout=240, check=False
        )
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if full.returncode in (1, 77) and "error: " not in full.stderr:
        pytest.skip("file systems cannot be mounted here")
    assert full.returncode == 2
    assert full.stderr == (
        f"error: {LEDGER}: cannot be written: No space left on device (free some space and give the same command "
        "again: it goes on where it stopped)\n"
    )
    kept = folder / "kept/fill/ledger.jsonl"
    before = measured(kept)
    assert before
    assert kept.read_bytes().endswith(b"\n")
    again = tunefarm(*ARGUMENTS, "--sweeps", "kept", folder=folder, store=store)
    assert again.returncode == 0, again.stderr
    found = measured(kept)
    assert found[: len(before)] == before
    assert len(found) == len(set(found))


# ---- the Optuna storage that mirrors it ----

MIRRORED = (*ARGUMENTS, "--optuna-storage", "sqlite:///optuna.db")


def mirrored(folder: Path) -> dict[str, list[Any]]:
    """Trials of the studies in the storage, by the studies' names."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")
    try:
        names = optuna.get_all_study_names(storage)
        return {name: optuna.load_study(study_name=name, storage=storage).trials for name in names}
    finally:
        storage.remove_session()
        storage.engine.dispose()


def told(trials: list[Any]) -> list[Any]:
    return sorted((t.user_attrs["candidate"], t.user_attrs["attempt"], t.state.name, t.value) for t in trials)


def test_a_killed_sweep_s_mirror_is_brought_up_to_date(folder: Path, store: Path) -> None:
    """It holds what that of a calm sweep does, each trial once; a mirror begun late holds the same."""
    with running(*MIRRORED, folder=folder, store=store) as process:
        assert wait_until(lambda: len(measured(folder / LEDGER)) >= 24 or process.poll() is not None)
        assert process.poll() is None, "too fast to be killed"
        process.send_signal(signal.SIGKILL)
    last = tunefarm(*MIRRORED, folder=folder, store=store)
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["notices"] == []
    assert json.loads(last.stdout)["optuna_storage"] == "sqlite:///optuna.db"
    killed = {name: told(trials) for name, trials in mirrored(folder).items()}
    assert sorted(killed) == ["fill/fill sm_90 1000 fp32", "fill/fill sm_90 4096 fp32"]
    tried = {
        (e["study"], e["config"]) for e in [*events(folder / LEDGER, "measured"), *events(folder / LEDGER, "failed")]
    }
    assert sum(map(len, killed.values())) == len(tried)
    (folder / "optuna.db").unlink()
    late = tunefarm(*MIRRORED, folder=folder, store=store)
    assert late.returncode == 0, late.stderr
    assert {name: told(trials) for name, trials in mirrored(folder).items()} == killed


def test_an_edited_space_is_mirrored_as_another_study(folder: Path, store: Path) -> None:
    first = tunefarm(*MIRRORED, folder=folder, store=store)
    assert first.returncode == 0, first.stderr
    before = mirrored(folder)
    write_experiment(folder, **{**SLOW, "space": {**SLOW["space"], "num_warps": [1, 2, 4]}})
    second = tunefarm(*MIRRORED, folder=folder, store=store)
    assert second.returncode == 0, second.stderr
    (notice,) = json.loads(second.stdout)["notices"]
    assert (
        "holds studies of other spaces or sweeps: fill/fill sm_90 1000 fp32 (2), fill/fill sm_90 4096 fp32 (2)"
        in notice
    )
    after = mirrored(folder)
    assert len(after) == 4
    assert all(told(after[name]) == told(trials) for name, trials in before.items())
    assert {t.params["num_warps"] for t in after["fill/fill sm_90 1000 fp32 (2)"]} <= {1, 2, 4}


def test_a_storage_that_is_lost_stops_no_sweep(folder: Path, store: Path) -> None:
    """One notice names it and the remedy, without the password that it may hold; nor does the ledger hold one."""
    calm = tunefarm(*ARGUMENTS, "--sweeps", "calm", folder=folder, store=store)
    (folder / "packs/fill.json").unlink()
    lost = "sqlite:///file:kernels.py/optuna.db?uri=true&password=hunter2"
    done = tunefarm(*ARGUMENTS, "--optuna-storage", lost, folder=folder, store=store)
    assert done.returncode == 0, done.stderr
    assert winners(done.stdout) == winners(calm.stdout)
    (notice,) = json.loads(done.stdout)["notices"]
    assert notice.startswith(
        "Optuna storage sqlite:///file:kernels.py/optuna.db?uri=true&password=*** lacks fill sm_90 1000 fp32, fill "
    )
    assert "the same command fills it in from the ledger" in notice
    assert not list(folder.glob("file:*"))
    assert "hunter2" not in done.stdout + done.stderr + (folder / LEDGER).read_text()
