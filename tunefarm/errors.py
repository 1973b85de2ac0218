"""The exceptions of tunefarm, and what a caller does about each.

    TunefarmError
    ├── UserError             something the user wrote or asked for; says what to change      exit code 2
    │   ├── SpecError         an experiment, workload, space or constraint
    │   ├── DocumentError     a file that cannot be read as what it claims to be
    │   │   ├── PackError         a config pack
    │   │   ├── LandscapeError    a recorded search space
    │   │   └── LedgerError       a sweep's ledger
    │   └── MissError         strict lookup found no row for a kernel's call
    └── InfrastructureError   a machine, a process or a service; retried elsewhere            exit code 3
        ├── WorkerLost        a worker died with work in hand
        ├── Lacking           a process has not what its job needs, and whoever sent the job has it
        └── Fenced            another driver has taken over this ledger

A candidate that fails is none of these: it is data, a `Failure` inside a `Trial`.
Every exception survives pickling, because workers raise them in other processes.
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[TunefarmError], args: tuple[Any, ...], state: dict[str, Any]) -> TunefarmError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class TunefarmError(Exception):
    """Anything tunefarm raises on purpose.

    Attributes:
        hint: what to do about it, one sentence, or empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        return f"{message} ({self.hint})" if self.hint else message


class UserError(TunefarmError):
    """Something the user can mend.

    Args:
        message: what is wrong.
        file: the file in which it is wrong, if one is.
        key: the place inside the file, such as `space.num_warps[0]`.
        hint: the remedy.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, file: str = "", key: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.key = key

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.key) if part)
        return f"{where}: {super().__str__()}" if where else super().__str__()


class SpecError(UserError):
    """An experiment, workload, search space or constraint that makes no sense as written."""


class DocumentError(UserError):
    """A file that is missing, unreadable, or not what it claims to be."""


class PackError(DocumentError):
    """A config pack that is damaged, foreign or of a version this release cannot read."""


class LandscapeError(DocumentError):
    """A recorded search space that cannot be replayed here."""


class LedgerError(DocumentError):
    """A ledger that is damaged, belongs to another experiment, or is held by another driver."""


class MissError(UserError):
    """Strict lookup: no row of the active pack fits a call. The message prints the difference."""


class InfrastructureError(TunefarmError):
    """A machine, process or service failed; nothing is known about the candidate it was working on."""

    exit_code: ClassVar[int] = 3


class WorkerLost(InfrastructureError):
    """A worker died, was killed or stopped answering while it held a job.

    Args:
        message: what happened.
        hint: the remedy.
        death: how the process ended by its own doing (`SIGSEGV`, `exit code 3`, `hung`); empty if it was killed from
            outside, or if nobody knows.
        words: the last it printed.
        will: pickle of the job's will, see `tunefarm.will`; empty if it left none.
    """

    def __init__(self, message: str, *, hint: str = "", death: str = "", words: str = "", will: bytes = b"") -> None:
        super().__init__(message, hint=hint)
        self.death = death
        self.words = words
        self.will = will


class Lacking(InfrastructureError):
    """A process has not been sent what its job needs: the fleet's supply is done there first, then the job again."""


class Fenced(InfrastructureError):
    """A newer driver has opened this ledger: this driver must stop and write nothing more."""
