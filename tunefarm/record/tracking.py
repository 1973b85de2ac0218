"""MLflow, the mirror of a sweep for people: experiment = workload, parent run = sweep, child run = study.

The mirror is written by one thread of the driver, and nothing waits for it: a database that takes seconds to set up, a
server that is away or a full disk never stops or slows a sweep. What could not be written is said at the end; the
ledger has it all.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import queue
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.address import public, sqlite_fault
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.record.card import COSTS, MAX_TEXT, Card, card
from tunefarm.seams import NullTracker, Tracker
from tunefarm.study import StudyResult

DEFAULT_URI = "sqlite:///mlflow.db"
MAX_BATCH = {"metrics": 1000, "params": 100, "tags": 100}
"""Entities MLflow takes in one request; more than these are refused as a whole."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https", "databricks")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where studies come from: what the parent run says about its sweep.

    Attributes:
        workload: name of the workload, which names the MLflow experiment.
        experiment: name of the tunefarm experiment.
        sweep_id: as in the ledger; a sweep that goes on after a crash continues the run that carries it.
        digest: of the experiment.
        command: how the sweep was called.
        toolchain: versions in the driver's process.
        checked: outputs are compared with a reference's.
    """

    workload: str
    experiment: str
    sweep_id: str
    digest: str = ""
    command: str = ""
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    checked: bool = True


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
    if scheme not in _DATABASES + _SERVERS:
        raise SpecError(f"{public(uri)!r} is nothing MLflow can write to", key="tracking.uri", hint=remedy)
    if importlib.util.find_spec("mlflow") is None:
        raise SpecError(
            "MLflow is not installed", key="tracking.uri", hint="pip install 'tunefarm[client]', or use `none`"
        )
    if scheme == "sqlite" and (fault := sqlite_fault(uri)):
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
        self._uri = uri
        self._mirror = _Mirror(uri, origin)
        self._queue: queue.SimpleQueue[Card | None] = queue.SimpleQueue()
        self._left: dict[str, str] = {}
        self._error = ""
        self._status = "FINISHED"
        self._thread = threading.Thread(target=self._write, name="tunefarm-tracking", daemon=True)

    @property
    def num_left(self) -> int:
        """Studies handed over and not written yet."""
        return len(self._left)

    def start(self) -> None:
        """Starts the writing thread; MLflow is imported and its database set up there."""
        self._thread.start()

    def study(self, result: StudyResult, best_ms: Sequence[float] = ()) -> None:
        """Hands a study to the writing thread."""
        page = card(result, best_ms)
        self._left[page.key] = page.name
        self._queue.put(page)

    def close(self, *, status: str = "FINISHED", timeout_s: float = 60.0) -> list[str]:
        """Waits for the writing thread, at most `timeout_s` seconds."""
        self._status = status
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
        # The service may be back by now: one more attempt for each.
        self._error = ""
        for page in failed:
            self._put(page)
        self._attempt(lambda: self._mirror.close(self._status))

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


class _Mirror:
    """The runs of one sweep in MLflow. Single-threaded; every method raises what MLflow raises."""

    def __init__(self, uri: str, origin: Origin) -> None:
        self._uri = uri
        self._origin = origin
        self._client: Any = None
        self._experiment = self._parent = ""
        self._children: dict[str, tuple[str, str]] = {}
        self._metrics: dict[str, Mapping[str, float]] = {}

    def open(self) -> None:
        """Connects, once; finds or makes the experiment and the sweep's run, and learns which studies it has."""
        if self._client is not None:
            return
        client = _connect(self._uri)
        self._experiment = _experiment(client, self._origin.workload, self._uri)
        same = f"tags.`tunefarm.sweep_id` = '{self._origin.sweep_id}' and tags.`tunefarm.kind` = 'sweep'"
        if found := client.search_runs([self._experiment], filter_string=same, max_results=1):
            self._parent = found[0].info.run_id
            client.update_run(self._parent, status="RUNNING")
        else:
            name = f"{self._origin.experiment} {time.strftime('%Y-%m-%d %H:%M')}"
            self._parent = client.create_run(self._experiment, run_name=name, tags=self._tags()).info.run_id
        token, children = None, f"tags.`mlflow.parentRunId` = '{self._parent}'"
        while True:
            page = client.search_runs([self._experiment], filter_string=children, page_token=token)
            for run in page:
                key = run.data.tags.get("tunefarm.study_key", "")
                self._children[key] = (run.info.run_id, run.data.tags.get("tunefarm.card", ""))
                self._metrics[key] = run.data.metrics
            if not (token := page.token):
                break
        self._client = client

    def _tags(self) -> dict[str, str]:
        origin = self._origin
        tags = {
            "tunefarm.kind": "sweep",
            "tunefarm.sweep_id": origin.sweep_id,
            "tunefarm.experiment": origin.experiment,
            "tunefarm.digest": origin.digest,
            "tunefarm.command": origin.command,
            "tunefarm.checked": "yes" if origin.checked else "no",
            **{f"tunefarm.toolchain.{name}": version for name, version in origin.toolchain.items()},
            "mlflow.source.name": "tunefarm",
            "mlflow.source.type": "JOB",
            "mlflow.note.content": f"Sweep of {origin.experiment}: one run below for each study. `{origin.command}`",
        }
        return {name: value[:MAX_TEXT] for name, value in tags.items()}

    def put(self, page: Card) -> None:
        """Writes a study as a run under the sweep's, unless the very same is there already."""
        self.open()
        run_id, seen = self._children.get(page.key, ("", ""))
        if seen != page.digest:
            if run_id:
                # Half-written before a crash, or overtaken by an edited space. Parameters cannot be rewritten.
                self._client.delete_run(run_id)
            self._children[page.key] = (self._write(page), page.digest)
            self._metrics[page.key] = page.metrics

    def _write(self, page: Card) -> str:
        tags = {
            "mlflow.parentRunId": self._parent,
            "mlflow.source.name": "tunefarm",
            "mlflow.source.type": "JOB",
            "mlflow.loggedArtifacts": '[{"path": "trials.json", "type": "table"}]',
            "tunefarm.sweep_id": self._origin.sweep_id,
            "tunefarm.workload": self._origin.workload,
            "tunefarm.study_key": page.key,
        }
        run_id: str = self._client.create_run(self._experiment, run_name=page.name, tags=tags).info.run_id
        self._children[page.key] = (run_id, "")
        points = [(name, value, 0) for name, value in page.metrics.items()]
        points += [(name, value, step) for name, curve in page.curve.items() for step, value in enumerate(curve, 1)]
        self._log(run_id, points, page.params, page.tags)
        self._client.log_text(run_id, page.table, "trials.json")
        self._client.set_tag(run_id, "tunefarm.card", page.digest)
        self._client.set_terminated(run_id, page.status)
        return run_id

    def _log(
        self, run_id: str, points: list[tuple[str, float, int]], params: dict[str, str], tags: dict[str, str]
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        entities = {
            "metrics": [Metric(name, value, now_ms, step) for name, value, step in points],
            "params": [Param(name, value) for name, value in params.items()],
            "tags": [RunTag(name, value) for name, value in tags.items()],
        }
        for kind, items in entities.items():
            for batch in batched(items, MAX_BATCH[kind]):
                self._client.log_batch(run_id, **{kind: batch})

    def close(self, status: str) -> None:
        """Writes the sweep's totals and ends its run."""
        self.open()
        studies = self._metrics.values()
        spent = [name for name in COSTS if any(name in metrics for metrics in studies)]
        points = [(name, sum(metrics.get(name, 0.0) for metrics in studies), 0) for name in spent]
        points += [("studies", len(studies), 0), ("winners", sum("time_us" in metrics for metrics in studies), 0)]
        if gains := [metrics["gain"] for metrics in studies if metrics.get("gain", 0.0) > 0]:
            points.append(("gain_geomean", math.exp(sum(map(math.log, gains)) / len(gains)), 0))
        self._log(self._parent, points, {}, {})
        self._client.set_terminated(self._parent, status)


def batched(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Slices of `items`, each of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _connect(uri: str) -> Any:
    # Set, not read: nothing leaves a sweep, and its terminal belongs to the CLI.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    for noisy in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if path := _sqlite_path(uri):
        path.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _sqlite_path(uri: str) -> Path | None:
    scheme, _, path = uri.partition(":///")
    return Path(path) if scheme.startswith("sqlite") and path else None


_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Lets MLflow's UI open on runs and charts; without it a new experiment opens as one of language models."""


def _experiment(client: Any, name: str, uri: str) -> str:
    """The id of an MLflow experiment, made if there is none."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifacts(name, uri), tags=_KIND))
        except MlflowException:
            # Another sweep made it in the meantime; anything else is raised below.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise InfrastructureError(
            f"experiment {name!r} was deleted there",
            hint=f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or rename the workload",
        )
    return str(found.experiment_id)


def _artifacts(name: str, uri: str) -> str | None:
    """Where artifacts go: beside a database; a server knows itself.

    MLflow's own default, `./mlruns`, would later be taken for a folder of runs, which it refuses to read.
    """
    if uri.split(":", 1)[0] in _SERVERS:
        return None
    folder = (_sqlite_path(uri) or Path("mlflow.db")).parent / "mlartifacts"
    return (folder / re.sub(r"[^\w.-]", "_", name)).resolve().as_uri()
