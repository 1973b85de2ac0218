"""A sweep's runs in MLflow: experiment = workload, parent run = sweep, child run = study, below it its finalists."""

from __future__ import annotations

import itertools
import json
import logging
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tunefarm.export import holds
from tunefarm.frozen import FrozenMap
from tunefarm.pack_reader import load_pack
from tunefarm.record.card import COSTS, MAX_TEXT, Card
from tunefarm.record.finalists import Finalist
from tunefarm.record.following import Follower
from tunefarm.record.markdown import markdown
from tunefarm.record.page import page
from tunefarm.record.parquet import write_table
from tunefarm.record.reading import read_account
from tunefarm.record.registry import artifact_folder, register
from tunefarm.record.report import report
from tunefarm.record.standalone import drawn
from tunefarm.record.store import SERVERS, connect, find_experiment

MAX_BATCH = {"metrics": 800, "params": 100, "tags": 100}
"""Entities that go into one request: MLflow refuses as a whole one with more than 1000, or 100 of the latter two."""

SHARED = tuple(f"tunefarm.{name}" for name in ("capability", "device", "source", "timer", "clocks"))
"""Tags of studies that their sweep's run has, too, with every value that there is."""

FIGURES = "figures"
"""Folder of a study's pictures, among its artifacts."""

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        registered_as: the model of MLflow's registry whose candidate its pack becomes; empty for none.
        ledger: where its figures and its report are made from; None for neither.
        conditions: under which it records there.
    """

    workload: str
    experiment: str
    sweep_id: str
    digest: str = ""
    command: str = ""
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    checked: bool = True
    registered_as: str = ""
    ledger: Path | None = None
    conditions: str = ""


class Runs:
    """The runs of one sweep in MLflow. For one thread at a time; every method raises what MLflow raises."""

    def __init__(self, uri: str, origin: Origin) -> None:
        self._uri = uri
        # A server answers a request in some 80 ms and rests for half of them; a database is best left to one.
        self._num_hands = 4 if uri.split(":", 1)[0] in SERVERS else 1
        self._origin = origin
        self._client: Any = None
        self._experiment = self._parent = ""
        self._children: dict[str, tuple[str, str]] = {}
        self._metrics: dict[str, Mapping[str, float]] = {}
        self._cards: dict[str, Card] = {}
        self._follower = None if origin.ledger is None else Follower(origin.ledger, origin.conditions)

    def open(self) -> None:
        """Connects, once; finds or makes the experiment and the sweep's run, and learns which studies it has."""
        if self._client is not None:
            return
        client = connect(self._uri)
        self._experiment = find_experiment(client, self._origin.workload, self._uri)
        same = f"tags.`tunefarm.sweep_id` = '{self._origin.sweep_id}' and tags.`tunefarm.kind` = 'sweep'"
        if found := client.search_runs([self._experiment], filter_string=same, max_results=1):
            self._parent = found[0].info.run_id
            client.update_run(self._parent, status="RUNNING")
        else:
            # MLflow cuts names after some 16 letters, and its experiment is called as ours in most cases.
            name = f"{time.strftime('%m-%d %H:%M')} {self._origin.experiment}"
            self._parent = client.create_run(self._experiment, run_name=name, tags=self._tags()).info.run_id
        for run in self._below(client, f"tags.`mlflow.parentRunId` = '{self._parent}'"):
            key = run.data.tags.get("tunefarm.study_key", "")
            self._children[key] = (run.info.run_id, run.data.tags.get("tunefarm.card", ""))
            self._metrics[key] = run.data.metrics
        self._client = client

    def _below(self, client: Any, which: str) -> list[Any]:
        """Runs of the experiment that are not deleted, all of them."""
        found: list[Any] = []
        token = None
        while True:
            some = client.search_runs([self._experiment], filter_string=which, page_token=token)
            found += some
            if not (token := some.token):
                return found

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

    def put(self, card: Card) -> None:
        """Writes a study as a run under the sweep's, unless the very same is there already."""
        self.open()
        run_id, seen = self._children.get(card.key, ("", ""))
        if seen != card.digest:
            if run_id:
                # Half-written before a crash, or overtaken by an edited space. Parameters cannot be rewritten.
                self._delete(run_id)
            self._children[card.key] = (self._write(card), card.digest)
            self._metrics[card.key] = card.metrics
        self._cards[card.key] = card
        if self._follower is not None:
            self._follower.forget(card.key)

    def _delete(self, run_id: str) -> None:
        for run in self._below(self._client, f"tags.`mlflow.parentRunId` = '{run_id}'"):
            self._client.delete_run(run.info.run_id)
        self._client.delete_run(run_id)

    def _write(self, card: Card) -> str:
        shown = {"mlflow.loggedArtifacts": '[{"path": "trials.json", "type": "table"}]'}
        tags = {**self._place(self._parent), "tunefarm.study_key": card.key, **shown}
        run_id: str = self._client.create_run(self._experiment, run_name=card.name, tags=tags).info.run_id
        self._children[card.key] = (run_id, "")
        points = [(name, value, 0) for name, value in card.metrics.items()]
        points += [(name, value, step) for name, curve in card.curve.items() for step, value in enumerate(curve, 1)]
        self._log(run_id, points, card.params, card.tags)
        # MLflow shows the newest first, and few at once: so the best is.
        now_ms = int(time.time() * 1000)
        acts: list[Callable[[], None]] = [
            partial(self._write_finalist, run_id, card, finalist, now_ms - place)
            for place, finalist in enumerate(card.finalists)
        ]
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            files = self._files(card, Path(folder))
            acts += [partial(self._client.log_artifact, run_id, str(file), within) for file, within in files]
            side_by_side(lambda act: act(), acts, self._num_hands)
        # Last: a run without it was not written to its end.
        self._client.set_tag(run_id, "tunefarm.card", card.digest)
        self._client.set_terminated(run_id, card.status)
        return run_id

    def _place(self, parent: str) -> dict[str, str]:
        """Tags that say where a run belongs."""
        return {
            "mlflow.parentRunId": parent,
            "mlflow.source.name": "tunefarm",
            "mlflow.source.type": "JOB",
            "tunefarm.sweep_id": self._origin.sweep_id,
            "tunefarm.workload": self._origin.workload,
        }

    def _write_finalist(self, study: str, card: Card, finalist: Finalist, began_ms: int) -> None:
        tags = {**self._place(study), "tunefarm.study": card.name, **finalist.tags}
        run = self._client.create_run(self._experiment, start_time=began_ms, run_name=finalist.name, tags=tags)
        points = [(name, value, 0) for name, value in finalist.metrics.items()]
        self._log(run.info.run_id, points, finalist.params, {})
        self._client.set_terminated(run.info.run_id)

    def _files(self, card: Card, folder: Path) -> list[tuple[Path, str]]:
        """Artifacts of a study, and the folder of each; every candidate is in two: MLflow's UI shows no Parquet."""
        table, pictures = json.loads(card.table), self._figures(card)
        (folder / "trials.json").write_text(card.table, encoding="utf-8")
        write_table(folder / "trials.parquet", table["columns"], table["data"])
        for name, picture in pictures.items():
            (folder / name).write_bytes(picture)
        return [(file, FIGURES if file.name in pictures else "") for file in sorted(folder.iterdir())]

    def _figures(self, card: Card) -> dict[str, bytes]:
        if self._follower is None:
            return {}
        try:
            account = self._follower.account(card.key)
            return {} if account is None else drawn(account)
        except Exception as e:  # whatever a ledger holds: a study without figures is worth more than none
            log.warning("no figures of %s: %s", card.name, e)
            return {}

    def _log(
        self, run_id: str, points: list[tuple[str, float, int]], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now_ms = int(time.time() * 1000)
        entities = {
            "metrics": [Metric(name, value, now_ms, step) for name, value, step in points],
            "params": [Param(name, value) for name, value in params.items()],
            "tags": [RunTag(name, value) for name, value in tags.items()],
        }
        batches = [batched(items, MAX_BATCH[kind]) for kind, items in entities.items()]
        for slices in itertools.zip_longest(*batches, fillvalue=()):
            self._client.log_batch(run_id, **dict(zip(entities, slices, strict=True)))

    def keep(self, pack: Path) -> None:
        """Keeps the pack beside the sweep's run and, if that is wanted, makes it the candidate of its model."""
        self.open()
        loaded = load_pack(pack)
        digest = loaded.digest
        self._client.log_artifact(self._parent, str(pack), artifact_folder(digest))
        kept = [c for c in self._cards.values() if c.winner is not None and holds(loaded, c.study, c.winner)]
        runs = [self._parent, *(self._children[card.key][0] for card in kept)]
        side_by_side(lambda run: self._client.set_tag(run, "tunefarm.pack", digest), runs, self._num_hands)
        if self._origin.registered_as:
            tags = {"tunefarm.sweep_id": self._origin.sweep_id, "tunefarm.experiment": self._origin.experiment}
            register(self._client, self._origin.registered_as, pack, self._client.get_run(self._parent), tags)

    def close(self, status: str) -> None:
        """Writes the sweep's totals and ends its run."""
        self.open()
        studies = self._metrics.values()
        spent = [name for name in COSTS if any(name in metrics for metrics in studies)]
        points = [(name, sum(metrics.get(name, 0.0) for metrics in studies), 0) for name in spent]
        points += [("studies", len(studies), 0), ("winners", sum("time_us" in metrics for metrics in studies), 0)]
        if gains := [metrics["gain"] for metrics in studies if metrics.get("gain", 0.0) > 0]:
            points.append(("gain_geomean", math.exp(sum(map(math.log, gains)) / len(gains)), 0))
        tags = [card.tags for card in self._cards.values()]
        told = {name: ", ".join(sorted({each[name] for each in tags if name in each})) for name in SHARED}
        self._log(self._parent, points, {}, {name: many[:MAX_TEXT] for name, many in told.items() if many})
        if status == "FINISHED":
            # A request whose answer was lost, or a driver that was taken over, may have left a run that nobody knows.
            known = {run_id for run_id, _ in self._children.values()} | {self._parent}
            for run in self._below(self._client, f"tags.`tunefarm.sweep_id` = '{self._origin.sweep_id}'"):
                mine = run.info.run_id in known or run.data.tags.get("tunefarm.kind") == "finalist"
                if not mine or run.data.tags.get("mlflow.parentRunId", self._parent) not in known:
                    self._client.delete_run(run.info.run_id)
        self._client.set_terminated(self._parent, status)

    def report(self) -> None:
        """Keeps the report beside the sweep's run, as a page and as Markdown."""
        self.open()
        if self._origin.ledger is None:
            return
        try:
            told = report([read_account(self._origin.ledger)])
        except Exception as e:  # as of figures
            log.warning("no report of %s: %s", self._origin.experiment, e)
            return
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as name:
            (Path(name) / "report.html").write_bytes(page(told))
            (Path(name) / "report.md").write_text(markdown(told), encoding="utf-8")
            self._client.log_artifacts(self._parent, name)


def side_by_side(act: Callable[[T], None], items: Sequence[T], num: int) -> None:
    """Does the same to all items, several at a time, until one fails; raises what it raised.

    Args:
        act: what is to be done to one.
        items: to whom.
        num: threads. Nobody waits for them where a process ends in the middle of it.
    """
    left, errors = deque(items), deque[Exception]()

    def work() -> None:
        while left and not errors:
            try:
                item = left.popleft()
            except IndexError:  # another took the last one
                return
            try:
                act(item)
            except Exception as e:  # raised below, in the thread that asked
                errors.append(e)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(num, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def batched(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Slices of `items`, each of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
