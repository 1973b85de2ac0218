"""Addresses of databases and servers: as people may see them, and what is wrong with one of SQLite's."""

from __future__ import annotations

import re
import urllib.parse
import warnings
from pathlib import Path

# To the last @, as a password may hold one; but `://host:5000/a@b` has none.
_LOGIN = re.compile(r"(://[^:/@\s]*:)(?!\d+/)\S+@")
_TOKEN = re.compile(r"(https?://)[^:/@\s]+@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:pass\w*|pwd|token|secret|key)|odbc_connect)=)[^&\s]+", re.IGNORECASE)

_SQLITE = b"SQLite format 3\0"

_PLAIN = re.compile(r"sqlite:///[^?]+")


def public(text: str) -> str:
    """A text without the passwords of the addresses in it: `postgresql://me:***@host/db`.

    What stands alone before a web server's name is a token; before a database's it is the user.
    """
    return _QUERY.sub(r"\1***", _TOKEN.sub(r"\1***@", _LOGIN.sub(r"\1***@", text)))


def server_fault(address: str) -> str:
    """What is wrong with a server's address as it is written; empty if nothing is."""
    try:
        parts = urllib.parse.urlsplit(address)
        _ = parts.port
    except ValueError as e:
        return str(e)
    return "" if parts.netloc or not parts.scheme.startswith("http") else "names no host"


def file_fault(path: Path) -> str:
    """Why a file cannot be a SQLite database; empty for a database, and for none yet."""
    if path.is_dir():
        return "is a folder"
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError:
        return ""  # not there yet, or whoever connects says why
    return "" if start in (b"", _SQLITE) else "is no SQLite database"


def sqlite_fault(address: str) -> str:
    """What is wrong with the address of a SQLite database, as far as the driver can tell; empty if nothing is.

    A password counts as wrong, too: SQLite takes none. SQLAlchemy only warns, on whoever's terminal, when somebody
    connects.
    """
    if _PLAIN.fullmatch(address):
        return ""  # without loading SQLAlchemy, which takes a sweep's start a while
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, SAWarning

    ignored = []
    try:
        url = make_url(address)
        dialect = url.get_dialect()()
        dialect.create_connect_args(url.set(query={}))
        for name, value in url.query.items():
            # With what makes a URI of the file, as then SQLite itself reads the rest.
            query = {name: value, **{n: v for n, v in url.query.items() if n == "uri"}}
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Query string argument", category=SAWarning)
                try:
                    dialect.create_connect_args(url.set(query=query))
                except SAWarning:
                    ignored.append(name)
    except (ArgumentError, ValueError):
        return "names no file as sqlite:///FILE does"
    return f"SQLite ignores {' and '.join(ignored)}: leave out what follows the ?" if ignored else ""
