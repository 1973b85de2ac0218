"""A trial's life: what was built, what was measured, how it ended, and who won."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import Config
from tunefarm.frozen import FrozenMap


class Outcome(enum.StrEnum):
    """How a candidate's life ended. Everything but `ok` keeps it from winning."""

    OK = "ok"
    ILLEGAL = "illegal"
    """Against a rule of the device or the space; never built."""
    SKIPPED = "skipped"
    """The whole problem or device cannot run it (no GPU of this kind, an empty problem, a dtype the arch lacks)."""
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"
    """More shared memory, registers or threads than a block may have."""
    DEVICE_OOM = "device_oom"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    USER_ERROR = "user_error"
    """The user's own Python raised."""
    WRONG_RESULT = "wrong_result"
    PRUNED = "pruned"
    """Measured a little and judged not worth more."""
    MERGED = "merged"
    """Equal to another candidate in binary, grid and arguments; measured as that one."""
    CONDEMNED = "condemned"
    """Killed two workers; never tried again."""


FAILURES = frozenset(Outcome) - {Outcome.OK, Outcome.PRUNED, Outcome.MERGED, Outcome.SKIPPED, Outcome.ILLEGAL}
"""Outcomes that count as a fault of the candidate."""


PREPARE = "prepare"
"""Stage of what befalls a whole problem before its first candidate, and so is the fault of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a candidate failed: strings only, so that no tensor or traceback is kept alive.

    Attributes:
        stage: `legality`, `build`, `prepare`, `load`, `launch`, `verify` or `measure`.
        kind: exception class or rule that said no.
        message: first useful line.
        detail: the rest, shortened; may be empty.
    """

    stage: str
    kind: str
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What compiling one config for one arch and specialisation gave.

    Attributes:
        binary: SHA-256 of the cubin.
        registers: per thread.
        spills: 4-byte registers spilled to local memory per thread.
        shared_bytes: static and dynamic shared memory of a block.
        grid: programs launched along x, y, z for the problem it was built for.
        build_s: seconds of compiling; 0 when it came from the store.
        launch: attributes that change a launch though the binary is equal (warps, cluster, cooperative).
        code: SHA-256 of the machine code alone, without the lines and files that the binary names to debuggers; empty
            where nobody looked.
    """

    binary: str
    registers: int
    spills: int
    shared_bytes: int
    grid: tuple[int, int, int] = (1, 1, 1)
    build_s: float = 0.0
    launch: FrozenMap[Any] = field(default_factory=FrozenMap)
    code: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for two builds that the GPU cannot tell apart on this problem."""
        return self.binary, self.grid, tuple(sorted(self.launch.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Samples of one config on one problem, taken in one sitting.

    Attributes:
        samples_ms: durations of single launches in milliseconds, warm-up left out.
        warmup_ms: the first launches after a load; they hold one-time costs and never count.
        timer: `cold` (L2 flushed before each sample), `hot` or `graph`.
        rung: fidelity; 0 is the early benchmark. Finals carry `FINAL`.
        source: `measured` on a GPU now, or `replayed` from a landscape.
        worker: who measured.
        telemetry: clocks, throttle reasons and neighbours on the GPU, where known.
        busy_s: seconds the GPU worker spent on it.
    """

    samples_ms: tuple[float, ...]
    timer: str
    rung: int
    source: str
    worker: str = ""
    warmup_ms: tuple[float, ...] = ()
    telemetry: FrozenMap[Any] = field(default_factory=FrozenMap)
    busy_s: float = 0.0

    @property
    def median_ms(self) -> float:
        """Median duration in milliseconds."""
        return statistics.median(self.samples_ms)


FINAL = 99
"""Rung number of the finals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate's life in one study.

    Attributes:
        number: position of the candidate in the study's candidate list.
        config: the candidate.
        outcome: how it stands; `ok` while it is in the race.
        bucket: number of its bucket, -1 before bucketing.
        build: what compiling gave, once it was compiled.
        measurements: oldest first; a later rung replaces an earlier one as the label.
        failure: why, for a failed trial.
        merged_into: number of the trial that stands for this one.
    """

    number: int
    config: Config
    outcome: Outcome = Outcome.OK
    bucket: int = -1
    build: Build | None = None
    measurements: tuple[Measurement, ...] = ()
    failure: Failure | None = None
    merged_into: int | None = None

    @property
    def median_ms(self) -> float | None:
        """Median of the most trusted measurement, or None if it was never measured."""
        return self.measurements[-1].median_ms if self.measurements else None

    @property
    def rung(self) -> int:
        """Highest rung measured, -1 for none."""
        return self.measurements[-1].rung if self.measurements else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The crowned config of a study, with the evidence.

    Attributes:
        config: what to use.
        median_ms: in the finals.
        interval_ms: 95 % interval of the median.
        default: the config used without tuning, or None if there is none.
        default_ms: its median in the same finals; None if it cannot run.
        gain: default_ms / median_ms; None without a default that runs.
        gain_interval: 95 % interval of the gain; None without one.
        runner_up: the best other config in the finals.
        margin: runner-up's median over the winner's, minus 1.
        reason: `faster`, `tie: default kept`, `tie: incumbent kept`, `tie: simpler kept`, `only candidate`.
    """

    config: Config
    median_ms: float
    interval_ms: tuple[float, float]
    default: Config | None = None
    default_ms: float | None = None
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    runner_up: Config | None = None
    margin: float | None = None
    reason: str = "faster"


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A distribution-free 95 % interval of the median, from order statistics.

    Args:
        samples: at least one duration.

    Returns:
        (low, high); the whole range when there are fewer than six samples.

    Source: Conover, Practical Nonparametric Statistics, 3.2 (normal approximation of the binomial).
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n < 6:
        return ordered[0], ordered[-1]
    half = 0.98 * n**0.5  # 1.96 * sqrt(n) / 2
    low = max(0, int(n / 2 - half))
    high = min(n - 1, int(n / 2 + half))
    return ordered[low], ordered[high]


def to_json(value: Any) -> Any:
    """Builds, measurements, failures, winners and trials as plain JSON data."""
    if isinstance(value, Config):
        return value.to_json()
    if isinstance(value, FrozenMap):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    if isinstance(value, Build | Measurement | Failure | Winner | Trial):
        return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, enum.Enum):
        return value.value
    return value


def build_from_json(data: Mapping[str, Any]) -> Build:
    """Reads a `Build` written by `to_json`."""
    x, y, z = data["grid"]
    return Build(**{**data, "grid": (x, y, z), "launch": FrozenMap(data["launch"])})


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """Reads a `Measurement` written by `to_json`."""
    times = {name: tuple(data.get(name, ())) for name in ("samples_ms", "warmup_ms")}
    return Measurement(**{**data, **times, "telemetry": FrozenMap(data["telemetry"])})


def failure_from_json(data: Mapping[str, Any] | None) -> Failure | None:
    """Reads a `Failure` written by `to_json`, or None."""
    return None if data is None else Failure(**data)


def winner_from_json(data: Mapping[str, Any]) -> Winner:
    """Reads a `Winner` written by `to_json`."""
    configs = {name: None if data[name] is None else Config.from_json(data[name]) for name in ("default", "runner_up")}
    pairs = {name: None if data[name] is None else tuple(data[name]) for name in ("interval_ms", "gain_interval")}
    return Winner(**{**data, **configs, **pairs, "config": Config.from_json(data["config"])})


def describe(failure: Failure) -> str:
    """One line for logs and tables."""
    return f"{failure.stage}: {failure.kind}: {failure.message}"
