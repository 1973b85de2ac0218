"""The ledger: what a killed, doubled, damaged or full-disk sweep leaves behind, and how the next driver goes on."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunefarm.errors import Fenced, LedgerError
from tunefarm.record.ledger import open_ledger, read_events, side_file
from tunefarm.record.memo import Memo

IDENTITY = {"experiment": "softmax", "digest": "d1", "conditions": "triton 3.7"}
DRIVER = """
import sys, pathlib
from tunefarm.record.ledger import open_ledger
ledger = open_ledger(pathlib.Path(sys.argv[1]), {"experiment": "softmax", "digest": "d1", "conditions": "triton 3.7"})
print("open", flush=True)
for i in range(10**6 if sys.argv[2] == "loop" else 0):
    ledger.extend([("measured", {"study": "s", "config": f"B={i} part={part}", "rung": 0}) for part in range(3)])
    print(i, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sweeps" / "softmax" / "ledger.jsonl"


def driver(path: Path, mode: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def end(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> list[str]:
    process.send_signal(number)
    said, _ = process.communicate()
    return said.split()


def test_what_is_appended_is_read_back_in_order(path: Path) -> None:
    before_s = time.time()
    ledger = open_ledger(path, IDENTITY)
    ledger.append("study", {"study": "s", "label": "softmax sm_90 8192x4096 bf16"})
    ledger.extend([("measured", {"study": "s", "config": f"B={i}", "rung": 0}) for i in range(3)])
    ledger.close()
    ledger.close()
    events = list(read_events(path))
    assert [e["event"] for e in events] == ["epoch", "study", "measured", "measured", "measured"]
    assert {e["epoch"] for e in events} == {1}
    assert all(before_s - 1 < e["at_s"] < time.time() + 1 for e in events)
    assert events[-1]["data"] == {"study": "s", "config": "B=2", "rung": 0}


def test_lines_are_canonical_json_and_hold_no_nan(path: Path) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.append("measured", {"rung": 0, "config": "B=1", "study": "Ω"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        ledger.append("measured", {"study": "s", "config": "B=2", "rung": 0, "ms": float("inf")})
    ledger.close()
    last = path.read_text("utf-8").splitlines()[-1]
    assert last == json.dumps(json.loads(last), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_all_that_came_since_the_last_flush_costs_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(path, IDENTITY)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    ledger.flush()
    for part in range(3):
        ledger.extend([("measured", {"study": "s", "config": f"B={i}", "rung": part}) for i in range(100)])
    assert flushed == []
    ledger.flush()
    ledger.flush()
    ledger.append("winner", {"study": "s"})
    ledger.close()
    assert len(flushed) == 2


def test_a_disk_that_fails_late_leaves_what_was_flushed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.append("study", {"study": "s"})
    ledger.flush()
    ledger.append("measured", {"study": "s", "config": "B=1", "rung": 0})

    def fail(handle: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(LedgerError, match=r"ledger\.jsonl: cannot be written: .*free some space"):
            ledger.flush()
    assert [event["event"] for event in read_events(path)] == ["epoch", "study"]
    ledger.append("winner", {"study": "s"})
    ledger.close()
    assert [event["event"] for event in read_events(path)] == ["epoch", "study", "winner"]


def test_kill_9_loses_nothing_that_was_acknowledged(path: Path) -> None:
    """TF-057: the next driver finds every measurement that the killed one had finished, and measures only the rest."""
    process = driver(path, "loop")
    time.sleep(0.3)
    acknowledged = [int(line) for line in end(process)]
    assert len(acknowledged) > 3
    ledger = open_ledger(path, IDENTITY)
    assert ledger.epoch == 2
    memo = ledger.memo()
    known = [i for i in range(acknowledged[-1] + 10) if memo.get("s", f"B={i} part=2", 0)]
    assert known == list(range(len(known)))
    step_in_flight = len(known) - (acknowledged[-1] + 1)
    assert step_in_flight in (0, 1)


def test_a_second_live_driver_is_refused_and_told_who_holds_it(path: Path) -> None:
    process = driver(path, "wait")
    try:
        with pytest.raises(LedgerError) as caught:
            open_ledger(path, IDENTITY)
        message = str(caught.value)
        assert f"pid {process.pid} on {os.uname().nodename} since 20" in message
        assert str(path) in message
        assert "give the same command again" in message
        assert len(list(read_events(path))) == 1, "reading needs no lock, and the refused driver wrote nothing"
    finally:
        end(process)
    open_ledger(path, IDENTITY).close()


def test_the_lock_of_a_killed_driver_is_not_in_the_way(path: Path) -> None:
    """TF-111: no stale lock after SIGKILL."""
    end(driver(path, "wait"))
    open_ledger(path, IDENTITY).close()


def test_an_older_driver_is_fenced_once_a_newer_epoch_is_open(path: Path) -> None:
    old = open_ledger(path, IDENTITY)
    old.append("built", {"study": "s", "config": "B=1"})
    side_file(path).unlink()  # what a file system without locks amounts to
    new = open_ledger(path, IDENTITY)
    assert (old.epoch, new.epoch) == (1, 2)
    size = path.stat().st_size
    with pytest.raises(Fenced, match=f"taken over by pid {os.getpid()}"):
        old.append("measured", {"study": "s", "config": "B=1", "rung": 0})
    assert path.stat().st_size == size
    new.append("measured", {"study": "s", "config": "B=1", "rung": 0})
    assert new.memo().get("s", "B=1", 0) is not None


def test_what_a_fenced_driver_still_wrote_is_not_read(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_ledger(path, IDENTITY).close()
    first = path.read_bytes()
    open_ledger(path, IDENTITY).close()
    late = {"at_s": 1.0, "epoch": 1, "event": "measured", "data": {"study": "s", "config": "B=1", "rung": 0}}
    with path.open("ab") as file:
        file.write(json.dumps(late).encode() + b"\n")
    with caplog.at_level(logging.WARNING):
        ledger = open_ledger(path, IDENTITY)
    assert ledger.memo().get("s", "B=1", 0) is None
    assert "1 of a driver that had been taken over" in caplog.text
    assert path.read_bytes().startswith(first)


@pytest.mark.parametrize("act", ["delete", "replace"])
def test_a_ledger_pulled_from_under_its_driver_is_noticed(path: Path, act: str) -> None:
    ledger = open_ledger(path, IDENTITY)
    content = path.read_bytes()
    path.unlink()
    if act == "replace":
        (path.parent / "copy").write_bytes(content)
        (path.parent / "copy").rename(path)
    with pytest.raises(Fenced, match="deleted" if act == "delete" else "replaced"):
        ledger.append("measured", {})


@pytest.mark.parametrize("torn", [b'{"at_s":17', b'{"at_s":1.0,"data":{},"epoch":1,"event":"measured"}', b"\0\0\0\0"])
def test_a_torn_last_line_is_dropped_and_cut_off(path: Path, torn: bytes) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.append("built", {"study": "s", "config": "B=1"})
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [e["event"] for e in read_events(path)] == ["epoch", "built"]
    open_ledger(path, IDENTITY).close()
    lines = path.read_bytes().removeprefix(whole).splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["epoch"]


def test_a_driver_killed_within_its_first_line_left_a_ledger(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"at_s":17640')
    ledger = open_ledger(path, IDENTITY)
    assert (ledger.num_events, ledger.epoch) == (0, 1)


def test_a_damaged_line_in_the_middle_is_skipped_and_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TF-111: a bad line is not fatal."""
    ledger = open_ledger(path, IDENTITY)
    for i in range(4):
        ledger.append("measured", {"study": "s", "config": f"B={i}", "rung": 0})
    ledger.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"
    lines[3] = b"\xff" + b"[" * 5000 + b"\n"
    path.write_bytes(b"".join(lines))
    with caplog.at_level(logging.WARNING):
        ledger = open_ledger(path, IDENTITY)
    assert "skipped 2 damaged lines" in caplog.text
    assert [ledger.memo().get("s", f"B={i}", 0) is not None for i in range(4)] == [True, False, False, True]


def test_another_experiment_is_refused_and_the_ledger_left_as_it_was(path: Path) -> None:
    open_ledger(path, IDENTITY).close()
    path.write_bytes(path.read_bytes() + b'{"at_s":')
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"belongs to experiment 'softmax', not to 'matmul'.*folder of its own"):
        open_ledger(path, {**IDENTITY, "experiment": "matmul"})
    assert path.read_bytes() == before
    open_ledger(path, IDENTITY).close()


def test_an_edited_experiment_goes_on_with_what_is_known(path: Path) -> None:
    """TF-108: old measurements are known points of the new space; that it changed is on record."""
    ledger = open_ledger(path, IDENTITY)
    ledger.append("measured", {"study": "s", "config": "B=64", "rung": 0})
    assert ledger.changed == ()
    ledger.close()
    again = open_ledger(path, {**IDENTITY, "digest": "d2"})
    assert again.changed == ("digest",)
    assert again.sweep_id == ledger.sweep_id
    assert again.num_events == 2
    assert again.memo().get("s", "B=64", 0) is not None
    changed = [e["data"] for e in again.events() if e["event"] == "changed"]
    assert changed == [{"before": IDENTITY, "after": {**IDENTITY, "digest": "d2"}}]


def test_times_taken_under_other_conditions_are_history_only(path: Path) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.append("measured", {"study": "s", "config": "B=64", "rung": 0, "ms": 1})
    ledger.close()
    other = open_ledger(path, {**IDENTITY, "conditions": "triton 3.8"})
    assert other.memo().get("s", "B=64", 0) is None
    other.append("measured", {"study": "s", "config": "B=64", "rung": 0, "ms": 2})
    known = other.memo().get("s", "B=64", 0)
    assert known is not None
    assert known["ms"] == 2
    other.close()
    back = open_ledger(path, IDENTITY).memo().get("s", "B=64", 0)
    assert back is not None
    assert back["ms"] == 1


def test_the_memo_keeps_the_first_word_and_knows_builds_failures_and_finals() -> None:
    def event(kind: str, **data: object) -> dict[str, object]:
        return {"at_s": 0.0, "epoch": 1, "event": kind, "data": data}

    memo = Memo(
        [
            event("epoch", identity={}),
            event("built", study="s", config="B=1", build={"registers": 32}),
            event("measured", study="s", config="B=1", rung=0, ms=1),
            event("measured", study="s", config="B=1", rung=0, ms=9),
            event("measured", study="s", config="B=1", rung=1, ms=2),
            event("failed", study="s", config="B=2", rung=-1, outcome="compile_error"),
            event("finals", study="s", configs=["B=1"]),
            event("pruned", study="s", config="B=3", rung=0),
        ]
    )
    assert len(memo) == 3
    assert [memo.get("s", "B=1", rung)["ms"] for rung in (0, 1)] == [1, 2]  # type: ignore[index]
    assert memo.get("s", "B=2", -1)["outcome"] == "compile_error"  # type: ignore[index]
    assert memo.get("other", "B=1", 0) is None
    assert memo.build("s", "B=1")["build"] == {"registers": 32}  # type: ignore[index]
    assert memo.sitting("s", "finals", ["B=1"])["configs"] == ["B=1"]  # type: ignore[index]
    assert memo.sitting("s", "finals", ["B=1", "B=2"]) is None
    assert memo.sitting("s", "unified", ["B=1"]) is None
    assert memo.build("s", "B=2") is memo.sitting("other", "finals", ["B=1"]) is None


@pytest.mark.parametrize(
    "content", [b"name: softmax\n", b"some notes", b'{"at_s":1.0,"data":{},"epoch":1,"event":"x"}\n']
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="not a tunefarm ledger"):
        open_ledger(path, IDENTITY)
    assert path.read_bytes() == content


def test_a_ledger_of_a_newer_release_is_refused(path: Path) -> None:
    open_ledger(path, IDENTITY).close()
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(LedgerError, match=r"has version 2, this release reads 1.*update tunefarm"):
        open_ledger(path, IDENTITY)


def test_a_full_disk_is_said_clearly_and_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.append("built", {"study": "s", "config": "B=1"})
    before = path.read_bytes()
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 20:
            return write(handle, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LedgerError, match=r"No space left on device.*free some space"):
            ledger.append("measured", {"study": "s", "config": "B=1", "rung": 0})
    assert path.read_bytes() == before
    ledger.append("measured", {"study": "s", "config": "B=1", "rung": 0})
    assert [e["event"] for e in ledger.events()] == ["epoch", "built", "measured"]


def test_a_folder_that_cannot_be_made_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: cannot be written: Not a directory|File exists"):
        open_ledger(tmp_path / "file" / "ledger.jsonl", IDENTITY)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_read_only_folder_is_said_clearly(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", read_only)  # tests may run as root, whom no mode bits stop
    with pytest.raises(LedgerError, match=rf"{os.strerror(number)}.*folder you may write to"):
        open_ledger(path, IDENTITY)


def test_a_closed_ledger_takes_no_more(path: Path) -> None:
    ledger = open_ledger(path, IDENTITY)
    ledger.close()
    with pytest.raises(LedgerError, match="is closed"):
        ledger.append("measured", {})


def test_reading_a_missing_ledger_says_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="No such file"):
        list(read_events(tmp_path / "none.jsonl"))
