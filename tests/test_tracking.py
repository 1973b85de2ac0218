"""The mirror in MLflow, read back from a real SQLite database with MLflow's own client."""

from __future__ import annotations

import json
import logging
import math
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.record.card import card
from tunefarm.record.runs import batched
from tunefarm.record.tracking import MlflowTracker, NullTracker, Origin, open_tracker
from tunefarm.study import Status, Study, StudyResult
from tunefarm.trial import Build, Failure, Measurement, Outcome, Trial, Winner

pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's use of SQLAlchemy 2.1

DEVICE = replace(nominal("sm_90"), name="NVIDIA H200")


def config(block: int, warps: int = 4) -> Config:
    return Config(params=FrozenMap(BLOCK_N=block), options=FrozenMap(num_warps=warps, maxnreg=None))


def study(workload: str = "softmax", cols: int = 4096) -> Study:
    problem = Problem(dims=FrozenMap(n_cols=cols), dtypes=FrozenMap(x="bf16", y="bf16"))
    variables = FrozenMap[Any]({"n_rows": 8192, "n_cols": cols, "dtype": "bf16"})
    return Study(workload=workload, device=DEVICE, problem=problem, variables=variables)


def measured(number: int, ms: float) -> Trial:
    times = Measurement(samples_ms=(ms,) * 5, timer="cold", rung=0, source="replayed")
    build = Build(binary="ab" * 32, registers=32, spills=0, shared_bytes=1024)
    return Trial(number=number, config=config(64 << number), build=build, measurements=(times,))


def won(workload: str = "softmax", cols: int = 4096, **changes: Any) -> StudyResult:
    failure = Failure(stage="build", kind="CompilationError", message="bad tile")
    result = StudyResult(
        study=study(workload, cols),
        status=Status.WINNER,
        trials=(
            measured(0, 0.084),
            measured(1, 0.0404),
            Trial(number=2, config=config(256), outcome=Outcome.COMPILE_ERROR, failure=failure),
            Trial(number=3, config=config(512)),
        ),
        winner=Winner(
            config=config(128), median_ms=0.0404, interval_ms=(0.04, 0.041), default=config(64), default_ms=0.084,
            gain=0.084 / 0.0404, margin=0.1,
        ),
        source="replayed",
        toolchain=FrozenMap(triton="3.6.0", torch="2.11.0"),
        num_buckets=41, build_s=12.5, busy_s=1.5, held_s=2.0, num_bytes=0.0404e9 * 3.32,
    )  # fmt: skip
    return replace(result, **changes)


def no_winner(workload: str = "softmax") -> StudyResult:
    trial = won().trials[2]
    return won(
        workload, 8192, status=Status.NO_WINNER, winner=None, trials=(trial,), reason="1 of 1 failed: bad tile",
        build_s=math.inf, busy_s=math.nan,
    )  # fmt: skip


class Store:
    """One database for all tests of this file: setting one up takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:///{folder / 'new' / 'mlflow.db'}"
        self.path = folder / "new" / "mlflow.db"
        self._num = 0

    @property
    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def origin(self, **changes: Any) -> Origin:
        self._num += 1
        origin = Origin(
            workload=f"softmax{self._num}", experiment="softmax", sweep_id=f"sweep{self._num}", digest="d",
            command="tunefarm sweep experiments/softmax.yaml", toolchain=FrozenMap(triton="3.7.1"),
        )  # fmt: skip
        return replace(origin, **changes)

    def mirror(self, origin: Origin, *results: StudyResult, status: str = "FINISHED") -> None:
        tracker = open_tracker(self.uri, origin)
        tracker.start()
        for result in results:
            tracker.study(result, [0.084, 0.0404])
        assert tracker.close(status=status) == []

    def runs(self, origin: Origin) -> tuple[Any, list[Any]]:
        experiment = self.client.get_experiment_by_name(origin.workload)
        runs = self.client.search_runs([experiment.experiment_id])
        parents = [r for r in runs if r.data.tags["tunefarm.kind"] == "sweep"]
        children = [r for r in runs if r.data.tags["tunefarm.kind"] == "study"]
        assert len(parents) == 1
        assert {c.data.tags["mlflow.parentRunId"] for c in children} <= {parents[0].info.run_id}
        return parents[0], sorted(children, key=lambda c: c.info.run_name)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield Store(tmp_path_factory.mktemp("tracking"))
    logging.getLogger("mlflow").setLevel(logging.NOTSET)


def test_a_study_with_a_winner_reads_well(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload))
    parent, (child,) = store.runs(origin)
    assert child.info.run_name == "sm_90 8192x4096 bf16"
    assert child.info.status == "FINISHED"
    assert child.data.params == {
        "problem.n_rows": "8192", "problem.n_cols": "4096", "problem.dtype": "bf16",
        "BLOCK_N": "128", "num_warps": "4",
    }  # fmt: skip
    assert child.data.metrics == pytest.approx(
        {
            "time_us": 40.4, "default_time_us": 84.0, "gain": 2.079, "margin": 0.1, "bandwidth_tbps": 3.32,
            "bandwidth_share": 3.32 / 3.352, "candidates": 4, "buckets": 41, "measured": 2, "failed": 1,
            "build_s": 12.5, "best_time_us": 40.4,
        },
        rel=1e-3,
    )  # fmt: skip
    tags = child.data.tags
    ours = {k.removeprefix("tunefarm."): v for k, v in tags.items() if k.startswith("tunefarm.")}
    ours.pop("card")
    assert ours == {
        "kind": "study", "capability": "sm_90", "device": "NVIDIA H200", "status": "winner", "source": "replayed",
        "timer": "cold", "problem": "8192x4096 bf16", "winner": "BLOCK_N=128 num_warps=4 maxnreg=None",
        "reason": "faster", "clocks": "unknown", "toolchain.triton": "3.6.0", "toolchain.torch": "2.11.0",
        "sweep_id": origin.sweep_id,
        "workload": origin.workload, "study_key": won(origin.workload).study.key,
    }  # fmt: skip
    assert tags["mlflow.note.content"] == (
        f"{origin.workload} sm_90 8192x4096 bf16: BLOCK_N=128 num_warps=4 maxnreg=None takes 40.4 us, 2.08 times as "
        "fast as the default (84 us), 3.32 TB/s; 2 of 4 candidates measured; faster. Times are replayed from a "
        "landscape recorded on NVIDIA H200."
    )
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d softmax", parent.info.run_name)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["tunefarm.command"] == "tunefarm sweep experiments/softmax.yaml"
    assert parent.data.tags["tunefarm.toolchain.triton"] == "3.7.1"
    assert parent.data.tags["tunefarm.capability"] == "sm_90", "what its studies are of"
    assert parent.data.metrics["winners"] == 1
    assert parent.data.metrics["gain_geomean"] == pytest.approx(0.084 / 0.0404)


def test_best_so_far_is_a_curve_over_the_number_measured(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload))
    _, (child,) = store.runs(origin)
    points = store.client.get_metric_history(child.info.run_id, "best_time_us")
    assert [(p.step, p.value) for p in points] == [(1, pytest.approx(84.0)), (2, pytest.approx(40.4))]


def test_every_candidate_is_in_the_table(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload))
    _, (child,) = store.runs(origin)
    folder = Path(unquote(urlsplit(child.info.artifact_uri).path))
    assert store.path.parent / "mlartifacts" / origin.workload in folder.parents, "beside the database, not in ./mlruns"
    table = json.loads((folder / "trials.json").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["outcome"] for row in rows] == ["ok", "ok", "compile_error", "not tried"]
    assert rows[1] | {"BLOCK_N": 128, "median_us": 40.4, "registers": 32, "samples": 5} == rows[1]
    assert rows[2]["failure"] == "build: CompilationError: bad tile"
    assert rows[3]["median_us"] is None
    shown = json.loads(child.data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": "trials.json", "type": "table"}], "what makes MLflow's UI show it as a table"


def test_only_what_was_measured_cost_gpu_seconds() -> None:
    told = {source: card(replace(won("s"), source=source)).metrics for source in ("replayed", "measured")}
    assert told["measured"].items() - told["replayed"].items() == {("gpu_busy_s", 1.5), ("gpu_held_s", 2.0)}


def test_a_study_without_winner_is_a_failed_run_without_times(store: Store) -> None:
    """TF-118: nothing infinite or NaN is stored, and the fastest run by time is a real winner."""
    origin = store.origin()
    store.mirror(origin, no_winner(origin.workload), won(origin.workload))
    parent, (winner, failed) = store.runs(origin)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["tunefarm.status"] == "no_winner"
    assert failed.data.metrics == {"candidates": 1, "buckets": 41, "measured": 0, "failed": 1}
    assert "bad tile" in failed.data.tags["mlflow.note.content"]
    assert parent.data.metrics["studies"] == 2
    which = "metrics.time_us > 0 and tags.`tunefarm.kind` = 'study'"  # its finalists are runs, too
    best = store.client.search_runs([parent.info.experiment_id], which, order_by=["metrics.time_us"])
    assert best[0].info.run_id == winner.info.run_id
    with sqlite3.connect(store.path) as db:
        assert db.execute("select count(*) from metrics where is_nan or abs(value) > 1e300").fetchone() == (0,)
    db.close()


def test_a_study_that_nobody_measured_is_finished_and_has_no_times(store: Store) -> None:
    origin = store.origin()
    result = won(
        origin.workload, status=Status.NOT_MEASURED, winner=None, source="", reason="no GPU and no landscape of sm_80"
    )
    store.mirror(origin, result)
    _, (child,) = store.runs(origin)
    assert child.info.status == "FINISHED"
    assert child.data.tags["tunefarm.status"] == "not_measured"
    assert "tunefarm.source" not in child.data.tags
    assert not {"time_us", "best_time_us", "gain"} & child.data.metrics.keys()
    assert child.data.tags["mlflow.note.content"].endswith(
        "of 4 candidates none was timed: no GPU and no landscape of sm_80."
    )


def test_a_resumed_sweep_continues_its_run_and_doubles_no_study(store: Store) -> None:
    """TF-116: what was logged before a crash may be logged again, equal or changed, and nothing raises."""
    origin = store.origin()
    store.mirror(origin, won(origin.workload), status="KILLED")
    parent, (first,) = store.runs(origin)
    assert parent.info.status == "KILLED"
    cheaper = won(origin.workload, build_s=0.0, busy_s=0.0, held_s=0.0)
    store.mirror(origin, cheaper, won(origin.workload, 8192))
    again, children = store.runs(origin)
    assert (again.info.run_id, again.info.status) == (parent.info.run_id, "FINISHED")
    assert [c.info.run_name.split()[1] for c in children] == ["8192x4096", "8192x8192"]
    assert children[0].info.run_id == first.info.run_id
    assert children[0].data.metrics["build_s"] == 12.5, "the study was paid for once, and its run still says so"
    assert (again.data.metrics["build_s"], again.data.metrics["studies"]) == (25.0, 2)


def test_a_study_that_changed_or_was_half_written_is_written_anew(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload), won(origin.workload, 8192))
    _, (first, second) = store.runs(origin)
    store.client.set_tag(second.info.run_id, "tunefarm.card", "")
    winner = replace(won().winner, config=config(512, warps=8))  # type: ignore[type-var]
    store.mirror(origin, won(origin.workload, winner=winner), won(origin.workload, 8192))
    _, children = store.runs(origin)
    assert [c.data.params["BLOCK_N"] for c in children] == ["512", "128"]
    assert not {c.info.run_id for c in children} & {first.info.run_id, second.info.run_id}


@pytest.mark.parametrize("num", [99, 100, 101])
def test_more_params_than_one_request_takes(store: Store, num: int) -> None:
    """TF-122, params and metrics: nothing is dropped on a boundary."""
    origin = store.origin()
    winner = Winner(config=Config(params={f"P{i}": i for i in range(num - 3)}), median_ms=1.0, interval_ms=(1.0, 1.0))  # type: ignore[arg-type]
    tracker = open_tracker(store.uri, origin)
    tracker.start()
    tracker.study(won(origin.workload, winner=winner), [1.0] * (num * 10 + num % 2))
    assert tracker.close() == []
    _, (child,) = store.runs(origin)
    assert len(child.data.params) == num
    points = store.client.get_metric_history(child.info.run_id, "best_time_us")
    assert [p.step for p in points] == list(range(1, num * 10 + num % 2 + 1))


@pytest.mark.parametrize("num", [0, 1, 999, 1000, 1001, 2000])
def test_batches_hold_everything_once(num: int) -> None:
    """TF-122, the splitting itself."""
    batches = list(batched(range(num), 1000))
    assert [item for batch in batches for item in batch] == list(range(num))
    assert all(0 < len(batch) <= 1000 for batch in batches)


def test_long_text_is_shortened_rather_than_refused(store: Store) -> None:
    origin = store.origin(command="x" * 20_000)
    store.mirror(origin, won(origin.workload, status=Status.NO_WINNER, winner=None, reason="y" * 20_000))
    parent, (child,) = store.runs(origin)
    assert len(parent.data.tags["tunefarm.command"]) == len(child.data.tags["mlflow.note.content"]) == 5000


def test_two_sweeps_of_one_workload_share_its_experiment(store: Store) -> None:
    """TF-119: made once, and nothing lands in MLflow's experiment 0."""
    origin = store.origin()
    trackers = [open_tracker(store.uri, replace(origin, sweep_id=f"{origin.sweep_id}.{i}")) for i in range(4)]
    for tracker in trackers:
        tracker.start()
        tracker.study(won(origin.workload))
    assert [tracker.close() for tracker in trackers] == [[]] * 4
    experiment = store.client.get_experiment_by_name(origin.workload)
    runs = store.client.search_runs([experiment.experiment_id])
    assert Counter(run.data.tags["tunefarm.kind"] for run in runs) == {"sweep": 4, "study": 4, "finalist": 8}
    assert store.client.search_runs(["0"]) == []


def test_a_deleted_experiment_is_named_with_the_way_out(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """TF-119, an experiment that was deleted under the same name."""
    origin = store.origin()
    number = store.client.create_experiment(origin.workload)
    store.client.delete_experiment(number)
    tracker = open_tracker(store.uri, origin)
    tracker.start()
    tracker.study(won(origin.workload))
    assert tracker.close() == ["sm_90 8192x4096 bf16"]
    assert f"mlflow experiments restore --experiment-id {number}" in caplog.text


def test_what_failed_in_the_middle_is_written_at_the_end(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """TF-120: an outage that ends before the sweep costs nothing."""
    origin = store.origin()
    tracker = open_tracker(store.uri, origin)
    assert isinstance(tracker, MlflowTracker)
    tracker.start()
    put, away = tracker._mirror.put, [1, 1, 1]

    def flaky(page: Any) -> None:
        if away:
            away.pop()
            raise ConnectionError("connection refused")
        put(page)

    tracker._mirror.put = flaky  # type: ignore[method-assign]
    for cols in (1024, 2048, 4096, 8192):
        tracker.study(won(origin.workload, cols))
    assert tracker.close() == []
    assert len(store.runs(origin)[1]) == 4
    assert [r.getMessage().split(": ")[1] for r in caplog.records if r.levelno >= logging.WARNING] == [
        "connection refused"
    ]


def test_the_driver_never_waits(store: Store) -> None:
    """TF-109, TF-120: a database that another program holds locked, and one that never answers, cost no time."""
    origin = store.origin()
    store.mirror(store.origin())
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("begin exclusive")
    begun_s = time.perf_counter()
    tracker = open_tracker(store.uri, origin)
    tracker.start()
    for cols in range(50):
        tracker.study(won(origin.workload, cols))
    assert time.perf_counter() - begun_s < 0.5
    assert len(tracker.close(timeout_s=0.2)) == 50
    holder.execute("rollback")
    holder.close()
    tracker._thread.join()  # type: ignore[attr-defined]
    assert len(store.runs(origin)[1]) == 50, "the lock ended, so the thread finished after all"


def test_nothing_is_printed_and_no_state_is_left_in_mlflow(store: Store, tmp_path: Path) -> None:
    """A fresh process and a fresh database: MLflow's chatter, Alembic's and its URLs stay off the terminal."""
    code = """
import sys
sys.path.insert(0, sys.argv[2])
import test_tracking as t
from tunefarm.record.tracking import open_tracker, Origin
tracker = open_tracker(sys.argv[1], Origin(workload="softmax", experiment="softmax", sweep_id="s"))
tracker.start()
tracker.study(t.won())
assert tracker.close() == []
import mlflow
assert mlflow.get_tracking_uri() != sys.argv[1] and mlflow.active_run() is None
"""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", code, uri, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (Path.cwd() / "mlruns").exists()


def test_a_card_tells_the_same_whatever_it_cost() -> None:
    same = card(won(build_s=0.0, held_s=9.0))
    assert same.digest == card(won()).digest
    assert card(won(reason="x", status=Status.NO_WINNER)).digest != same.digest


@pytest.mark.parametrize("uri", ["", "none"])
def test_no_mirror_is_a_choice(uri: str) -> None:
    tracker = open_tracker(uri, Origin(workload="w", experiment="e", sweep_id="s"))
    assert isinstance(tracker, NullTracker)
    tracker.start()
    tracker.study(won())
    assert tracker.close() == []
