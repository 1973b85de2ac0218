"""Pages of reports as tests read them, and what they are held against: the lines of a ledger."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from farm import LARGE, smooth, tunefarm, write_experiment, write_landscape

from tunefarm.config import Config
from tunefarm.record.markdown import markdown
from tunefarm.record.page import page
from tunefarm.record.reading import read_account
from tunefarm.record.report import report
from tunefarm.trial import Outcome, Winner

A, B = (Config(params={"BLOCK": block}, options={"num_warps": 4}) for block in (64, 128))
SAT = {A.key: [0.09, 0.1, 0.11] * 4, B.key: [0.2] * 12}
"""Finals of a winner and its default."""


class Tables(HTMLParser):
    """The tables of a page: of each, rows of texts by the names of their columns; and all tags with attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[list[dict[str, str]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._heads: list[str] = []
        self._cells: list[str] = []
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.found.append([])
            self._heads = []
        elif tag == "tr":
            self._cells = []
        elif tag in ("th", "td"):
            self._into = self._heads if tag == "th" else self._cells
            self._into.append("")
        elif tag == "br" and self._into:
            self._into[-1] += "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._into = None
        elif tag == "tr" and self._cells:
            self.found[-1].append(dict(zip(self._heads, self._cells, strict=True)))

    def handle_data(self, data: str) -> None:
        if self._into:
            self._into[-1] += data

    def having(self, *names: str) -> list[dict[str, str]]:
        """The first table that has these columns."""
        return next(rows for rows in self.found if rows and set(names) <= rows[0].keys())


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    events = map(json.loads, path.read_text().splitlines())
    return [event["data"] for event in events if event["event"] == kind]


def told(*paths: Path) -> str:
    return page(report([read_account(path) for path in paths])).decode()


def typed(*paths: Path) -> str:
    return markdown(report([read_account(path) for path in paths]))


def winner(config: Config = A, median_ms: float = 0.1, default: Config | None = B, **more: Any) -> Winner:
    evidence: dict[str, Any] = {"default_ms": 0.2, "gain": 2.0, "gain_interval": (1.9, 2.1)} if default else {}
    said = {"interval_ms": (0.09, 0.11), "runner_up": B, "margin": 1.0, **evidence, **more}
    return Winner(config=config, median_ms=median_ms, default=default, **said)


def sweep_with_failures(folder: Path, store: Path) -> Path:
    """Sweeps two problems by replay, with failures and closed buckets, and gives the ledger."""

    def time_ms(config: Config, variables: Any) -> float | Outcome:
        return Outcome.LAUNCH_ERROR if config.flat["BLOCK"] == 256 else smooth(config, variables)

    write_landscape(write_experiment(folder, space=LARGE, problems=[{"n": [1000, 4096], "dtype": "fp32"}]), time_ms)
    sweep = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")
    done = tunefarm(*sweep, folder=folder, store=store)
    assert done.returncode == 0, done.stderr
    return folder / "sweeps" / "fill" / "ledger.jsonl"
