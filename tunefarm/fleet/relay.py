"""A relay: the process at work, and a spare one that takes over where a fresh one is wanted.

Loading what jobs take costs a process many seconds. The spare has them behind it by the time it is needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import Reply
from tunefarm.fleet.process import LocalProcess

logger = logging.getLogger(__name__)

LOAD_S = 120.0
"""How long a spare that is needed may still take to load; then a new process is as good."""


class Relay:
    """A process of this machine, replaced by a fresh one where a job asks for that, or says that it cannot be trusted.

    One that dies or is killed takes its spare with it: the whole relay is then of no more use.

    Args:
        start: begins a fresh process, without waiting for it.
        warm: a packed job that a spare does while it waits; None to keep no spare. It must leave alone what the
            process at work holds, such as a GPU.
    """

    def __init__(self, start: Callable[[], LocalProcess], warm: bytes | None = None) -> None:
        self._start = start
        self._warm = warm
        self._lock = threading.Lock()
        self._killed = False
        self._process: LocalProcess | None = start()
        self._spare: LocalProcess | None = None
        self._warming: threading.Thread | None = None
        self._stand_by()

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply; in a fresh process if it asks for one.

        Raises:
            WorkerLost: the process died or was killed.
            InfrastructureError: it never came up.
        """
        process = self._process
        if process is None:
            process = self._take_over()
            self._stand_by()
        reply = process.exchange(payload)
        if reply.again:
            # Who wanted a fresh process once is content with it: no further spare is loaded beside what it does.
            self._end()
            reply = self._take_over().exchange(payload)
        elif reply.retire and self._warm is not None:
            # The next job waits for who takes over, not this one's answer.
            self._end()
            reply = replace(reply, retire=False)
        return reply

    def kill(self) -> None:
        """Ends it and its spare at once, from any thread; an exchange under way raises `WorkerLost`."""
        with self._lock:
            self._killed = True
            for process in self._both():
                process.kill()

    def bury(self) -> None:
        """Waits until both are gone."""
        if self._warming is not None:
            self._warming.join()
        for process in self._both():
            process.bury()

    def _both(self) -> list[LocalProcess]:
        return [process for process in (self._process, self._spare) if process is not None]

    def _stand_by(self) -> None:
        """Starts a spare and lets it load."""
        if self._warm is None:
            return
        with self._lock:
            if self._killed:
                return
            try:
                self._spare = self._start()
            except OSError as error:  # No memory, no disk for its words: one that is needed will meet it again.
                logger.debug("no spare process could be started: %s", error)
                return
        load = threading.Thread(target=self._load, args=(self._spare, self._warm), name="spare", daemon=True)
        self._warming = load
        load.start()

    def _load(self, spare: LocalProcess, warm: bytes) -> None:
        try:
            spare.exchange(warm)
        except InfrastructureError as error:
            # It is no spare then; a job that cannot load either will say why.
            logger.debug("a spare process was lost: %s", error)
            self._drop(spare)

    def _drop(self, spare: LocalProcess) -> None:
        with self._lock:
            self._spare = None
        spare.kill()
        spare.bury()

    def _end(self) -> None:
        """Ends the process at work; taken out first, as its number may be another's before it is replaced."""
        with self._lock:
            process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.bury()

    def _take_over(self) -> LocalProcess:
        """The spare is at work from now on, or a new process where there is none that lives."""
        spare = self._spare
        if self._warming is not None and spare is not None:
            self._warming.join(LOAD_S)
            if self._warming.is_alive():
                spare.kill()  # It hangs. Its thread ends with it, and drops it.
            self._warming.join()
        if self._spare is not None and not self._spare.is_alive:
            self._drop(self._spare)
        with self._lock:
            if self._killed:
                raise WorkerLost("a worker was closed before it came to its job")
            process = self._process = self._spare or self._start()
            self._spare = self._warming = None
        return process
