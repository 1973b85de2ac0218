"""What a real sweep leaves in MLflow beside numbers: figures, its report, and tags that say where it all comes from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import test_tracking
from booked import book, of_result
from farm import LARGE, THREE, tunefarm, write_experiment, write_landscape
from test_finalists import many
from test_tracking import Store

from tunefarm.pack_reader import load_pack
from tunefarm.record.page import MARK
from tunefarm.record.tracking import open_tracker

pytestmark = test_tracking.pytestmark
FIGURES = {"candidates.svg", "distribution.svg", "convergence.svg", "effect.svg", "share.svg"}
COMMAND = ("sweep", "experiment.yaml", "--fleet", "inline", "--quiet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield Store(tmp_path_factory.mktemp("runs"))
    logging.getLogger("mlflow").setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("illustrated")
    write_landscape(write_experiment(folder, problems=THREE, space=LARGE, export="packs/fill.json"))
    done = tunefarm(*COMMAND, folder=folder, store=store)
    assert done.returncode == 0, done.stderr
    return folder


def told(folder: Path) -> dict[str, list[Any]]:
    """Runs by kind."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found: dict[str, list[Any]] = {}
    experiment = client.get_experiment_by_name("fill")
    for run in client.search_runs([experiment.experiment_id], max_results=1000):
        found.setdefault(run.data.tags["tunefarm.kind"], []).append(run)
    return found


def files(run: Any) -> dict[str, bytes]:
    root = Path(unquote(urlsplit(run.info.artifact_uri).path))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_studies_have_their_figures_and_the_sweep_its_report(swept: Path) -> None:
    runs = told(swept)
    for run in runs["study"]:
        names = {Path(name).name for name in files(run) if name.startswith("figures/")}
        assert names == FIGURES, run.info.run_name
    (sweep,) = runs["sweep"]
    kept = files(sweep)
    assert kept["report.html"].decode().startswith(MARK)
    for run in runs["study"]:
        assert f"fill {run.info.run_name}" in kept["report.html"].decode()
    assert kept["report.md"].decode().count("REPLAYED") >= 1


def test_tags_say_where_it_all_comes_from(swept: Path) -> None:
    runs = told(swept)
    digest = load_pack(swept / "packs/fill.json").digest
    for run in (*runs["study"], *runs["sweep"]):
        tags = {name.removeprefix("tunefarm."): value for name, value in run.data.tags.items()}
        wanted = {
            "capability": "sm_90", "device": "Test GPU", "timer": "cold", "source": "replayed", "clocks": "unknown",
            "pack": digest,
        }  # fmt: skip
        assert {name: tags[name] for name in wanted} == wanted
        assert tags["toolchain.torch"]
    for run in runs["finalist"]:
        assert run.data.tags["tunefarm.timer"] == "cold"
        assert run.data.tags["tunefarm.toolchain.triton"] == "8.8"


def test_the_same_command_again_doubles_nothing(swept: Path, store: Path) -> None:
    before = {run.info.run_id: files(run) for some in told(swept).values() for run in some}
    done = tunefarm(*COMMAND, folder=swept, store=store)
    assert done.returncode == 0, done.stderr
    after = {run.info.run_id: files(run) for some in told(swept).values() for run in some}
    assert after.keys() == before.keys()
    for run, known in before.items():
        assert after[run].keys() == known.keys()
        assert {n: v for n, v in after[run].items() if "report" not in n} == {
            n: v for n, v in known.items() if "report" not in n
        }


def test_a_study_is_told_without_figures_where_the_ledger_has_none(
    runs: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = many(30)
    for number, path in enumerate((tmp_path / "absent.jsonl", book(tmp_path / "l.jsonl", *of_result(result)[:1]))):
        origin = runs.origin(ledger=path, conditions="c")
        tracker = open_tracker(runs.uri, origin)
        tracker.start()
        tracker.study(result)
        assert tracker.close() == []
        sweep, (study,) = runs.runs(origin)
        assert (sweep.info.status, study.info.status) == ("FINISHED", "FINISHED")
        assert set(files(study)) <= {"trials.json", "trials.parquet", "figures/candidates.svg"}
        assert ("report.html" in files(sweep)) == bool(number)
    assert "no report of softmax: " in caplog.text


def test_a_sweep_that_was_interrupted_has_no_report_until_it_ends(runs: Store, tmp_path: Path) -> None:
    result = many(30)
    origin = runs.origin(ledger=book(tmp_path / "ledger.jsonl", *of_result(result)), conditions="c")
    for status, num in (("KILLED", 0), ("FINISHED", 1)):
        tracker = open_tracker(runs.uri, origin)
        tracker.start()
        tracker.study(result)
        assert tracker.close(status=status) == []
        assert sum(name == "report.html" for name in files(runs.runs(origin)[0])) == num
