"""`tunefarm caches`: what Triton and Inductor have kept here, and what would make it miss elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.config import counted

LONGEST = 60
"""Characters of a value that are shown."""


def caches(
    against: Annotated[
        Path | None, typer.Option(help="What `--json` wrote on another machine.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, to compare with.")] = False,
) -> None:
    """Show what lies in the caches of Triton and Inductor, and of what their keys are made besides the program itself.

    With --against exit code 1 if a part differs: what depends on it is not found there, and compiled again.

    Example: tunefarm caches --json > here.json; tunefarm caches --against here.json
    """
    from tunefarm.cli.packages import require

    require("torch", "triton")
    from tunefarm.document import parse_json, read_text
    from tunefarm.inductor.caches import INDUCTOR, TRITON, differences, look, read_parts, to_json

    there = None if against is None else read_parts(parse_json(read_text(against), where=str(against)), str(against))
    found = look()
    differ = [] if there is None else differences(found.parts, there)
    if as_json:
        told = to_json(found)
        if there is not None:
            told["differences"] = [{"part": name, "here": here, "there": other} for name, here, other in differ]
        typer.echo(json.dumps(told, indent=1))
    else:
        for cache in (TRITON, INDUCTOR):
            mine = [each for each in found.kept if each.cache == cache]
            number, size = sum(each.number for each in mine), _size(sum(each.num_bytes for each in mine))
            typer.echo(f"{cache:9}{found.folders[cache]}: {counted(number, 'entry', 'entries')}, {size}")
            for each in mine:
                made_for = f", {each.made_for}" if each.made_for else ""
                typer.echo(f"  {each.number:5} {each.what}{made_for}, {_size(each.num_bytes)}")
        if found.num_damaged:
            typer.echo(f"damaged  {counted(found.num_damaged, 'entry', 'entries')} that cannot be read")
        settings = sum(name.startswith("inductor setting") for name in found.parts)
        for name, value in found.parts.items():
            if not name.startswith("inductor setting"):
                typer.echo(f"key      {name}: {_short(value)}")
        typer.echo(f"key      inductor settings: {settings}; see --json")
        for name, here, other in differ:
            typer.echo(f"differs  {name}: {_short(here)} here, {_short(other)} there")
        if there is not None:
            typer.echo(_verdict([name for name, *_ in differ]))
    if differ:
        raise typer.Exit(1)


def _verdict(names: list[str]) -> str:
    """What differences mean for what is kept."""
    if not names:
        return "nothing differs: what is kept here would be found there, for the same program"
    # What Triton compiled is part of what Inductor keeps.
    of_triton = any(name.startswith("triton") for name in names)
    return f"not found there: {'kernels and graphs' if of_triton else 'graphs; kernels compiled by Triton alone are'}"


def _short(value: str) -> str:
    return f"{value[: LONGEST - 3]}..." if len(value) > LONGEST else value or "none"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"
