"""What a ledger already knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Memo:
    """Answers from a ledger, so that a sweep that goes on does not ask the machines again.

    Args:
        events: of one ledger, oldest first.
        conditions: as in the identity given to `open_ledger`. Epochs that ran under others are left out: their
            times are history.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]], *, conditions: str = "") -> None:
        self._outcomes: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        self._builds: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._finals: dict[str, Mapping[str, Any]] = {}
        self._studies: dict[str, Mapping[str, Any]] = {}
        comparable = False
        for event in events:
            data = event["data"]
            if event["event"] == "epoch":
                comparable = data.get("identity", {}).get("conditions", "") == conditions
            elif event["event"] == "fresh":
                for known in (self._outcomes, self._builds, self._finals, self._studies):
                    known.clear()
            elif not comparable:
                continue
            elif event["event"] in ("measured", "failed"):
                # The first word counts: a second one comes from an attempt that had lost its lease.
                self._outcomes.setdefault((data["study"], data["config"], data["rung"]), data)
            elif event["event"] == "built":
                self._builds.setdefault((data["study"], data["config"]), data)
            elif event["event"] == "study":
                self._studies.setdefault(data["study"], data)
            elif event["event"] == "finals":
                self._finals[data["study"]] = data

    def __len__(self) -> int:
        return len(self._outcomes)

    def get(self, study: str, config: str, rung: int) -> Mapping[str, Any] | None:
        """The data of the `measured` or `failed` event of a config at a rung, or None. Keys, not objects."""
        return self._outcomes.get((study, config, rung))

    def build(self, study: str, config: str) -> Mapping[str, Any] | None:
        """The data of the `built` event of a config, or None."""
        return self._builds.get((study, config))

    def study(self, study: str) -> Mapping[str, Any] | None:
        """The data of the first `study` event of a study: the terms under which it was begun. None before."""
        return self._studies.get(study)

    def finals(self, study: str) -> Mapping[str, Any] | None:
        """The data of the last `finals` event of a study, or None."""
        return self._finals.get(study)
