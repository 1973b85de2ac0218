"""Wills: what a job leaves behind if its process dies of it.

Some jobs kill their process, and some never end. What such a job had found out by then, and what it was at, must
outlive it: it is written down while the job goes on, outside its process, and read when the process has died.

    leave(will, patience_s)    in the job: this is how things stand; take me for hung if I say nothing for so long
    will.execute(lost)         in the driver: what the job brings back, given how its process ended

A fleet keeps the last will of each job and knows nothing of what is in it. A job that runs where nobody keeps wills
loses nothing but this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from tunefarm.errors import WorkerLost


class Will(Protocol):
    """How things stand in a job; picklable."""

    @property
    def sure(self) -> bool:
        """Whether a process that dies now dies of what the will says.

        If not, it may have been the machine: the job is done again, elsewhere if it can be, and the will holds when
        it dies once more.
        """
        ...

    def execute(self, lost: WorkerLost) -> Any:
        """What the job brings back if its process ended like this."""
        ...


Notary: TypeAlias = Callable[[Will, float], None]
_notaries: list[Notary] = []


def leave(will: Will, patience_s: float) -> None:
    """Replaces the running job's will, if somebody keeps it.

    Args:
        will: what is known by now.
        patience_s: how long the job may go on without another word before its process is taken to hang and killed.
    """
    if _notaries:
        _notaries[-1](will, patience_s)


@contextlib.contextmanager
def kept_by(notary: Notary) -> Iterator[None]:
    """While active, wills of jobs in this process go to `notary`."""
    _notaries.append(notary)
    try:
        yield
    finally:
        _notaries.remove(notary)
