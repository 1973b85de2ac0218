"""Pages and Markdown: they need nothing else, let nothing hostile through, and stay small; in a browser, too."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from booked import book, decided, failed, finals, study, timed, won
from pages import SAT, A, B, Tables, sweep_with_failures, told, typed, winner

from tunefarm.config import Config
from tunefarm.record.markdown import MAX_CHARACTERS, _in_html, escape
from tunefarm.record.page import MARK, MAX_BYTES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = """<script>alert(1)</script><img src=x onerror=alert(1)>" ' | `x` @team #1 [a](http://evil) \\ </details>"""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    return sweep_with_failures(tmp_path_factory.mktemp("paged"), store)


# ---- what the page needs, and what it lets through ----


def test_the_page_needs_nothing_else(ledger: Path) -> None:
    text = told(ledger)
    assert text.startswith(MARK)
    assert len(text.encode()) < MAX_BYTES
    tags = Tables(text).tags
    assert not [
        name for name, _ in tags if name in ("link", "img", "iframe", "base", "object", "embed", "image", "use")
    ]
    assert not [a for _, a in tags if a.keys() & {"src", "href", "srcset", "action", "xlink:href", "style"}]
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(", text)
    policies = [a["content"] for name, a in tags if name == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert (policies[0] or "").startswith("default-src 'none'; ")


def test_nothing_hostile_gets_through(tmp_path: Path) -> None:
    device = {**study()[1]["device"], "name": HOSTILE}
    odd = f"KEEP={HOSTILE} num_warps=4"
    path = book(
        tmp_path / "ledger.jsonl",
        study(label=HOSTILE, kernel=HOSTILE, device=device, removed={HOSTILE: 1}),
        timed(odd, 0.1), failed(A.key, f"{HOSTILE}\n{HOSTILE}", kind=HOSTILE, detail=HOSTILE),
        decided("bucketed", buckets=[[odd]]), decided("bucket_closed", bucket=0, reason=HOSTILE),
        decided("merged", config=B.key, rung=-1, into=odd, reason=HOSTILE),
        finals({odd: [0.1] * 8}), won(winner(Config(params={"KEEP": HOSTILE}), reason=HOSTILE)),
        ("export", {"path": HOSTILE, "rows": 1, "digest": "x"}), experiment=HOSTILE,
    )  # fmt: skip
    text = told(path)
    tags = Tables(text).tags
    assert [name for name, _ in tags].count("script") == 1
    assert "img" not in [name for name, _ in tags]
    assert not [a for _, a in tags if any(name.startswith("on") for name in a)]
    assert "alert(1)" in text, "it is shown, not run"
    outside_code = re.sub(r"`[^`\n]*`", "", typed(path))
    assert not re.search(r"(?<!\\)(@team|\]\()|<script|<img", outside_code)
    opened = re.findall(r"<(/?\w+)", re.sub(r"<!--.*?-->", "", outside_code))
    assert set(opened) <= {"details", "/details", "summary", "/summary", "b", "/b", "br"}
    assert opened.count("details") == opened.count("/details") > 0


def test_tables_of_markdown_keep_their_columns(ledger: Path, tmp_path: Path) -> None:
    odd = book(tmp_path / "ledger.jsonl", study(), timed("KEEP=a|b\nc num_warps=4", 0.1), failed(B.key, "x|y"))
    for text in (typed(ledger), typed(odd)):
        width = None
        for line in text.splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line))
            if line.startswith("|"):
                assert width in (None, cells), line
                width = cells
            else:
                width = None


def test_markdown_says_what_the_page_says(ledger: Path) -> None:
    text = typed(ledger).replace("\\", "")
    for row in Tables(told(ledger)).having("believable?"):
        label, config = row["study and winner"].split("\n")
        assert f"| {label}<br>`{config}` | {row['time, us (95 %)']} |" in text
    assert escape("a_b*c <x>\ny") == "a\\_b\\*c &lt;x&gt; y"


def test_markdown_calls_nobody_and_links_nowhere() -> None:
    """GitHub shows `\\@team` as `@team`, and then sees a name in it."""
    assert _in_html("a_b @team") == "a&#95;b &#64;<!-- -->team"  # in HTML strokes are shown
    assert escape("@team see http://evil") == "\\@<!-- -->team see http\\://evil"


def many(folder: Path, num: int) -> Path:
    events = []
    for number in range(num):
        key = f"fill gpu n={number}"
        configs = [f"BLOCK={block} num_warps={warps}" for block in range(30) for warps in range(10)]
        events += [study(key, candidates=300), decided("bucketed", key, buckets=[configs[i::20] for i in range(20)])]
        events += [timed(config, 0.1 + 0.001 * place, key=key) for place, config in enumerate(configs)]
        events += [finals(SAT, key), won(winner(), key)]
    return book(folder / "ledger.jsonl", *events)


def test_the_report_of_very_many_studies_stays_small(tmp_path: Path) -> None:
    path = many(tmp_path, 30)
    text = told(path)
    assert len(text.encode()) <= MAX_BYTES
    assert re.search(r"\d+ rows more: see the ledger", text)
    assert len(Tables(text).having("believable?")) >= 12
    comment = typed(path)
    assert len(comment) <= MAX_CHARACTERS + 200
    assert comment.count("<details>") == comment.count("</details>")


# ---- in a browser ----


def in_browser(folder: Path, text: str, script: str) -> str:
    """The page as a browser has it after a script."""
    assert CHROMIUM is not None
    file = folder / "page.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *words, file.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_sorts_tables_and_fits_a_phone(ledger: Path, tmp_path: Path) -> None:
    heads = '[...document.querySelectorAll("th")]'
    script = (
        f'const h = {heads}.filter(h => h.textContent === "time, us (95 %)")[0]; h.click(); h.click();'
        'for (const d of document.querySelectorAll("details")) d.open = true;'
        'document.body.style.width = "375px";'
        "document.title = [document.body.scrollWidth, performance.getEntriesByType('resource').length];"
    )
    text = in_browser(tmp_path, told(ledger), script)
    rows = Tables(text).having("study and winner")
    shown = [float(row["time, us (95 %)"].split(" ")[0]) for row in rows]
    assert shown == sorted(shown, reverse=True)
    assert 'aria-sort="descending"' in text
    assert "<title>375,0</title>" in text, "nothing but tables scrolls sideways, and nothing is fetched"


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_runs_nothing_of_a_hostile_name(tmp_path: Path) -> None:
    bomb = "<img src=x onerror=\"document.title='gotcha'\"><script>document.title='gotcha'</script>"
    path = book(tmp_path / "ledger.jsonl", study(label=bomb), timed(A.key, 0.1), experiment="fine")
    assert "<title>tunefarm report: fine</title>" in in_browser(tmp_path, told(path), "")
