"""The verbs of the command line."""

from __future__ import annotations

import typer

from tunefarm import __version__
from tunefarm.cli.aa import aa
from tunefarm.cli.build import build
from tunefarm.cli.caches import caches
from tunefarm.cli.capture import capture
from tunefarm.cli.compare import compare
from tunefarm.cli.doctor import doctor
from tunefarm.cli.harvest import harvest
from tunefarm.cli.init import init
from tunefarm.cli.inspect import inspect
from tunefarm.cli.misses import misses
from tunefarm.cli.pack import app as pack
from tunefarm.cli.plan import plan
from tunefarm.cli.promote import promote
from tunefarm.cli.record import record
from tunefarm.cli.report import report
from tunefarm.cli.repro import repro
from tunefarm.cli.submit import cancel, logs, status, submit
from tunefarm.cli.sweep import sweep

EXIT_CODES = """Exit codes: 0 done; 1 partial (a study that was measured has no winner, a default config no noise
floor, a row of a pack does not fit its kernel or is slower than it was); 2 something to mend in what you wrote or asked
for; 3 a machine, process or service failed; 130 interrupted."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Tune Triton kernels once, on a farm, and ship the answer.",
    epilog=EXIT_CODES,
)
app.command()(sweep)
app.command()(init)
app.command()(plan)
app.command()(build)
app.command()(capture)
app.command()(inspect)
app.command()(caches)
app.command()(misses)
app.command()(record)
app.command()(harvest)
app.command()(report)
app.command()(repro)
app.command()(compare)
app.command()(promote)
app.command()(aa)
app.command()(doctor)
app.command()(submit)
app.command()(status)
app.command()(logs)
app.command()(cancel)
app.add_typer(pack, name="pack")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tunefarm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of all verbs."""
