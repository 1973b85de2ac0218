"""Where chaos happens: a Ray cluster of several nodes, an MLflow server, experiments, and drivers of sweeps."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm import children, environment, smooth, wait_until, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.device import nominal
from tunefarm.fleet import cluster as door
from tunefarm.trial import Outcome

DEVICES = {
    "sm_80": replace(nominal("sm_80"), name="Chaos A100", live=True),
    "sm_90": replace(nominal("sm_90"), name="Chaos H200", live=True),
}
LIMIT_S = 240.0
SPACE = {"BLOCK": {"pow2": [32, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4]}


class Nodes:
    """A cluster: a head that does nothing, a node that builds, and two nodes of each device."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_AUTH_TOKEN"] = door._TOKEN
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        impatient = {
            "health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_timeout_ms": 2000,
            "health_check_failure_threshold": 3,
        }  # fmt: skip
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": impatient},
        )
        self.address: str = self._cluster.address
        self._builder = self._cluster.add_node(num_cpus=2)
        self.measuring = [self._add(arch) for arch in DEVICES for _ in range(2)]

    def _add(self, arch: str) -> tuple[str, Any]:
        labels = {door.LABEL: door.label_of(DEVICES[arch].name)}
        return arch, self._cluster.add_node(num_cpus=0, num_gpus=1, labels=labels)

    def remove(self, node: tuple[str, Any], *, raylet_only: bool = False) -> None:
        self.measuring.remove(node)
        if raylet_only:
            node[1].kill_raylet()
        else:
            self._cluster.remove_node(node[1], allow_graceful=False)

    def bring_back(self, node: tuple[str, Any]) -> None:
        if node[1] in self._cluster.worker_nodes:
            self._cluster.remove_node(node[1], allow_graceful=False)
        self.measuring.append(self._add(node[0]))

    def workers(self, node: tuple[str, Any]) -> list[int]:
        """Processes of a node that work for a sweep: Ray's actor, and the process beside it."""
        raylets = [info.process.pid for info in node[1].all_processes["raylet"]]
        actors = [pid for raylet in raylets for pid in children(raylet) if _title(pid).startswith("ray::Actor")]
        return [pid for actor in actors for pid in (actor, *children(actor))]

    @property
    def building(self) -> tuple[str, Any]:
        return "", self._builder

    def close(self) -> None:
        self._cluster.shutdown()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


class MlflowServer:
    """A tracking server that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        assert wait_until(self.answers, 120), "the MLflow server does not come up"

    def start(self) -> None:
        """Returns at once; a server takes some seconds."""
        if self._process is not None:
            return
        line = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]  # fmt: skip
        quiet = {
            "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }  # fmt: skip
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                line, cwd=self._folder, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def runs(self, sweep_id: str) -> list[Any]:
        """The runs of a sweep that are not deleted."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        experiment = client.get_experiment_by_name("fill")
        assert experiment is not None
        return list(client.search_runs([experiment.experiment_id], f"tags.`tunefarm.sweep_id` = '{sweep_id}'"))


def other(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    """Times of the second device: its best is elsewhere, and some configs fail."""
    if config.flat["num_warps"] == 1 and int(config.flat["BLOCK"] or 0) == 512:
        return Outcome.LAUNCH_ERROR
    return smooth(config, {"n": 1}) * (1 + 0.2 * (config.flat["num_warps"] != 4)) + 0.001


@dataclass(kw_only=True)
class Site:
    """What all runs share: cluster, server, builds, and how each experiment ends undisturbed.

    Attributes:
        folder: where everything lies.
        nodes: the cluster.
        server: MLflow's.
        calm: by sampler, the ledger and the report of an undisturbed sweep.
    """

    folder: Path
    nodes: Nodes
    server: MlflowServer
    calm: dict[str, tuple[Path, dict[str, Any]]] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def lay_out(self, sampler: str) -> Path:
        """The folder of an experiment and its recordings, with its calm sweep done."""
        folder = self.folder / sampler
        if sampler not in self.calm:
            terms: dict[str, Any] = {
                "problems": [{"n": [1000, 4096], "dtype": "fp32"}], "space": SPACE,
                "search": {"batch": 4, **({} if sampler == "default" else {"sampler": sampler})},
                "budget": {"trials": 20} if sampler == "default" else None,
            }  # fmt: skip
            path = write_experiment(folder, **terms, devices=list(DEVICES))
            for arch, time_ms in zip(DEVICES, (other, smooth), strict=True):
                write_landscape(path, time_ms, f"{arch}.json.gz", DEVICES[arch])
            recorded = [{"arch": arch, "landscape": f"{arch}.json.gz"} for arch in DEVICES]
            write_experiment(folder, **terms, devices=recorded)
            done = Driver(self, folder, "calm", inline=True)
            assert done.process.wait(LIMIT_S) == 0, done.err
            self.calm[sampler] = done.ledger, done.report
        return folder

    def close(self) -> None:
        self.server.stop()
        self.nodes.close()


def open_site(folder: Path) -> Site:
    server = MlflowServer(folder)
    return Site(folder=folder, nodes=Nodes(), server=server)


class Driver:
    """One process of the command."""

    def __init__(
        self, site: Site, folder: Path, sweeps: str, *, inline: bool = False, number: int = 0, **how: Any
    ) -> None:
        self.ledger = folder / sweeps / "fill/ledger.jsonl"
        self.out_file, self.err_file = (folder / f"{sweeps}.{number}.{end}" for end in ("out", "err"))
        self.tally = folder / f"{sweeps}.tally"
        where = ["--fleet", "inline"] if inline else ["--address", site.nodes.address]
        tracking = "none" if inline else site.server.uri
        disturbed = json.dumps({"tally": str(self.tally), **how})
        root = Path(__file__).parents[1]
        path = os.pathsep.join([str(root), str(root / "tests")])
        line = [
            sys.executable, "-c", "import disturbed; disturbed.main()", "sweep", "experiment.yaml", "--meter", "replay",
            "--tracking", tracking, "--json", "--sweeps", sweeps, *where,
        ]  # fmt: skip
        with self.out_file.open("wb") as out, self.err_file.open("wb") as err:
            self.process = subprocess.Popen(
                line, cwd=folder, stdout=out,
                # The cluster is this process's own, and asks for no token.
                env=environment(site.store, DISTURBED=disturbed, PYTHONPATH=path, TUNEFARM_INSECURE_CLUSTER="1"),
                stderr=err,
            )  # fmt: skip

    @property
    def err(self) -> str:
        return self.err_file.read_text()

    @property
    def report(self) -> dict[str, Any]:
        """What it printed in the end."""
        report: dict[str, Any] = json.loads(self.out_file.read_text())
        return report

    def told(self) -> Counter[str]:
        """What was given to workers and delivered oddly, by all drivers of its ledger."""
        return Counter(self.tally.read_text().split()) if self.tally.exists() else Counter()
