"""How a sweep stands, read from its ledger: at work, killed, ended, gone on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import laptop
import pytest
from farm import BOTH, LARGE, THREE, Warm, play, running, smooth, wait_until, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.record.ledger import open_ledger, read_events
from tunefarm.record.survey import survey
from tunefarm.seams import Fleet
from tunefarm.trial import Outcome


def failing(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    return Outcome.TIMEOUT if config.params["MARK"] == 1 or variables["n"] == 4096 else smooth(config, variables)


def test_it_agrees_with_the_sweep(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE, devices=BOTH)
    write_landscape(experiment, failing)
    played = play(experiment, fleet, store)
    found = survey(read_events(played.ledger))
    assert (found.experiment, found.drivers, found.pid) == ("fill", 1, os.getpid())
    studies = {study.label: study for study in found.studies.values()}
    for result in played.results:
        study = studies[result.study.label]
        assert study.status == result.status.value
        assert study.candidates == result.num_candidates
        assert len(study.measured) == sum(bool(t.measurements) for t in result.trials)
        assert len(study.failed) == sum(count for _, count in result.failures)
        if result.winner:
            assert study.best_ms == result.winner.median_ms
            assert Config.from_json(study.winner["config"]) == result.winner.config
            assert study.source == "replayed"
    assert {study.stage for study in studies.values()} == {"winner", "no winner", "not measured"}


def test_every_word_of_it_can_be_the_last(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """Killed after any event, there is an answer, and it only grows."""
    experiment = write_experiment(tmp_path, space=LARGE)
    write_landscape(experiment)
    events = list(read_events(play(experiment, fleet, store).ledger))
    measured, stages = [], []
    for number in range(1, len(events) + 1):
        studies = list(survey(events[:number]).studies.values())
        measured.append(sum(len(study.measured) for study in studies))
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
    found = survey(read_events(path))
    assert (found.drivers, dict(found.studies)) == (2, {})


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
    assert done.stderr == "error: sweeps/none/ledger.jsonl: cannot be read: No such file or directory\n"
    (tmp_path / "notes.txt").write_text("no ledger")
    done = warm("status", "notes.txt", folder=tmp_path, store=store)
    assert done.returncode == 2
    assert done.stderr == "error: notes.txt: no driver has begun it (name the folder of a sweep)\n"
