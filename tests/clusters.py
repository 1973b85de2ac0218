"""Ray clusters as others start them, for tests: a head of its own process group, ended by that."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TOKEN = "0123456789abcdef" * 3


def free_ports(num: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def is_up(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


@contextlib.contextmanager
def ray_head(mode: str, *, client_port: bool = False, **more: str) -> Iterator[tuple[str, str]]:
    """A head with one CPU: its address and that of its client server, empty without.

    Args:
        mode: `token` or `disabled`, as RAY_AUTH_MODE.
        client_port: also start the client server.
        more: of its environment.
    """
    port, client = free_ports(2)
    # Ray picks the ports of its workers from 10002 to 19999; sockets' paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        environment = {
            **os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": TOKEN, "HOME": folder,
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9", **more,
        }  # fmt: skip
        log = Path(folder) / "head.log"
        with log.open("wb") as file:
            head = subprocess.Popen(
                [
                    sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
                    "--node-ip-address=127.0.0.1", "--num-cpus=1", "--include-dashboard=false",
                    f"--temp-dir={folder}/r", "--disable-usage-stats",
                    *([f"--ray-client-server-port={client}"] if client_port else []),
                ],
                env=environment, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        try:
            wanted = [port, client] if client_port else [port]
            end = time.monotonic() + 90
            while not all(map(is_up, wanted)):
                assert head.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.2)
            yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}" if client_port else ""
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(head.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    head.wait(timeout=10)
