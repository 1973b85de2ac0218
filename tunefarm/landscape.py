"""Landscape: a recorded search space, every config of it measured; replaying one needs no GPU.

{"format": "tunefarm-landscape", "version": 1, "kernel", "source_hash", "device": {...}, "toolchain": {...},
 "timer", "date", "problems": [{"problem": {...}, "variables": {...}, "reference_ms", "bytes", "flops",
  "entries": [
    {"config", "outcome", "failure", "build", "warmup_ms": [...], "samples_ms": [...], "error"}]}]}
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.config import Config, Value
from tunefarm.device import Device
from tunefarm.document import compress, parse_json, read_text, write_atomic
from tunefarm.errors import LandscapeError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.trial import Build, Failure, Outcome, build_from_json, failure_from_json, to_json

FORMAT, VERSION = "tunefarm-landscape", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One config of a recorded problem.

    Attributes:
        config: what was measured.
        outcome: how it ended.
        failure: why, if it failed.
        build: binary, resources and grid at recording time; None where nothing was built or known.
        warmup_ms: the first samples after a load; they hold one-time costs and never count.
        samples_ms: durations in milliseconds.
    """

    config: Config
    outcome: Outcome
    failure: Failure | None = None
    build: Build | None = None
    warmup_ms: tuple[float, ...] = ()
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One problem of a landscape.

    Attributes:
        problem: the facts of the call.
        entries: one per config.
        reference_ms: the reference operation under the same timer, if it was timed.
        num_bytes: compulsory memory traffic of one call, 0 where unknown.
        flops: arithmetic of one call, 0 where unknown.
        variables: of the experiment that recorded it; none where it was not said.
    """

    problem: Problem
    entries: tuple[Entry, ...]
    reference_ms: float | None = None
    num_bytes: float = 0.0
    flops: float = 0.0
    variables: FrozenMap[Value] = field(default_factory=FrozenMap)

    def differs(self, variables: Mapping[str, Value], num_bytes: float, flops: float) -> str:
        """In what a call of the same facts is another than this, for people; empty as far as they are known to be one.

        A kernel's key need not name all sizes: rows beside each other, for instance, take the time that they take.

        Args:
            variables: of the call.
            num_bytes: its compulsory memory traffic, 0 where unknown.
            flops: its arithmetic, 0 where unknown.
        """
        for name, value in variables.items():
            if name in self.variables and self.variables[name] != value:
                return f"with {name}={self.variables[name]}, not {value}"
        for what, mine, other in (("bytes", self.num_bytes, num_bytes), ("operations", self.flops, flops)):
            if mine and other and not math.isclose(mine, other, rel_tol=0.01):
                return f"with {mine:,.0f} {what} a call, not {other:,.0f}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A recorded space on one device.

    Attributes:
        kernel: name of the kernel.
        source_hash: of the kernel as recorded; empty for landscapes of other tools.
        device: where it was recorded.
        toolchain: versions of torch, triton, driver, python.
        timer: how the samples were taken.
        date: ISO date of the recording.
        problems: what was recorded.
        notices: what the meter wanted known, such as outputs that could not be checked.
    """

    kernel: str
    source_hash: str
    device: Device
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    timer: str = "cold"
    date: str = ""
    problems: tuple[Recorded, ...] = ()
    notices: tuple[str, ...] = ()

    def find(self, problem: Problem) -> Recorded | None:
        """The recording of exactly this problem, or None."""
        return next((r for r in self.problems if r.problem == problem), None)

    def check(self, kernel: str, source_hash: str, timer: str, file: str) -> None:
        """Refuses a landscape that is another kernel's, of another text of it, or timed otherwise.

        Args:
            kernel: name of the kernel that is to be replayed.
            source_hash: likewise.
            timer: that is asked for.
            file: where this landscape was read, for the message.

        Raises:
            LandscapeError: it is.
        """
        if (self.source_hash, self.kernel) != (source_hash, kernel):
            raise LandscapeError(
                f"records kernel {self.kernel} with source hash {self.source_hash[:12]}, the workload's kernel "
                f"{kernel} has {source_hash[:12]}",
                file=file,
                hint="the kernel has changed since: record it again with `tunefarm record` on a GPU"
                if self.kernel == kernel
                else "it is another kernel's: name a recording of this one",
            )
        if self.timer != timer:
            raise LandscapeError(
                f"was recorded with the {self.timer} timer, the experiment asks for {timer}",
                file=file,
                hint="times of different timers are never compared: record it again, or set the experiment's timer",
            )

    def get(self, problem: Problem, file: str) -> Recorded:
        """The recording of exactly this problem.

        Args:
            problem: what to look for.
            file: where this landscape was read, for the message.

        Raises:
            LandscapeError: it was not recorded.
        """
        recorded = self.find(problem)
        if recorded is None:
            known = "; ".join(r.problem.label for r in self.problems)
            raise LandscapeError(
                f"does not hold problem {problem.label}",
                file=file,
                hint=f"it holds {known}; record this one with `tunefarm record` on a GPU",
            )
        return recorded


def dumps(landscape: Landscape) -> bytes:
    """The canonical gzipped bytes of a landscape."""
    data = {
        "format": FORMAT, "version": VERSION, "kernel": landscape.kernel, "source_hash": landscape.source_hash,
        "device": landscape.device.to_json(), "toolchain": dict(landscape.toolchain), "timer": landscape.timer,
        "date": landscape.date, "notices": list(landscape.notices),
        "problems": [
            {
                "problem": r.problem.to_json(), "reference_ms": r.reference_ms, "bytes": r.num_bytes, "flops": r.flops,
                "entries": [_entry_to_json(e) for e in r.entries],
                **({"variables": dict(r.variables)} if r.variables else {}),
            }
            for r in landscape.problems
        ],
    }  # fmt: skip
    return compress((json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n").encode())


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    data = {name: to_json(getattr(entry, name)) for name in entry.__dataclass_fields__}
    # A tenth of a microsecond is below any timer's resolution; shorter numbers keep the files small.
    for name in ("warmup_ms", "samples_ms"):
        data[name] = [round(ms, 5) for ms in data[name]]
    return {k: v for k, v in data.items() if v not in (None, [])}


def save(landscape: Landscape, path: Path) -> None:
    """Writes a landscape, replacing `path` in one step."""
    write_atomic(path, dumps(landscape))


def load(path: Path) -> Landscape:
    """Reads a landscape file.

    Raises:
        LandscapeError: missing, damaged, of another format or of a newer version.
    """
    return read(parse_json(read_text(path, error=LandscapeError), where=str(path), error=LandscapeError), str(path))


def read(data: Any, file: str) -> Landscape:
    """The landscape that a JSON document holds.

    Args:
        data: the document.
        file: where it was read, for messages.

    Raises:
        LandscapeError: it is damaged, of another format or of a newer version.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise LandscapeError("is not a tunefarm landscape", file=file, hint="record one with `tunefarm record`")
    if data.get("version") != VERSION:
        raise LandscapeError(
            f"has version {data.get('version')!r}, this release reads {VERSION}", file=file, hint="update tunefarm"
        )
    try:
        landscape = _from_json(data)
        _check(landscape)
        return landscape
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, UserError) as e:
        raise LandscapeError(
            f"is malformed: {e.__class__.__name__}: {e}", file=file, hint="record it again with `tunefarm record`"
        ) from None


@functools.lru_cache(maxsize=64)
def load_cached(path: str) -> Landscape:
    """`load`, once a process for each path."""
    return load(Path(path))


def _from_json(data: Mapping[str, Any]) -> Landscape:
    return Landscape(
        kernel=data["kernel"], source_hash=data["source_hash"], device=Device.from_json(data["device"]),
        toolchain=FrozenMap(data["toolchain"]), timer=data["timer"], date=data["date"],
        notices=tuple(data.get("notices", ())),
        problems=tuple(
            Recorded(
                problem=Problem.from_json(r["problem"]), reference_ms=r["reference_ms"], num_bytes=r["bytes"],
                flops=r["flops"], entries=tuple(_entry_from_json(e) for e in r["entries"]),
                variables=FrozenMap(r.get("variables", {})),
            )
            for r in data["problems"]
        ),
    )  # fmt: skip


def _check(landscape: Landscape) -> None:
    """Refuses numbers that are none.

    Raises:
        TypeError: text where a number belongs, and the like.
        ValueError: a duration that no launch has, or traffic or arithmetic below zero.
    """
    check_problems(landscape)
    for recorded in landscape.problems:
        for entry in recorded.entries:
            check_durations((*entry.warmup_ms, *entry.samples_ms), f"{entry.config} for {recorded.problem.label}")


def check_problems(landscape: Landscape) -> None:
    """Refuses a device or problem whose numbers are none, and a problem that is told twice.

    Raises:
        TypeError: text where a number belongs, and the like.
        ValueError: a duration that no launch has, traffic or arithmetic below zero, or one more recording of a problem.
    """
    _check_device(landscape.device)
    met: set[str] = set()
    for recorded in landscape.problems:
        _check_costs(recorded)
        if recorded.problem.key in met:
            raise ValueError(f"{recorded.problem.label} is recorded twice")
        met.add(recorded.problem.key)


def _check_device(device: Device) -> None:
    for name in ("num_sms", "shared_bytes", "l2_bytes", "memory_bytes", "bandwidth_gbps", "registers", "max_threads"):
        value = getattr(device, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"device.{name} is {value!r}")


def _check_costs(recorded: Recorded) -> None:
    label = recorded.problem.label
    if recorded.reference_ms is not None:
        check_durations([recorded.reference_ms], f"the reference of {label}")
    for what, value in (("bytes", recorded.num_bytes), ("flops", recorded.flops)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{what} of {label} is {value!r}")


def check_durations(durations_ms: Iterable[Any], what: str) -> None:
    """Refuses what is no time of a launch: nothing takes no time at all, and searches take logarithms of all of them.

    Args:
        durations_ms: in milliseconds, as read from a file.
        what: was timed.

    Raises:
        TypeError: one is no number.
        ValueError: one is zero or less, infinite or NaN.
    """
    for ms in durations_ms:
        if isinstance(ms, bool) or not isinstance(ms, int | float):
            raise TypeError(f"a time of {what} is {ms!r}, no number of ms")
        if not 0 < ms < math.inf:
            raise ValueError(f"a time of {what} is {ms!r} ms")


def _entry_from_json(data: Mapping[str, Any]) -> Entry:
    return Entry(
        config=Config.from_json(data["config"]),
        outcome=Outcome(data["outcome"]),
        failure=failure_from_json(data.get("failure")),
        build=build_from_json(data["build"]) if "build" in data else None,
        warmup_ms=tuple(data.get("warmup_ms", ())),
        samples_ms=tuple(data.get("samples_ms", ())),
    )
