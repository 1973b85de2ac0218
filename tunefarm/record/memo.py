"""What a ledger already knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tunefarm.document import canonical

DECISIONS = ("bucketed", "merged", "pruned", "promoted", "bucket_closed", "winner", "no_winner", "skipped")
"""Events that say what the search or the sweep decided."""

SITTINGS = ("finals", "unified", "probed", "replicated")
"""Events that tell of configs timed by turns."""


def _what(event: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    told = canonical([data.get("winner"), data.get("left"), data.get("buckets")])
    return event, data["study"], data.get("config", data.get("bucket")), data.get("rung"), told


def current(events: Iterable[Mapping[str, Any]], conditions: str) -> Iterator[Mapping[str, Any]]:
    """Events of the epochs that ran under the same conditions, and `fresh` of any, which voids what came before it.

    Args:
        events: of one ledger, oldest first.
        conditions: as in the identity given to `open_ledger`. What ran under others is history.
    """
    comparable = False
    for event in events:
        if event["event"] == "epoch":
            comparable = event["data"].get("identity", {}).get("conditions", "") == conditions
        if comparable or event["event"] == "fresh":
            yield event


class Memo:
    """Answers from a ledger, so that a sweep that goes on does not ask the machines again.

    Args:
        events: of one ledger, oldest first.
        conditions: under which it must have been recorded, see `current`.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]], *, conditions: str = "") -> None:
        self._outcomes: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        self._builds: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._finals: dict[tuple[str, str, tuple[str, ...]], Mapping[str, Any]] = {}
        self._passed: set[tuple[str, str]] = set()
        self._studies: dict[str, Mapping[str, Any]] = {}
        self._decided: set[tuple[Any, ...]] = set()
        for event in current(events, conditions):
            data = event["data"]
            if event["event"] == "fresh":
                for known in (self._outcomes, self._builds, self._finals, self._passed, self._studies, self._decided):
                    known.clear()
            elif event["event"] in ("measured", "failed"):
                # The first word counts: a second one comes from an attempt that had lost its lease.
                self._outcomes.setdefault((data["study"], data["config"], data["rung"]), data)
            elif event["event"] == "built":
                self._builds.setdefault((data["study"], data["config"]), data)
            elif event["event"] == "study":
                self._studies.setdefault(data["study"], data)
            elif event["event"] in DECISIONS:
                self._decided.add(_what(event["event"], data))
            elif event["event"] in SITTINGS:
                self._finals[data["study"], event["event"], tuple(data["configs"])] = data
            elif event["event"] == "passed":
                self._passed |= {(data["study"], config) for config in data["configs"]}

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

    def decided(self, event: str, data: Mapping[str, Any]) -> bool:
        """Whether this very decision is recorded already: a driver that goes on decides the same again."""
        return _what(event, data) in self._decided

    def sitting(self, study: str, event: str, configs: Sequence[str]) -> Mapping[str, Any] | None:
        """The data of a study's last sitting of just these configs, or None. Keys, not objects."""
        return self._finals.get((study, event, tuple(configs)))

    def passed(self, study: str, config: str) -> bool:
        """Whether a config got all checks of a study right."""
        return (study, config) in self._passed
