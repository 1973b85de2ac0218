"""What is known of a kernel from elsewhere, for a search to learn from: earlier sweeps' ledgers, and landscapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tunefarm import landscape as landscapes
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.errors import UserError
from tunefarm.problem import Problem
from tunefarm.record.ledger import read_events
from tunefarm.search.transfer import Past
from tunefarm.trial import Build, build_from_json

LANDSCAPE = ".json.gz"


def read_pasts(path: Path, kernel: str, configs: Iterable[Config], *, conditions: str = "") -> list[Past]:
    """The studies in a ledger, or in a landscape (`*.json.gz`), as far as configs were timed in them.

    Args:
        path: the file.
        kernel: name of the kernel; studies of others are of no use.
        configs: those to learn about. Others that the file knows are left out.
        conditions: what a ledger recorded under these is left out: a sweep that goes on must learn what it learned when
            it began.

    Raises:
        LandscapeError: the landscape is missing, damaged or of another format.
        LedgerError: the same of a ledger.
        UserError: the file is no ledger, or holds other kernels only.
    """
    by_key = {config.key: config for config in configs}
    kernels: set[str] = set()
    if path.name.endswith(LANDSCAPE):
        recording = landscapes.load(path)
        kernels.add(recording.kernel)
        stories = [
            _Story(
                problem=recorded.problem, device=recording.device,
                builds={entry.config.key: entry.build for entry in recorded.entries},
                times_ms={e.config.key: median(e.samples_ms) for e in recorded.entries if e.samples_ms},
            )
            for recorded in (recording.problems if recording.kernel == kernel else ())
        ]  # fmt: skip
    else:
        stories = _stories(path, kernel, conditions, kernels)
        # A sweep's own ledger, which comes with conditions, may have lost its only line with a driver that died.
        if not conditions and next(iter(read_events(path)), None) is None:
            raise UserError("is no ledger and no landscape", file=str(path), hint="see search.learn_from")
    if kernels and kernel not in kernels:
        raise UserError(
            f"holds studies of kernel {', '.join(sorted(kernels))}, and this one is {kernel}",
            file=str(path),
            hint="name recordings of this kernel, or leave the file out",
        )
    return [past for story in stories if (past := story.past(by_key)) is not None]


@dataclass(slots=True, kw_only=True)
class _Story:
    """A study as a file tells of it, by config key."""

    problem: Problem
    device: Device
    builds: dict[str, Build | None] = field(default_factory=dict)
    times_ms: dict[str, float] = field(default_factory=dict)

    def past(self, by_key: Mapping[str, Config]) -> Past | None:
        keys = [key for key, time_ms in self.times_ms.items() if key in by_key and time_ms > 0]
        if not keys:
            return None
        return Past(
            problem=self.problem, device=self.device, configs=tuple(by_key[key] for key in keys),
            builds=tuple(self.builds.get(key) for key in keys), times_ms=tuple(self.times_ms[key] for key in keys),
        )  # fmt: skip


def _stories(path: Path, kernel: str, conditions: str, kernels: set[str]) -> list[_Story]:
    """The studies of a ledger, each under its last conditions; the latest word on a time holds."""
    found: dict[tuple[str, str], _Story] = {}
    under = ""
    for event in read_events(path):
        data: Mapping[str, Any] = event["data"]
        if event["event"] == "epoch":
            under = data.get("identity", {}).get("conditions", "")
        elif event["event"] == "fresh":
            found.clear()
        elif event["event"] == "study" and "kernel" in data:
            kernels.add(data["kernel"])
            if data["kernel"] == kernel and under != conditions:
                problem, device = Problem.from_json(data["problem"]), Device.from_json(data["device"])
                found.setdefault((under, data["study"]), _Story(problem=problem, device=device))
        elif (story := found.get((under, data.get("study", "")))) is None:
            continue
        elif event["event"] == "built":
            story.builds[data["config"]] = build_from_json(data["build"])
        elif event["event"] == "measured":
            story.times_ms[data["config"]] = median(data["measurement"]["samples_ms"])
    return list({study: story for (_, study), story in found.items() if story.times_ms}.values())
