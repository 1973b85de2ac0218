"""How a job and what it brings back cross a process boundary: as plain pickles, failures included."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tunefarm.bundle import said
from tunefarm.errors import InfrastructureError, Lacking, TunefarmError, UserError, WorkerLost
from tunefarm.seams import Retire
from tunefarm.will import Will


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a process answers to a job.

    Attributes:
        payload: pickle of what the job returned or, if `failed`, raised.
        failed: it raised.
        retire: the process is not to be used again.
        again: the job is to be done in a fresh process.
        lacks: the job needs what its process has not been sent.
    """

    payload: bytes
    failed: bool = False
    retire: bool = False
    again: bool = False
    lacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a process says before it answers: the job's will as it now stands.

    Attributes:
        will: its pickle; only the driver opens it.
        patience_s: how long the process may now be silent.
    """

    will: bytes
    patience_s: float

    @classmethod
    def of(cls, will: Will, patience_s: float) -> Word:
        """A will as it travels."""
        return cls(will=pickle.dumps(will), patience_s=patience_s)


def open_will(lost: WorkerLost) -> Will | None:
    """The will of a job whose process died by its own doing; None if it left none, or was killed from outside."""
    return pickle.loads(lost.will) if lost.will and lost.death else None


def pack(job: Callable[[], Any]) -> bytes:
    """The job as it travels.

    Raises:
        InfrastructureError: it cannot be pickled.
    """
    try:
        return pickle.dumps(job)
    except Exception as error:
        raise InfrastructureError(
            f"job {job!r} cannot be sent to a worker: {error}",
            hint="a job is a module's function, or functools.partial of one with plain values",
        ) from error


def pack_spare(supply: Callable[[], Any] | None, job: Callable[[], Any]) -> bytes:
    """What a spare process does, which nobody watches: the supply it may need, then the job."""
    return pack(job if supply is None else partial(_in_turn, supply, job))


def _in_turn(*jobs: Callable[[], Any]) -> None:
    for job in jobs:
        job()


def perform(payload: bytes) -> Reply:
    """Does a packed job here. Whatever it raises, short of ending the process, is in the reply."""
    try:
        job = pickle.loads(payload)
    except Exception as error:
        return _failure(InfrastructureError(f"a worker cannot load its job: {type(error).__name__}: {error}"))
    try:
        value = job()
    except Lacking as error:
        return replace(_failure(error), lacks=True)
    except Exception as error:
        error.add_note("In the worker:\n" + said(traceback.format_exc().rstrip()))
        say_as_known(error)
        # Whatever is wrong with the machine may be wrong with this process alone.
        return _failure(error, retire=isinstance(error, InfrastructureError))
    retire = isinstance(value, Retire)
    try:
        payload = pickle.dumps(value.value if retire else value)
        return Reply(payload=payload, retire=retire, again=retire and value.again)
    except Exception as error:
        return _failure(
            InfrastructureError(f"what a job returned cannot be sent back: {type(error).__name__}: {error}"), retire
        )


def open_reply(reply: Reply) -> tuple[Any, Exception | None]:
    """(what the job returned, None) or (None, what it raised)."""
    try:
        value = pickle.loads(reply.payload)
    except Exception as error:
        return None, InfrastructureError(f"what a job brought back cannot be read: {type(error).__name__}: {error}")
    return (None, value) if reply.failed else (value, None)


def say_as_known(error: Exception) -> None:
    """Gives unpacked files in what an error says the names under which people know them."""
    error.args = tuple(said(word) if isinstance(word, str) else word for word in error.args)
    if isinstance(error, TunefarmError):
        error.hint = said(error.hint)
    if isinstance(error, UserError):
        error.file = said(error.file)
    if isinstance(error, WorkerLost):
        error.words = said(error.words)


def _failure(error: Exception, retire: bool = False) -> Reply:
    try:
        payload = pickle.dumps(error)
        pickle.loads(payload)  # Some exceptions can be written but not read: their constructor wants more.
    except Exception:
        text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        payload = pickle.dumps(InfrastructureError(text))
    return Reply(payload=payload, failed=True, retire=retire)
