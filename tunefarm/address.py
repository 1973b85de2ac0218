"""Addresses of databases and servers, as people may see them."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(://[^:/@\s]*:)[^@\s]+@")
_QUERY = re.compile(r"([?&](?:password|passwd|token|sslpassword)=)[^&\s]+", re.IGNORECASE)


def public(text: str) -> str:
    """A text without the passwords of the addresses in it: `postgresql://me:***@host/db`."""
    return _QUERY.sub(r"\1***", _LOGIN.sub(r"\1***@", text))
