"""Where Optuna's studies are kept for people: a storage's name and file are judged, and it is opened. A door of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna

from tunefarm.address import public, sqlite_fault
from tunefarm.errors import SpecError

KEY = "tracking.optuna_storage"
JOURNAL = "journal:"
FORMS = "journal:FILE, sqlite:///FILE, or another database's URL such as postgresql://user@host/name"
WAIT_S = 10
"""Seconds that a database may take to answer before it counts as away, and a file's lock before it counts as left."""


def check_storage(storage: str) -> None:
    """Judges a storage before anything is measured; contacts no server, and leaves a file as it is.

    Raises:
        SpecError: it names nothing that Optuna can write to, the database's driver is not installed, or the file is
            another program's.
    """
    if storage.startswith(JOURNAL):
        file = storage.removeprefix(JOURNAL).strip()
        if not file:
            raise SpecError("names no file", key=KEY, hint=f"write {FORMS}")
        _check_kind(storage, Path(file), b'{"op_code"', "no Optuna journal")
        return
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(storage)
        dialect = url.get_dialect()
    except (ArgumentError, ValueError):
        raise SpecError(f"{public(storage)!r} is nothing Optuna can write to", key=KEY, hint=f"write {FORMS}") from None
    if dialect.name == "sqlite" and (url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"):
        raise SpecError("a database in memory mirrors nothing", key=KEY, hint="name a file: sqlite:///optuna.db")
    try:
        dialect.import_dbapi()
    except ImportError as e:
        name = {"MySQLdb": "mysqlclient"}.get(e.name or "", e.name)
        raise SpecError(f"{public(storage)}: {name} is not installed", key=KEY, hint=f"pip install {name}") from None
    if dialect.name == "sqlite":
        _check_file(storage, Path(url.database or ""))


def _check_file(storage: str, path: Path) -> None:
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    if fault := sqlite_fault(storage):
        raise SpecError(f"{public(storage)}: {fault}", key=KEY, hint=f"write {FORMS}")
    _check_kind(storage, path, b"SQLite format 3\0", "no SQLite database")
    if path.is_file():
        # Immutable: no lock is waited for, and none is left beside the file.
        query = {"mode": "ro", "immutable": "1", "uri": "true"}
        with contextlib.suppress(SQLAlchemyError):  # who is to write to it will meet the same, and say so
            if owner := _stranger(URL.create("sqlite", database=f"file:{quote(str(path.absolute()))}", query=query)):
                raise SpecError(f"{public(storage)} {owner}", key=KEY, hint="name another file")


def _check_kind(storage: str, path: Path, magic: bytes, other: str) -> None:
    """Refuses a folder, and a file that begins otherwise than Optuna's would: it is somebody's, and stays as it is.

    What cannot be read now is met again, and told, when it is to be written to.
    """
    head = b""
    if path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:
            head = file.read(len(magic))
    if path.is_dir() or (path.exists() and not path.is_file()) or (head and not magic.startswith(head)):
        what = "a folder" if path.is_dir() else other
        raise SpecError(f"{public(storage)} is {what}", key=KEY, hint="name another file, or one that is not there yet")


def _stranger(url: Any, **connect_args: Any) -> str:
    """Whose a database is, if not Optuna's; empty if it may be used.

    Optuna would lay its tables beside the other's and then take the other's version for its own: both keep it in a
    table named `alembic_version`.

    Raises:
        SQLAlchemyError: it does not answer, or is no database.
    """
    from sqlalchemy import create_engine, inspect

    engine = create_engine(url, connect_args=connect_args)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if {"alembic_version", "experiments", "runs"} <= tables:
        return "holds MLflow's runs, and Optuna cannot keep its studies in the same database"
    if "alembic_version" in tables and "version_info" not in tables:
        return "is another program's, and Optuna cannot keep its studies in the same database"
    return ""


def connect(storage: str) -> Any:
    """Opens a storage that `check_storage` has passed; its file and folder are made if missing.

    Raises:
        Exception: whatever Optuna, a database driver or the file system has to say.
        ValueError: it is another program's; it is left as it is.
    """
    if storage.startswith(JOURNAL):
        # Absolute: Optuna's lock is a link to the file, and spins for ever where it finds one that leads nowhere.
        path = Path(storage.removeprefix(JOURNAL).strip()).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = optuna.storages.journal.JournalFileSymlinkLock(str(path), grace_period=WAIT_S)
        _drop_torn_line(path, lock)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path), lock))
    from sqlalchemy.engine import make_url

    url = make_url(storage)
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database and "uri" not in url.query:  # there it is no path
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    waits = {"sqlite": {"timeout": WAIT_S}, "postgresql": {"connect_timeout": WAIT_S}}.get(kind, {})
    if owner := _stranger(url, **waits):  # a server is asked here for the first time
        raise ValueError(f"it {owner}: name another")
    return optuna.storages.RDBStorage(storage, engine_kwargs={"connect_args": waits})


def _drop_torn_line(path: Path, lock: optuna.storages.journal.JournalFileSymlinkLock) -> None:
    """Cuts a journal back to its last whole line: what Optuna appends behind a torn one nobody can read any more.

    Raises:
        ValueError: the file is no journal; it is left as it is.
    """
    if not path.exists():
        return
    lock.acquire()
    try:
        with path.open("rb+") as journal:
            lines = journal.read()
            if lines and not lines.startswith(b'{"op_code"'[: len(lines)]):
                raise ValueError(f"{path.name} is no Optuna journal: name another file, or remove it")
            journal.truncate(lines.rfind(b"\n") + 1)
    finally:
        lock.release()
