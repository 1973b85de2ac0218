"""Where records may be kept: judged before anything is measured, without asking anybody."""

from __future__ import annotations

import pytest

from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.record.tracking import Origin, check_server, check_uri, open_tracker

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


@pytest.mark.parametrize(
    "uri", ["sqlite:///mlflow.db", "postgresql+psycopg2://h/db", "mysql://h/db", "http://h:5000", "https://h"]
)
def test_databases_and_servers_are_welcome(uri: str) -> None:
    check_uri(uri)


def test_a_missing_mlflow_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"MLflow is not installed.*tunefarm\[client\]"):
        check_uri("sqlite:///mlflow.db")
