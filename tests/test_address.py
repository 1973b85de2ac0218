"""Addresses as people may see them."""

from __future__ import annotations

import pytest

from tunefarm.address import public


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
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("journal:some/file.log", "journal:some/file.log"),
    ],
)
def test_addresses_are_shown_without_passwords(text: str, seen: str) -> None:
    assert public(text) == seen
