"""`tunefarm pack merge` and `pack merge-driver`: two packs become one, for people and for git."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.folders import check_output
from tunefarm.config import counted
from tunefarm.document import write_atomic
from tunefarm.errors import PackError, UserError
from tunefarm.pack import Pack, dumps
from tunefarm.pack_merge import Dropped, Merged
from tunefarm.pack_merge import merge as unite
from tunefarm.pack_reader import load_pack


def merge(
    packs: Annotated[list[Path], typer.Argument(help="Two packs or more.", show_default=False)],
    out: Annotated[Path, typer.Option("--output", "-o", help="Where the merged pack goes.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Merge PACKS: all their rows, and of several for one problem the better-proven. What is dropped is listed.

    Better-proven: measured over replayed, then outputs checked, then newer, then the tighter interval.

    Example: tunefarm pack merge packs/h100.json packs/a100.json -o packs/softmax.json
    """
    if len(packs) < 2:
        raise UserError("is the only pack named", file=str(packs[0]), hint="name those to merge it with, too")
    check_output(out)
    if out.exists():
        _check_replaceable(out)
    dropped: list[Dropped] = []
    pack, name = load_pack(packs[0]), str(packs[0])
    for file in packs[1:]:
        merged = unite(pack, load_pack(file), names=(name, str(file)))
        pack, name = merged.pack, "those before"
        dropped += merged.dropped
    write_atomic(out, dumps(pack).encode())
    if as_json:
        told = {"pack": str(out), "digest": pack.digest, "rows": pack.num_rows}
        typer.echo(json.dumps({**told, "dropped": [_plain(d) for d in dropped]}, indent=1))
        return
    _tell(str(out), Merged(pack=pack, dropped=tuple(dropped)))


def merge_driver(
    base: Annotated[Path, typer.Argument(metavar="%O", help="What both sides came from.", show_default=False)],
    ours: Annotated[Path, typer.Argument(metavar="%A", help="Ours; the merged pack goes there.", show_default=False)],
    theirs: Annotated[Path, typer.Argument(metavar="%B", help="Theirs.", show_default=False)],
    path: Annotated[str, typer.Option(help="The pack's path in the repository, for messages: %P.")] = "",
) -> None:
    """Merge packs as a git merge driver. A pack that cannot be merged is left as ours, and git calls it a conflict.

    In .gitattributes: packs/*.json merge=tunefarm-pack
    Example: git config merge.tunefarm-pack.driver "tunefarm pack merge-driver %O %A %B --path %P"
    """
    name = path or str(ours)
    # Git gives an empty file where both sides added the pack.
    old = _read(base, f"{name} (base)") if base.exists() and base.stat().st_size else None
    mine, other = _read(ours, f"{name} (ours)"), _read(theirs, f"{name} (theirs)")
    try:
        merged = unite(mine, other, base=old)
    except UserError as e:
        raise UserError(str(e.args[0]), file=name, key=e.key, hint=e.hint) from None
    write_atomic(ours, dumps(merged.pack).encode())
    _tell(name, merged)


def _check_replaceable(out: Path) -> None:
    try:
        load_pack(out)
    except PackError as e:
        raise UserError(f"is there and no sound pack: {e.args[0]}", file=str(out), hint="name another file") from None


def _read(file: Path, name: str) -> Pack:
    try:
        return load_pack(file)
    except PackError as e:
        raise PackError(str(e.args[0]), file=name, key=e.key, hint=e.hint) from None


def _tell(name: str, merged: Merged) -> None:
    rows, tables = counted(merged.pack.num_rows, "row"), counted(len(merged.pack.tables), "table")
    typer.echo(f"{name}: {rows} in {tables}, {counted(len(merged.dropped), 'row')} dropped")
    for dropped in merged.dropped:
        typer.echo(f"  {_line(dropped)}")
    if len(merged.pack.sources) > 1:
        typer.echo(f"  note: holds {' and '.join(merged.pack.sources)} rows, in tables of their own")


def _line(dropped: Dropped) -> str:
    where = f"{dropped.table.kernel} on {dropped.table.device.name}: {dropped.row.match.label}"
    kept = "" if dropped.kept is None else f"; kept {dropped.kept.config}"
    return f"{where}: dropped {dropped.row.config} of {dropped.side}: {dropped.reason}{kept}"


def _plain(dropped: Dropped) -> dict[str, object]:
    return {
        "kernel": dropped.table.kernel,
        "device": dropped.table.device.key,
        "side": dropped.side,
        "calls": dropped.row.match.label,
        "config": dropped.row.config.to_json(),
        "kept": None if dropped.kept is None else dropped.kept.config.to_json(),
        "reason": dropped.reason,
    }
