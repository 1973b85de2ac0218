"""Two environments: tunefarm's own, and that of a job which it runs for somebody."""

from __future__ import annotations

import os

_FOR_JOBS = ("TRITON_INTERPRET",)
"""What would keep tunefarm from its work: kernels that Triton interprets cannot be compiled."""

_taken: dict[str, str] = {}


def settle() -> None:
    """Takes out of this process's environment, and its workers', what is meant for jobs alone."""
    _taken.update({name: os.environ.pop(name) for name in _FOR_JOBS if name in os.environ})


def job_environment(**more: str) -> dict[str, str]:
    """The environment of a job: as tunefarm was given it, and what it adds."""
    return {**os.environ, **_taken, **more}
