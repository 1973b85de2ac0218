"""What a scrape says, read as strictly as Prometheus reads it."""

from __future__ import annotations

import re
import socket
import urllib.request
from dataclasses import dataclass

LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>[^{}]*)\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')


@dataclass(frozen=True)
class Scraped:
    """One series of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


def read(text: str) -> list[Scraped]:
    """Every series; whatever is no comment must be one."""
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match, line
            labels = dict(LABEL.findall(match["labels"] or ""))
            assert "".join(f'{k}="{v}",' for k, v in labels.items()).rstrip(",") == (match["labels"] or ""), line
            found.append(Scraped(match["name"], labels, float(match["value"])))
    return found


def total(series: list[Scraped], name: str, **labels: str) -> float:
    """Sum of a metric over the series that have these labels; there must be one."""
    values = [s.value for s in series if s.name == name and labels.items() <= s.labels.items()]
    assert values, (name, labels)
    return sum(values)


def scrape(url: str) -> str:
    """What a server says now."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
