"""Reads a ledger into an account: of what was recorded under its latest conditions, as a driver that goes on does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.config import LIBRARY
from tunefarm.device import Device
from tunefarm.errors import LedgerError, TunefarmError
from tunefarm.frozen import FrozenMap
from tunefarm.record.account import UNFINISHED, Account, Entry, Fate, Group, StudyAccount
from tunefarm.record.memo import SITTINGS, current
from tunefarm.record.scan import VERSION, Scan
from tunefarm.study import Left
from tunefarm.trial import (
    FAILURES,
    Build,
    Failure,
    Measurement,
    Outcome,
    Winner,
    build_from_json,
    failure_from_json,
    measurement_from_json,
    winner_from_json,
)

CHOOSING = ("finals", "unified")
"""Sittings by which a winner is chosen."""


def read_account(path: Path) -> Account:
    """The account of a sweep, finished or not.

    Args:
        path: its ledger.

    Raises:
        LedgerError: the file is missing or unreadable, no ledger, or of another version.
    """
    if not path.exists():
        raise LedgerError("no such file", file=str(path), hint="name a ledger, or the folder of a sweep that has begun")
    first = Scan(path)
    times = [event["at_s"] for event in first]
    if first.foreign or first.opening is None:
        raise LedgerError("is not a tunefarm ledger", file=str(path), hint="name the folder of a sweep")
    if first.opening.get("version") != VERSION:
        message = f"has version {first.opening.get('version')!r}, this release reads {VERSION}"
        raise LedgerError(message, file=str(path), hint="update tunefarm")
    identity = first.opening.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    pid = first.opening.get("pid", 0)
    teller = Teller()
    num_used = 0
    for event in current(Scan(path), identity.get("conditions", "")):
        num_used += 1
        teller.take(event["event"], event["data"])
    return Account(
        file=str(path), experiment=str(identity.get("experiment", path.parent.name)),
        sweep_id=str(first.opening.get("sweep_id", "")), host=str(first.opening.get("host", "")),
        pid=pid if isinstance(pid, int) else 0, num_drivers=first.epoch, began_s=times[0], ended_s=times[-1],
        studies=tuple(study.finished() for study in teller.studies.values()), exports=tuple(teller.exports),
        num_damaged=first.num_damaged + teller.num_odd, num_stale=first.num_stale, is_torn=bool(first.torn),
        num_history=first.num_events - num_used,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Life:
    """A candidate, as events tell more of it."""

    build: Build | None = None
    measurements: list[Measurement] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    outcome: Outcome = Outcome.OK
    failure: Failure | None = None
    into: str = ""
    reason: str = ""

    def fail(self, outcome: Outcome, failure: Failure | None) -> None:
        self.outcome, self.failure = outcome, failure


@dataclass(slots=True, kw_only=True)
class _Study:
    """A study, as events tell more of it."""

    opening: Mapping[str, Any]
    device: Device
    lives: dict[str, _Life] = field(default_factory=dict)
    course: list[tuple[str, Measurement]] = field(default_factory=list)
    buckets: list[list[str]] = field(default_factory=list)
    closed: dict[int, str] = field(default_factory=dict)
    finals: tuple[tuple[str, Measurement | Failure], ...] = ()
    rung: int = -1
    status: str = ""
    reason: str = ""
    winner: Winner | None = None
    left: Left | None = None
    toolchain: FrozenMap[str] = field(default_factory=FrozenMap)
    reference_ms: float | None = None
    notices: dict[str, None] = field(default_factory=dict)

    def life(self, config: str) -> _Life:
        return self.lives.setdefault(str(config), _Life())

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        if event == "built":
            life = self.life(data["config"])
            life.build = life.build or _build(data["build"])
        elif event in ("measured", "failed"):
            self._answered(data["config"], int(data["rung"]), data)
        elif event == "pruned":
            life = self.life(data["config"])
            if life.outcome is Outcome.OK:
                life.outcome, life.reason = Outcome.PRUNED, str(data["reason"])
        elif event == "merged":
            life = self.life(data["config"])
            life.outcome, life.into, life.reason = Outcome.MERGED, str(data["into"]), str(data["reason"])
        elif event == "bucketed":
            self.buckets = [[str(config) for config in bucket] for bucket in data["buckets"]]
        elif event == "bucket_closed":
            self.closed.setdefault(int(data["bucket"]), str(data["reason"]))
        elif event in SITTINGS:
            self._sat(event, data)
        elif event in ("winner", "no_winner", "skipped"):
            self._ended(event, data)

    def _answered(self, config: str, rung: int, data: Mapping[str, Any]) -> None:
        life = self.life(config)
        if rung in life.told:  # The first word counts, as for a driver that goes on.
            return
        if "measurement" in data:
            measurement = _measurement(data["measurement"])
            life.measurements.append(measurement)
            self.course.append((config, measurement))
        else:
            life.fail(Outcome(data["outcome"]), failure_from_json(data["failure"]))
        life.told.add(rung)
        self.rung = max(self.rung, rung)

    def _sat(self, event: str, data: Mapping[str, Any]) -> None:
        sat: list[tuple[str, Measurement | Failure]] = []
        for config, told in zip(data["configs"], data["measurements"], strict=True):
            if "measurement" in told:
                sat.append((config, _measurement(told["measurement"])))
            elif (failure := failure_from_json(told["failure"])) is not None:
                sat.append((config, failure))
                self.life(config).fail(Outcome(told["outcome"]), failure)
        for config, what in sat:
            # A second GPU's times are not those that the winner won by.
            if isinstance(what, Measurement) and event != "replicated":
                self.life(config).measurements.append(what)
        if event in CHOOSING:
            self.finals = tuple(sat)
        self.status = self.status or ("probed" if event == "probed" else "")
        self.toolchain = _texts(data["toolchain"]) if data.get("toolchain") else self.toolchain
        self.reference_ms = _number(data["reference_ms"]) if data.get("reference_ms") else self.reference_ms
        self.notices.update(dict.fromkeys(map(str, data.get("notices", ()))))

    def _ended(self, event: str, data: Mapping[str, Any]) -> None:
        self.winner = _winner(data["winner"]) if event == "winner" else None
        self.status, self.reason = event, str(data.get("reason", ""))
        if data.get("left"):
            self.left = _left(data["left"])

    def finished(self) -> StudyAccount:
        """What was told of it."""
        opening = self.opening
        place = {config: number for number, bucket in enumerate(self.buckets) for config in bucket}
        lives = {**self.lives, **{config: _Life() for config in place if config not in self.lives}}
        entries = tuple(_entry(config, life, place.get(config, -1), self.closed) for config, life in lives.items())
        num_named = len(lives.keys() - {LIBRARY.key})
        problem = opening.get("problem", {})
        idle = UNFINISHED if opening.get("meter") else "not_measured"
        return StudyAccount(
            key=str(opening["study"]), label=str(opening["label"]), workload=str(opening["study"]).split(" ")[0],
            kernel=str(opening.get("kernel", "")), device=self.device,
            dims=_texts(problem.get("dims", {})), dtypes=_texts(problem.get("dtypes", {})),
            status=self.status or idle, reason=self.reason, meter=str(opening.get("meter", "")), rung=self.rung,
            # An experiment that was edited may have more of them by now than when the study began.
            num_candidates=max(int(opening["candidates"]), num_named), num_points=int(opening.get("points", 0)),
            removed=FrozenMap({str(rule): int(count) for rule, count in opening.get("removed", {}).items()}),
            entries=entries, course=tuple(self.course),
            groups=tuple(
                Group(number=number, configs=tuple(configs), closed=self.closed.get(number, ""))
                for number, configs in enumerate(self.buckets)
            ),
            num_closed=len(self.closed), finals=self.finals, winner=self.winner, left=self.left,
            toolchain=self.toolchain, reference_ms=self.reference_ms, notices=tuple(self.notices),
            num_bytes=float(opening.get("num_bytes", 0.0)), flops=float(opening.get("flops", 0.0)),
        )  # fmt: skip


# ---- values that others may have written: what a report counts with are numbers ----


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _time(value: Any) -> float:
    if _number(value) == 0:
        raise ValueError("takes no time")
    return float(value)


def _measurement(data: Mapping[str, Any]) -> Measurement:
    measurement = measurement_from_json(data)
    if not measurement.samples_ms:
        raise ValueError("no samples")
    for sample_ms in measurement.samples_ms:
        _time(sample_ms)
    _number(measurement.busy_s)
    return measurement


def _build(data: Mapping[str, Any]) -> Build:
    build = build_from_json(data)
    for number in (build.registers, build.spills, build.shared_bytes, build.build_s):
        _number(number)
    return build


def _winner(data: Mapping[str, Any]) -> Winner:
    winner = winner_from_json(data)
    for time_ms in (winner.median_ms, *winner.interval_ms):
        _time(time_ms)
    for number in (winner.default_ms, winner.gain, *(winner.gain_interval or ())):
        _time(1 if number is None else number)
    _number(1 + (winner.margin or 0))
    return winner


def _left(data: Mapping[str, Any]) -> Left:
    left = Left(**data)
    for number in (left.num, left.expected_gain or 0, left.plausible_gain or 0):
        _number(number)
    return left


def _device(data: Mapping[str, Any]) -> Device:
    device = Device.from_json(data)
    for number in (device.num_sms, device.shared_bytes, device.l2_bytes, device.memory_bytes, device.bandwidth_gbps):
        _number(number)
    return device


def _texts(data: Mapping[str, Any]) -> FrozenMap[str]:
    return FrozenMap({str(name): str(value) for name, value in data.items()})


def _entry(config: str, life: _Life, bucket: int, closed: Mapping[int, str]) -> Entry:
    if life.outcome in FAILURES:
        fate = Fate.FAILED
    elif life.outcome is Outcome.MERGED:
        fate = Fate.MERGED
    elif life.measurements:
        fate = Fate.PRUNED if life.outcome is Outcome.PRUNED else Fate.MEASURED
    else:
        fate = Fate.CLOSED if bucket in closed else Fate.LEFT
    return Entry(
        config=config, fate=fate, outcome=life.outcome, bucket=bucket, build=life.build,
        measurements=tuple(life.measurements), failure=life.failure, into=life.into, reason=life.reason,
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Teller:
    """Gathers events by study."""

    studies: dict[str, _Study] = field(default_factory=dict)
    exports: list[tuple[str, int]] = field(default_factory=list)
    num_odd: int = 0

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        """Takes in an event. One that lacks what it should hold is counted, and left out."""
        try:
            self._take(event, data)
        except (KeyError, TypeError, ValueError, AttributeError, TunefarmError):
            self.num_odd += 1

    def _take(self, event: str, data: Mapping[str, Any]) -> None:
        if event == "fresh":
            self.studies.clear()
        elif event == "export":
            self.exports.append((str(data["path"]), int(data["rows"])))
        elif event == "study":
            study = _Study(opening=data, device=_device(data["device"]))
            study.finished()  # It says enough, or it is not taken.
            self.studies.setdefault(str(data["study"]), study)
        elif (known := self.studies.get(str(data.get("study", "")))) is not None:
            known.take(event, data)
