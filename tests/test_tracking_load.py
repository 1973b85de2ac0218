"""TF-109, TF-116, TF-120 in full: five studies of 300 candidates through a real server that is killed in the middle."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from booked import book, of_result
from mlflow_server import Server, postgres, serving
from test_finalists import many
from test_tracking import study

from tunefarm.record.finalists import MAX_FINALISTS
from tunefarm.record.tracking import MlflowTracker, Origin, open_tracker
from tunefarm.study import StudyResult

pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's use of SQLAlchemy 2.1

NUM_STUDIES, NUM_CANDIDATES = 5, 300
BLOCKED_S, FLUSHED_S = 0.5, 40.0
FIGURES = {"candidates.svg", "distribution.svg", "convergence.svg", "effect.svg", "share.svg"}


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        if request.param == "postgres":
            uri = stack.enter_context(postgres())
        yield stack.enter_context(serving(uri, tmp_path))


def studies() -> list[StudyResult]:
    return [replace(many(NUM_CANDIDATES), study=study("load", 1024 << n)) for n in range(NUM_STUDIES)]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """That of the sweep, from which its figures and its report are made."""
    return book(tmp_path / "ledger.jsonl", *(event for result in studies() for event in of_result(result)))


class Driver:
    """What a sweep's driver does, and how long that kept it."""

    def __init__(self, uri: str, ledger: Path) -> None:
        self.blocked_s = 0.0
        origin = Origin(workload="load", experiment="load", sweep_id="load", ledger=ledger, conditions="c")
        self._tracker = open_tracker(uri, origin)
        assert isinstance(self._tracker, MlflowTracker)
        self.num_left = lambda: self._tracker.num_left
        self._timed(self._tracker.start)

    def _timed(self, act: Any, *given: Any) -> None:
        began_s = time.perf_counter()
        act(*given)
        self.blocked_s += time.perf_counter() - began_s

    def tell(self, result: StudyResult) -> None:
        best = [t.median_ms for t in result.trials if t.median_ms is not None]
        self._timed(self._tracker.study, result, best, [0.01 * n for n in range(len(best))])

    def flush(self) -> tuple[list[str], float]:
        """What is not written, and how long it took."""
        began_s = time.perf_counter()
        left = self._tracker.close(timeout_s=120.0)
        return left, time.perf_counter() - began_s


def check_all_is_there_once(server: Server) -> None:
    client = server.client
    experiment = client.get_experiment_by_name("load")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    kinds = Counter(run.data.tags["tunefarm.kind"] for run in runs)
    assert kinds == {"sweep": 1, "study": NUM_STUDIES, "finalist": NUM_STUDIES * MAX_FINALISTS}
    assert {run.info.status for run in runs} == {"FINISHED"}
    parents = Counter(run.data.tags.get("mlflow.parentRunId") for run in runs)
    (sweep,) = [run for run in runs if run.data.tags["tunefarm.kind"] == "sweep"]
    shown = [run for run in runs if run.data.tags["tunefarm.kind"] == "study"]
    assert parents == {
        None: 1, sweep.info.run_id: NUM_STUDIES, **{run.info.run_id: MAX_FINALISTS for run in shown},
    }  # fmt: skip
    assert sweep.data.metrics["winners"] == NUM_STUDIES
    for run in shown:
        curve = client.get_metric_history(run.info.run_id, "best_time_us")
        assert [point.step for point in curve] == list(range(1, NUM_CANDIDATES + 1))
        names = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert names == {"trials.json", "trials.parquet", "figures"}
        pictures = {Path(file.path).name for file in client.list_artifacts(run.info.run_id, "figures")}
        assert pictures == FIGURES
    assert {file.path for file in client.list_artifacts(sweep.info.run_id)} == {"report.html", "report.md"}


def test_five_studies_of_300_candidates_keep_nobody_waiting(server: Server, ledger: Path) -> None:
    driver = Driver(server.uri, ledger)
    for result in studies():
        driver.tell(result)
    left, flushed_s = driver.flush()
    print(f"the driver was blocked for {driver.blocked_s:.3f} s; flushed after {flushed_s:.1f} s")
    assert left == []
    assert driver.blocked_s < BLOCKED_S
    assert flushed_s < FLUSHED_S
    check_all_is_there_once(server)


def test_a_server_that_restarts_in_the_middle_loses_and_doubles_nothing(server: Server, ledger: Path) -> None:
    driver = Driver(server.uri, ledger)
    results = studies()
    for result in results[:3]:
        driver.tell(result)
    give_up_s = time.monotonic() + 60
    while driver.num_left() > 2 and time.monotonic() < give_up_s:
        time.sleep(0.05)
    time.sleep(1.0)  # into the middle of the second study
    server.stop()
    for result in results[3:]:
        driver.tell(result)
    server.start()
    left, flushed_s = driver.flush()
    print(f"the driver was blocked for {driver.blocked_s:.3f} s; flushed after {flushed_s:.1f} s")
    assert left == []
    assert driver.blocked_s < BLOCKED_S
    assert flushed_s < FLUSHED_S
    check_all_is_there_once(server)
    again = Driver(server.uri, ledger)
    for result in results:
        again.tell(result)
    assert again.flush()[0] == []
    check_all_is_there_once(server)
