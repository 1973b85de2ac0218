"""Where a driver's metrics are shown: to whoever asks over HTTP, and in a file for a textfile collector.

Prometheus is no guest of this house: its text format is written by `exposition`, and served by the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

from tunefarm.document import write_atomic
from tunefarm.errors import UserError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SUFFIX = ".prom"
"""Of the files that a textfile collector reads."""
PERIOD_S = 5.0
"""How often the file is written: collectors read it every 15 seconds or so, and its disk may be slow."""

log = logging.getLogger(__name__)


class Showcase(Protocol):
    """Where metrics can be seen."""

    def show(self, text: str) -> None:
        """Replaces what is seen; never raises for want of a disk or a network."""
        ...

    def close(self) -> None:
        """Ends it; a file stays, with what was shown last."""
        ...


class MetricsServer:
    """Answers GET /metrics until it is closed, and nothing else. It asks nobody who they are.

    Attributes:
        url: where.

    Args:
        address: to listen at.
        port: to listen on; 0 for any that is free.

    Raises:
        UserError: nobody may listen there, or somebody does.
    """

    def __init__(self, address: str, port: int) -> None:
        self._page = [b""]
        try:
            self._server = _Server((address, port), partial(_Handler, self._page))
        except (OSError, OverflowError) as e:
            why = getattr(e, "strerror", None) or str(e)
            key, hint = "--metrics-port", "name a free port, or leave it out"
            if isinstance(e, socket.gaierror) or getattr(e, "errno", None) == errno.EADDRNOTAVAIL:
                key, hint = "--metrics-address", "name an address of this machine, such as 127.0.0.1 or 0.0.0.0"
            raise UserError(f"{address}:{port}: {why}", key=key, hint=hint) from None
        self.url = f"http://{address}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="tunefarm-metrics", daemon=True).start()

    def show(self, text: str) -> None:
        """What the next scrape gets."""
        self._page[0] = text.encode()

    def close(self) -> None:
        """Frees the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    timeout = 10.0  # who connects and says nothing holds a thread no longer

    def __init__(self, page: list[bytes], *args: object) -> None:
        self._page = page
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path.split("?")[0] != "/metrics":
            self.send_error(404, explain="metrics are at /metrics")
            return
        page = self._page[0]
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked has left
            self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


class MetricsFile:
    """A file that a textfile collector reads.

    Args:
        path: whole at any time: it is replaced in one step.

    Raises:
        UserError: it cannot be written, or no collector would read it.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix != SUFFIX:
            raise UserError(
                f"{path}: collectors read files that end in {SUFFIX}", key="--metrics-file",
                hint=f"name it {path.with_suffix(SUFFIX)}",
            )  # fmt: skip
        self._path, self._text = path, ""
        self._due_s = 0.0
        self._failed = False
        try:
            write_atomic(path, b"")
        except OSError as e:
            raise UserError(
                f"{path} cannot be written: {e.strerror or e}", key="--metrics-file",
                hint="name a file in a folder you may write to",
            ) from None  # fmt: skip

    def show(self, text: str) -> None:
        """Writes it, unless that was done a moment ago."""
        self._text = text
        if time.monotonic() >= self._due_s:
            self._write()

    def close(self) -> None:
        """Writes what was shown last."""
        self._write()

    def _write(self) -> None:
        self._due_s = time.monotonic() + PERIOD_S
        try:
            write_atomic(self._path, self._text.encode())
        except OSError as e:
            log.log(logging.DEBUG if self._failed else logging.WARNING, "metrics are not in %s: %s", self._path, e)
            self._failed = True


@contextlib.contextmanager
def showcases(port: int | None, address: str, file: Path | None) -> Iterator[list[Showcase]]:
    """Those that were asked for, closed in the end.

    Raises:
        UserError: one cannot be opened; nothing is left open then.
    """
    with contextlib.ExitStack() as stack:
        opened: list[Showcase] = []
        if port is not None:
            opened.append(stack.enter_context(contextlib.closing(MetricsServer(address, port))))
        if file is not None:
            opened.append(stack.enter_context(contextlib.closing(MetricsFile(file))))
        yield opened
