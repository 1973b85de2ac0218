"""How a sweep stands, read from its ledger: at work, killed, ended, gone on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import laptop
import pytest
from farm import BOTH, LARGE, THREE, Warm, play, running, smooth, wait_until, write_experiment, write_landscape

from tunefarm.config import Config, Value, counted
from tunefarm.record.account import Fate, StudyAccount
from tunefarm.record.ledger import open_ledger
from tunefarm.record.reading import read_account
from tunefarm.seams import Fleet
from tunefarm.trial import Outcome


def failing(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    return Outcome.TIMEOUT if config.params["MARK"] == 1 or variables["n"] == 4096 else smooth(config, variables)


def num_measured(study: StudyAccount) -> int:
    return sum(bool(entry.measurements) for entry in study.candidates)


def test_it_agrees_with_the_sweep(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE, devices=BOTH)
    write_landscape(experiment, failing)
    played = play(experiment, fleet, store)
    found = read_account(played.ledger)
    assert (found.experiment, found.num_drivers, found.pid, found.is_over) == ("fill", 1, os.getpid(), True)
    studies = {study.label: study for study in found.competitions}
    for result in played.results:
        study = studies[result.study.label]
        assert study.status == result.status.value
        assert study.num_candidates == result.num_candidates
        assert num_measured(study) == sum(bool(t.measurements) for t in result.trials)
        assert study.count(Fate.FAILED) == sum(count for _, count in result.failures)
        if result.winner:
            assert study.best_ms == result.winner.median_ms
            assert study.winner == result.winner
            assert study.source == "replayed"
    assert {study.stage for study in studies.values()} == {"winner", "no winner", "not measured"}


def test_every_word_of_it_can_be_the_last(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """Killed after any event, there is an answer, and it only grows."""
    experiment = write_experiment(tmp_path, space=LARGE)
    write_landscape(experiment)
    lines = play(experiment, fleet, store).ledger.read_text().splitlines(keepends=True)
    part, measured, stages = tmp_path / "part.jsonl", [], []
    for number in range(1, len(lines) + 1):
        part.write_text("".join(lines[:number]))
        studies = read_account(part).competitions
        measured.append(sum(map(num_measured, studies)))
        stages += [study.stage for study in studies]
    assert measured == sorted(measured)
    assert list(dict.fromkeys(stages)) == ["waiting", "rung 0", "rung 1", "finals", "winner"]


def test_what_was_forgotten_is_not_told(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path)
    write_landscape(experiment)
    path = play(experiment, fleet, store).ledger
    with_fresh = open_ledger(path, {"experiment": "fill"})
    with_fresh.append("fresh", {})
    with_fresh.close()
    found = read_account(path)
    assert (found.num_drivers, found.studies, found.is_over) == (2, (), False)


@pytest.fixture
def swept(tmp_path: Path, store: Path, warm: Warm) -> Path:
    write_landscape(write_experiment(tmp_path, problems=THREE, devices=BOTH, export="packs/fill.json"))
    done = warm(
        "sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "-q", folder=tmp_path, store=store
    )
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_command_tells_of_a_local_sweep(swept: Path, store: Path, warm: Warm) -> None:
    for name in ("sweeps/fill", "sweeps/fill/ledger.jsonl"):
        done = warm("status", name, folder=swept, store=store)
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[0].startswith("sweep    fill: ended; last word ")
        assert sum(": winner, 18 of 18 replayed, best BLOCK=" in line for line in lines) == 3
        assert sum(": not measured, 0 of 18 measured" in line for line in lines) == 3
        assert lines[-2:] == ["in all   6 of 6 studies", "pack     packs/fill.json"]
    told = json.loads(warm("status", "sweeps/fill", "--json", folder=swept, store=store).stdout)
    assert [study["status"] for study in told["studies"]] == ["winner"] * 3 + ["not_measured"] * 3
    assert {study["source"] for study in told["studies"][:3]} == {"replayed"}


def test_lines_that_could_not_be_used_are_told(swept: Path, store: Path, warm: Warm) -> None:
    """With the line of a study that study is gone, and nothing else says so."""
    ledger = swept / "sweeps" / "fill" / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if '"event":"study"' in line)
    ledger.write_text("".join([*lines[:number], "garbage\n", *lines[number + 1 :]]))
    done = warm("status", "sweeps/fill", folder=swept, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("damaged "))
    told = json.loads(warm("status", "sweeps/fill", "--json", folder=swept, store=store).stdout)
    assert told["damaged_lines"] >= 1
    assert said == f"damaged  {counted(told['damaged_lines'], 'line')} of the ledger could not be used"


def test_a_name_alone_is_a_cluster_s_and_the_folder_is_said(swept: Path, store: Path, warm: Warm) -> None:
    nowhere = {"KUBECONFIG": str(swept / "none"), "PATH": str(swept)}
    done = warm("status", "fill", folder=swept, store=store, **nowhere)
    assert done.returncode in (2, 3)
    assert done.stderr.splitlines()[-1].endswith("(the sweep of this machine is `tunefarm status sweeps/fill`)")


def test_a_laptop_can_ask(swept: Path, store: Path, tmp_path: Path) -> None:
    packages = laptop.furnish(tmp_path / "packages", "pyyaml", "rich", "typer")
    done = laptop.tunefarm("status", "sweeps/fill", packages=packages, folder=swept, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in all   6 of 6 studies" in done.stdout


def test_a_driver_at_work_is_told_from_one_that_was_killed(tmp_path: Path, store: Path, warm: Warm) -> None:
    write_landscape(write_experiment(tmp_path, problems=THREE, space=LARGE))
    ledger = tmp_path / "sweeps" / "fill" / "ledger.jsonl"
    words = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none")
    with running(*words, folder=tmp_path, store=store) as process:
        assert wait_until(lambda: ledger.exists() and b'"event":"study"' in ledger.read_bytes())
        at_work = warm("status", "sweeps/fill", folder=tmp_path, store=store).stdout
        process.kill()
    killed = warm("status", "sweeps/fill", folder=tmp_path, store=store).stdout
    assert at_work.startswith("sweep    fill: running; ")
    assert killed.startswith("sweep    fill: not running; ")


def test_names_without_a_ledger_are_refused(tmp_path: Path, store: Path, warm: Warm) -> None:
    done = warm("status", "sweeps/none", folder=tmp_path, store=store)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: sweeps/none: no such sweep (there is no ledger in sweeps; sweep first)\n"
    (tmp_path / "notes.txt").write_text("no ledger")
    done = warm("status", "notes.txt", folder=tmp_path, store=store)
    assert done.returncode == 2
    assert done.stderr == "error: notes.txt: is not a tunefarm ledger (name the folder of a sweep)\n"
