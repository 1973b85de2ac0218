"""Renewal: a pack brought to the Triton, and to the kernel, that are here now.

A row's times are of machine code. Where the same code comes out now, they hold, whatever has changed in the source or
in the compiler: the row gets the new key and keeps its bytes. Where other code comes out, or nobody knows what came out
then, a small sweep decides again: the row's config, its runners-up if a ledger tells of them, and the default.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tunefarm import __version__
from tunefarm.bench.build import triton_version
from tunefarm.bench.legality import illegal
from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.checkup import Site, find_study
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch
from tunefarm.errands import Errands
from tunefarm.errors import UserError
from tunefarm.export import conditions, export
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, Row, Table, seal
from tunefarm.pasts import Story
from tunefarm.plan import PlannedStudy, Target, choose_targets, plan
from tunefarm.record.memo import Memo
from tunefarm.seams import NullLedger, NullTracker
from tunefarm.source import source_hash
from tunefarm.spec.experiment import Resolved
from tunefarm.study import StudyResult
from tunefarm.sweep import Sweep, Watcher, run_through
from tunefarm.trial import describe

NUM_RUNNERS_UP = 3
"""Of a row, that sit beside it: other code may have turned a close order round."""


class Fate(enum.StrEnum):
    """What became of a row."""

    CURRENT = "current"
    """Its key is that of the kernel and of the Triton that are here."""
    SAME_CODE = "same code"
    """It has a new key, and its bytes."""
    KEPT = "kept"
    """Measured again, its config was kept."""
    REPLACED = "replaced"
    """Measured again, another config won."""
    LEFT = "left"
    """It stays as it was, under its old key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A row, and what became of it.

    Attributes:
        table: where it stood.
        row: as it was.
        fate: what became of it.
        reason: why, for people; empty where it goes without saying.
        head: the table in which it stands now; its rows are of no account.
        now: as it is.
    """

    table: Table
    row: Row
    fate: Fate
    reason: str = ""
    head: Table
    now: Row

    @property
    def label(self) -> str:
        """Table and row, for people."""
        return f"{self.table.kernel} on {self.table.device.name}, {self.row.match.label}: {self.row.config}"


def assemble(renewed: Sequence[Renewed]) -> Pack:
    """The pack of all rows as they are now."""
    tables: dict[Table, list[Row]] = {}
    for each in renewed:
        tables.setdefault(replace(each.head, rows=(), key="", digest=""), []).append(each.now)
    return seal(Pack(tables=tuple(replace(head, rows=tuple(rows)) for head, rows in tables.items())))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Open:
    """A row whose problem an experiment has.

    Attributes:
        table: where it stands.
        row: the row.
        site: who builds it.
        study: the problem it was measured at.
        illegal: why its config is none of this kernel and device; empty if it is one.
    """

    table: Table
    row: Row
    site: Site
    study: PlannedStudy
    illegal: str

    def unmoved(self, fate: Fate, reason: str = "") -> Renewed:
        return Renewed(table=self.table, row=self.row, fate=fate, reason=reason, head=self.table, now=self.row)

    def by_code(self) -> Renewed | str:
        """What becomes of it if its code tells, else why that does not."""
        source, triton = source_hash(self.site.errands.resolved.workload.kernel), triton_version()
        if (self.table.source_hash, self.table.key_parts.get("triton")) == (source, triton):
            return self.unmoved(Fate.CURRENT)
        if self.illegal:
            return self.illegal
        built = self.site.errands.built(self.study.call, self.row.config)
        if built.failure is not None or built.build is None:
            return "it does not compile here" if built.failure is None else describe(built.failure)
        if self.row.code is None:
            return "nobody knows its code"
        if built.build.code != self.row.code.sha256:
            return "other code"
        parts = FrozenMap({**self.table.key_parts, "source_hash": source, "triton": triton})
        head = replace(self.table, source_hash=source, key_parts=parts)
        return replace(self.unmoved(Fate.SAME_CODE), head=head)

    def by_sweep(self, table: Table, row: Row, why: str) -> Renewed:
        """What becomes of it after a sweep that gave this row of this table."""
        is_kept = row.config == self.row.config
        now = replace(row, match=self.row.match)
        if table.key_parts == self.table.key_parts and _conditions(table) == _conditions(self.table):
            # Nothing but the day differs: a confirmed row keeps its bytes, as in every export.
            table, now = self.table, self.row if is_kept else now
        fate = Fate.KEPT if is_kept else Fate.REPLACED
        return Renewed(table=self.table, row=self.row, fate=fate, reason=why, head=table, now=now)


def _conditions(table: Table) -> tuple[object, ...]:
    return *conditions(table), table.provenance.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """With what a pack is renewed.

    Attributes:
        experiments: whose calls launch its kernels.
        dispatch: who works.
        store: of builds.
        num_builders: build workers.
        live: GPUs at hand.
        meter: as `choose_targets` takes it; empty where nothing is to be measured.
        stories: what a ledger tells of runners-up.
        watcher: who is told how sweeps go.
    """

    experiments: Sequence[Resolved]
    dispatch: Dispatch
    store: BuildStore
    num_builders: int
    live: Sequence[Device]
    meter: str
    stories: Sequence[Story]
    watcher: Watcher


def renew(pack: Pack, means: Means) -> list[Renewed]:
    """What becomes of each row of a pack, in order.

    Raises:
        UserError: a call cannot be followed, a landscape cannot be replayed, or what was measured would be replayed.
        InfrastructureError: no worker could do what must be done.
    """
    sites = [_site(resolved, pack.tables, means) for resolved in means.experiments]
    asked = [_open(table, row, sites) for table in pack.tables for row in table.rows]
    for site in sites:
        site.errands.build(
            (each.study.call, each.row.config)
            for each in asked if isinstance(each, _Open) and each.site is site and not each.illegal
        )  # fmt: skip
    known = [each.by_code() if isinstance(each, _Open) else each for each in asked]
    unsure = {
        each: why for each, why in zip(asked, known, strict=True) if isinstance(each, _Open) and isinstance(why, str)
    }
    swept: dict[int, Renewed] = {}
    for site in sites:
        mine = {each: why for each, why in unsure.items() if each.site is site}
        swept |= {id(each): renewed for each, renewed in _sweep(site, mine, means).items()}
    return [swept[id(each)] if isinstance(one, str) else one for each, one in zip(asked, known, strict=True)]


def _site(resolved: Resolved, tables: Sequence[Table], means: Means) -> Site:
    """Where rows can be compiled, whatever can be measured."""
    kernel, source, layer = resolved.workload.packed_as
    devices = {t.device.key: t.device for t in tables if (t.kernel, t.layer) == (kernel, 1) and t.device.target}
    errands = Errands(
        resolved=resolved, dispatch=means.dispatch, board=BuildBoard(resolved, means.store), advance=lambda *_: None
    )
    studies = tuple(plan(resolved, [Target(device=d) for d in devices.values()]))
    return Site(errands=errands, studies=studies, packed_as=(kernel, source, layer))


def _open(table: Table, row: Row, sites: Sequence[Site]) -> _Open | Renewed:
    of_inductor = "rows for Inductor are for one release of torch: sweep them again" if table.layer != 1 else ""
    found = of_inductor or find_study(table, row, sites)
    if isinstance(found, str):
        return Renewed(table=table, row=row, fate=Fate.LEFT, reason=found, head=table, now=row)
    site, study = found
    problem = study.study.problem
    failure = illegal(row.config, site.errands.resolved.workload, table.device, tuple(problem.dtypes.values()))
    return _Open(table=table, row=row, site=site, study=study, illegal=describe(failure) if failure else "")


def _sweep(site: Site, asked: Mapping[_Open, str], means: Means) -> dict[_Open, Renewed]:
    """What becomes of rows whose code does not tell: an experiment's sweep of few candidates each."""
    resolved = site.errands.resolved
    targets = choose_targets(resolved.experiment, means.live, means.meter) if asked and means.meter else []
    here = {target.device.key: target for target in targets if target.meter}
    ready = {each: why for each, why in asked.items() if each.table.device.key in here}
    done = {
        each: each.unmoved(Fate.LEFT, f"{why}, and nothing is here to measure it with")
        for each, why in asked.items() if each not in ready
    }  # fmt: skip
    if not ready:
        return done
    _check_terms(resolved, ready, here)
    planned = plan(resolved, [here[key] for key in dict.fromkeys(each.table.device.key for each in ready)])
    studies = {study.study.key: study for study in planned}
    keys = {each: each.study.study.key for each in ready}
    wanted = [_contested(each, studies[key], means.stories) for each, key in keys.items()]
    incumbents = {key: each.row.config for each, key in keys.items()}
    sweep = Sweep(
        resolved, wanted, ledger=NullLedger(), memo=Memo(()), tracker=NullTracker(), watcher=means.watcher,
        incumbents=incumbents,
    )  # fmt: skip
    run_through(
        [sweep], dispatch=means.dispatch, board=site.errands.board, watcher=means.watcher,
        num_builders=means.num_builders,
    )  # fmt: skip
    if sweep.error is not None:
        raise sweep.error
    results = sweep.results
    fresh = _rows(resolved, results)
    reasons = {result.study.key: result.disturbed or result.reason for result in results}
    for each, why in ready.items():
        found = fresh.get((each.table.device.key, each.row.identity))
        reason = f"{why}, and {reasons.get(keys[each]) or 'it could not be measured'}"
        done[each] = each.by_sweep(*found, why) if found is not None else each.unmoved(Fate.LEFT, reason)
    return done


def _check_terms(resolved: Resolved, ready: Mapping[_Open, str], here: Mapping[str, Target]) -> None:
    if resolved.experiment.accept.one_config_over:
        raise resolved.experiment.error(
            "accept.one_config_over", "rows that share one config cannot be renewed one by one", "sweep it again"
        )
    for each in ready:
        source = {"gpu": "measured"}.get(here[each.table.device.key].meter, "replayed")
        if each.table.provenance.source not in (source, "imported"):
            raise UserError(
                f"{each.table.kernel} on {each.table.device.name}: its rows were {each.table.provenance.source}, and "
                f"those measured again would be {source}", hint="say another --meter, or sweep into a new pack",
            )  # fmt: skip


def _contested(each: _Open, study: PlannedStudy, stories: Sequence[Story]) -> PlannedStudy:
    """The study with those as candidates that are to sit."""
    by_key = {config.key: config for config in study.candidates}
    times: Mapping[str, float] = {}
    for story in stories:  # the last word of a ledger holds
        if (story.device.key, story.problem) == (study.study.device.key, study.study.problem) and story.times_ms:
            times = story.times_ms
    near = sorted((key for key in times if key in by_key), key=lambda key: times[key])
    others = [by_key[key] for key in near if by_key[key] not in (each.row.config, study.default)]
    first = [study.default, None if each.illegal else each.row.config]
    candidates = [config for config in first if config is not None] + others[:NUM_RUNNERS_UP]
    return replace(study, candidates=tuple(dict.fromkeys(candidates)))


def _rows(resolved: Resolved, results: Sequence[StudyResult]) -> dict[object, tuple[Table, Row]]:
    """The winners' rows by device and problem; those that others disturbed are left out."""
    won = [r for r in results if r.winner is not None and not r.disturbed.startswith("contended")]
    if not won:
        return {}
    workload, spec = resolved.workload, resolved.experiment
    pack = export(
        won, kernel=workload.signature.kernel, source_hash=source_hash(workload.kernel), sweep=spec.name,
        experiment=spec.digest, created=datetime.date.today().isoformat(), tunefarm=__version__,
        ranges=workload.ranges, checked=workload.reference is not None, triton=triton_version(),
    )  # fmt: skip
    return {(table.device.key, row.identity): (table, row) for table in pack.tables for row in table.rows}
