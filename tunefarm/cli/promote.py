"""`tunefarm promote`: a registered pack takes the champion's place, if it is as fast in every row."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tunefarm.address import public
from tunefarm.cli.compare import RegistryUri, check_database, open_source, plain, print_compared, summary
from tunefarm.config import counted
from tunefarm.errors import UserError
from tunefarm.pack_compare import compare, objections


def promote(
    name: Annotated[
        str, typer.Argument(help="The workload, such as softmax for tunefarm.softmax.", show_default=False)
    ],
    tracking: RegistryUri = "sqlite:///mlflow.db",
    allow_gone: Annotated[
        bool, typer.Option("--allow-gone", help="Rows of the champion may be lost, such as those of a retired GPU.")
    ] = False,
    allow_unclear: Annotated[
        bool, typer.Option("--allow-unclear", help="Rows may be there whose times cannot be compared.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make the candidate of NAME in MLflow's registry its champion, which `models:/tunefarm.NAME@champion` loads.

    Refused with exit code 1, and the registry left as it is, where a row of the candidate is slower than the champion's
    beyond noise, or one of the champion's is gone. Without a champion there is nothing to be slower than.

    Example: tunefarm promote softmax
    """
    from tunefarm.record.registry import CANDIDATE, CHAMPION, Registry
    from tunefarm.record.tracking import check_server, check_uri

    check_uri(tracking)
    check_server(tracking)
    check_database(tracking)
    registry = Registry(tracking, name)
    candidate, champion = registry.find(CANDIDATE), registry.find(CHAMPION)
    if not candidate:
        raise UserError(
            f"{registry.name} has no candidate in the registry of {public(tracking)}",
            hint="a sweep registers its pack with `tracking: {register: on}` in its experiment",
        )
    told: dict[str, Any] = {"name": registry.name, "candidate": candidate, "champion": champion}
    against: list[str] = []
    # Versions, not aliases: who is compared is who is promoted, whatever another sweep registers meanwhile.
    new = open_source(f"models:/{registry.name}/{candidate}", tracking)
    if champion not in ("", candidate):
        tables = compare(open_source(f"models:/{registry.name}/{champion}", tracking), new)
        against = objections(tables, allow_gone=allow_gone, allow_unclear=allow_unclear)
        told |= plain(tables)
        if not as_json:
            print_compared(tables)
            typer.echo(summary(tables))
    promoted = not against and champion != candidate
    if promoted:
        registry.crown(candidate)
    if as_json:
        typer.echo(json.dumps({**told, "promoted": promoted, "objections": against, "digest": new.digest}, indent=1))
    else:
        for line in against:
            typer.echo(f"  {line}")
        typer.echo(_ending(registry.name, candidate, champion, against))
    if against:
        raise typer.Exit(1)


def _ending(name: str, candidate: str, champion: str, against: list[str]) -> str:
    if against:
        return f"not promoted, for {counted(len(against), 'row')}: the champion of {name} stays version {champion}"
    if champion == candidate:
        return f"version {candidate} of {name} is its champion already"
    return f"version {candidate} of {name} is its champion now; {f'it was {champion}' if champion else 'its first'}"
