"""The account of a sweep: what its ledger tells, as values. Nothing here is an opinion, and counts add up."""

from __future__ import annotations

import enum
import functools
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from tunefarm.config import LIBRARY
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.study import Left
from tunefarm.trial import FAILURES, Build, Failure, Measurement, Outcome, Winner, median_interval

_LIBRARY = LIBRARY.key
UNFINISHED = "unfinished"
"""Status of a study of which more is to come."""

_PAIR = re.compile(r"(\w+)=(.*?)(?= \w+=|$)")


class Fate(enum.StrEnum):
    """Where a candidate stands in the counts of its study: each stands in one place."""

    MEASURED = "measured"
    """Timed on every rung it was asked for."""
    PRUNED = "pruned"
    """Timed a little and judged not worth more."""
    FAILED = "failed"
    MERGED = "merged"
    CLOSED = "closed"
    """Never timed: its bucket was closed."""
    LEFT = "left"
    """Never timed: nobody came to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A candidate of which a ledger tells.

    Attributes:
        config: its key.
        fate: where it stands.
        outcome: how it ended; `ok` for what was never tried.
        bucket: number of its bucket, -1 where none is told.
        build: what compiling gave, where it was compiled.
        measurements: oldest first, one a sitting.
        failure: why it failed, if it did.
        into: the config that stands for a merged one.
        reason: of its pruning or merging, for people.
    """

    config: str
    fate: Fate
    outcome: Outcome = Outcome.OK
    bucket: int = -1
    build: Build | None = None
    measurements: tuple[Measurement, ...] = ()
    failure: Failure | None = None
    into: str = ""
    reason: str = ""

    @property
    def values(self) -> FrozenMap[str]:
        """Its params and options as text, by name."""
        return values(self.config)

    @property
    def median_ms(self) -> float | None:
        """Of the most trusted measurement, or None."""
        return self.measurements[-1].median_ms if self.measurements else None

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95 % interval of that median, or None."""
        return median_interval(self.measurements[-1].samples_ms) if self.measurements else None

    @property
    def is_timed(self) -> bool:
        """Whether its time counts: it was timed, and nothing spoke against it later."""
        return self.fate in (Fate.MEASURED, Fate.PRUNED)


@functools.lru_cache(maxsize=1 << 16)
def values(config: str) -> FrozenMap[str]:
    """Params and options of a config's key as text, by name."""
    return FrozenMap(_PAIR.findall(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A bucket.

    Attributes:
        number: of the bucket.
        configs: keys of its members, the most promising first.
        closed: on what evidence it was closed; empty if it was not.
    """

    number: int
    configs: tuple[str, ...]
    closed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Failures of one kind: of equal class and first line.

    Attributes:
        name: class of all.
        first_line: what all say; sizes and addresses in which they differ are `#`.
        outcome: that of the first.
        failure: the first.
        entries: all, in the order of the ledger.
    """

    name: str
    first_line: str
    outcome: Outcome
    failure: Failure
    entries: tuple[Entry, ...]


_SIZES = re.compile(r"0x[0-9a-fA-F]+|[0-9]{4,}")
"""Sizes and addresses. Shorter numbers may tell a place in the source, which is what matters."""


def first_line(failure: Failure) -> str:
    """The first line of a failure's message, or nothing."""
    return next(iter(failure.message.strip().splitlines()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAccount:
    """A study as the ledger tells it.

    Attributes:
        key: of the study.
        label: for people.
        workload: its name, as far as the key tells.
        kernel: name of the kernel; empty where there is none.
        device: where.
        dims: of the problem, by argument.
        dtypes: likewise.
        status: `winner`, `no_winner`, `not_measured`, `skipped`, `probed` (timed to see where neighbours meet) or
            `unfinished`.
        reason: for people: why there is no winner.
        meter: `gpu`, `replay`, or empty for none.
        rung: the last on which a config was answered for; -1 before any.
        num_candidates: legal points of the space.
        num_points: points of the space.
        removed: points that each rule removed.
        entries: candidates that the ledger names, in its order.
        course: (config, measurement) of the search, in the order in which they were taken.
        groups: buckets; empty for ledgers of releases that did not note them.
        num_closed: buckets closed.
        finals: (config, measurement or failure) of the last sitting that chose the winner.
        winner: who won.
        left: what the search said was left.
        toolchain: versions the times depend on.
        reference_ms: time of the reference operation, where known.
        notices: what the meter wanted known.
        num_bytes: compulsory memory traffic of a call; 0 where unknown.
        flops: arithmetic of a call; 0 where unknown.
    """

    key: str
    label: str
    workload: str
    kernel: str
    device: Device
    dims: FrozenMap[str]
    dtypes: FrozenMap[str]
    status: str
    reason: str = ""
    meter: str = ""
    rung: int = -1
    num_candidates: int = 0
    num_points: int = 0
    removed: FrozenMap[int] = field(default_factory=FrozenMap)
    entries: tuple[Entry, ...] = ()
    course: tuple[tuple[str, Measurement], ...] = ()
    groups: tuple[Group, ...] = ()
    num_closed: int = 0
    finals: tuple[tuple[str, Measurement | Failure], ...] = ()
    winner: Winner | None = None
    left: Left | None = None
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    reference_ms: float | None = None
    notices: tuple[str, ...] = ()
    num_bytes: float = 0.0
    flops: float = 0.0

    def count(self, *fates: Fate) -> int:
        """How many candidates stand there. Over all of `Fate` the counts add up to `num_candidates`."""
        candidates = self.candidates
        unnamed = self.num_candidates - len(candidates) if Fate.LEFT in fates else 0
        return sum(entry.fate in fates for entry in candidates) + unnamed

    @property
    def candidates(self) -> list[Entry]:
        """The entries that are points of the space: a library's call is none."""
        return [entry for entry in self.entries if entry.config != _LIBRARY]

    @property
    def timed(self) -> list[Entry]:
        """Those whose time counts, fastest first."""
        found = [(entry.median_ms, entry.config, entry) for entry in self.entries if entry.is_timed]
        return [entry for _, _, entry in sorted(found, key=lambda each: (each[0] or 0.0, each[1]))]

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.status != UNFINISHED

    @property
    def stage(self) -> str:
        """Where it is, for people."""
        if self.is_over:
            return self.status.replace("_", " ")
        return "finals" if self.finals else "waiting" if self.rung < 0 else f"rung {self.rung}"

    @property
    def best_ms(self) -> float | None:
        """The winner's time, or of an unfinished study the best so far."""
        if self.winner is not None:
            return self.winner.median_ms
        timed = self.timed
        return timed[0].median_ms if timed else None

    @property
    def source(self) -> str:
        """`measured`, `replayed`, or empty if nothing was timed."""
        return next((entry.measurements[-1].source for entry in self.entries if entry.measurements), "")

    @property
    def timer(self) -> str:
        """How times were taken, or empty."""
        return next((entry.measurements[-1].timer for entry in self.entries if entry.measurements), "")

    @property
    def measurements(self) -> list[Measurement]:
        """All that were taken."""
        return [measurement for entry in self.entries for measurement in entry.measurements]

    @property
    def busy_s(self) -> float:
        """GPU seconds of launching and timing; 0 for a replay, which holds no GPU."""
        return sum(m.busy_s for m in self.measurements if m.source == "measured")

    @property
    def build_s(self) -> float:
        """CPU seconds of compiling what had not been compiled before."""
        return sum(entry.build.build_s for entry in self.entries if entry.build is not None)

    @property
    def kinds(self) -> list[Kind]:
        """Failures by kind, the most frequent first."""
        return kinds(self.entries)

    @property
    def untried_values(self) -> list[tuple[str, list[str]]]:
        """By param, values of candidates of which not one was tried."""
        tried, known = (
            {name: {entry.values[name] for entry in entries if name in entry.values} for name in self.names}
            for entries in ([e for e in self.candidates if e.fate not in (Fate.CLOSED, Fate.LEFT)], self.candidates)
        )
        return [(name, missing) for name in self.names if (missing := ordered(known[name] - tried[name]))]

    @property
    def names(self) -> list[str]:
        """Of params and options, in the order of the keys."""
        return list(dict.fromkeys(name for entry in self.candidates for name in entry.values))

    def rate(self, ms: float) -> tuple[float, float]:
        """Memory bandwidth (TB/s) and arithmetic rate (TFLOP/s) at `ms` a call; 0 where unknown."""
        return (self.num_bytes / ms / 1e9, self.flops / ms / 1e9) if ms > 0 else (0.0, 0.0)

    def share(self, ms: float) -> float | None:
        """Share of the device's memory bandwidth at `ms` a call; None where traffic or bandwidth are unknown."""
        ceiling = self.device.bandwidth_gbps
        return self.rate(ms)[0] * 1e3 / ceiling if ceiling > 0 and self.num_bytes > 0 and ms > 0 else None


def kinds(entries: Iterable[Entry]) -> list[Kind]:
    """Failures by (class, first line), the most frequent first."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.failure is not None and entry.outcome in FAILURES:
            found.setdefault((entry.failure.kind, _SIZES.sub("#", first_line(entry.failure))), []).append(entry)
    made = []
    for (name, folded), group in found.items():
        told = [(entry, entry.failure) for entry in group if entry.failure is not None]
        said = {first_line(failure) for _, failure in told}
        made.append(
            Kind(
                name=name, first_line=said.pop() if len(said) == 1 else folded, outcome=told[0][0].outcome,
                failure=told[0][1], entries=tuple(group),
            )
        )  # fmt: skip
    return sorted(made, key=lambda kind: -len(kind.entries))


def ordered(texts: Iterable[str]) -> list[str]:
    """Values as people count: numbers by size, before words."""

    def place(text: str) -> tuple[int, float, str]:
        return (0, float(text), text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) else (1, 0.0, text)

    return sorted(texts, key=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A sweep as its ledger tells it.

    Attributes:
        file: the ledger.
        experiment: its name.
        sweep_id: of the sweep.
        host: of the last driver.
        pid: likewise.
        num_drivers: that have opened the ledger.
        began_s: when the first event was written, in unix seconds.
        ended_s: when the last was.
        studies: in the order of the ledger.
        exports: (path, rows) of packs written.
        num_damaged: lines that could not be used.
        num_stale: events of drivers that had been taken over.
        is_torn: the last line is half written: a driver was killed, or is writing.
        num_history: events recorded under other conditions; they are left out.
    """

    file: str
    experiment: str
    sweep_id: str
    host: str = ""
    pid: int = 0
    num_drivers: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    studies: tuple[StudyAccount, ...] = ()
    exports: tuple[tuple[str, int], ...] = ()
    num_damaged: int = 0
    num_stale: int = 0
    is_torn: bool = False
    num_history: int = 0

    @property
    def competitions(self) -> list[StudyAccount]:
        """The studies that look for a winner."""
        return [study for study in self.studies if study.status != "probed"]

    @property
    def is_over(self) -> bool:
        """Whether it began and nothing more is to come of it."""
        return bool(self.studies) and all(study.is_over for study in self.competitions)

    @property
    def sources(self) -> list[str]:
        """Where times come from: `measured`, `replayed`, both, or nothing."""
        return sorted({study.source for study in self.studies if study.source})


def noise(measurements: Iterable[Measurement]) -> list[float]:
    """Of each measurement with eight samples or more, half its 95 % interval as a fraction of the median."""
    found = []
    for each in measurements:
        if len(each.samples_ms) >= 8 and each.median_ms > 0:
            low, high = median_interval(each.samples_ms)
            found.append((high - low) / 2 / each.median_ms)
    return found


def again(entries: Iterable[Entry]) -> list[float]:
    """A/A: of each config timed in several sittings, by how much the last median differs from the one before."""
    pairs = [entry.measurements[-2:] for entry in entries if len(entry.measurements) > 1]
    return [abs(last.median_ms / first.median_ms - 1) for first, last in pairs if first.median_ms > 0]


def typical(found: list[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(found) if found else None
