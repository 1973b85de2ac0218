"""From winners to a pack: which calls each winner is for, and what an earlier pack keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefarm.config import Config, Value
from tunefarm.document import write_atomic
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.generated import public
from tunefarm.pack import SOURCES, Bounds, Code, Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.pack_reader import load_pack
from tunefarm.problem import Problem
from tunefarm.ranges import Cuts, bounded, known, ranging
from tunefarm.study import Status, Study, StudyResult
from tunefarm.trial import Winner


def export(
    results: Sequence[StudyResult],
    *,
    kernel: str,
    source_hash: str,
    sweep: str,
    experiment: str,
    created: str,
    tunefarm: str,
    ranges: Collection[str] = (),
    backend_options: Mapping[str, Value] | None = None,
    checked: bool = True,
    triton: str = "",
    layer: int = 1,
    cuts: Mapping[str, Cuts] | None = None,
) -> Pack:
    """A sealed pack of the winners.

    Args:
        results: what the sweep's studies gave; those without a winner give no row.
        kernel: name of the kernel that was tuned.
        source_hash: its source hash.
        sweep: name of the experiment.
        experiment: digest of the experiment.
        created: ISO date.
        tunefarm: this release.
        ranges: dims that may range; all others are exact.
        backend_options: compiler options, other than those of the configs, under which everything was built.
        checked: outputs were compared with a reference's.
        triton: what compiled the trials; rows timed under another, as in a replay, say nothing of code.
        layer: who consults the rows; those of Inductor hold for one release of torch.
        cuts: by device key, what was measured of where rows give way to their neighbours.

    Raises:
        UserError: no study has a winner; measured and replayed results are mixed; toolchains or timers of one device
            differ; or see `rows_of`.
    """
    won = [result for result in results if result.status is Status.WINNER and result.winner is not None]
    if not won:
        raise UserError("no winners: nothing is exported", hint="see the failures of the studies above")
    source = _source(won)

    def table(group: Sequence[StudyResult]) -> Table:
        device, toolchain = group[0].study.device, _only("toolchain", group, [r.toolchain for r in group])
        key_parts = FrozenMap[Any](
            source_hash=source_hash, backend_options=FrozenMap(backend_options or {}), capability=device.arch,
            triton=toolchain.get("triton", "unknown"), **_torch_if(layer != 1, toolchain),
        )  # fmt: skip
        provenance = Provenance(
            sweep=sweep, experiment=experiment, toolchain=toolchain, source=source, tunefarm=tunefarm, created=created,
            timer=_only("timer", group, [r.timer for r in group]), checked=checked,
        )  # fmt: skip
        return Table(
            kernel=kernel, source_hash=source_hash, device=device, key_parts=key_parts, provenance=provenance,
            rows=bounded(rows_of(group, ranges, triton), (cuts or {}).get(device.key)), layer=layer,
        )  # fmt: skip

    devices = dict.fromkeys(result.study.device.key for result in won)
    groups = ([result for result in won if result.study.device.key == device] for device in devices)
    return seal(Pack(tables=tuple(map(table, groups))))


def _source(won: Sequence[StudyResult]) -> str:
    source: str = _only("source", won, [result.source for result in won])
    if source not in SOURCES:
        raise UserError(f"study {won[0].study.label} has a winner but nothing says where its times come from")
    return source


def _torch_if(decides: bool, toolchain: Mapping[str, str]) -> dict[str, str]:
    return {"torch": public(toolchain.get("torch", "unknown"))} if decides else {}


def _only(what: str, results: Sequence[StudyResult], values: Sequence[Any]) -> Any:
    for result, value in zip(results, values, strict=True):
        if value != values[0]:
            raise UserError(
                f"studies differ in {what}: {results[0].study.label} has {values[0]}, {result.study.label} has {value}",
                hint="what was timed in different ways may not share a pack; sweep again in one way",
            )
    return values[0]


def rows_of(results: Sequence[StudyResult], ranges: Collection[str], triton: str = "") -> list[Row]:
    """A row for each result of one device, all with winners; each answers its own problem alone, until it is bounded.

    Raises:
        UserError: a dim that may range is missing or no integer; two problems would share one row.
    """
    rows: dict[Any, tuple[Row, Study]] = {}
    for result in results:
        assert result.winner is not None
        problem = result.study.problem
        row = _row(match_of(problem, ranges), problem, result.winner)
        if triton and result.toolchain.get("triton") == triton:
            row = replace(row, code=_code(result))
        if row.identity in rows:
            other = rows[row.identity][1]
            raise UserError(
                f"two measured problems would share one row: {other.label} ({other.problem.key}) and "
                f"{result.study.label} ({problem.key})",
                hint="add the argument in which they differ to the kernel's key",
            )
        rows[row.identity] = row, result.study
    return [row for row, _ in rows.values()]


def _code(result: StudyResult) -> Code | None:
    """What the winner compiled to."""
    won = result.winner.config if result.winner is not None else None
    build = next((trial.build for trial in result.trials if trial.config == won), None)
    if build is None or not build.code:
        return None
    return Code(sha256=build.code, registers=build.registers, spills=build.spills, shared_bytes=build.shared_bytes)


def match_of(problem: Problem, ranges: Collection[str] = ()) -> Match:
    """The calls of which a measured problem is one, before neighbours bound the dims that range."""
    dims: dict[str, Value | Bounds] = dict(problem.dims)
    for name in ranges:
        value = problem.dims.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(
                f"dim {name} may range, but problem {problem.label} has {name}={value!r}",
                hint=f"only integer dims may range: {', '.join(problem.dims) or 'there are none'}",
            )
        dims[name] = (value - 1, value)
    # Facts of other integers, such as strides, are not kept: they would split what a trace guards on without
    # naming anything by which the winner was chosen.
    facts = {k: v for k, v in problem.facts.items() if k in problem.dims or k in problem.dtypes or v == "none"}
    return Match(dims=FrozenMap(dims), dtypes=problem.dtypes, facts=FrozenMap(facts))


def is_of(row: Row, problem: Problem) -> bool:
    """Whether a row was measured at a problem."""
    match = match_of(problem)
    return (problem.dims, match.dtypes, match.facts) == row.identity


def holds(pack: Pack, study: Study, config: Config) -> bool:
    """Whether a pack has this very config for a study's own problem, on its device."""
    tables = [table for table in pack.tables if table.device.key == study.device.key]
    return any(row.config == config and is_of(row, study.problem) for table in tables for row in table.rows)


def _row(match: Match, problem: Problem, winner: Winner) -> Row:
    def ms(value: float) -> float:
        return round(value, 5)  # Below any timer's resolution; short numbers read well in a diff.

    low, high = winner.interval_ms
    return Row(
        match=match,
        measured_at=problem.dims,
        config=winner.config,
        median_ms=ms(winner.median_ms),
        interval_ms=(ms(low), ms(high)),
        default=winner.default,
        default_ms=None if winner.default_ms is None else ms(winner.default_ms),
        gain=None if winner.gain is None else round(winner.gain, 4),
        margin=None if winner.margin is None else round(winner.margin, 4),
    )


def join(packs: Sequence[Pack]) -> Pack:
    """One pack of what several sweeps found at a time; where two answer one problem, the later one does.

    Tables of one kernel and device that differ in source, toolchain or timer stay beside each other.
    """
    tables: list[Table] = []
    for table in (table for pack in packs for table in pack.tables):
        same = next((n for n, other in enumerate(tables) if _is_same(other, table)), None)
        if same is None:
            tables.append(table)
        else:
            tables[same] = _merge(tables[same], table)
    return seal(Pack(tables=tuple(tables)))


def update(old: Pack, new: Pack, *, current: Collection[str] = ()) -> Pack:
    """An older pack after a new sweep: only what the sweep measured is replaced.

    A row whose config the sweep confirmed stays as it was; tables of other kernels and devices stay byte for byte;
    rows of the same kernel measured under another Triton stay until they are measured again; rows of another source of
    the kernel go, because nothing can use them any more, except for Inductor's: kernels of one name are many there.

    Args:
        old: the pack.
        new: of the sweep.
        current: further source hashes that are in use: kernels of one name may be several.

    Raises:
        UserError: the result would mix measured and replayed rows.
    """
    if len(sources := {*old.sources, *new.sources}) > 1:
        raise UserError(
            f"would mix {' and '.join(sorted(sources))} rows in one pack",
            hint="export to another file, or remove this one",
        )
    fresh = list(new.tables)
    tables: list[Table] = []
    for table in old.tables:
        same = next((n for n, swept in enumerate(fresh) if _is_same(table, swept)), None)
        if same is not None:
            fresh[same] = _merge(table, fresh[same])
            continue
        rivals = [swept for swept in fresh if _slot(swept) == _slot(table)]
        akin = [swept for swept in rivals if swept.source_hash == table.source_hash]
        if not rivals or (table.source_hash in current and not akin):
            tables.append(table)
        elif akin:
            measured = {row.identity for swept in akin for row in swept.rows}
            if kept := tuple(row for row in table.rows if row.identity not in measured):
                tables.append(replace(table, rows=kept))
    return seal(Pack(tables=(*tables, *fresh)))


def _is_same(a: Table, b: Table) -> bool:
    return (a.kernel, a.device.key, a.key, conditions(a)) == (b.kernel, b.device.key, b.key, conditions(b))


def _slot(table: Table) -> tuple[str, ...]:
    """Tables of one slot take each other's place."""
    return (table.kernel, table.device.key, *((table.source_hash,) if table.layer != 1 else ()))


def conditions(table: Table) -> tuple[Any, ...]:
    """How its rows were timed and checked: a table says it once, so rows of other conditions need one of their own."""
    return table.provenance.toolchain, table.provenance.timer, table.provenance.checked


def _merge(old: Table, new: Table) -> Table:
    merged = {row.identity: row for row in old.rows}
    for row in new.rows:
        kept = merged.get(row.identity)
        if kept is None or kept.config != row.config or ranging(kept) != ranging(row):
            merged[row.identity] = row
    rows = tuple(merged.values())
    # Between rows that stay as they are the cut stays, too: two sweeps never find it at the same place.
    rows = bounded(rows, {**known(new.rows), **known(rows)})
    return old if set(rows) == set(old.rows) else replace(new, rows=rows)


def write_export(path: Path, pack: Pack, *, current: Collection[str] = ()) -> Pack:
    """Writes a pack, or updates the one that is there; an unchanged pack is not touched. `current` is as for `update`.

    Returns:
        What the file holds now.

    Raises:
        PackError: the file that is there is not a sound pack; it is left as it is.
        UserError: the file holds measured rows and the new ones are replayed, or the reverse.
    """
    if not path.exists():
        write_atomic(path, dumps(pack).encode())
        return pack
    old = load_pack(path)
    try:
        merged = update(old, pack, current=current)
    except UserError as e:
        raise UserError(str(e.args[0]), file=str(path), hint=e.hint) from None
    if merged != old:
        write_atomic(path, dumps(merged).encode())
    return merged
