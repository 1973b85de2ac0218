"""Figures as files: whole documents with looks of their own."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from booked import book, decided, of_result, study
from test_figures import SVG
from test_finalists import many

from tunefarm.record.following import Follower
from tunefarm.record.ledger import open_ledger
from tunefarm.record.reading import read_account
from tunefarm.record.standalone import drawn

RESULT = many(30)
KEY = RESULT.study.key


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return book(tmp_path / "ledger.jsonl", *of_result(RESULT))


def test_what_the_report_shows_of_a_study_is_a_file_each(ledger: Path) -> None:
    (account,) = read_account(ledger).studies
    files = drawn(account)
    assert list(files) == ["candidates.svg", "distribution.svg", "convergence.svg", "effect.svg", "share.svg"]
    for content in files.values():
        root = ElementTree.fromstring(content)
        assert root.tag == f"{SVG}svg"
        style = root.findtext(f"{SVG}style") or ""
        used = {c for e in root.iter() for c in (e.get("class") or "").split()}
        assert used <= set(re.findall(r"\.([a-z]+)", style)) | {"measured"}, "every class has its looks here"
        assert set(re.findall(r"var\((--[a-z]+)\)", style)) <= set(re.findall(r"(--[a-z-]+):", style))
        left, top, width, height = map(float, (root.get("viewBox") or "").split())
        ground = root.find(f"{SVG}rect")
        assert ground is not None
        assert [float(ground.get(k) or 0) for k in ("x", "y", "width", "height")] == [left, top, width, height]
        assert root.findtext(f"{SVG}desc")


def test_a_study_of_which_nothing_was_timed_has_no_figure(tmp_path: Path) -> None:
    path = book(tmp_path / "l.jsonl", study(meter="", candidates=3), decided("skipped"))
    assert drawn(read_account(path).studies[0]) == {}


def test_a_ledger_is_read_on_while_it_grows(tmp_path: Path) -> None:
    events = of_result(RESULT)
    path = book(tmp_path / "ledger.jsonl", study(KEY, candidates=99), conditions="other")
    written = open_ledger(path, {"experiment": "fill", "conditions": "c"})
    follower = Follower(path, "c")
    assert follower.account(KEY) is None, "what ran under other conditions is history"
    seen = []
    for part in (events[:10], events[10:-1], events[-1:]):
        written.extend(part)
        account = follower.account(KEY)
        assert account is not None
        seen.append((account.num_candidates, len(account.timed), account.status))
    written.close()
    assert seen == [(30, 9, "unfinished"), (30, 30, "unfinished"), (30, 30, "winner")]
    (whole,) = read_account(path).studies
    assert account == whole
    follower.forget(KEY)
    assert follower.account(KEY) is None
