"""Finalists as runs below their study's, and the table of every candidate, in a real SQLite database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
import test_tracking
from test_tracking import Store, config, measured, won

from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.record.card import card
from tunefarm.record.finalists import MAX_FINALISTS, finalists
from tunefarm.record.parquet import write_table
from tunefarm.record.runs import side_by_side
from tunefarm.record.tracking import Origin, open_tracker
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FINAL, Failure, Measurement, Outcome, Trial

pytestmark = test_tracking.pytestmark
store = test_tracking.store


def timed(number: int, ms: float, rung: int, **changes: Any) -> Trial:
    times = Measurement(samples_ms=(ms,) * 5, timer="cold", rung=rung, source="measured")
    about = {"number": number, "config": config(number), "measurements": (times,), **changes}
    return replace(measured(0, ms), **about)


def many(num: int, **changes: Any) -> StudyResult:
    """A study of `num` candidates, the slowest first: the default is the slowest, and three sat in the finals."""
    trials = [timed(n, 0.1 + (num - n) * 1e-4, FINAL if n in (0, num - 1, num - 2) else 0) for n in range(num)]
    winner = replace(won().winner, config=config(num - 1), default=config(0), default_ms=0.2)  # type: ignore[type-var]
    return won(trials=tuple(trials), winner=winner, source="measured", **changes)


def below(store: Store, origin: Origin) -> list[Any]:
    """The finalists of the only study, as MLflow lists them: best first."""
    _, (study,) = store.runs(origin)
    runs = store.client.search_runs([study.info.experiment_id], f"tags.`mlflow.parentRunId` = '{study.info.run_id}'")
    return list(runs)


def test_the_finals_come_first_then_the_next_best() -> None:
    found = finalists(many(100))
    assert len(found) == MAX_FINALISTS
    assert [f.tags["tunefarm.rung"] for f in found] == ["finals"] * 3 + ["0"] * (MAX_FINALISTS - 3)
    assert [f.tags["tunefarm.role"] for f in found[:4]] == ["winner", "candidate", "default", "candidate"]
    times = [f.metrics["time_us"] for f in found[3:]]
    assert times == sorted(times)
    assert [f.params["BLOCK_N"] for f in found[3:5]] == ["97", "96"], "the best of those that were timed once"
    assert ["gain" in f.metrics for f in found] == [True] * 3 + [False] * (MAX_FINALISTS - 3)


def test_the_default_is_among_them_however_slow() -> None:
    result = many(100)
    trials = (timed(0, 9.0, 0), *result.trials[1:])
    roles = [f.tags["tunefarm.role"] for f in finalists(replace(result, trials=trials))]
    assert (len(roles), roles[0], roles[-1]) == (MAX_FINALISTS, "winner", "default")


def test_who_failed_or_was_never_timed_is_none() -> None:
    failure = Failure(stage="verify", kind="WrongResult", message="off by one")
    trials = (
        timed(0, 0.1, 0, outcome=Outcome.WRONG_RESULT, failure=failure),
        timed(1, 0.2, 0),
        Trial(number=2, config=config(2)),
    )
    found = finalists(won(trials=trials, winner=None, status=Status.NO_WINNER))
    assert [(f.params["BLOCK_N"], f.tags["tunefarm.role"]) for f in found] == [("1", "candidate")]


def test_values_are_numbers_where_they_can_be(store: Store) -> None:
    odd = Config(params=FrozenMap(BLOCK=64, EVEN=True, ORDER="row", SCALE=0.5), options=FrozenMap(maxnreg=None))
    origin = store.origin()
    store.mirror(origin, won(origin.workload, trials=(replace(measured(0, 0.1), config=odd),)))
    (run,) = below(store, origin)
    assert run.data.params == {"BLOCK": "64", "EVEN": "1", "ORDER": "row", "SCALE": "0.5"}


def test_a_finalist_reads_well(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, replace(many(30), study=won(origin.workload).study, flops=1e9))
    runs = below(store, origin)
    assert [run.data.metrics["place"] for run in runs] == list(range(1, MAX_FINALISTS + 1))
    best = runs[0]
    assert (best.info.run_name, best.info.status) == ("1 BLOCK_N=29", "FINISHED")
    assert best.data.params == {"BLOCK_N": "29", "num_warps": "4"}
    assert best.data.metrics == pytest.approx(
        {
            "time_us": 100.1, "gain": 0.2 / 0.1001, "bandwidth_tbps": 1.3399, "bandwidth_share": 1.3399 / 3.352,
            "tflops": 9.99, "tflops_share": 9.99 / 989.5, "place": 1, "samples": 5, "registers": 32,
            "spills": 0, "shared_bytes": 1024,
        },
        rel=1e-3,
    )  # fmt: skip
    told = {name: value for name, value in best.data.tags.items() if name.startswith("tunefarm.")}
    assert told == {
        "tunefarm.kind": "finalist", "tunefarm.role": "winner", "tunefarm.rung": "finals",
        "tunefarm.config": "BLOCK_N=29 num_warps=4 maxnreg=None", "tunefarm.source": "measured",
        "tunefarm.capability": "sm_90", "tunefarm.device": "NVIDIA H200", "tunefarm.timer": "cold",
        "tunefarm.clocks": "unknown", "tunefarm.toolchain.triton": "3.6.0", "tunefarm.toolchain.torch": "2.11.0",
        "tunefarm.workload": origin.workload,
        "tunefarm.sweep_id": origin.sweep_id, "tunefarm.study": "sm_90 8192x4096 bf16",
    }  # fmt: skip


def test_names_tell_what_is_not_that_of_all() -> None:
    warps = [Config(params=FrozenMap(BLOCK=64), options=FrozenMap(num_warps=w, maxnreg=None)) for w in (2, 4)]
    trials = tuple(timed(n, 0.1 + n, 0, config=config) for n, config in enumerate(warps))
    assert [f.name for f in finalists(won(trials=trials))] == ["1 num_warps=2", "2 num_warps=4"]
    assert [f.name for f in finalists(won(trials=trials[:1]))] == ["1 BLOCK=64 num_warps=2 maxnreg=None"]
    other = timed(2, 5.0, 0, config=Config(params=FrozenMap(BLOCK=64, EXTRA=1), options=FrozenMap(num_warps=2)))
    assert finalists(won(trials=(*trials, other)))[2].name == "3 num_warps=2 EXTRA=1"


def test_the_searches_that_the_readme_shows_find_runs(store: Store) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    searches = [line.split("   ")[0] for line in readme.splitlines() if line.startswith("tags.`tunefarm.")]
    assert len(searches) == 3
    origin = store.origin()
    store.mirror(origin, won(origin.workload))
    parent, _ = store.runs(origin)
    store.client.set_tag(parent.info.run_id, "tunefarm.pack", searches[2].split("'")[1])
    found = [store.client.search_runs([parent.info.experiment_id], search) for search in searches]
    assert [len(runs) for runs in found] == [1, 1, 1]
    assert found[1][0].data.metrics["registers"] == 32


def test_the_best_so_far_stands_beside_what_it_cost(store: Store) -> None:
    origin = store.origin()
    tracker = open_tracker(store.uri, origin)
    tracker.start()
    tracker.study(replace(many(30), study=won(origin.workload).study), [0.3, 0.2, 0.1], [0.5, 1.0, 2.5])
    assert tracker.close() == []
    _, (study,) = store.runs(origin)
    spent = store.client.get_metric_history(study.info.run_id, "spent_gpu_s")
    assert [(point.step, point.value) for point in spent] == [(1, 0.5), (2, 1.0), (3, 2.5)]
    assert "spent_gpu_s" not in card(won(source="replayed"), [0.1], [0.5]).curve


def test_every_candidate_is_in_one_parquet_table(store: Store) -> None:
    origin = store.origin()
    store.mirror(origin, won(origin.workload))
    _, (study,) = store.runs(origin)
    table = pq.read_table(Path(unquote(urlsplit(study.info.artifact_uri).path)) / "trials.parquet").to_pydict()
    assert table["outcome"] == ["ok", "ok", "compile_error", "not tried"]
    assert table["BLOCK_N"] == [64, 128, 256, 512]
    assert table["median_us"] == [84.0, 40.4, None, None]


def test_a_column_of_mixed_values_is_text(tmp_path: Path) -> None:
    rows = [[1, 1, None, True], [0.5, "auto", None, False], [None, None, None, None]]
    write_table(tmp_path / "x.parquet", ["number", "mixed", "empty", "truth"], rows)
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {
        "number": [1.0, 0.5, None], "mixed": ["1", "auto", None], "empty": [None] * 3, "truth": [True, False, None],
    }  # fmt: skip


def test_a_param_that_is_called_as_a_column_of_ours_is_a_column_too(tmp_path: Path) -> None:
    write_table(tmp_path / "x.parquet", ["number", "rung", "rung"], [[1, 64, 2]])
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"number": [1], "rung": [64], "rung_2": [2]}


@pytest.mark.parametrize("num", [1, 4])
def test_what_is_done_side_by_side_is_done_once_or_said_to_have_failed(num: int) -> None:
    done: list[int] = []
    side_by_side(done.append, range(50), num)
    assert sorted(done) == list(range(50))
    side_by_side(done.append, [], num)

    def fail(item: int) -> None:
        if item == 3:
            raise ConnectionError("gone")
        done.append(item)

    done.clear()
    with pytest.raises(ConnectionError, match="gone"):
        side_by_side(fail, range(50), num)
    assert len(done) < 50


def test_a_study_written_anew_leaves_no_finalist_behind(store: Store) -> None:
    origin = store.origin()
    first = replace(many(30), study=won(origin.workload).study)
    store.mirror(origin, first, status="KILLED")
    old = {run.info.run_id for run in below(store, origin)}
    store.mirror(origin, first)
    assert {run.info.run_id for run in below(store, origin)} == old, "the very same is written once"
    store.mirror(origin, replace(first, trials=first.trials[:-1]))
    parent, (study,) = store.runs(origin)
    runs = store.client.search_runs([parent.info.experiment_id])
    assert len(runs) == 2 + MAX_FINALISTS
    assert not {run.info.run_id for run in runs} & old
    stray = {"tunefarm.kind": "finalist", "tunefarm.sweep_id": origin.sweep_id, "mlflow.parentRunId": "f" * 32}
    store.client.create_run(parent.info.experiment_id, tags=stray)
    store.mirror(origin, replace(first, trials=first.trials[:-1]))
    assert len(store.client.search_runs([parent.info.experiment_id])) == 2 + MAX_FINALISTS
    assert store.runs(origin)[1][0].info.run_id == study.info.run_id
