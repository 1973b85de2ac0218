"""Study: one competition, of the candidates of one workload on one device for one problem; and its result."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import LIBRARY, Value
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.trial import FAILURES, Failure, Outcome, Trial, Winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is competed for.

    Attributes:
        workload: its name.
        device: where the winner is to be used.
        problem: the facts of the kernel call, learned by intercepting it.
        variables: the experiment's own names for the problem (`problems:` in the YAML), `dtype` among them.
        weight: how much this problem matters, such as calls in production.
        called: how people call the device where its arch would not tell it from others; empty for the arch.
    """

    workload: str
    device: Device
    problem: Problem
    variables: FrozenMap[Value] = field(default_factory=FrozenMap)
    weight: float = 1.0
    called: str = ""

    @property
    def place(self) -> str:
        """The device, for people."""
        return self.called or self.device.arch

    @property
    def key(self) -> str:
        """Identity inside a sweep: stable between runs, usable in a ledger."""
        return f"{self.workload} {self.device.key} {self.problem.key}"

    def family(self, over: Collection[str]) -> str:
        """Equal for studies of one device that differ in the named variables alone."""
        rest = " ".join(f"{name}={value}" for name, value in sorted(self.variables.items()) if name not in over)
        return f"{self.workload} {self.device.key} {rest}"

    @property
    def label(self) -> str:
        """For people: `softmax sm_90 8192x4096 bf16`."""
        sizes = "x".join(str(v) for k, v in self.variables.items() if k != "dtype")
        dtypes = [str(v) for k, v in self.variables.items() if k == "dtype"] or sorted(
            set(self.problem.dtypes.values())
        )
        return " ".join([self.workload, self.place, sizes, *dtypes]).replace("  ", " ")


class Status(enum.StrEnum):
    """How a study ended."""

    WINNER = "winner"
    NO_WINNER = "no_winner"
    """Every candidate failed; nothing is exported for it."""
    NOT_MEASURED = "not_measured"
    """No GPU and no landscape of this device: candidates were compiled and checked for legality, none was timed."""
    SKIPPED = "skipped"
    """Nothing to tune: an empty problem, or an arch that cannot run the workload at all."""


WORTHWHILE = 0.01
"""Fraction of the best time that is worth looking for; with less to gain a study stops by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a study leaves on the table.

    Attributes:
        num: candidates that were neither measured, merged nor ruled out.
        expected_gain: fraction of the best time known that the best of them is expected to save; None where nothing
            was timed.
        plausible_gain: the same, if it is as much better than expected as is plausible.
        limit: the limit that ended exploration, `trials`, `gpu_held_s` or `wall_s`; empty if it ended by itself.
    """

    num: int
    expected_gain: float | None = None
    plausible_gain: float | None = None
    limit: str = ""

    @property
    def is_worthwhile(self) -> bool:
        """Whether a limit ended a study that had something to gain, as far as anybody knows."""
        may_gain = self.plausible_gain is None or self.plausible_gain >= WORTHWHILE
        return bool(self.limit and self.num) and may_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What a study gave.

    Attributes:
        study: what was competed for.
        status: how it ended.
        reason: for people: why there is no winner, why the search ended, or what sharing a config costs.
        trials: every candidate's life, by number.
        winner: the crowned config.
        left: what was not measured, and what that may be worth; None where no search took place.
        source: `measured`, `replayed`, or empty if nothing was timed.
        toolchain: versions under which the times were taken (those of the landscape when replayed).
        timer: how they were taken.
        removed: how many points of the space each legality rule or constraint removed.
        num_points: points of the space before legality.
        num_buckets: buckets formed.
        closed: numbers of the buckets that the search closed.
        build_s: CPU seconds of compiling.
        busy_s: GPU seconds of launching and timing.
        held_s: GPU seconds held for it, start-up of the measuring process not counted.
        num_compiled: kernels compiled by measuring processes: zero, or the farm is broken.
        num_bytes: compulsory memory traffic of one call in bytes, 0 where unknown.
        flops: arithmetic of one call, 0 where unknown.
        reference_ms: the reference operation's time, where known.
        recording: the landscape that was replayed in place of a kernel; empty where there is a kernel.
    """

    study: Study
    status: Status
    reason: str = ""
    trials: tuple[Trial, ...] = ()
    winner: Winner | None = None
    left: Left | None = None
    source: str = ""
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    timer: str = "cold"
    removed: FrozenMap[int] = field(default_factory=FrozenMap)
    num_points: int = 0
    num_buckets: int = 0
    closed: tuple[int, ...] = ()
    build_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    num_compiled: int = 0
    num_bytes: float = 0.0
    flops: float = 0.0
    reference_ms: float | None = None
    recording: str = ""

    @property
    def disturbed(self) -> str:
        """What disturbed the finals that the winner won, or empty."""
        won = self.winner.config if self.winner is not None else None
        last = (t.measurements[-1] for t in self.trials if t.config == won and t.measurements)
        return next((str(m.telemetry.get("disturbed", "")) for m in last), "")

    @property
    def num_candidates(self) -> int:
        """Candidates: points of the space that are legal on the device."""
        return sum(t.config != LIBRARY for t in self.trials)

    @property
    def num_measured(self) -> int:
        """Candidates that were timed at least once."""
        return sum(bool(t.measurements) for t in self.trials)

    @property
    def num_built(self) -> int:
        """Candidates that were compiled, successfully or not; none of a recording was."""
        if self.recording:
            return 0
        return sum(t.build is not None or (t.failure is not None and t.failure.stage == "build") for t in self.trials)

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many trials ended how; candidates never tried are not among them."""
        tried = (t for t in self.trials if t.measurements or t.outcome is not Outcome.OK)
        return dict(Counter(t.outcome for t in tried))

    @property
    def failures(self) -> list[tuple[Failure, int]]:
        """Kinds of failure with their counts, most frequent first; one example each."""
        groups: dict[tuple[str, str, str], list[Failure]] = {}
        for trial in self.trials:
            if trial.failure is not None and trial.outcome in FAILURES:
                first = trial.failure
                groups.setdefault((first.stage, first.kind, first.message), []).append(first)
        return sorted(((g[0], len(g)) for g in groups.values()), key=lambda pair: -pair[1])

    @property
    def default_failure(self) -> Failure | None:
        """Why the default of a study with a winner could not run, if it could not."""
        default = self.winner.default if self.winner is not None else None
        return next((t.failure for t in self.trials if t.config == default), None)

    def rate(self, ms: float) -> dict[str, float]:
        """Achieved memory bandwidth (TB/s) and arithmetic rate (TFLOP/s) at `ms` a call, where known."""
        rates: dict[str, Any] = {}
        if self.num_bytes and ms > 0:
            rates["tbps"] = self.num_bytes / ms / 1e9
        if self.flops and ms > 0:
            rates["tflops"] = self.flops / ms / 1e9
        return rates
