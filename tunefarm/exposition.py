"""Every metric that tunefarm exposes, and Prometheus's text format to expose it in.

Names follow Prometheus: base units, `_total` for what only grows. Labels are bounded: no config, trial, process or
sweep is ever one. Standard library only: jobs write this format too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """What may be done with a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, whoever exposes it.

    Attributes:
        name: as Prometheus knows it.
        kind: what it is.
        unit: base unit, `seconds`, `ratio`, `timestamp_seconds`; empty for counts.
        labels: names of all its labels, in the order they are written.
        help: one sentence for people.
        bounds: of a histogram's buckets, rising; +Inf goes without saying.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {}
"""By name, in the order of exposition."""


def _add(
    name: str, kind: Kind, help: str, *labels: str, unit: str = "", bounds: tuple[float, ...] = ()
) -> Metric:  # fmt: skip
    METRICS[name] = Metric(name=name, kind=kind, help=help, unit=unit, labels=labels, bounds=bounds)
    return METRICS[name]


# ---- a sweep's driver: the fleet ----

SWEEP = _add("tunefarm_sweep_info", Kind.GAUGE, "Experiments of the running sweep; always 1.", "experiment")
HEARTBEAT = _add(
    "tunefarm_driver_heartbeat_timestamp_seconds", Kind.GAUGE, "When the driver last told its metrics.",
    unit="timestamp_seconds",
)  # fmt: skip
WORKERS = _add(
    "tunefarm_workers", Kind.GAUGE, "Workers by what they do: idle, busy or quarantined.", "role", "device", "state"
)
JOBS = _add(
    "tunefarm_jobs", Kind.GAUGE, "Jobs given to the schedule: waiting for a worker, or in flight on one.",
    "role", "device", "state",
)  # fmt: skip
ATTEMPTS = _add("tunefarm_attempts_total", Kind.COUNTER, "Jobs sent to workers, each time anew.")
LOST = _add("tunefarm_attempts_lost_total", Kind.COUNTER, "Attempts lost with their worker, network or node.")
QUARANTINES = _add("tunefarm_worker_quarantines_total", Kind.COUNTER, "Times a worker was given no more work.")
HELD = _add(
    "tunefarm_gpu_held_seconds_total", Kind.COUNTER,
    "Seconds GPUs were held from their first job's start to their last job's end, start-up included.", "device",
    unit="seconds",
)  # fmt: skip
STARTUP = _add(
    "tunefarm_gpu_startup_seconds_total", Kind.COUNTER, "Seconds of those that measuring processes took to start.",
    "device", unit="seconds",
)  # fmt: skip
BUSY = _add(
    "tunefarm_gpu_busy_seconds_total", Kind.COUNTER, "Seconds GPUs spent launching and timing.", "device",
    unit="seconds",
)  # fmt: skip

# ---- a sweep's driver: builds ----

BUILDS = _add("tunefarm_builds_total", Kind.COUNTER, "Builds, compiled now or found in the store.", "origin")
BUILD_SECONDS = _add("tunefarm_build_seconds_total", Kind.COUNTER, "CPU seconds of compiling.", unit="seconds")
STRAY_BUILDS = _add(
    "tunefarm_stray_builds_total", Kind.COUNTER, "Kernels compiled by measuring processes, which hold GPUs meanwhile."
)

# ---- a sweep's driver: studies and trials ----

STUDIES = _add(
    "tunefarm_studies", Kind.GAUGE, "Studies by how they ended; open while they have not.",
    "experiment", "device", "status",
)  # fmt: skip
CANDIDATES = _add("tunefarm_candidates", Kind.GAUGE, "Candidates of all studies.", "experiment", "device")
TRIALS = _add(
    "tunefarm_trials", Kind.GAUGE, "Candidates that were tried, by how they stand now.",
    "experiment", "device", "outcome",
)  # fmt: skip
GAIN = _add(
    "tunefarm_study_gain_ratio", Kind.GAUGE, "The default's time over the best time so far; of the first 50 studies.",
    "experiment", "study", "device", "source", unit="ratio",
)  # fmt: skip
BEST = _add(
    "tunefarm_study_best_seconds", Kind.GAUGE, "Best median so far; of the first 50 studies.",
    "experiment", "study", "device", "source", unit="seconds",
)  # fmt: skip
SPOOL = _add("tunefarm_tracking_spool_studies", Kind.GAUGE, "Studies that have ended and are not in MLflow yet.")

# ---- a sweep's driver: measurement quality ----

MEASUREMENTS = _add(
    "tunefarm_measurements_total", Kind.COUNTER, "Measurements, of a GPU or replayed from a landscape.",
    "device", "source", "rung",
)  # fmt: skip
NOISE = _add(
    "tunefarm_measurement_noise_ratio", Kind.HISTOGRAM, "Half the median's 95 % interval over the median.",
    "device", "source", "rung", unit="ratio", bounds=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
)  # fmt: skip
DISTURBED = _add(
    "tunefarm_measurements_disturbed_total", Kind.COUNTER,
    "Measurements that stayed disturbed after they were taken again, by cause.", "device", "cause",
)  # fmt: skip

# ---- a sweep's driver: what its measuring processes saw of their GPUs ----

CLOCK = _add(
    "tunefarm_measurement_clock_hertz", Kind.HISTOGRAM, "SM clock when a measurement ended.", "device",
    unit="hertz", bounds=(0.6e9, 0.9e9, 1.05e9, 1.2e9, 1.35e9, 1.5e9, 1.65e9, 1.8e9, 1.95e9, 2.1e9),
)  # fmt: skip
TEMPERATURE = _add(
    "tunefarm_measurement_temperature_celsius", Kind.HISTOGRAM, "Temperature of the GPU when a measurement ended.",
    "device", unit="celsius", bounds=(40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0),
)  # fmt: skip
DRIFT = _add(
    "tunefarm_measurement_drift_ratio", Kind.HISTOGRAM,
    "How much longer than its best a fixed piece of work took after a measurement.", "device",
    unit="ratio", bounds=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
)  # fmt: skip
CALIBRATION = _add(
    "tunefarm_measurement_calibration_ratio", Kind.HISTOGRAM,
    "What times of a GPU were multiplied by, to be those of its study's first GPU.", "device",
    unit="ratio", bounds=(0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03, 1.05, 1.1),
)  # fmt: skip

# ---- a job that uses packs; `rank` tells its processes apart ----

PACKS = _add("tunefarm_pack_info", Kind.GAUGE, "Packs in use, by the digest of all.", "rank", "digest", "packs")
HITS = _add(
    "tunefarm_pack_hits_total", Kind.COUNTER, "Launches and traces that a row of a pack answered.",
    "rank", "kernel", "step", "kind",
)  # fmt: skip
MISSES = _add(
    "tunefarm_pack_misses_total", Kind.COUNTER, "Launches and traces that none did.", "rank", "kernel", "kind"
)
NEVER_ASKED = _add(
    "tunefarm_pack_tables_never_asked", Kind.GAUGE, "Tables whose kernel was never launched or traced.", "rank"
)


@dataclass(slots=True, kw_only=True)
class Histogram:
    """Observed values, counted.

    Attributes:
        bounds: of the buckets, rising.
        counts: in each bucket alone, those above the last bound at the end.
        sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Counts a value; its bucket's bound may equal it."""
        self.counts[sum(bound < value for bound in self.bounds)] += 1
        self.sum += value

    @property
    def samples(self) -> Iterator[tuple[str, str, float]]:
        """(suffix of the name, `le` or empty, value) of what it is written as."""
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield "_bucket", "+Inf" if math.isinf(bound) else f"{bound:g}", total
        yield "_sum", "", self.sum
        yield "_count", "", total


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A metric's value for one set of labels.

    Attributes:
        metric: which.
        labels: a value for each of its labels.
        value: what it is now.

    Raises:
        ValueError: the labels are not the metric's, or the value is not of its kind.
    """

    metric: Metric
    value: float | Histogram
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.labels) != set(self.metric.labels):
            raise ValueError(f"{self.metric.name} has the labels {self.metric.labels}, not {tuple(self.labels)}")
        if isinstance(self.value, Histogram) != (self.metric.kind is Kind.HISTOGRAM):
            raise ValueError(f"{self.metric.name} is a {self.metric.kind}")

    @property
    def lines(self) -> Iterator[str]:
        """As Prometheus reads them."""
        labels = [(name, self.labels[name]) for name in self.metric.labels]
        if isinstance(self.value, Histogram):
            for suffix, le, value in self.value.samples:
                yield _line(self.metric.name + suffix, [*labels, *([("le", le)] if le else [])], value)
        else:
            yield _line(self.metric.name, labels, self.value)


def sample(metric: Metric, value: float | Histogram, **labels: str) -> Sample:
    """A metric's value for these labels."""
    return Sample(metric=metric, value=value, labels=labels)


def expose(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus's text format: metrics in the order of the registry, each with its help and type."""
    by_name: dict[str, list[Sample]] = {}
    for each in samples:
        by_name.setdefault(each.metric.name, []).append(each)
    lines: list[str] = []
    for name in sorted(by_name, key=list(METRICS).index):
        metric = METRICS[name]
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [line for each in by_name[name] for line in each.lines]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    told = str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
    return f"{name}{{{inside}}} {told}" if inside else f"{name} {told}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
