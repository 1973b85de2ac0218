"""A worker process of this machine: how it is started, spoken to and killed; and what it runs.

It is a fresh interpreter and not a `multiprocessing` child: that would import the driver's main module again (a
script without a `__main__` guard would sweep in every worker), and could not set the environment beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import Reply, perform

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
_LAST_WORDS_BYTES = 2000


class LocalProcess:
    """One interpreter of this machine, in a process group of its own.

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

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply.

        Raises:
            WorkerLost: the process died or was killed; the message has its last words.
            InfrastructureError: it died before it was ready for a job, which is no fault of the job.
        """
        failure = WorkerLost if self._is_up else InfrastructureError
        try:
            if not self._is_up:
                self._receive()
                self._is_up, failure = True, WorkerLost
            os.ftruncate(self._words.fileno(), 0)
            self._channel.send_bytes(payload)
            reply = self._receive()
        except (EOFError, OSError) as error:
            self.kill()
            self._await_end()
            moment = "while it held a job" if failure is WorkerLost else "before it was ready"
            raise failure(f"{self._name} {self._end()} {moment}{self._last_words()}") from error
        assert isinstance(reply, Reply)
        return reply

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

    def _receive(self) -> Any:
        # A grandchild may hold the channel open after the child's death, so its end alone does not tell.
        while not self._channel.poll(_POLL_S):
            if self._child.poll() is not None and not self._channel.poll(0):
                raise EOFError
        return self._channel.recv()

    def _end(self) -> str:
        code = self._child.returncode
        if code is None:
            return "hangs"
        if code < 0:
            return f"died of {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _last_words(self) -> str:
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), _LAST_WORDS_BYTES, max(0, size - _LAST_WORDS_BYTES))
        text = words.decode(errors="replace").strip()
        return f"; its last words:\n{text}" if text else ""


def serve(channel: int, parent: int) -> None:
    """Does jobs until the driver goes away: the whole life of a worker process.

    Args:
        channel: file descriptor on which packed jobs come and replies go.
        parent: process id of the driver.
    """
    os.set_inheritable(channel, False)
    if sys.platform == "linux":
        # The end of the channel ends an idle process everywhere; a busy one only dies with its driver by this.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    connection = Connection(channel)
    with contextlib.suppress(EOFError, OSError):
        connection.send("ready")
        while True:
            reply = perform(connection.recv_bytes())
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(reply)
