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


class Relay:
    """A process of this machine that is replaced by a fresh one whenever a job or its end demands it.

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
        self._process = start()
        self._spare: LocalProcess | None = None
        self._warming: threading.Thread | None = None
        self._stand_by()

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply; in a fresh process if it asks for one.

        Raises:
            WorkerLost: the process died or was killed.
            InfrastructureError: it never came up.
        """
        reply = self._process.exchange(payload)
        if reply.again:
            # Who wanted a fresh process once is content with it: no further spare is loaded beside what it does.
            self._hand_over()
            reply = self._process.exchange(payload)
        elif reply.retire and self._warm is not None:
            self._hand_over()
            self._stand_by()
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
        self._warming = threading.Thread(target=self._load, args=(self._spare, self._warm), daemon=True)
        self._warming.start()

    def _load(self, spare: LocalProcess, warm: bytes) -> None:
        try:
            spare.exchange(warm)
        except InfrastructureError as error:
            # It is no spare then; a job that cannot load either will say why.
            logger.debug("a spare process was lost: %s", error)
            with self._lock:
                self._spare = None
            spare.bury()

    def _hand_over(self) -> None:
        """Ends the process at work and lets the spare take over, or a new one where there is none."""
        self._process.kill()
        self._process.bury()
        if self._warming is not None:
            self._warming.join()
        with self._lock:
            if self._killed:
                raise WorkerLost("a worker was closed before it came to its job")
            self._process, self._spare, self._warming = self._spare or self._start(), None, None
