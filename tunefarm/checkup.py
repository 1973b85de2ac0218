"""Checkup: whether the rows of a pack are still as fast as when they were measured.

Each row and its default are timed by turns in one sitting, as in finals, and compared twice: with each other, which
needs no trust in any other day, and with the recorded interval, which does: clocks, drivers and neighbours differ from
day to day, so a tolerance is granted there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.bench.meter import Answer, Candidate
from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch
from tunefarm.errands import Errands
from tunefarm.errors import UserError
from tunefarm.export import is_of
from tunefarm.pack import Pack, Row, Table
from tunefarm.plan import PlannedStudy, choose_targets, plan
from tunefarm.search.crown import CONFIDENCE, evidence, is_better
from tunefarm.search.rungs import FINALS
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Measurement, Outcome, Winner, describe
from tunefarm.wants import lost_answer, question


class Verdict(enum.StrEnum):
    """What a checkup says of a row."""

    OK = "ok"
    FASTER = "faster"
    """Than recorded, beyond the noise of both sittings."""
    SLOWER = "slower"
    """Likewise, within the tolerance."""
    REGRESSED = "regressed"
    """Slower than its default, or than recorded and beyond the tolerance."""
    FAILED = "failed"
    """It cannot be built or launched any more, or its outputs are wrong."""
    UNCHECKED = "not checked"


BROKEN = (Verdict.REGRESSED, Verdict.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a checkup says of a row, and by what.

    Attributes:
        table: where the row stands.
        row: the row.
        verdict: how it stands.
        reason: why, for people; empty where there is nothing to say.
        now: what the sitting showed; None without one.
        source: `measured`, `replayed`, or empty.
    """

    table: Table
    row: Row
    verdict: Verdict
    reason: str = ""
    now: Winner | None = None
    source: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether it is a reason to stop and look."""
        return self.verdict in BROKEN

    @property
    def label(self) -> str:
        """Table and row, for people."""
        return f"{self.table.kernel} on {self.table.device.name}, {self.row.match.label}: {self.row.config}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An experiment's calls where they can be made.

    Attributes:
        errands: who builds and measures.
        studies: its problems on the devices that are here.
        packed_as: name, source hash and layer under which packs keep its rows.
    """

    errands: Errands
    studies: tuple[PlannedStudy, ...]
    packed_as: tuple[str, str, int]

    def packs(self, table: Table) -> bool:
        """Whether a table is of its kernel, perhaps of another edition.

        Inductor names many kernels alike: those of one text are meant.
        """
        name, source, layer = self.packed_as
        return (table.kernel, table.layer) == (name, layer) and (layer == 1 or table.source_hash == source)


def find_study(table: Table, row: Row, sites: Sequence[Site]) -> tuple[Site, PlannedStudy] | str:
    """The study at whose problem a row was measured, or why there is none."""
    mine = [site for site in sites if site.packs(table)]
    if not mine:
        return "no experiment given launches this kernel"
    here = [(site, study) for site in mine for study in site.studies if study.study.device.key == table.device.key]
    if not here:
        return "its device is not here"
    found = next((pair for pair in here if is_of(row, pair[1].study.problem)), None)
    if found is None:
        point = " ".join(f"{name}={value}" for name, value in row.measured_at.items())
        files = ", ".join(dict.fromkeys(str(site.errands.resolved.experiment.path) for site, _ in here))
        return f"no problem of {files} is the one it was measured at ({point})"
    return found[1].skipped or found


def require_kernels(pack: Pack, kernels: Sequence[str], file: Path) -> None:
    """Refuses experiments that have nothing to do with a pack.

    Args:
        pack: the pack.
        kernels: that the experiments launch.
        file: where the pack was read, for the message.

    Raises:
        UserError: the pack holds none of these kernels.
    """
    held = sorted({table.kernel for table in pack.tables})
    if not set(held) & set(kernels):
        raise UserError(
            f"holds {', '.join(held) or 'no table'}; the experiments launch {', '.join(dict.fromkeys(kernels))}",
            file=str(file), hint="name the experiment of a kernel that the pack holds",
        )  # fmt: skip


def open_sites(
    experiments: Sequence[Resolved], tables: Sequence[Table], dispatch: Dispatch, store: BuildStore,
    live: Sequence[Device], meter: str, advance: Callable[[str, int], None],
) -> list[Site]:  # fmt: skip
    """Where rows can be measured.

    Args:
        experiments: whose calls are made.
        tables: of the pack; on devices of which it has none nothing is planned.
        dispatch: who works.
        store: of builds.
        live: GPUs at hand.
        meter: as `choose_targets` takes it.
        advance: told of progress.

    Raises:
        SpecError: a call cannot be followed.
        LandscapeError: a landscape cannot be replayed.
    """
    sites = []
    for resolved in experiments:
        name, source, layer = resolved.workload.packed_as
        wanted = {t.device.key for t in tables if (t.kernel, t.layer) == (name, layer)}
        targets = [t for t in choose_targets(resolved.experiment, live, meter) if t.meter and t.device.key in wanted]
        errands = Errands(resolved=resolved, dispatch=dispatch, board=BuildBoard(resolved, store), advance=advance)
        studies = tuple(plan(resolved, targets))
        sites.append(Site(errands=errands, studies=studies, packed_as=(name, source, layer)))
    return sites


def check(tables: Sequence[Table], sites: Sequence[Site], tolerance: float) -> list[Checked]:
    """Times each row beside its default.

    Args:
        tables: of a pack.
        sites: where their calls can be made.
        tolerance: by how much a median may be above the recorded interval, as a fraction.

    Returns:
        A verdict for each row, in order.

    Raises:
        UserError: a table was timed with another timer than an experiment's, or a workload cannot serve a problem.
        InfrastructureError: no worker could do what must be done.
    """
    looked_up = [(table, row, find_study(table, row, sites)) for table in tables for row in table.rows]
    found = [(table, row, at) for table, row, at in looked_up if not isinstance(at, str)]
    for table, _, (site, _) in found:
        _same_timer(table, site)
    for site in sites:
        mine = [(row, at[1]) for _, row, at in found if at[0] is site and at[1].target.meter == "gpu"]
        site.errands.build((study.call, config) for row, study in mine for config in _builds(row, study))
    # Whoever looks at all rows together would otherwise be alarmed by one of them sooner or later.
    terms = _Terms(tolerance=tolerance, confidence=1 - (1 - CONFIDENCE) / max(1, len(found)))
    return [
        Checked(table=table, row=row, verdict=Verdict.UNCHECKED, reason=at)
        if isinstance(at, str)
        else _sit(table, row, *at, terms)
        for table, row, at in looked_up
    ]


def _same_timer(table: Table, site: Site) -> None:
    experiment, origin = site.errands.resolved.experiment, table.provenance
    if origin.source != "imported" and origin.timer != experiment.timer:
        raise experiment.error(
            "timer", f"is {experiment.timer}, and {table.kernel} on {table.device.name} was timed {origin.timer}",
            "times of different timers are never compared: set the experiment's timer",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What counts as slower."""

    tolerance: float
    confidence: float


def _default(row: Row, study: PlannedStudy) -> Config | None:
    return row.default if row.default is not None else study.default


def _configs(row: Row, study: PlannedStudy) -> Collection[Config]:
    default = _default(row, study)
    return dict.fromkeys([row.config, *([] if default is None else [default])])


def _builds(row: Row, study: PlannedStudy) -> Collection[Config]:
    """Also the study's own default, with whose outputs the others' may have to be compared."""
    return dict.fromkeys([*_configs(row, study), *([] if study.default is None else [study.default])])


def _sit(table: Table, row: Row, site: Site, study: PlannedStudy, terms: _Terms) -> Checked:
    """Holds the sitting of a row and its default."""
    candidates = []
    for number, config in enumerate(_configs(row, study)):
        if study.target.meter != "gpu":
            candidates.append(Candidate(number=number, config=config))
            continue
        built = site.errands.built(study.call, config)
        if built.failure is None:
            candidates.append(built.candidate(number))
        elif number == 0:
            return Checked(table=table, row=row, verdict=Verdict.FAILED, reason=describe(built.failure))
    answers = _answers(site.errands, study, candidates)
    site.errands.advance("measured", 1)
    first = answers[0]
    if first.measurement is None:
        verdict = Verdict.UNCHECKED if first.outcome is Outcome.SKIPPED else Verdict.FAILED
        return Checked(table=table, row=row, verdict=verdict, reason=describe(first.why))
    if disturbed := str(first.measurement.telemetry.get("disturbed", "")):
        return Checked(table=table, row=row, verdict=Verdict.UNCHECKED, reason=f"disturbed: {disturbed}")
    sat = [(c.config, m) for c in candidates if (m := answers[c.number].measurement) is not None]
    seed = site.errands.resolved.experiment.search.seed
    now = evidence([c for c, _ in sat], [m.samples_ms for _, m in sat], 0, _default(row, study), "checked", seed)
    min_gain = site.errands.resolved.experiment.accept.min_gain
    verdict, reason = _judge(table, row, now, [m for _, m in sat], terms, min_gain, seed)
    return Checked(table=table, row=row, verdict=verdict, reason=reason, now=now, source=first.measurement.source)


def _answers(errands: Errands, study: PlannedStudy, candidates: Sequence[Candidate]) -> dict[int, Answer]:
    """What came of a sitting. Where somebody breaks it, the others sit alone: then there is nothing to compare."""
    replay = study.target.meter == "replay"
    asked = question(
        errands.resolved.experiment, study.call, candidates, rung=FINALS.number, num_samples=FINALS.num_samples,
        max_samples=FINALS.max_samples, precision=FINALS.precision, interleaved=True, fresh=True,
        baseline=errands.baseline(study),
        landscape=str(Path(study.target.landscape).resolve()) if replay else "",
    )  # fmt: skip
    ((_, result),) = errands.ask([asked])
    told = {} if isinstance(result, str) else {answer.number: answer for answer in result.answers}
    if len(told) == len(candidates):
        return told
    if len(candidates) == 1:
        reason = result if isinstance(result, str) else "the process that measured it was lost"
        return {candidates[0].number: lost_answer(candidates[0].number, reason)}
    told = {number: answer for number, answer in told.items() if answer.measurement is None}
    for candidate in candidates:
        if candidate.number not in told:
            told |= _answers(errands, study, [candidate])
    return told


def _judge(
    table: Table, row: Row, now: Winner, taken: Sequence[Measurement], terms: _Terms, min_gain: float, seed: int
) -> tuple[Verdict, str]:
    """The verdict on a sitting, and its reason."""
    notes = []
    if len(taken) > 1 and now.gain is not None:
        mine, default = taken[0].samples_ms, taken[1].samples_ms
        # What wins by less than the least gain would not have replaced it either.
        if now.gain * (1 + min_gain) < 1 and is_better(default, mine, terms.confidence, seed):
            return Verdict.REGRESSED, f"{1 / now.gain - 1:.1%} slower than its default"
        if row.default_ms is not None and now.default_ms is not None and row.default == now.default:
            notes.append(f"its default takes {now.default_ms / row.default_ms:.2f}x of then")
    if row.median_ms is None or row.interval_ms is None or table.provenance.timer != taken[0].timer:
        return Verdict.OK, "no comparable time was recorded"
    (low, high), (then_low, then_high) = now.interval_ms, row.interval_ms
    if low > then_high * (1 + terms.tolerance):
        slower = f"{now.median_ms / row.median_ms - 1:.1%} slower than recorded"
        return Verdict.REGRESSED, "; ".join([slower, *notes])
    if low > then_high:
        return Verdict.SLOWER, "; ".join(notes)
    return (Verdict.FASTER, "; ".join(notes)) if high < then_low else (Verdict.OK, "")
