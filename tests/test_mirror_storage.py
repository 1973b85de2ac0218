"""Storages for the Optuna mirror that are locked, lost, damaged or none, and one on a server."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import mlflow_server
import optuna
import pytest
from mirrored import NAME, OWNER, STUDY, lives, mirror, opened, shown, trials

from tunefarm.errors import SpecError
from tunefarm.search.mirror import StorageMirror
from tunefarm.search.storage import check_storage

# ---- storages that cannot be written ----


@contextmanager
def locked(folder: Path) -> Iterator[tuple[str, StorageMirror]]:
    """A database that holds one trial and is locked while this is entered, and a mirror that is to write into it."""
    storage = f"sqlite:///{folder}/optuna.db"
    mirror(storage, trials(1))
    with closing(sqlite3.connect(folder / "optuna.db")) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield storage, StorageMirror(storage, OWNER)


def test_a_locked_database_costs_one_notice_and_is_filled_in_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunefarm.search.storage.WAIT_S", 3)
    with locked(tmp_path) as (storage, it):
        began = time.monotonic()
        it.show(STUDY, trials(2))
        it.show(STUDY, trials())
        assert time.monotonic() - began < 1.0
        (notice,) = it.close(timeout_s=40)
    assert f"Optuna storage {storage} lacks softmax sm_90 8192x4096 bf16: " in notice
    assert "database is locked" in notice
    assert "the same command fills it in from the ledger" in notice
    assert len(shown(storage).trials) == 1
    assert mirror(storage, trials()) == []
    assert len(shown(storage).trials) == 3


def test_a_database_that_is_free_again_in_time_needs_no_notice(tmp_path: Path) -> None:
    with locked(tmp_path) as (storage, it):
        it.show(STUDY, trials())
        time.sleep(0.5)
    assert it.close() == []
    assert len(shown(storage).trials) == 3


def test_a_storage_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with locked(tmp_path) as (_, it):
        it.show(STUDY, trials())
        began = time.monotonic()
        (notice,) = it.close(timeout_s=0.2)
        assert time.monotonic() - began < 5.0
    assert "no answer within 0.2 s" in notice


@pytest.mark.parametrize("form", ["journal:{}", "sqlite:///{}"])
def test_a_path_that_cannot_be_written_costs_one_notice(tmp_path: Path, form: str) -> None:
    (tmp_path / "file").write_text("no folder")
    storage = form.format(tmp_path / "file" / "optuna")
    (notice,) = mirror(storage, trials())
    assert notice.startswith(f"Optuna storage {storage} lacks softmax sm_90 8192x4096 bf16: ")
    assert "file" in notice.split("bf16: ")[1]


def test_a_journal_that_was_damaged_or_lost_costs_one_notice_or_none(tmp_path: Path) -> None:
    storage = f"journal:{tmp_path}/optuna.log"
    mirror(storage, trials(1))
    path = tmp_path / "optuna.log"
    good = path.read_bytes()
    path.write_bytes(b"not a journal\n" + good)
    (notice,) = mirror(storage, trials())
    assert notice.startswith(f"Optuna storage {storage} lacks ")
    assert "optuna.log is no Optuna journal: name another file, or remove it" in notice
    assert path.read_bytes() == b"not a journal\n" + good
    path.unlink()
    assert mirror(storage, trials()) == []
    assert len(shown(storage).trials) == 3


@pytest.mark.parametrize("num_bytes", [1, 5, 30])
def test_a_journal_whose_last_line_was_torn_goes_on_from_the_one_before(tmp_path: Path, num_bytes: int) -> None:
    """TF-111."""
    storage = f"journal:{tmp_path}/optuna.log"
    mirror(storage, trials(2))
    path = tmp_path / "optuna.log"
    path.write_bytes(path.read_bytes()[:-num_bytes])
    assert mirror(storage, trials()) == []
    assert {t.user_attrs["candidate"] for t in shown(storage).trials} == {0, 1, 2}


def test_a_lock_that_a_dead_driver_left_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named relative to the current directory: Optuna's lock is a link, which would lead nowhere then."""
    monkeypatch.setattr("tunefarm.search.storage.WAIT_S", 3)
    monkeypatch.chdir(tmp_path)
    mirror("journal:new/optuna.log", trials(1))
    os.symlink(tmp_path / "new" / "optuna.log", tmp_path / "new" / "optuna.log.lock")
    assert mirror("journal:new/optuna.log", trials()) == []
    assert len(shown("journal:new/optuna.log").trials) == 3


def test_no_password_is_ever_shown() -> None:
    """Whether or not a driver is installed; nobody listens on that port."""
    (notice,) = mirror("postgresql://me:hunter2@127.0.0.1:1/tuning", trials())
    assert "postgresql://me:***@127.0.0.1:1/tuning" in notice
    assert "hunter2" not in notice


# ---- what is refused beforehand ----


@pytest.mark.parametrize(
    "storage",
    [
        "journal:optuna.log",
        "sqlite:///optuna.db",
        "sqlite:////tmp/optuna.db",
        "sqlite:///optuna.db?timeout=3",
        "sqlite:///file:optuna.db?mode=rwc&uri=true",
    ],
)
def test_files_are_welcome_wherever_they_are(storage: str) -> None:
    check_storage(storage)


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("journal:", r"names no file \(write journal:FILE, sqlite:///FILE"),
        ("optuna.db", r"'optuna.db' is nothing Optuna can write to \(write journal:FILE"),
        ("redis://me:hunter2@host", r"'redis://me:\*\*\*@host' is nothing Optuna can write to"),
        ("postgres://host/db", r"is nothing Optuna can write to \(.*postgresql://user@host/name\)"),
        ("postgresql://me:hunter2@host:port/db", r"'postgresql://me:\*\*\*@host:port/db' is nothing"),
        ("sqlite://", r"in memory mirrors nothing \(name a file: sqlite:///optuna.db\)"),
        ("sqlite:///:memory:", r"in memory mirrors nothing"),
        (
            "sqlite:///optuna.db?password=hunter2&mode=ro",
            r"sqlite:///optuna\.db\?password=\*\*\*&mode=ro: SQLite ignores password and mode: leave out",
        ),
        ("sqlite://me:hunter2@/optuna.db", r"sqlite://me:\*\*\*@/optuna\.db: names no file as sqlite:///FILE does"),
    ],
)
def test_what_names_no_storage_is_refused_with_the_remedy(storage: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        check_storage(storage)
    assert caught.value.key == "tracking.optuna_storage"
    assert "hunter2" not in str(caught.value)


def test_a_driver_that_is_not_installed_is_said_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(
        SpecError, match=r"postgresql\+psycopg2://h/d: psycopg2 is not installed \(pip install psycopg2\)"
    ):
        check_storage("postgresql+psycopg2://h/d")


# ---- databases of others ----


@pytest.fixture(scope="module")
def of_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which MLflow keeps its runs."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    # In a process of its own: MLflow speaks on the terminal as it makes a database.
    make = f"from mlflow import MlflowClient; MlflowClient(tracking_uri='sqlite:///{path}').create_experiment('fill')"
    subprocess.run([sys.executable, "-c", make], check=True, capture_output=True)
    return path


def test_mlflows_database_is_refused_before_any_work(of_mlflow: Path) -> None:
    """Optuna by itself leaves its tables there, and then says that it needs an update."""
    before = of_mlflow.read_bytes()
    with pytest.raises(
        SpecError, match=rf"sqlite:///{of_mlflow} holds MLflow's runs, and Optuna cannot .* \(name another file\)"
    ):
        check_storage(f"sqlite:///{of_mlflow}")
    assert of_mlflow.read_bytes() == before
    assert list(of_mlflow.parent.iterdir()) == [of_mlflow]


def test_a_database_that_became_mlflows_since_is_left_alone_too(of_mlflow: Path) -> None:
    before = of_mlflow.read_bytes()
    (notice,) = mirror(f"sqlite:///{of_mlflow}", trials())
    assert "bf16: it holds MLflow's runs, and Optuna cannot keep its studies in the same database: name" in notice
    assert of_mlflow.read_bytes() == before


def test_a_database_of_some_other_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table alembic_version (version_num varchar(32))")
    with pytest.raises(SpecError, match=r"other\.db is another program's, and Optuna cannot"):
        check_storage(f"sqlite:///{tmp_path}/other.db")


def test_optunas_own_database_is_welcome_again_and_so_is_a_damaged_one_until_it_is_written_to(tmp_path: Path) -> None:
    mirror(f"sqlite:///{tmp_path}/optuna.db", trials(1))
    check_storage(f"sqlite:///{tmp_path}/optuna.db")
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"and then nothing of the kind\n" * 99)
    check_storage(f"sqlite:///{tmp_path}/torn.db")
    (notice,) = mirror(f"sqlite:///{tmp_path}/torn.db", trials(1))
    assert "file is not a database" in notice


# ---- Postgres ----


@pytest.fixture
def postgres() -> Iterator[str]:
    with mlflow_server.postgres() as uri:
        yield uri.replace("me@", "me:hunter2@")


def test_postgres_is_a_storage_like_any_other(postgres: str) -> None:
    check_storage(postgres)
    assert mirror(postgres, trials(1)) == []
    assert mirror(postgres, trials(2), trials()) == []
    there = opened(postgres)
    assert len(lives(optuna.load_study(study_name=NAME, storage=there))) == 3
    there.remove_session()
    there.engine.dispose()
    (notice,) = mirror(postgres, trials(), owner=replace(OWNER, edition="2"))
    assert f"{NAME} (2)" in notice
    assert "hunter2" not in notice


@pytest.mark.parametrize("form", ["journal:{}", "sqlite:///{}"])
@pytest.mark.parametrize(
    "text", ['{"precious": true}', '{"a": 1,\n "b": 2}', "a, b\n1, 2\n", '{"event": "epoch"}\n{"ev']
)
def test_a_file_of_somebody_s_is_refused_and_stays_as_it_is(tmp_path: Path, form: str, text: str) -> None:
    """A journal is cut back to its last whole line, so it must be known for one first."""
    path = tmp_path / "theirs.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"theirs\.json is no (Optuna journal|SQLite database) \(name another file"):
        check_storage(form.format(path))
    mirror(form.format(path), trials())  # It came to lie there after the check.
    assert path.read_text() == text


@pytest.mark.parametrize("form", ["journal:{}", "sqlite:///{}"])
def test_a_folder_is_no_storage(tmp_path: Path, form: str) -> None:
    with pytest.raises(SpecError, match=r"is a folder \(name another file"):
        check_storage(form.format(tmp_path))
