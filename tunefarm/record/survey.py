"""How a sweep stands, by its ledger alone: while its driver is at work, after it was killed, or long after."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.trial import FINAL


@dataclass(slots=True, kw_only=True)
class SurveyedStudy:
    """A study as its ledger tells it.

    Attributes:
        label: what it is.
        candidates: how many it has.
        measured: keys of the configs that were.
        failed: keys of the configs that were tried and failed.
        rung: the last that was measured on; -1 before any.
        best_ms: the best median so far; None before any.
        source: of its times: `measured`, `replayed`, or empty before any.
        status: `open`, `winner`, `no_winner` and so on.
        reason: why it has no winner.
        winner: the winner as the ledger has it; empty without one.
    """

    label: str
    candidates: int
    measured: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    rung: int = -1
    best_ms: float | None = None
    source: str = ""
    status: str = "open"
    reason: str = ""
    winner: dict[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """Where it is, for people."""
        if self.status != "open":
            return self.status.replace("_", " ")
        return "waiting" if self.rung < 0 else "finals" if self.rung == FINAL else f"rung {self.rung}"


@dataclass(slots=True, kw_only=True)
class Survey:
    """A sweep as its ledger tells it.

    Attributes:
        experiment: its name.
        host: where its last driver ran.
        pid: of that driver.
        drivers: how many have opened the ledger.
        at_s: when the last word was written, in unix seconds.
        packs: paths of what was exported by the last driver.
        studies: by key, in the order in which they began.
    """

    experiment: str = ""
    host: str = ""
    pid: int = 0
    drivers: int = 0
    at_s: float = 0.0
    packs: list[str] = field(default_factory=list)
    studies: dict[str, SurveyedStudy] = field(default_factory=dict)


def survey(events: Iterable[Mapping[str, Any]]) -> Survey:
    """Reads the events of a ledger, oldest first; what was forgotten since is not told."""
    found = Survey()
    for event in events:
        kind, data, found.at_s = event["event"], event["data"], event["at_s"]
        if kind == "epoch":
            found.host, found.pid, found.drivers = data["host"], data["pid"], found.drivers + 1
            found.experiment = data["identity"].get("experiment", "")
            found.packs = []
        elif kind in ("fresh", "changed"):  # other conditions, other times
            found.studies.clear()
        elif kind == "export":
            found.packs.append(data["path"])
        elif kind == "study":
            known = found.studies.get(data["study"])
            if known is None:
                known = SurveyedStudy(label=data["label"], candidates=data["candidates"])
                found.studies[data["study"]] = known
            # Of what is only compiled the ledger says no more.
            known.status = "open" if data["meter"] else "not_measured"
            known.candidates = data["candidates"]
        elif (study := found.studies.get(data.get("study", ""))) is not None:
            _take_in(study, kind, data)
    return found


def _take_in(study: SurveyedStudy, kind: str, data: Mapping[str, Any]) -> None:
    if kind == "measured":
        median_ms = statistics.median(data["measurement"]["samples_ms"])
        study.measured.add(data["config"])
        study.best_ms = median_ms if study.best_ms is None else min(study.best_ms, median_ms)
        study.rung, study.source = max(study.rung, data["rung"]), data["measurement"]["source"]
    elif kind == "failed":
        study.failed.add(data["config"])
    elif kind == "finals":
        study.rung = FINAL
    elif kind == "winner":
        study.status, study.winner = "winner", data["winner"]
        study.best_ms = data["winner"]["median_ms"]
    elif kind in ("no_winner", "skipped"):
        study.status, study.reason = data["status"], data["reason"]
