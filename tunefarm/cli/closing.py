"""How a sweep ends for people and machines: the table, the JSON document, the errors and the exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunefarm.address import public
from tunefarm.config import counted
from tunefarm.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.cli.order import Order
    from tunefarm.study import StudyResult


@dataclass(slots=True, kw_only=True)
class Ending:
    """How it went with one experiment.

    Attributes:
        order: the experiment.
        results: of its studies.
        error: what broke it, if something did.
        pack: the pack that holds its winners now, or empty.
    """

    order: Order
    results: Sequence[StudyResult] = ()
    error: Exception | None = None
    pack: str = ""


def _study_json(result: StudyResult) -> dict[str, Any]:
    from dataclasses import asdict

    from tunefarm.trial import to_json

    return {
        "study": result.study.label, "device": result.study.device.name, "status": result.status.value,
        "reason": result.reason, "source": result.source, "recording": result.recording,
        "candidates": result.num_candidates, "built": result.num_built, "measured": result.num_measured,
        "buckets": result.num_buckets,
        "closed": len(result.closed), "winner": to_json(result.winner), "reference_ms": result.reference_ms,
        "left": asdict(result.left) if result.left is not None else None,
        "removed": dict(result.removed), "outcomes": {k.value: v for k, v in result.outcomes.items()},
        "failures": [[to_json(failure), count] for failure, count in result.failures],
        **result.rate(result.winner.median_ms if result.winner else 0.0),
    }  # fmt: skip


def close(
    endings: Sequence[Ending],
    facts: Mapping[str, Any],
    failed: Mapping[str, Exception],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Prints how it went.

    Args:
        endings: by experiment.
        facts: of the whole command.
        failed: what kept a pack from being written, by its path.
        as_json: print one document instead of tables.
        quiet: print no table.

    Returns:
        The exit code: 1 if it is partial, that of the first error if every experiment broke.

    Raises:
        Exception: what broke the only experiment, or kept the only pack from being written.
    """
    broken = [ending for ending in endings if ending.error is not None]
    if len(endings) == 1 and broken:
        raise broken[0].error  # type: ignore[misc]
    results = [result for ending in endings for result in ending.results]
    if as_json:
        typer.echo(json.dumps(_document(endings, facts, failed), indent=1))
    else:
        _print_closing(endings, results, facts, quiet=quiet)
    if len(endings) == 1:
        for error in failed.values():  # The results were shown first: they are worth more than the file.
            raise error
    said = [(str(ending.order.file), ending.error) for ending in broken if ending.error is not None]
    for place, what in [*said, *failed.items()]:
        typer.echo(f"error: {_text(place, what)}", err=True)
    return exit_code(endings, failed)


def exit_code(endings: Sequence[Ending], failed: Mapping[str, Exception]) -> int:
    """What the command says of how it went: 0, 1 for a part of it, or the code of what broke all of it."""
    from tunefarm.study import Status

    broken = [ending.error for ending in endings if ending.error is not None]
    if broken and len(broken) == len(endings):
        return int(getattr(broken[0], "exit_code", 1))
    lost = any(result.status is Status.NO_WINNER for ending in endings for result in ending.results)
    return 1 if broken or failed or lost else 0


def close_empty(shard: str, num: int, *, as_json: bool) -> None:
    """Says that a shard has nothing to do, which is no error."""
    if as_json:
        typer.echo(json.dumps({"studies": [], "shard": shard, "of": num}, indent=1))
    else:
        typer.echo(f"shard {shard} has no study: there are {num} in all")


def _text(place: str, error: Exception) -> str:
    text = str(error) if isinstance(error, TunefarmError) else f"{type(error).__name__}: {error}"
    return text if place in text else f"{place}: {text}"


def _document(endings: Sequence[Ending], facts: Mapping[str, Any], failed: Mapping[str, Exception]) -> dict[str, Any]:
    studies = [{"experiment": o.order.spec.name, **_study_json(r)} for o in endings for r in o.results]
    if len(endings) == 1:
        (only,) = endings
        return {"studies": studies, **facts, **_places(only)}
    experiments = [
        {
            "experiment": o.order.spec.name,
            "file": str(o.order.file),
            **_places(o),
            "error": "" if o.error is None else _text(str(o.order.file), o.error),
        }
        for o in endings
    ]  # fmt: skip
    errors = [_text(place, error) for place, error in failed.items()]
    return {"studies": studies, "experiments": experiments, "errors": errors, **facts}


def _places(ending: Ending) -> dict[str, str]:
    order = ending.order
    return {
        "ledger": str(order.ledger), "tracking": public(order.tracking),
        "optuna_storage": public(order.optuna_storage), "pack": ending.pack,
    }  # fmt: skip


def _print_closing(
    endings: Sequence[Ending], results: Sequence[StudyResult], facts: Mapping[str, Any], *, quiet: bool
) -> None:
    from tunefarm.cli.tables import print_table
    from tunefarm.cli.terminal import closing_tables, console, left_line, study_line

    out = console()
    names = [ending.order.spec.name for ending in endings for _ in ending.results] if len(endings) > 1 else []
    if not quiet:
        for table in closing_tables(results, out.width, names):
            print_table(out, table)
    said = [f"{name}: " for name in names] or [""] * len(results)
    lost = [name + study_line(r) for name, r in zip(said, results, strict=True) if r.status.value == "no_winner"]
    lines = lost if quiet else []
    replayed = sorted({r.study.device.name for r in results if r.source == "replayed"})
    if replayed:
        files = ", ".join(dict.fromkeys(result.recording for result in results if result.recording)) or "a landscape"
        lines.append(f"REPLAYED: the times are {', '.join(replayed)}'s, read from {files}; nothing was timed here.")
    unmeasured = sorted({r.study.device.arch for r in results if r.status.value == "not_measured"})
    if unmeasured:
        lines.append(f"NOT MEASURED: {', '.join(unmeasured)}: compiled and checked only; nothing is exported for it.")
    if not all(result.recording for result in results):
        compiled = counted(facts["compiled"], "config")
        lines.append(f"compiled {compiled} in {facts['build_s']:.1f} CPU s, {facts['from_store']} more in the store")
    if not replayed:
        lines.append(
            f"GPU held {facts['gpu_held_s']:.1f} s, and {facts['gpu_startup_s']:.1f} s of start-up; kernels compiled "
            f"by the measuring process: {facts['compiled_by_measuring']}"
        )
    if on_the_table := left_line(results):
        lines.append(on_the_table)
    lines.append(f"wall     {facts['wall_s']:.1f} s")
    lines.append(f"ledger   {_ledger([ending.order.ledger for ending in endings])}")
    lines += [f"MLflow   {place}" for place in dict.fromkeys(public(o.order.tracking) for o in endings)]
    lines += [f"Optuna   {place}" for place in dict.fromkeys(public(o.order.optuna_storage) for o in endings) if place]
    if "shard" in facts:
        lines.append(f"shard    {facts['shard']}: {len(results)} of {counted(facts['of'], 'study', 'studies')}")
    packs = [pack for pack in dict.fromkeys(ending.pack for ending in endings) if pack]
    lines += [f"pack     {pack}{', replayed' if replayed else ''}" for pack in packs] or [
        f"pack     {_no_pack(results)}"
    ]
    lines += [f"merge    {line}" for line in dict.fromkeys(_merging(o.order) for o in endings if o.pack) if line]
    lines += [f"note     {notice}" for notice in facts["notices"]]
    out.print("\n".join(lines))


def _no_pack(results: Sequence[StudyResult]) -> str:
    if results and all(result.recording for result in results):
        return "none: a replayed landscape gives tables, never packs"
    return "none"


def _merging(order: Order) -> str:
    """The command that makes one pack of those of all shards, or empty."""
    if order.shard.num == 1:
        return ""
    whole = Path(order.whole)
    return f"tunefarm pack merge {whole.with_name(f'{whole.stem}-*-of-{order.shard.num}{whole.suffix}')} -o {whole}"


def _ledger(paths: Sequence[Path]) -> str:
    if len(paths) == 1:
        return str(paths[0])
    return f"{paths[0].parents[1] / '*' / paths[0].name}, of {counted(len(paths), 'experiment')}"
