"""Addresses as people may see them."""

from __future__ import annotations

import pytest

from tunefarm.address import public, sqlite_fault


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("postgresql+psycopg://me:p/w:x@host:5432/db", "postgresql+psycopg://me:***@host:5432/db"),
        ("postgresql://host/db?user=me&password=pw&sslmode=x", "postgresql://host/db?user=me&password=***&sslmode=x"),
        (
            "tunefarm sweep a.yaml --tracking http://me:pw@host -q",
            "tunefarm sweep a.yaml --tracking http://me:***@host -q",
        ),
        ("http://host:5000", "http://host:5000"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("http://me:p@ss@host:5000", "http://me:***@host:5000"),
        ("http://me:123@host", "http://me:***@host"),
        ("https://abc123@host/mlflow", "https://***@host/mlflow"),
        ("mysql://host/db?pwd=a&passphrase=b&ssl_key=c", "mysql://host/db?pwd=***&passphrase=***&ssl_key=***"),
        ("https://host?api_key=a&access_token=b&x=1", "https://host?api_key=***&access_token=***&x=1"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dpw", "mssql+pyodbc:///?odbc_connect=***"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("journal:some/file.log", "journal:some/file.log"),
    ],
)
def test_addresses_are_shown_without_passwords(text: str, seen: str) -> None:
    assert public(text) == seen


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("sqlite:///a.db", ""),
        ("sqlite:////tmp/a@b.db", ""),
        ("sqlite:///a.db?timeout=3", ""),
        ("sqlite:///file:a.db?mode=ro&uri=true", ""),
        ("sqlite:///a.db?mode=ro", "SQLite ignores mode: leave out what follows the ?"),
        ("sqlite:///a.db?timeout=3&password=x&token=y", "SQLite ignores password and token: leave out"),
        ("sqlite://me:hunter2@/a.db", "names no file as sqlite:///FILE does"),
        ("sqlite:a.db", "names no file as sqlite:///FILE does"),
        ("sqlite:///a.db?timeout=soon", "names no file"),
    ],
)
def test_what_sqlite_would_ignore_is_found(address: str, fault: str) -> None:
    """Warnings are errors here: none leaks."""
    found = sqlite_fault(address)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
    assert "hunter2" not in found
