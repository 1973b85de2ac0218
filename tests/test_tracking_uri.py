"""Where records may be kept: judged before anything is measured, without asking anybody."""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from farm import write_experiment

from tunefarm.cli.opening import MeterKind, tracking_uri
from tunefarm.cli.order import take_orders
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.record.tracking import Origin, check_server, check_uri, open_tracker
from tunefarm.spec.experiment import load_experiment

pytest.importorskip("mlflow")


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///tmp/mlruns", "/tmp/mlruns"])
def test_a_folder_is_refused_before_anything_is_measured(uri: str) -> None:
    """TF-125: with tunefarm's own words, and the way to take old runs along."""
    with pytest.raises(SpecError, match=r"tracking\.uri: .*is a folder.*sqlite:///mlflow\.db.*migrate-filestore"):
        check_uri(uri)


def test_a_uri_of_nothing_known_is_refused() -> None:
    with pytest.raises(SpecError, match=r"tracking\.uri.*'ftp://x' is nothing MLflow can write to"):
        open_tracker("ftp://x", Origin(workload="w", experiment="e", sweep_id="s"))


def test_a_password_is_not_shown() -> None:
    with pytest.raises(SpecError, match=r"'ftp://me:\*\*\*@x' is nothing") as caught:
        check_uri("ftp://me:hunter2@x")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InfrastructureError, match=r"no MLflow server at http://me:\*\*\*@127\.0\.0\.1:1: "):
        check_server("http://me:hunter2@127.0.0.1:1")


def test_a_password_that_sqlite_ignores_is_refused() -> None:
    """SQLAlchemy would warn of it, in the middle of the sweep."""
    with pytest.raises(
        SpecError, match=r"sqlite:///mlflow\.db\?password=\*\*\*: SQLite ignores password: .*\(use a database"
    ) as caught:
        check_uri("sqlite:///mlflow.db?password=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///mlflow.db",
        "sqlite:///mlflow.db?timeout=3",
        "postgresql+psycopg2://h/db",
        "mysql://h/db",
        "http://h:5000",
        "https://h",
    ],
)
def test_databases_and_servers_are_welcome(uri: str) -> None:
    check_uri(uri)


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("http://[bad", "Invalid IPv6 URL"),
        ("http://h:99999", "Port out of range 0-65535"),
        ("https://", "names no host"),
    ],
)
def test_an_address_that_no_server_can_have_is_refused(uri: str, fault: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"tracking.uri: {uri}: {fault} (use a database")):
        check_uri(uri)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    """A typing slip away from the experiment itself; MLflow would fail on it once all was measured."""
    file = tmp_path / "experiment.yaml"
    file.write_text("name: fill")
    with pytest.raises(SpecError, match=r"experiment\.yaml: is no SQLite database"):
        check_uri(f"sqlite:///{file}")
    with pytest.raises(SpecError, match=r"is a folder"):
        check_uri(f"sqlite:///{tmp_path}")
    file.write_bytes(b"")  # as SQLite itself makes one
    check_uri(f"sqlite:///{file}")
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("create table t (x)")
    check_uri(f"sqlite:///{file}")


def test_a_missing_mlflow_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"MLflow is not installed.*tunefarm\[client\]"):
        check_uri("sqlite:///mlflow.db")


def test_what_is_wrong_is_said_of_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    silent = load_experiment(write_experiment(tmp_path / "silent"))
    with pytest.raises(SpecError, match=r"^MLFLOW_TRACKING_URI: './mlruns' is a folder"):
        tracking_uri(None, silent)
    wrong = load_experiment(write_experiment(tmp_path / "wrong", tracking={"uri": "./mlruns"}))
    with pytest.raises(SpecError, match=r"^--tracking: './mlruns' is a folder"):
        tracking_uri("./mlruns", wrong)  # the very same, but nobody would find the mistake in the file
    with pytest.raises(SpecError, match=r"experiment\.yaml:1: tracking\.uri: './mlruns' is a folder"):
        tracking_uri(None, wrong)
    assert tracking_uri("none", wrong) == "none"


def test_two_projects_share_no_mlflow_experiment(tmp_path: Path) -> None:
    def name(**sections: Any) -> str:
        (order,) = take_orders(
            [write_experiment(tmp_path, **sections)], meter=MeterKind.AUTO, sweeps=tmp_path, fresh=False,
            tracking="none", optuna_storage=None, out=None,
        )  # fmt: skip
        return order.mlflow_experiment

    assert (name(), name(project="team-a"), name(project="team-b")) == ("fill", "team-a.fill", "team-b.fill")
    assert name(project="team-a", tracking={"experiment": "mine"}) == "mine"


def test_a_sweep_that_goes_on_does_not_wait_for_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TF-120: a restart while the server is away is no reason to stop; at the very start it may be a slip."""
    experiment = load_experiment(write_experiment(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InfrastructureError, match="no MLflow server at "):
        tracking_uri(uri, experiment)
    assert tracking_uri(uri, experiment, begun=True) == uri
    assert f"no MLflow server at {uri}" in caplog.text
