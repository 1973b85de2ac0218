"""Addresses of databases and servers, as people may see them."""

from __future__ import annotations

import re

# To the last @, as a password may hold one; but `://host:5000/a@b` has none.
_LOGIN = re.compile(r"(://[^:/@\s]*:)(?!\d+/)\S+@")
_TOKEN = re.compile(r"(https?://)[^:/@\s]+@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:pass\w*|pwd|token|secret|key)|odbc_connect)=)[^&\s]+", re.IGNORECASE)


def public(text: str) -> str:
    """A text without the passwords of the addresses in it: `postgresql://me:***@host/db`.

    What stands alone before a web server's name is a token; before a database's it is the user.
    """
    return _QUERY.sub(r"\1***", _TOKEN.sub(r"\1***@", _LOGIN.sub(r"\1***@", text)))
