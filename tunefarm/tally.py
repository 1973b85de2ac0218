"""The tally of a study: what its questions cost, and what the answers said beside the times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.bench.meter import Answers
from tunefarm.frozen import FrozenMap
from tunefarm.trial import Winner

SHORT_MS = 0.01
"""Below this a cold time is mostly of the launch, which costs some microseconds, and of the events around it."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was counted so far.

    Attributes:
        holds_gpu: whether the meter holds a GPU; a replay costs none.
        notices: what people should know, each once.
        toolchain: versions that the times depend on.
        reference_ms: time of the reference, where known.
        build_s: CPU seconds of compiling.
        busy_s: GPU seconds of launching and timing.
        held_s: GPU seconds held, start-up not counted.
        spent_s: seconds of launching and timing, recorded ones too, after each candidate measured for the first time.
        startup_s: seconds that measuring processes took to start, as far as this study met them first.
        num_compiled: kernels compiled by measuring processes.
    """

    holds_gpu: bool
    notices: dict[str, None] = field(default_factory=dict)
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    reference_ms: float | None = None
    build_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    spent_s: list[float] = field(default_factory=list)
    startup_s: float = 0.0
    num_compiled: int = 0

    def count(self, answers: Answers) -> None:
        """Takes in what came back for a question."""
        if self.holds_gpu:
            self.held_s += answers.busy_s
            self.busy_s += sum(a.measurement.busy_s for a in answers.answers if a.measurement)
            self.startup_s += answers.startup_s
        self.num_compiled += answers.num_compiled
        if answers.num_compiled:
            self.notices["measuring processes compiled kernels: the call launches others than the tuned one"] = None
        self.toolchain = answers.toolchain
        self.notices.update(dict.fromkeys(answers.notices))
        if answers.reference_ms is not None:
            self.reference_ms = answers.reference_ms

    def weigh(self, label: str, winner: Winner, timer: str) -> None:
        """Takes in who won, for a notice where the timer is too coarse for such times.

        Args:
            label: of the study.
            winner: with its time in the finals.
            timer: how that was taken.
        """
        if self.holds_gpu and timer == "cold" and winner.median_ms < SHORT_MS:
            text = f"{label}: {winner.median_ms * 1e3:.3g} us cold, of which starting a kernel is a large part"
            self.notices[f"{text}: `timer: graph` times many launches at once"] = None

    @property
    def memory(self) -> dict[str, Any]:
        """What a driver that goes on must know again."""
        return {
            "toolchain": dict(self.toolchain), "reference_ms": self.reference_ms, "notices": list(self.notices),
        }  # fmt: skip

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Takes up what `memory` gave to an earlier driver's ledger."""
        self.toolchain, self.reference_ms = FrozenMap(memory["toolchain"]), memory["reference_ms"]
        self.notices.update(dict.fromkeys(memory.get("notices", ())))
