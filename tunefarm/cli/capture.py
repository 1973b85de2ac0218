"""`tunefarm capture`: what a job launches that could be tuned becomes experiments, weighted with how often."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.surroundings import job_environment
from tunefarm.config import counted
from tunefarm.errors import UserError

NOT_RUN = (126, 127)
"""Exit codes of shells for what could not be run."""


def capture(
    command: Annotated[list[str], typer.Argument(help="The job, after `--`.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write experiments to.", show_default=False)],
    device: Annotated[
        str, typer.Option(help="Arch or name of the GPU to tune for; default: the job's.", show_default=False)
    ] = "",
    export: Annotated[str, typer.Option(help="Pack that the experiments write to; default: packs/NAME.json.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Run a COMMAND, count what it and its Python children launch, and write experiments of it for a sweep.

    Captured are Triton kernels with what they are called with, kernels that torch.compile generates, and its matrix
    products; each is weighted with its calls, so that a sweep's budget goes where they are. The job runs as ever,
    without packs; only torch.compile compiles anew. Exit code 1 if it fails: what it launched until then is written.

    Example: tunefarm capture --out captured -- python train.py --steps 20
    """
    from tunefarm.cli.folders import cache_folder, check_output
    from tunefarm.inductor import standin

    check_output(out / "experiment.yaml")
    if any(out.glob("*.yaml")):  # and somebody may have filled in what they leave open
        raise UserError("holds experiments already", file=str(out), hint="name a new folder")
    export = export or f"packs/{out.resolve().name}.json"
    check_output(Path(export))
    # Before anything imports torch.
    standin.prepare(cache_folder())
    from tunefarm.captured import read_capture
    from tunefarm.cli.captured import write_experiments

    with tempfile.TemporaryDirectory(prefix="tunefarm-capture-") as folder:
        code = _run(command, Path(folder))
        found = read_capture(Path(folder))
    if not found.num_processes:
        if code in NOT_RUN:
            raise UserError(f"the command could not be run (exit code {code})")
        how = f", which ended with {code}" if code else ""
        raise UserError(
            f"nothing that can be tuned was launched by the command{how}",
            hint="kernels are seen in Python processes of this environment that use Triton or torch.compile on a GPU",
        )
    written, left = write_experiments(found, out, device, export)
    if as_json:
        told = {"experiments": [asdict(each) for each in written], "left": [asdict(each) for each in left]}
        typer.echo(json.dumps({**told, "processes": found.num_processes, "exit_code": code}, indent=1))
    else:
        for each in written:
            todo = f"; {counted(each.open_lines, 'line')} to fill in" if each.open_lines else ""
            typer.echo(f"{each.experiment}: {each.about}, {counted(each.calls, 'call')}{todo}")
        for other in left:
            typer.echo(f"not tuned: {other.what}, {counted(other.calls, 'call')}: {other.reason}")
        if code:
            typer.echo(f"the command ended with {code}: this is what it launched until then", err=True)
        processes = counted(found.num_processes, "process", "processes")
        typer.echo(f"{counted(len(written), 'experiment')} in {out}, of {processes}")
    if code:
        raise typer.Exit(1)


def _run(command: Sequence[str], folder: Path) -> int:
    """The job's exit code."""
    from tunefarm.runtime.__main__ import python_path

    told = {
        "PYTHONPATH": python_path(), "TUNEFARM_CAPTURE": str(folder),
        # Also for packs that the code itself activates, and for `python -m tunefarm.runtime`, which wants one.
        "TUNEFARM_PACK": "", "TUNEFARM": "off",
    }  # fmt: skip
    try:
        job = subprocess.Popen(command, env=job_environment(**told))
    except OSError as error:
        raise UserError(f"cannot be run: {error.strerror}", file=command[0]) from None
    with _ours(job):
        return job.wait()


@contextlib.contextmanager
def _ours(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the job alone, by its own means: what it launched until then is still to be written."""
    before = {
        # A terminal sends an interrupt to the job as well.
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: job.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
