"""A report of sweeps: what won, by how much, whether to believe it, what it cost. From ledgers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from tunefarm.config import counted
from tunefarm.device import Device
from tunefarm.record.account import Account, Fate, StudyAccount
from tunefarm.record.clocks import spread
from tunefarm.record.figures import roofline, shares, short
from tunefarm.record.sheet import (
    Cell,
    Figure,
    Given,
    Report,
    Section,
    cell,
    code,
    named,
    percent,
    sure,
    table,
    time,
)
from tunefarm.record.study_report import failures, gain_text, noise_row, study_section, verdict
from tunefarm.trial import FAILURES

MAX_BARS = 24
"""Studies shown in one picture of shares."""

REPLAYED = "REPLAYED: these times were read from recordings; nothing was timed by the sweep."
MIXED = "Some of these times are REPLAYED: read from recordings, not timed by the sweep. The tables say which."


def report(accounts: Sequence[Account]) -> Report:
    """The report of one sweep or several.

    Args:
        accounts: of their ledgers; at least one.
    """
    studies = [study for account in accounts for study in account.studies]
    sources = sorted({source for account in accounts for source in account.sources})
    names = ", ".join(dict.fromkeys(account.experiment for account in accounts))
    parts = [_winners(accounts), *_details(studies)]
    several = [failures(studies)] if len(studies) > 1 else []
    if several and several[0].rows:
        parts.append(Section(title="Failures", tables=tuple(several)))
    parts += [_noise(studies), _environment(accounts)]
    return Report(
        title=names, badge=" and ".join(sources) or "nothing timed", warnings=tuple(_warnings(accounts, sources)),
        facts=tuple(_facts(accounts)), sections=tuple(part for part in parts if part.tables or part.sentences),
    )  # fmt: skip


def _warnings(accounts: Sequence[Account], sources: Sequence[str]) -> Iterator[str]:
    if "replayed" in sources:
        yield REPLAYED if sources == ["replayed"] else MIXED
    for account in accounts:
        where = f"{account.file}: " if len(accounts) > 1 else ""
        if not account.studies:
            yield f"{where}the ledger tells of no study yet."
        if account.num_damaged:
            yield f"{where}{counted(account.num_damaged, 'damaged line')} of the ledger could not be used."
        if account.num_stale:
            yield f"{where}{counted(account.num_stale, 'event')} of drivers that had been taken over are left out."
        if account.is_torn:
            yield f"{where}the last line is half written: a driver was killed, or is at work."
        unfinished = [study for study in account.studies if not study.is_over]
        if unfinished:
            yield f"{where}unfinished: {counted(len(unfinished), 'study has', 'studies have')} no winner yet."


def _facts(accounts: Sequence[Account]) -> Iterator[tuple[str, str]]:
    studies = [study for account in accounts for study in account.competitions]
    won = [study for study in studies if study.winner is not None]
    gains = [study.winner.gain for study in won if study.winner is not None and study.winner.gain]
    yield "studies", str(len(studies))
    yield "winners", str(len(won))
    if gains:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        yield "gain, geometric mean", gain_text(mean)
    yield "candidates", str(sum(study.num_candidates for study in studies))
    yield "timed", str(sum(study.count(Fate.MEASURED, Fate.PRUNED) for study in studies))
    yield "failed", str(sum(study.count(Fate.FAILED) for study in studies))
    if any(study.source == "measured" for study in studies):
        yield "GPU-busy s", short(sum(study.busy_s for study in studies))
    if build_s := sum(study.build_s for study in studies):
        yield "CPU s of compiling", short(build_s)


# ---- winners ----


def _winners(accounts: Sequence[Account]) -> Section:
    is_mixed = len({study.source for account in accounts for study in account.studies if study.source}) > 1
    is_many = len(accounts) > 1
    rows = [
        [*([account.experiment] if is_many else []), *_winner(study, is_mixed=is_mixed)]
        for account in accounts
        for study in account.competitions
    ]
    columns = [
        *(["sweep"] if is_many else []), "study and winner", "#time, us (95 %)", "#default, us", "#gain (95 %)",
        "believable?", "#margin", "#of bandwidth", "#TB/s", "#TFLOP/s", "#reference, us", "#timed",
        *(["times"] if is_mixed else []),
    ]  # fmt: skip
    return Section(
        title="Winners", figures=tuple(ceilings([s for a in accounts for s in a.competitions])),
        tables=(table("Winners", columns, rows, note=_NOTE),) if rows else (),
    )  # fmt: skip


_NOTE = (
    "Gain: the default's time over the winner's, from one sitting. Margin: the runner-up's time over the winner's, "
    "minus 1; below zero where a tie kept another than the fastest. Of bandwidth: of the peak that the driver reports, "
    "or the data sheet of a device that none has seen."
)


def _winner(study: StudyAccount, *, is_mixed: bool) -> list[Given]:
    winner = study.winner
    num = study.count(Fate.MEASURED, Fate.PRUNED)
    tail: list[Given] = [time(study.reference_ms), Cell(text=f"{num} of {study.num_candidates}", order=num)]
    tail += [study.source] if is_mixed else []
    if winner is None:
        best = study.best_ms
        spent = Cell(text=f"best so far {short(best * 1e3)}", order=best, look="muted") if best is not None else None
        return [named(study.label), spent, None, None, verdict(study), *[None] * 4, *tail]
    tbps, tflops = study.rate(winner.median_ms)
    return [
        named(study.label, str(winner.config)),
        sure(short(winner.median_ms * 1e3), winner.median_ms, winner.interval_ms),
        time(winner.default_ms), sure(gain_text(winner.gain), winner.gain, winner.gain_interval, 1), verdict(study),
        percent(winner.margin), percent(study.share(winner.median_ms), 0), tbps or None, tflops or None, *tail,
    ]  # fmt: skip


def ceilings(studies: Sequence[StudyAccount]) -> Iterator[Figure]:
    """Pictures of how near winners come to what the device can do."""
    rows = []
    for study in studies:
        winner = study.winner
        if winner is not None and (won := study.share(winner.median_ms)) is not None:
            rows.append((study.label, won, study.share(winner.default_ms) if winner.default_ms else None))
    if rows:
        words = "; ".join(f"{label} {won:.0%}" for label, won, _ in rows[:MAX_BARS])
        title = "Share of the memory bandwidth" + (f", the first {MAX_BARS}" if len(rows) > MAX_BARS else "")
        yield Figure(title=title, picture=shares(rows[:MAX_BARS]), words=words, says_all=True)
    by_device: dict[Device, list[tuple[str, float, float, float | None]]] = {}
    for study in studies:
        winner = study.winner
        if winner is not None and study.num_bytes and study.flops and study.device.bandwidth_gbps:
            default = study.rate(winner.default_ms)[1] if winner.default_ms else None
            by_device.setdefault(study.device, []).append(
                (study.label, study.flops / study.num_bytes, study.rate(winner.median_ms)[1], default)
            )
    for device, mine in by_device.items():
        words = "; ".join(f"{label} {short(rate)} TFLOP/s at {short(x)} FLOP per byte" for label, x, rate, _ in mine)
        yield Figure(
            title=f"Roofline of the memory, {device.name}", picture=roofline(mine, device.bandwidth_gbps), words=words
        )


def _details(studies: Sequence[StudyAccount]) -> Iterator[Section]:
    # What was timed comes first; of the rest there is little to see.
    told = [(study, bool(study.source or study.kinds)) for study in studies]
    telling = [study for study, is_telling in told if is_telling]
    yield from (study_section(study, is_folded=number > 0) for number, study in enumerate(telling))
    yield from (study_section(study, is_folded=True) for study, is_telling in told if not is_telling)


# ---- noise and environment ----


def _noise(studies: Sequence[StudyAccount]) -> Section:
    rows = [noise_row(study) for study in studies if study.finals]
    columns = ["study", "#within a sitting", "#between sittings (A/A)", "#margin", "#finalists"]
    note = (
        "Within a sitting: half the 95 % interval of a finalist's median, the typical one. Between sittings: by how "
        "much the median of the same config differs between its last two sittings, the typical one. A difference below "
        "these means little; `tunefarm aa` measures the machine's own floor."
    )
    return Section(title="Noise", tables=(table("Noise", columns, rows, note=note),) if rows else ())


def _environment(accounts: Sequence[Account]) -> Section:
    devices: dict[Device, list[StudyAccount]] = {}
    for study in (study for account in accounts for study in account.studies):
        devices.setdefault(study.device, []).append(study)
    gpus: list[list[Given]] = [
        [
            device.name, device.arch, device.num_sms, device.bandwidth_gbps or None,
            device.memory_bytes / 2**30 or None, device.l2_bytes / 2**20 or None, device.shared_bytes,
            "yes" if device.live else "no", _clocks(mine), len(mine),
        ]
        for device, mine in devices.items()
    ]  # fmt: skip
    columns = [
        "device", "arch", "#SMs", "#GB/s", "#memory, GiB", "#L2, MiB", "#shared of a block, bytes", "seen by a driver",
        "state while timed", "#studies",
    ]  # fmt: skip
    told = [
        table("Devices", columns, gpus),
        table("Sweeps", ["what", "value"], [row for account in accounts for row in _sweep(account, len(accounts) > 1)]),
    ]
    notices = dict.fromkeys(n for account in accounts for study in account.studies for n in study.notices)
    return Section(title="Environment", sentences=tuple(notices), tables=tuple(each for each in told if each.rows))


def _clocks(studies: Sequence[StudyAccount]) -> str:
    """Clocks, temperatures and throttling while a device was timed."""
    telemetry = [m.telemetry for study in studies for m in study.measurements if m.telemetry]
    parts = []
    for name, unit in (("sm_mhz", "MHz"), ("memory_mhz", "MHz memory"), ("temperature_c", "C"), ("power_w", "W")):
        parts += [said] if (said := spread(telemetry, name, unit)) else []
    if throttled := sum(bool(t.get("throttle")) for t in telemetry):
        parts.append(f"throttled in {throttled} of {len(telemetry)} measurements")
    return ", ".join(parts)


def _sweep(account: Account, is_named: bool) -> Iterator[list[Given]]:
    whose = f"{account.experiment}: " if is_named else ""
    timers = dict.fromkeys(study.timer for study in account.studies if study.timer)
    toolchains = dict.fromkeys(tuple(sorted(study.toolchain.items())) for study in account.studies if study.toolchain)
    kernels = dict.fromkeys(study.kernel for study in account.studies if study.kernel)
    yield [f"{whose}experiment", f"{account.experiment} (sweep {account.sweep_id} on {account.host})"]
    yield [f"{whose}ledger", code(account.file)]
    drivers = f"{counted(account.num_drivers, 'driver')}, the last event at {_date(account.ended_s)}"
    yield [f"{whose}written", f"from {_date(account.began_s)} by {drivers}"]
    if account.num_history:
        yield [f"{whose}left out", f"{counted(account.num_history, 'event')} recorded under other conditions"]
    if kernels:
        yield [f"{whose}kernel", code(", ".join(kernels))]
    if timers:
        yield [f"{whose}timer", ", ".join(timers)]
    for toolchain in toolchains:
        yield [f"{whose}toolchain of the times", ", ".join(f"{part} {version}" for part, version in toolchain)]
    failed = sum(entry.outcome in FAILURES for study in account.studies for entry in study.entries)
    yield [f"{whose}failures", cell(failed)]
    for path, rows in account.exports:
        yield [f"{whose}pack written", code(f"{path}, {counted(rows, 'row')}")]


def _date(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:g} s"
