"""What `tunefarm doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        state: `ok`, `warn` (works, with a drawback) or `missing` (something cannot be done here).
        found: what was found.
        remedy: what to do about it; empty when ok.
    """

    name: str
    state: str
    found: str
    remedy: str = ""
