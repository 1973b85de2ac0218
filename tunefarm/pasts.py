"""What is known of a kernel from elsewhere, for a search to learn from: earlier sweeps' ledgers, and landscapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tunefarm import landscape_reader
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.errors import UserError
from tunefarm.problem import Problem
from tunefarm.record.ledger import read_events
from tunefarm.search.transfer import Past
from tunefarm.trial import Build, build_from_json

LANDSCAPE = ".json.gz"


@dataclass(slots=True, kw_only=True)
class Story:
    """A study as a file tells of it, by config key.

    Attributes:
        study: its key; a ledger may tell of it under several conditions.
        problem: what was competed for.
        device: where.
        conditions: under which a ledger recorded it; empty for a landscape's.
        builds: of each config, None where it is not known.
        times_ms: of each config that was timed.
    """

    study: str
    problem: Problem
    device: Device
    conditions: str = ""
    builds: dict[str, Build | None] = field(default_factory=dict)
    times_ms: dict[str, float] = field(default_factory=dict)

    def past(self, by_key: Mapping[str, Config]) -> Past | None:
        """What it teaches of these configs; None if that is nothing."""
        keys = [key for key, time_ms in self.times_ms.items() if key in by_key and time_ms > 0]
        if not keys:
            return None
        return Past(
            problem=self.problem, device=self.device, configs=tuple(by_key[key] for key in keys),
            builds=tuple(self.builds.get(key) for key in keys), times_ms=tuple(self.times_ms[key] for key in keys),
        )  # fmt: skip


def read_stories(path: Path, kernel: str, *, is_own: bool = False) -> list[Story]:
    """The studies of a kernel in a ledger, or in a landscape (`*.json.gz`).

    Args:
        path: the file.
        kernel: name of the kernel; studies of others are of no use.
        is_own: it is the ledger of the sweep that learns, which may hold nothing yet.

    Raises:
        LandscapeError: the landscape is missing, damaged or of another format.
        LedgerError: the same of a ledger.
        UserError: the file is no ledger, or holds other kernels only.
    """
    kernels: set[str] = set()
    if path.name.endswith(LANDSCAPE):
        recording = landscape_reader.load(path)
        kernels.add(recording.kernel)
        stories = [
            Story(
                study=recorded.problem.key, problem=recorded.problem, device=recording.device,
                builds={entry.config.key: entry.build for entry in recorded.entries},
                times_ms={e.config.key: median(e.samples_ms) for e in recorded.entries if e.samples_ms},
            )
            for recorded in (recording.problems if recording.kernel == kernel else ())
        ]  # fmt: skip
    else:
        events = read_events(path)
        first = next(events, None)
        # A sweep's own ledger may have lost its only line with a driver that died.
        if first is None and not is_own:
            raise UserError("is no ledger and no landscape", file=str(path), hint="see search.learn_from")
        stories = _stories(itertools.chain([] if first is None else [first], events), kernel, kernels)
    if kernels and kernel not in kernels:
        raise UserError(
            f"holds studies of kernel {', '.join(sorted(kernels))}, and this one is {kernel}",
            file=str(path),
            hint="name recordings of this kernel, or leave the file out",
        )
    return stories


def choose_pasts(stories: Iterable[Story], configs: Iterable[Config], conditions: str = "") -> list[Past]:
    """What a sweep may learn from a file.

    Args:
        stories: of the file; of each study the last that was timed counts.
        configs: those to learn about. Others that the file knows are left out.
        conditions: of the sweep. What was recorded under the same is left out: a sweep that goes on must learn what it
            learned when it began.
    """
    by_key = {config.key: config for config in configs}
    others = (s for s in stories if s.times_ms and not (conditions and s.conditions == conditions))
    last = {story.study: story for story in others}
    return [past for story in last.values() if (past := story.past(by_key)) is not None]


def _stories(events: Iterable[Mapping[str, Any]], kernel: str, kernels: set[str]) -> list[Story]:
    """The studies of a ledger, one for each of the conditions it was under; the latest word on a time holds."""
    found: dict[tuple[str, str], Story] = {}
    under = ""
    for event in events:
        data: Mapping[str, Any] = event["data"]
        if event["event"] == "epoch":
            under = data.get("identity", {}).get("conditions", "")
        elif event["event"] == "fresh":
            found.clear()
        elif event["event"] == "study" and "kernel" in data:
            kernels.add(data["kernel"])
            if data["kernel"] == kernel:
                problem, device = Problem.from_json(data["problem"]), Device.from_json(data["device"])
                story = Story(study=data["study"], problem=problem, device=device, conditions=under)
                found.setdefault((under, data["study"]), story)
        elif (told := found.get((under, data.get("study", "")))) is None:
            continue
        elif event["event"] == "built":
            told.builds[data["config"]] = build_from_json(data["build"])
        elif event["event"] == "measured":
            told.times_ms[data["config"]] = median(data["measurement"]["samples_ms"])
    return list(found.values())
