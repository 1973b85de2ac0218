"""A real MLflow server on a port of its own, over SQLite or over a Postgres that is started for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Server:
    """`mlflow server`, which may be stopped and started again in the middle of things."""

    def __init__(self, store: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._words = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "2",
            "--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts"),
        ]  # fmt: skip
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def start(self, patience_s: float = 120.0) -> None:
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdout=log, stderr=log, env={**os.environ, **quiet}, start_new_session=True,
                cwd=self._folder,
            )  # fmt: skip
        give_up_s = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
            assert time.monotonic() < give_up_s, "the server does not come up"
            time.sleep(0.2)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, how)
            self._process.wait(30)
            self._process = None


@contextlib.contextmanager
def serving(store: str, folder: Path) -> Iterator[Server]:
    """A server that runs as long as the context lasts."""
    server = Server(store, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A Postgres of our own, on a socket in a folder of its own: its URI. Skips where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    if initdb is None:
        pytest.skip("Postgres: no server is installed")
    # Not among pytest's folders: every session of pytest closes them anew to all users but its own.
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-pg-"))
    user = {}
    if os.getuid() == 0:  # a server refuses to be root's
        user = {"user": "nobody"}
        shutil.chown(folder, "nobody")
    pg_ctl, data = str(Path(initdb).with_name("pg_ctl")), str(folder / "data")
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **user}
    try:
        subprocess.run([initdb, "-D", data, "-U", "me", "-A", "trust", "-N"], **quiet)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        subprocess.run([pg_ctl, "-D", data, "-l", str(folder / "log"), "-w", "-o", options, "start"], **quiet)
        try:
            yield f"postgresql+psycopg://me@/postgres?host={folder}"
        finally:
            subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
