"""A Ray cluster that runs whatever anybody sends it is not joined, unless that is said to be meant."""

from __future__ import annotations

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from clusters import TOKEN, free_ports, ray_head
from farm import tunefarm, wait_until, write_experiment
from overlays import MANIFESTS

from tunefarm.cli.trust import check_cluster, check_store, check_telemetry, check_token
from tunefarm.fleet.trust import Answer, ask_without_token

BUILD = ("build", "experiment.yaml", "--builders", "1", "--quiet")
SMALL = {"devices": ["sm_90"], "space": {"BLOCK": [64], "MARK": [0], "num_warps": [4]}}


@pytest.fixture(scope="module")
def open_head() -> Iterator[tuple[str, str]]:
    """Addresses of a cluster that asks nobody for a token."""
    with ray_head("disabled", client_port=True) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def closed_head() -> Iterator[tuple[str, str]]:
    """Addresses of a cluster that asks for one."""
    with ray_head("token", client_port=True) as addresses:
        yield addresses


def test_a_cluster_is_asked_what_it_tells_strangers(open_head: tuple[str, str], closed_head: tuple[str, str]) -> None:
    """Its control service and its client server."""
    assert [ask_without_token(address) for address in open_head] == [Answer.SERVED] * 2
    assert [ask_without_token(address) for address in closed_head] == [Answer.REFUSED] * 2


def test_silence_is_no_consent() -> None:
    (port,) = free_ports(1)
    assert ask_without_token(f"127.0.0.1:{port}", timeout_s=2.0) is Answer.SILENT
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert ask_without_token(f"127.0.0.1:{deaf.getsockname()[1]}", timeout_s=1.0) is Answer.SILENT


def test_an_open_cluster_is_refused_in_one_line(tmp_path: Path, open_head: tuple[str, str]) -> None:
    """Named as it is, as `auto`, and by its client server."""
    address, client = open_head
    write_experiment(tmp_path, **SMALL)
    for named, more in ((address, {}), (client, {}), ("auto", {"RAY_ADDRESS": address})):
        done = tunefarm(
            *BUILD, "--address", named, folder=tmp_path, store=tmp_path / "store", RAY_AUTH_MODE="disabled", **more
        )
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        line = done.stderr.splitlines()[-1]
        port = address.rpartition(":")[2]  # of `auto` Ray knows the node's own address
        where = rf"\S+:{port}" if named == "auto" else re.escape(named)
        assert re.match(f"error: the Ray cluster at {where} answers without a token: ", line)
        assert "RAY_AUTH_MODE=token" in line
        assert "TUNEFARM_INSECURE_CLUSTER=1" in line
        assert not list((tmp_path / "store").rglob("*.cubin"))


SLOW = """
import os, signal, sys, threading
from tunefarm.errors import UserError
from tunefarm.fleet import cluster

cluster._REACH_S, control, ask = 2.0, int(sys.argv[2]), cluster.ask_without_token


def ask_first(address, timeout_s):
    cluster.ask_without_token = ask
    os.kill(control, signal.SIGSTOP)
    threading.Timer(3.0, os.kill, (control, signal.SIGCONT)).start()
    return ask(address, timeout_s)


cluster.ask_without_token = ask_first
try:
    cluster.connect(sys.argv[1], use_gpus=False, insecure=False)
except UserError as error:
    print(error)
"""


def test_an_open_cluster_that_is_slow_to_answer_is_refused_too(open_head: tuple[str, str]) -> None:
    """Its control service stands still while it is first asked, as where it has too much to do."""
    (control,) = (
        path.name for path in Path("/proc").glob("[0-9]*")
        if b"gcs_server" in (words := read(path / "cmdline")).split(b"\0")[0]
        and f"--gcs_server_port={open_head[0].rpartition(':')[2]}".encode() in words
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SLOW, open_head[0], control], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )  # fmt: skip
    assert "answers without a token" in done.stdout, done.stdout + done.stderr


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_it_is_joined_where_that_is_meant(tmp_path: Path, open_head: tuple[str, str]) -> None:
    write_experiment(tmp_path, **SMALL)
    done = tunefarm(
        *BUILD, "--address", open_head[0], folder=tmp_path, store=tmp_path / "store", RAY_AUTH_MODE="disabled",
        TUNEFARM_INSECURE_CLUSTER="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 compiled" in done.stdout


def test_a_cluster_with_a_token_is_joined_by_who_has_it(tmp_path: Path, closed_head: tuple[str, str]) -> None:
    write_experiment(tmp_path, **SMALL)
    words = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    store = tmp_path / "store"
    done = tunefarm(*BUILD, "--address", closed_head[0], folder=tmp_path, store=store, **words)
    assert done.returncode == 0, done.stderr
    assert "1 compiled" in done.stdout
    words["RAY_AUTH_TOKEN"] = TOKEN[::-1]
    wrong = tunefarm(*BUILD, "--address", closed_head[0], folder=tmp_path, store=store, **words)
    assert (wrong.returncode, wrong.stdout) == (3, "")
    says = f"error: no Ray cluster at {closed_head[0]} for whoever has no token, or another (it asks for a token: set "
    assert wrong.stderr == f"{says}RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as it has them)\n"  # nothing of Ray's own
    words |= {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none"), "HOME": str(tmp_path)}
    none = tunefarm(*BUILD, "--address", closed_head[0], folder=tmp_path, store=store, **words)
    (line,) = none.stderr.splitlines()
    assert none.returncode == 3
    assert line.startswith(f"error: no Ray cluster at {closed_head[0]}: ")
    assert "it asks for a token: set RAY_AUTH_MODE=token" in line


def test_what_is_no_cluster_is_told_at_once(tmp_path: Path) -> None:
    """TF-104: a web server, whom Ray asks for minutes; texts that are no addresses."""
    write_experiment(tmp_path, **SMALL)

    def said(address: str) -> tuple[int, str]:
        done = tunefarm(*BUILD, "--address", address, folder=tmp_path, store=tmp_path / "store")
        (line,) = done.stderr.splitlines()
        return done.returncode, line

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    with server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        address = f"127.0.0.1:{server.server_port}"
        code, line = said(address)
        server.shutdown()
    assert code == 3
    assert line.startswith(f"error: no Ray cluster at {address}: what listens there does not answer as one does (")
    for odd in ("127.0.0.1", "host:port", "host:99999", ":6379", "http://host:6379", "local", "a b:1"):
        code, line = said(odd)
        assert code == 2
        assert line.startswith(f"error: --address: {odd!r} is no address of a Ray cluster (write host:6379")


def test_the_doctor_says_whom_a_machine_trusts(
    tmp_path: Path, open_head: tuple[str, str], closed_head: tuple[str, str]
) -> None:
    assert check_cluster("", insecure=False).state == "ok"
    assert "is no address of one" in check_cluster("rubbish", insecure=False).found
    assert check_cluster(closed_head[0], insecure=False).found == f"{closed_head[0]} asks for a token"
    opened = check_cluster(open_head[0], insecure=False)
    assert (opened.state, opened.found) == ("warn", f"{open_head[0]} does what strangers ask")
    assert check_cluster(closed_head[0], insecure=True).state == "warn"
    (port,) = free_ports(1)
    assert "does not answer" in check_cluster(f"127.0.0.1:{port}", insecure=False).found

    token = tmp_path / "auth_token"
    assert check_token(token).state == "ok"
    token.write_text(TOKEN)
    for mode, state in ((0o644, "warn"), (0o600, "ok")):
        token.chmod(mode)
        assert check_token(token).state == state

    store = tmp_path / "cache" / "builds"
    assert check_store(store).state == "ok"
    store.mkdir(parents=True)
    for place in (store, store.parent):
        for mode, state in ((0o777, "warn"), (0o775, "warn"), (0o755, "ok")):
            place.chmod(mode)
            assert check_store(store).state == state

    assert check_telemetry("", "").state == "ok"
    assert check_telemetry("head:6379", "").state == "warn"
    assert check_telemetry("head:6379", "https://usage.example").state == "warn"
    assert check_telemetry("head:6379", "http://127.0.0.1:9").state == "ok"


class Reports(http.server.BaseHTTPRequestHandler):
    seen: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_head_reports_though_it_is_told_not_to_so_recipes_lead_that_nowhere() -> None:
    """Why settings and batch script name a port of this machine that nobody listens on: here one listens."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reports) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with ray_head("token", RAY_USAGE_STATS_REPORT_URL=f"http://127.0.0.1:{server.server_address[1]}"):
            assert wait_until(lambda: bool(Reports.seen), 60), "Ray has mended that: the setting can go"
        server.shutdown()
    for path in ("base/settings.yaml", "slurm/measure.sbatch"):
        text = (MANIFESTS / path).read_text()
        assert re.search(r"RAY_USAGE_STATS_REPORT_URL(=|: )http://127\.0\.0\.1:9\n", text)
