"""MLflow that is away for a while, or has carried out what it never answered; and a driver that was taken over."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
import test_tracking
from test_tracking import Store, won

from tunefarm.record.tracking import MlflowTracker, Origin, open_tracker

pytestmark = test_tracking.pytestmark
store = test_tracking.store


def test_a_run_that_nobody_knows_is_gone_in_the_end(store: Store) -> None:
    """TF-120: a request that was carried out and whose answer was lost leaves one."""
    origin = store.origin()
    store.mirror(origin, won(origin.workload), status="KILLED")
    parent, (first,) = store.runs(origin)
    tags = {**first.data.tags, "mlflow.runName": "a copy"}
    store.client.create_run(parent.info.experiment_id, tags=tags)
    store.mirror(origin, won(origin.workload), won(origin.workload, 8192))
    _, children = store.runs(origin)
    assert [child.info.run_name.split()[1] for child in children] == ["8192x4096", "8192x8192"]


def test_a_driver_that_was_taken_over_leaves_the_sweep_s_run_to_the_next(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload), status="")
    parent, _ = store.runs(origin)
    assert parent.info.status == "RUNNING"
    assert "studies" not in parent.data.metrics


def test_a_server_that_stays_away_is_waited_for_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    """TF-120: said once when it is missed, and once in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    tracker = open_tracker(uri, Origin(workload="w", experiment="e", sweep_id="s"))
    tracker.start()
    tracker.study(won("w"))
    assert tracker.close(timeout_s=2.5) == ["sm_90 8192x4096 bf16"]
    tracker._thread.join(60)  # type: ignore[attr-defined]
    assert not tracker._thread.is_alive()  # type: ignore[attr-defined]
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "lacks sm_90 8192x4096 bf16 of this sweep" in warnings[-1]


def test_a_pack_that_could_not_be_told_is_named(store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sweep's run and its studies are there all the same."""
    origin = store.origin()
    tracker = open_tracker(store.uri, origin)
    tracker.start()
    tracker.study(won(origin.workload))
    missing = tmp_path / "pack.json"
    assert tracker.close(pack=missing) == [f"pack {missing}"]
    assert f"lacks pack {missing} of this sweep" in caplog.text
    parent, children = store.runs(origin)
    assert len(children) == 1
    assert (parent.info.status, parent.data.metrics["winners"]) == ("FINISHED", 1)


def test_an_outage_never_raises_and_is_told_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TF-120: the sweep goes on; what is missing is said, once at the beginning and once at the end."""
    (tmp_path / "file").write_text("")
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/file/mlflow.db", Origin(workload="w", experiment="e", sweep_id="s"))
    tracker.start()
    tracker.study(won("w"))
    tracker.study(won("w", 8192))
    assert tracker.close() == ["sm_90 8192x4096 bf16", "sm_90 8192x8192 bf16"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "lacks sm_90 8192x4096 bf16, sm_90 8192x8192 bf16 of this sweep: " in warnings[-1]
    assert len(warnings) <= 3
