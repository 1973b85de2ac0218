"""MLflow, the mirror of a sweep for people: experiment = workload, parent run = sweep, child run = study.

The mirror is written by one thread of the driver, and nothing waits for it: a database that takes seconds to set up, a
server that is away or a full disk never stops or slows a sweep. What could not be written waits in this process until
the sweep ends, and a while longer for a server that does not listen; what is left then is said, and the same command
writes it from the ledger, which has it all.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import queue
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from tunefarm.address import file_fault, public, server_fault, sqlite_fault
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.record.card import Card, card
from tunefarm.record.runs import Origin as Origin
from tunefarm.record.runs import Runs
from tunefarm.record.store import SERVERS, sqlite_path
from tunefarm.seams import NullTracker, Tracker
from tunefarm.study import StudyResult

DEFAULT_URI = "sqlite:///mlflow.db"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")

_AGAIN_S = 1.0

REPORT = "report"
"""Stands for it among what is not written yet; no study has such a key."""

log = logging.getLogger(__name__)


def open_tracker(uri: str, origin: Origin) -> Tracker:
    """The tracker for a tracking URI.

    Args:
        uri: a database (`sqlite:///mlflow.db`) or server that MLflow knows; empty or `none` for no mirror.
        origin: the sweep.

    Raises:
        SpecError: MLflow is not installed, or its present releases cannot write to such a URI.
    """
    if uri in ("", "none"):
        return NullTracker()
    check_uri(uri)
    return MlflowTracker(uri, origin)


def check_uri(uri: str) -> None:
    """Judges a tracking URI before anything is measured; contacts nobody.

    Raises:
        SpecError: see `open_tracker`.
    """
    scheme = uri.split(":", 1)[0].split("+")[0].lower() if ":" in uri else "file"
    remedy = f"use a database such as {DEFAULT_URI}, the address of an MLflow server, or `none`"
    if scheme == "file":
        raise SpecError(
            f"{public(uri)!r} is a folder, and MLflow no longer keeps runs in folders",
            key="tracking.uri",
            hint=f"{remedy}; `mlflow migrate-filestore` moves old runs to a database",
        )
    if scheme not in _DATABASES + SERVERS:
        raise SpecError(f"{public(uri)!r} is nothing MLflow can write to", key="tracking.uri", hint=remedy)
    if importlib.util.find_spec("mlflow") is None:
        raise SpecError(
            "MLflow is not installed", key="tracking.uri", hint="pip install 'tunefarm[client]', or use `none`"
        )
    fault = sqlite_fault(uri) if scheme == "sqlite" else server_fault(uri) if scheme in SERVERS else ""
    if not fault and (database := sqlite_path(uri)) is not None:
        fault = file_fault(database)
    if fault:
        raise SpecError(f"{public(uri)}: {fault}", key="tracking.uri", hint=remedy)


def check_server(uri: str, timeout_s: float = 5.0) -> None:
    """Sees whether a tracking server listens; a database needs no server.

    Raises:
        InfrastructureError: nobody does. MLflow itself would try for minutes.
    """
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout_s).close()
    except OSError as e:
        raise InfrastructureError(
            f"no MLflow server at {public(uri)}: {e}", hint="start it, or sweep with `--tracking none`"
        ) from None


class MlflowTracker:
    """A mirror in MLflow; made by `open_tracker`.

    Args:
        uri: tracking URI, never taken from nor left in MLflow's global state.
        origin: the sweep.
    """

    def __init__(self, uri: str, origin: Origin) -> None:
        self._uri, self._origin = uri, origin
        self._mirror = Runs(uri, origin)
        self._queue: queue.SimpleQueue[Card | None] = queue.SimpleQueue()
        self._left: dict[str, str] = {}
        self._error = ""
        self._status, self._give_up_s = "FINISHED", math.inf
        self._pack: Path | None = None
        self._thread = threading.Thread(target=self._write, name="tunefarm-tracking", daemon=True)

    @property
    def num_left(self) -> int:
        """Studies handed over and not written yet."""
        return len(self._left)

    def start(self) -> None:
        """Starts the writing thread; MLflow is imported and its database set up there."""
        self._thread.start()

    def study(self, result: StudyResult, best_ms: Sequence[float] = (), spent_s: Sequence[float] = ()) -> None:
        """Hands a study to the writing thread."""
        page = card(result, best_ms, spent_s)
        self._left[page.key] = page.name
        self._queue.put(page)

    def close(self, *, status: str = "FINISHED", timeout_s: float = 60.0, pack: Path | None = None) -> list[str]:
        """Waits for the writing thread, at most `timeout_s` seconds."""
        self._status, self._give_up_s, self._pack = status, time.monotonic() + timeout_s, pack
        if pack is not None:
            self._left[str(pack)] = f"pack {pack}"
        # One that goes on will have another to tell.
        if self._origin.ledger is not None and status in ("FINISHED", "FAILED"):
            self._left[REPORT] = "the report"
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        left = list(self._left.values())
        if left or self._error or self._thread.is_alive():
            why = self._error or f"not done after {timeout_s:.0f} s"
            what = f"{', '.join(left[:5])}{f' and {len(left) - 5} more' if left[5:] else ''}" or "the totals"
            log.warning("MLflow at %s lacks %s of this sweep: %s. The ledger has it all.", public(self._uri), what, why)
        return left

    def _write(self) -> None:
        failed: list[Card] = []
        self._attempt(self._mirror.open)
        while (page := self._queue.get()) is not None:
            if not self._put(page):
                failed.append(page)
        while not self._finish(failed):
            time.sleep(_AGAIN_S)

    def _finish(self, failed: list[Card]) -> bool:
        """One more attempt for each that failed; False if another may help, because the server does not listen."""
        waits = self._is_away() and time.monotonic() < self._give_up_s
        failed[:] = [page for page in failed if not self._put(page)]
        done = self._keep() and not failed and self._end()
        if done:
            self._error = ""
        elif not waits:
            # Without what the server refuses: a run that nobody will write to is not to be `RUNNING` for ever.
            self._end()
        return done or not waits

    def _keep(self) -> bool:
        pack = self._pack
        if pack is not None and str(pack) in self._left:
            if not self._attempt(lambda: self._mirror.keep(pack)):
                return False
            self._left.pop(str(pack))
        return True

    def _end(self) -> bool:
        """Totals, the end of the sweep's run, and its report."""
        return (not self._status or self._attempt(lambda: self._mirror.close(self._status))) and self._report()

    def _report(self) -> bool:
        # Of a thousand studies it takes a minute: it comes when all else is told.
        if REPORT in self._left:
            if not self._attempt(self._mirror.report):
                return False
            self._left.pop(REPORT)
        return True

    def _is_away(self) -> bool:
        try:
            check_server(self._uri)
        except InfrastructureError:
            return True
        return False

    def _put(self, page: Card) -> bool:
        done = self._attempt(lambda: self._mirror.put(page))
        if done:
            self._left.pop(page.key, None)
        return done

    def _attempt(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as e:  # whatever MLflow, a database driver or the network raises: the sweep goes on
            level = logging.DEBUG if self._error else logging.WARNING
            self._error = public((str(e).splitlines() or [repr(e)])[0])
            log.log(level, "MLflow at %s: %s", public(self._uri), self._error)
            return False
        return True
