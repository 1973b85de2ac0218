"""Minutes: what a contest writes into the ledger, and what it finds there from an earlier driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.bench.meter import Answer, answer_from_json, answer_to_json
from tunefarm.config import Config
from tunefarm.record.memo import DECISIONS, Memo
from tunefarm.seams import Ledger
from tunefarm.search.buckets import Bucket
from tunefarm.search.decisions import Decision
from tunefarm.trial import Build, Trial, to_json

UNMEASURED = -1
"""The rung of what happened before any measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """One study's part of the ledger.

    Attributes:
        study: its key.
        ledger: where it is written.
        memo: what the ledger knew when this driver opened it; what is in there is not written again.
    """

    study: str
    ledger: Ledger
    memo: Memo

    def note(self, event: str, **data: Any) -> None:
        """Writes an event of this study, unless it is a beginning or a decision that stands there already."""
        told = {"study": self.study, **data}
        begun = event == "study" and self.memo.study(self.study) is not None
        if not begun and not (event in DECISIONS and self.memo.decided(event, told)):
            self.ledger.append(event, told)

    def built(self, config: Config, build: Build) -> None:
        """A config was compiled, now or earlier."""
        if self.memo.build(self.study, config.key) is None:
            self.note("built", config=config.key, build=to_json(build))

    def answered(self, found: Iterable[tuple[Config, int, Answer]]) -> None:
        """Configs were measured at a rung, or failed there."""
        self.ledger.extend(
            (
                "measured" if answer.measurement is not None else "failed",
                {"study": self.study, "config": config.key, "rung": rung, **answer_to_json(answer)},
            )
            for config, rung, answer in found
            if self.memo.get(self.study, config.key, rung) is None
        )

    def remember(self, number: int, config: Config, rung: int) -> Answer | None:
        """What an earlier driver found out about a config at a rung."""
        known = self.memo.get(self.study, config.key, rung)
        return answer_from_json(number, known) if known is not None else None

    def bucketed(self, buckets: Sequence[Bucket], trials: Sequence[Trial]) -> None:
        """How the candidates left were grouped; as numbers buckets have their places in it."""
        self.note("bucketed", buckets=[[trials[number].config.key for number in each.members] for each in buckets])

    def decided(self, decisions: Sequence[Decision], trials: Sequence[Trial]) -> None:
        """What the search decided."""
        for decision in decisions:
            if decision.kind == "bucket_closed":
                self.note(decision.kind, bucket=decision.number, reason=decision.reason)
                continue
            trial = trials[decision.number]
            data: dict[str, Any] = {"config": trial.config.key, "rung": trial.rung, "reason": decision.reason}
            if decision.kind == "merged" and trial.merged_into is not None:
                data["into"] = trials[trial.merged_into].config.key
            self.note(decision.kind, **data)
