"""Reports: every number of the page is computed here again from the ledger's lines; the command that writes them."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from booked import book, built, decided, failed, finals, study, timed, won
from farm import Warm, environment
from pages import SAT, A, B, Tables, lines, sweep_with_failures, told, typed, winner

from tunefarm.config import Config
from tunefarm.record.figures import short
from tunefarm.record.page import MARK

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    return sweep_with_failures(tmp_path_factory.mktemp("reported"), store)


@pytest.fixture(scope="module")
def swept(ledger: Path) -> Path:
    """The folder of the sweep."""
    return ledger.parents[2]


# ---- the numbers ----


def test_winners_are_as_the_ledger_has_them(ledger: Path) -> None:
    rows = Tables(told(ledger)).having("study and winner", "believable?")
    openings = {data["study"]: data for data in lines(ledger, "study")}
    results = {data["study"]: data["winner"] for data in lines(ledger, "winner")}
    sittings = {data["study"]: data for data in lines(ledger, "finals")}
    assert len(rows) == len(results) == 2
    by_label = {row["study and winner"].split("\n")[0]: row for row in rows}
    for key, won_by in results.items():
        opening, row = openings[key], by_label[openings[key]["label"]]
        sat = {
            config: each["measurement"]["samples_ms"]
            for config, each in zip(sittings[key]["configs"], sittings[key]["measurements"], strict=True)
        }
        config = Config.from_json(won_by["config"])
        median_ms, default_ms = (statistics.median(sat[c.key]) for c in (config, Config.from_json(won_by["default"])))
        assert row["study and winner"].split("\n")[1] == str(config)
        assert row["time, us (95 %)"].startswith(f"{short(median_ms * 1e3)} (")
        assert row["default, us"] == short(default_ms * 1e3)
        assert row["gain (95 %)"].startswith(f"{default_ms / median_ms:.3g}x (")
        # Test GPU has the bandwidth of an H100: 4 bytes an element.
        n = opening["problem"]["dims"]["n"]
        assert opening["num_bytes"] == 4 * n
        assert row["of bandwidth"] == f"{4 * n / (median_ms / 1e3) / 3352e9:.0%}"
        tried = {e["config"] for e in lines(ledger, "measured") if e["study"] == key}
        broken = {e["config"] for e in lines(ledger, "failed") if e["study"] == key}
        assert row["timed"] == f"{len(tried - broken)} of {opening['candidates']}"


def test_counts_add_up_on_the_page(ledger: Path) -> None:
    sums = re.findall(r"<p>(\d+) candidates = ([^<]*)\.</p>", told(ledger))
    assert len(sums) == 2
    for total, parts in sums:
        assert int(total) == sum(map(int, re.findall(r"\d+", parts))) == 48


def test_failures_are_grouped_over_all_studies(ledger: Path) -> None:
    (row,) = Tables(told(ledger)).having("studies", "first line")
    assert row["failed"] == str(len(lines(ledger, "failed")))
    assert (row["studies"], row["kind"], row["first line"]) == ("2", "launch_error", "launch_error on purpose")


def test_tables_of_a_study_are_as_the_ledger_has_them(ledger: Path) -> None:
    tables = Tables(told(ledger))
    key = lines(ledger, "study")[0]["study"]
    (grouped,) = [data["buckets"] for data in lines(ledger, "bucketed") if data["study"] == key]
    shut = {data["bucket"]: data["reason"] for data in lines(ledger, "bucket_closed") if data["study"] == key}
    buckets = tables.having("bucket", "members", "how it ended, how sure")
    assert [int(row["members"]) for row in buckets] == [len(members) for members in grouped]
    assert {
        int(r["bucket"]): r["how it ended, how sure"] for r in buckets if "closed" in r["how it ended, how sure"]
    } == {number: f"closed: {reason}" for number, reason in shut.items()}
    space = {row[""]: int(row["points"]) for row in tables.having("points")}
    assert sum(count for what, count in space.items() if what != "candidates") == space["candidates"]
    candidates = tables.having("config", "fate", "registers")
    assert {row["config"] for row in candidates} == {
        data["config"] for kind in ("measured", "failed") for data in lines(ledger, kind) if data["study"] == key
    }


def test_replayed_times_are_called_so(ledger: Path) -> None:
    assert '<span class="badge replayed">replayed</span>' in told(ledger)
    assert "REPLAYED: these times were read from recordings" in told(ledger)
    assert "> REPLAYED: these times" in typed(ledger)


def test_measured_times_are_not_and_cost_gpu_seconds(tmp_path: Path) -> None:
    path = book(
        tmp_path / "ledger.jsonl", study(), built(A.key), timed(A.key, 0.1, sm_mhz=1980, throttle=""),
        timed(B.key, 0.2, sm_mhz=1755, throttle="power_cap"), finals(SAT), won(winner()),
    )  # fmt: skip
    text = told(path)
    assert "REPLAYED" not in text
    busy_s = (0.1 + 0.2 + 12 * 0.1 + 12 * 0.2) / 1e3
    assert f"<b>{short(busy_s)}</b><span>GPU-busy s</span>" in text
    (device,) = Tables(text).having("device", "state while timed")
    assert device["state while timed"] == "1755 to 1980 MHz, throttled in 1 of 2 measurements"
    replayed = book(tmp_path / "other.jsonl", study(), finals(SAT, source="replayed"), won(winner()))
    both = told(path, replayed)
    assert "Some of these times are REPLAYED" in both
    assert {row["times"] for row in Tables(both).having("believable?")} == {"measured", "replayed"}


def test_what_is_to_be_believed(tmp_path: Path) -> None:
    cases = [
        (winner(), "beyond noise"),
        (winner(reason="tie: simpler kept"), "beyond noise; simplest of those tied"),
        (winner(gain_interval=(0.99, 1.2)), "within noise; faster"),
        (winner(config=B, reason="tie: default kept"), "tie: default kept"),
        (winner(default=None), "faster; no default to compare with"),
    ]
    for number, (each, verdict) in enumerate(cases):
        path = book(tmp_path / f"{number}.jsonl", study(), finals(SAT), won(each))
        (row,) = Tables(told(path)).having("believable?")
        assert row["believable?"] == verdict
    event, data = finals(SAT)
    data["measurements"][0]["measurement"]["telemetry"] = {"disturbed": "throttled"}
    path = book(tmp_path / "disturbed.jsonl", study(), (event, data), won(winner()))
    assert Tables(told(path)).having("believable?")[0]["believable?"] == "disturbed: throttled"


# ---- sweeps that are not whole ----


def test_a_sweep_in_which_everything_fails_says_why_once(tmp_path: Path) -> None:
    """TF-012: ten failures of one cause are one line, with the count and the source line."""
    message = "at 7:11: name 'blk' is not defined\n    i = blk\n        ^"
    events = [failed(f"BLOCK={k} num_warps=4", message, kind="CompilationError") for k in range(10)]
    reason = "10/10 candidates failed alike: build: CompilationError: at 7:11: name 'blk' is not defined"
    path = book(
        tmp_path / "ledger.jsonl",
        study(candidates=50),
        *events,
        decided("no_winner", status="no_winner", reason=reason),
    )
    text = told(path)
    (row,) = Tables(text).having("failed", "first line")
    assert (row["failed"], row["kind"]) == ("10", "CompilationError")
    assert row["first line"].startswith("at 7:11: name 'blk' is not defined")
    assert "i = blk" in row["first line"], "the source line is a click away"
    assert "50 candidates = 10 failed + 40 left." in text
    assert "10/10 candidates failed alike" in text


def test_what_rules_removed_and_what_nobody_tried_is_told(tmp_path: Path) -> None:
    """TF-028: of each rule how many points it removed, and values of which no candidate was tried."""
    rules = {"GROUP_M % NUM_CTAS == 0": 3, "M < 10*N or GROUP_M == 1": 5}
    left = [[A.key, "BLOCK=64 num_warps=8"]]
    path = book(
        tmp_path / "ledger.jsonl", study(points=12, removed=rules), decided("bucketed", buckets=left), timed(A.key, 0.1)
    )
    text = told(path)
    assert {row[""]: row["points"] for row in Tables(text).having("points")} == {
        "points of the space": "12", **{f"removed by {rule}": str(-count) for rule, count in rules.items()},
        "candidates": "4",
    }  # fmt: skip
    assert "No candidate was tried with num_warps=8." in text


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((), "the ledger tells of no study yet"),
        ((study(),), "1 study has no winner yet"),
        ((study(), timed(A.key, 0.1)), "best so far 100"),
        ((study(), finals({A.key: [0.1] * 8})), "Unfinished: the ledger ends"),
        ((study(), decided("bucket_closed", bucket=3)), "1 bucket was closed; a ledger says which candidates"),
        ((study(meter=""),), "not measured"),
        ((study(candidates=0), decided("skipped", status="skipped")), "Skipped: so it was."),
    ],
    ids=["empty", "begun", "searching", "finals", "closing", "not_measured", "skipped"],
)
def test_unfinished_sweeps_have_a_report(tmp_path: Path, events: Any, words: str) -> None:
    path = book(tmp_path / "ledger.jsonl", *events)
    assert words in told(path)
    assert words in typed(path).replace("\\", "")


def test_damage_is_told(tmp_path: Path) -> None:
    path = book(tmp_path / "ledger.jsonl", study(), timed(A.key, 0.1))
    path.write_bytes(path.read_bytes() + b"garbage\n" + b'{"at_s":1')
    assert "1 damaged line of the ledger could not be used" in told(path)
    assert "the last line is half written" in told(path)


# ---- the command ----


def test_the_command_finds_sweeps_and_writes_beside_them(swept: Path, store: Path, warm: Warm) -> None:
    for name in ("fill", "sweeps/fill", "sweeps/fill/ledger.jsonl"):
        done = warm("report", name, folder=swept, store=store)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "sweeps/fill/report.html: fill, replayed\n"
    assert (swept / "sweeps/fill/report.html").read_bytes().startswith(MARK.encode())
    done = warm("report", "fill", "sweeps/fill", "-o", "r.html", "--markdown", "r.md", folder=swept, store=store)
    assert done.stdout.splitlines() == ["r.html: fill, replayed", "r.md: fill, replayed"]
    shown = warm("report", "fill", "--markdown", "-", folder=swept, store=store)
    assert shown.stdout == (swept / "r.md").read_text() != ""
    assert "replayed" in shown.stdout


def test_the_command_refuses_what_makes_no_sense(swept: Path, store: Path, warm: Warm) -> None:
    (swept / "notes.html").write_text("mine")
    (swept / "odd.jsonl").write_text("hello\n")
    for words, said in (
        (("nothing",), "nothing: no such sweep (sweeps has fill)"),
        (("fill", "-o", "notes.html"), "notes.html: is there, and something else"),
        (("fill", "--markdown", "notes.html"), "notes.html: is there, and something else"),
        (("odd.jsonl",), "odd.jsonl: is not a tunefarm ledger"),
        (("fill", "-o", "sweeps"), "sweeps: cannot be written"),
    ):
        done = warm("report", *words, folder=swept, store=store)
        assert done.returncode == 2
        assert said in done.stderr
    assert (swept / "notes.html").read_text() == "mine"


def test_the_command_needs_neither_torch_nor_triton_nor_ray(swept: Path, store: Path) -> None:
    blocked = ("torch", "triton", "ray", "optuna", "mlflow", "numpy", "pyarrow", "rich.progress")
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from tunefarm.cli.report import report\nimport typer\ntyper.run(report)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "fill", "-o", "bare.html"], cwd=swept, capture_output=True, text=True,
        env={**environment(store), "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (swept / "bare.html").exists()
