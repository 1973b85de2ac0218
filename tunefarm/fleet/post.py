"""A worker's post: the jobs that wait there, and the process that does them one by one.

What a process is, and how it is reached, is the tenant's business (`inline`, `ray`); the order of jobs, cancelling,
replacing a process and closing are the same for all and written here once.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import Reply, open_reply, pack, say_as_known

logger = logging.getLogger(__name__)

_MAX_SUPPLIES = 2
"""A job that is given what it lacks may want a fresh process, which lacks it too."""


class Process(Protocol):
    """Something that does one job at a time and keeps its modules warm in between."""

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply; in a fresh process if it asks for one.

        Raises:
            WorkerLost: the process died or was killed.
            InfrastructureError: it never came up.
        """
        ...

    def kill(self) -> None:
        """Ends it at once, from any thread and as often as wanted; an exchange under way raises `WorkerLost`."""
        ...

    def bury(self) -> None:
        """Waits until a killed process is gone."""
        ...


class Post:
    """Where one worker's jobs run, in a thread of its own that starts with the first job, as the process does.

    Args:
        name: the worker's.
        start: begins a fresh process, without waiting for it.
        supply: packed; gives a process what a job has said it lacks, and returns what people should know of that.
    """

    def __init__(self, name: str, start: Callable[[], Process], supply: bytes | None = None) -> None:
        self._name = name
        self._start = start
        self._supply = supply
        self._waiting: queue.SimpleQueue[tuple[bytes, Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: Process | None = None
        self._running: Future[Any] | None = None
        self._closed = False

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Does the job after those that wait already.

        Raises:
            InfrastructureError: the job cannot be pickled, or the post is closed.
        """
        payload = pack(job)
        # The future stays pending until its job is done: only so can it be cancelled while the job runs.
        future: Future[Any] = Future()
        future.add_done_callback(self._on_done)
        with self._lock:
            if self._closed:
                raise InfrastructureError(f"{self._name} takes no jobs: the fleet is closed")
            self._waiting.put((payload, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        return future

    def stop(self) -> None:
        """Kills the process and takes no more jobs; those that wait are lost."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
            self._waiting.put(None)

    def join(self) -> None:
        """Waits until a stopped post has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _on_done(self, future: Future[Any]) -> None:
        with self._lock:
            if self._running is future and future.cancelled() and self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            payload, future = item
            try:
                answer: Reply | InfrastructureError | None = self._do(payload, future)
                if answer is None:
                    continue
            except InfrastructureError as error:
                answer = error
            except Exception as error:  # No memory for a process, no disk for its words: whoever waits must hear it.
                answer = InfrastructureError(f"{self._name} cannot work: {type(error).__name__}: {error}")
            self._put_down(future, answer)
        self._discard()

    def _do(self, payload: bytes, future: Future[Any]) -> Reply | None:
        """The reply to a job; None if it was cancelled while it waited."""
        with self._lock:
            if future.cancelled():
                future.set_running_or_notify_cancel()
                return None
            if self._closed:
                raise WorkerLost(f"{self._name} was closed before it came to this job")
            process = self._process = self._process or self._start()
            self._running = future
        reply = process.exchange(payload)
        for _ in range(_MAX_SUPPLIES):
            if not reply.lacks or self._supply is None:
                break
            supplied = process.exchange(self._supply)
            if supplied.failed:
                return supplied
            _notice(str(open_reply(supplied)[0] or ""))
            reply = process.exchange(payload)
        return reply

    def _put_down(self, future: Future[Any], answer: Reply | InfrastructureError) -> None:
        """Replaces the process where it must be, then answers. From here on the job cannot be cancelled."""
        with self._lock:
            self._running = None
        if isinstance(answer, InfrastructureError):
            say_as_known(answer)
        wanted = future.set_running_or_notify_cancel()
        if not wanted or isinstance(answer, InfrastructureError) or answer.retire:
            self._discard()
        if wanted:
            value, error = (None, answer) if isinstance(answer, InfrastructureError) else open_reply(answer)
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.bury()


@functools.cache
def _notice(text: str) -> None:
    """Says what every worker of a node would say, once."""
    if text:
        logger.warning("%s", text)


def heard(asked: Sequence[tuple[str, Future[Device]]], *, least: int) -> list[Device | None]:
    """What GPUs say of themselves; one that cannot is left out, and that is said.

    Args:
        asked: what to call each, and its answer.
        least: how many must be there in the end.

    Raises:
        Exception: of the first that cannot, if fewer are left.
    """
    errors = [future.exception() for _, future in asked]
    failed = [error for error in errors if error is not None]
    if failed and len(asked) - len(failed) < least:
        raise failed[0]
    for (name, _), error in zip(asked, errors, strict=True):
        if error is not None:
            logger.warning("%s is left out: %s", name, error)
    return [None if error else future.result() for (_, future), error in zip(asked, errors, strict=True)]


def close_all(posts: Iterable[Post]) -> None:
    """Stops all posts, then waits for each."""
    posts = tuple(posts)
    for post in posts:
        post.stop()
    for post in posts:
        post.join()
