"""`tunefarm report`: what came of sweeps, as one page and for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.ledgers import SWEEPS, find_ledger


def report(
    sweep: Annotated[
        list[str],
        typer.Argument(
            help="Ledgers, folders of sweeps, or names of experiments swept.", show_default=False, metavar="SWEEP..."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Page to write; default: report.html beside the first ledger.", show_default=False
        ),
    ] = None,
    markdown: Annotated[
        str,
        typer.Option(
            help="Write it as Markdown too, or only, to this file, or `-` for the terminal.", show_default=False
        ),
    ] = "",
    sweeps: Annotated[Path, typer.Option(help="Folder in which experiments are looked for by name.")] = SWEEPS,
) -> None:
    """Write what came of sweeps: winners, gains, how sure, what was pruned, failures. Needs ledgers and nothing else.

    The page needs no server and no network. With --markdown and without --out there is no page.

    Example: tunefarm report softmax --out report.html --markdown report.md
    """
    from tunefarm.cli.folders import check_output
    from tunefarm.document import write_atomic
    from tunefarm.record import markdown as text
    from tunefarm.record.page import MARK, page
    from tunefarm.record.reading import read_account
    from tunefarm.record.report import report as tell

    ledgers = list(dict.fromkeys(find_ledger(name, sweeps) for name in sweep))
    file = out or (None if markdown else ledgers[0].with_name("report.html"))
    if file is not None:
        check_output(file, mark=MARK)
    if markdown not in ("", "-"):
        check_output(Path(markdown), mark=text.MARK)
    told = tell([read_account(ledger) for ledger in ledgers])
    if file is not None:
        write_atomic(file, page(told))
        typer.echo(f"{file}: {told.title}, {told.badge}", err=markdown == "-")
    if markdown == "-":
        typer.echo(text.markdown(told), nl=False)
    elif markdown:
        write_atomic(Path(markdown), text.markdown(told).encode())
        typer.echo(f"{markdown}: {told.title}, {told.badge}")
