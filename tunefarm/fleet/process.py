"""A worker process of this machine: how it is started, spoken to and killed; and what it runs.

It is a fresh interpreter and not a `multiprocessing` child: that would import the driver's main module again (a
script without a `__main__` guard would sweep in every worker), and could not set the environment beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import Reply, Word, perform
from tunefarm.will import kept_by

logger = logging.getLogger(__name__)

_PRELUDE = """\
import json, os, sys
start = json.loads(sys.argv[1])
os.environ.update(start["environment"])
sys.path[:] = start["path"]
from tunefarm.fleet.process import serve
serve(start["channel"], start["parent"])
"""

_POLL_S = 0.5
_BURY_S = 30.0
_PR_SET_PDEATHSIG = 1
_LAST_WORDS_BYTES = 16_000
_DUMP_S = 0.3
"""How long a process that hangs is given to say where."""
_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a process does not send itself: the memory ran out, the machine is wanted, somebody pressed a key."""


class _Silence(Exception):
    """The process has said nothing for longer than it wanted to be waited for."""


class LocalProcess:
    """One interpreter of this machine, in a process group of its own.

    It is watched from outside, so neither a hang of the device nor one of native code that holds the interpreter's
    lock can keep it alive; what its job had said by then is in `WorkerLost`.

    Args:
        name: the worker's.
        environment: variables set in it before it imports anything.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self._name = name
        self._is_up = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed by bury)
        self._channel, theirs = Pipe()
        start = {
            "environment": dict(environment),
            "path": [str(entry) for entry in sys.path],
            "channel": theirs.fileno(),
            "parent": os.getpid(),
        }
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _PRELUDE, json.dumps(start)],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            self._words.close()
            self._channel.close()
            raise
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._child.poll() is None

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply.

        Raises:
            WorkerLost: the process died or was killed; the message has its last words.
            InfrastructureError: it died before it was ready for a job, which is no fault of the job.
        """
        self._await_up()
        word: Word | None = None
        try:
            self._forget_words()
            self._channel.send_bytes(payload)
            while isinstance(reply := self._receive(word.patience_s if word else None), Word):
                word = reply
        except (EOFError, OSError, _Silence) as error:
            hung = isinstance(error, _Silence)
            if hung:
                self._ask_where()
            self.kill()
            self._await_end()
            death, words = "hung" if hung else self._death(), self._last_words()
            end = f"said nothing for {word.patience_s:g} s" if hung and word else self._end()
            raise WorkerLost(
                f"{self._name} {end} while it held a job{_quote(words)}",
                death=death, words=words, will=word.will if word else b"",
            ) from error  # fmt: skip
        assert isinstance(reply, Reply)
        return reply

    def _await_up(self) -> None:
        if self._is_up:
            return
        try:
            self._receive()
        except (EOFError, OSError) as error:
            self.kill()
            self._await_end()
            raise InfrastructureError(
                f"{self._name} {self._end()} before it was ready{_quote(self._last_words())}"
            ) from error
        self._is_up = True

    def kill(self) -> None:
        """Ends it and all it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Waits until it is gone. One that the kernel cannot end (a hung driver) is left behind with a warning."""
        self._await_end()
        self._words.close()
        self._channel.close()

    def _await_end(self) -> None:
        try:
            self._child.wait(_BURY_S)
        except subprocess.TimeoutExpired:
            logger.warning("%s: process %d does not end though it was killed", self._name, self._child.pid)

    def _receive(self, patience_s: float | None = None) -> Any:
        end = time.monotonic() + (float("inf") if patience_s is None else patience_s)
        # A grandchild may hold the channel open after the child's death, so its end alone does not tell.
        while not self._channel.poll(max(0.0, min(_POLL_S, end - time.monotonic()))):
            if self._child.poll() is not None and not self._channel.poll(0):
                raise EOFError
            if time.monotonic() > end:
                raise _Silence
        return self._channel.recv()

    def _ask_where(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGUSR1)
            time.sleep(_DUMP_S)

    def _death(self) -> str:
        code = self._child.returncode
        if code is None or -code in _OUTSIDE:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _end(self) -> str:
        code = self._child.returncode
        if code is None:
            return "hangs"
        if code < 0:
            return f"died of {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _forget_words(self) -> None:
        os.ftruncate(self._words.fileno(), 0)
        os.lseek(self._words.fileno(), 0, os.SEEK_SET)  # The child writes where this handle stands: it is the same.

    def _last_words(self) -> str:
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
        # Python names every native module it has loaded, which is a page of them.
        return re.sub(r"\n*Extension modules: .*", "", words.decode(errors="replace")).strip("\0\n ")


def _quote(words: str) -> str:
    return f"; its last words:\n{words}" if words else ""


def die_with_parent() -> int:
    """From now on this process is killed when its parent ends, on Linux. Returns the parent's process id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid()


def serve(channel: int, parent: int) -> None:
    """Does jobs until the driver goes away: the whole life of a worker process.

    Args:
        channel: file descriptor on which packed jobs come and replies go.
        parent: process id of the driver.
    """
    os.set_inheritable(channel, False)
    # The end of the channel ends an idle process everywhere; a busy one only dies with its driver by this.
    if die_with_parent() != parent:
        return
    # Who dies in native code, or is asked why it does not answer, says where in Python that is.
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    connection = Connection(channel)
    with (
        contextlib.suppress(EOFError, OSError),
        kept_by(lambda will, patience_s: connection.send(Word.of(will, patience_s))),
    ):
        connection.send("ready")
        while True:
            reply = perform(connection.recv_bytes())
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(reply)
