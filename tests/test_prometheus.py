"""A real Prometheus scrapes a real sweep: every query of the dashboards and rules comes to something."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import running, wait_until, write_experiment, write_landscape
from queried import ROOT, panels
from scraped import free_port
from test_dashboards import counters

from tunefarm.record.metrics import MetricsServer
from tunefarm.runtime.reporting import Hit, Miss, Report, prometheus

SWEEP = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
)


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: Any) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus_at_work(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes targets by job, so often that a rate is known of the shortest sweep, and its rules."""
    config = {
        "global": {"scrape_interval": "400ms", "scrape_timeout": "400ms", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "rules.yaml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
        ],
    }
    folder.mkdir()
    (folder / "prometheus.yaml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        made = Prometheus(port)
        assert wait_until(made.is_ready, 60), (folder / "log").read_text()
        yield made
    finally:
        process.terminate()
        process.wait(30)


def elsewhere() -> str:
    """What jobs that use packs write, by their own code; and dcgm-exporter's form, with made-up values."""
    hit = Hit(kernel="k", step="same device", match="m", config="c", pack="p", launches=3, graphs=1)
    miss = Miss(kernel="k", problem=None, reason="no row", launches=1, graphs=0)
    report = Report(packs=("p",), hits=(hit,), misses=(miss,), refused=(), never_asked=())
    gpu = 'gpu="0",UUID="GPU-0",modelName="made up",Hostname="node"'
    lines = [f"# TYPE {name} {kind}\n{name}{{{gpu}}} 1\n" for name, kind in counters().items()]
    return prometheus(report) + "".join(lines)


def test_every_panel_of_a_sweep_that_is_scraped_has_data(tmp_path: Path) -> None:
    """With a store of its own and more candidates than are built beforehand, so that it measures for some seconds.

    Its times are replayed; what other exporters say is made up.
    """
    space = {**farm.LARGE, "MARK": list(range(40))}
    write_landscape(write_experiment(tmp_path, problems=farm.THREE, space=space))
    port, other = free_port(), MetricsServer("127.0.0.1", 0)
    other.show(elsewhere())
    targets = {"sweep": f"127.0.0.1:{port}", "other": urllib.parse.urlsplit(other.url).netloc}
    try:
        with prometheus_at_work(tmp_path / "prometheus", targets) as prometheus:
            began_s = time.time()
            store = tmp_path / "cache"
            with running(*SWEEP, "--metrics-port", str(port), folder=tmp_path, store=store) as process:
                out, err = process.communicate(timeout=240)
            assert process.returncode == 0, out + err
            span = {"start": began_s, "end": time.time(), "step": "1"}
            for asked in panels(rate_interval="10s"):
                found = prometheus.ask("/api/v1/query_range", query=asked.expr, **span)["result"]
                assert found, asked
            groups = prometheus.ask("/api/v1/rules")["groups"]
            ran = [rule for group in groups for rule in group["rules"]]
            assert len(ran) == 19
            assert {(rule["health"], rule.get("lastError", "")) for rule in ran} == {("ok", "")}
            assert [rule["name"] for rule in ran if rule.get("state") == "firing"] == ["TunefarmGpuError"]  # Xid 1
            tried = 'max_over_time(sum(tunefarm_trials{job="sweep"})[5m:1s])'
            ((_, number),) = [r["value"] for r in prometheus.ask("/api/v1/query", query=tried)["result"]]
            ledger = tmp_path / "sweeps/fill/ledger.jsonl"
            assert 0 < float(number) <= len({(e["study"], e["config"]) for e in farm.events(ledger, "measured")})
    finally:
        other.close()
