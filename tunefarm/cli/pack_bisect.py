"""`tunefarm pack bisect`: which rows of a pack break a command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefarm.cli.folders import check_new
from tunefarm.cli.surroundings import job_environment
from tunefarm.config import counted
from tunefarm.document import write_atomic
from tunefarm.errors import UserError
from tunefarm.pack import Pack, Row, Table, dumps
from tunefarm.pack_bisect import Found, Rows, Verdict, all_rows, numbers, reduced
from tunefarm.pack_bisect import bisect as search
from tunefarm.pack_reader import load_pack

SKIPPED, NOT_RUN = 125, (126, 127)
"""Exit codes as `git bisect run` and shells have them."""

GRACE_S = 5.0
"""For a command that is told to end, before it is killed."""

WIDTH = 120


def bisect(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The pack.", show_default=False)],
    command: Annotated[list[str], typer.Argument(help="What it breaks, after `--`.", show_default=False)],
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="Seconds after which a run is ended and called bad.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the pack without those rows.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Find the rows of a PACK that break a COMMAND: it is run with the whole pack, with none of it, and with parts.

    A run finds its part of the pack, a file, in TUNEFARM_PACK and wherever the command says {pack}. Exit code 0 says
    that it is good, 125 that nothing can be told, any other that it is bad. Rows that are bad only together are found,
    too. What calls without a row do is the command's own affair: see on_miss.

    Example: tunefarm pack bisect packs/softmax.json -- python -m tunefarm.runtime train.py --steps 5
    """
    pack = load_pack(file)
    if write is not None:
        check_new(write)
    rows = all_rows(pack)

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text)

    say(f"{file}: {counted(len(rows), 'row')}")
    with tempfile.TemporaryDirectory(prefix="tunefarm-bisect-") as folder:
        runs = _Runs(pack=pack, command=command, folder=Path(folder), timeout_s=timeout_s, told=[])

        def judge(part: Rows) -> Verdict:
            verdict, why = runs.judge(part)
            say(f"run {len(runs.told):<3} {verdict.value:<4}  {numbers(part)}{f': {why}' if why else ''}")
            return verdict

        found = search(len(rows), judge)
    kept = [number for number in range(len(rows)) if number not in found.rows]
    if write is not None:
        write_atomic(write, dumps(reduced(pack, kept)).encode())
    if as_json:
        typer.echo(json.dumps({"pack": str(file), **_plain(found, rows), "runs": runs.told}, indent=1))
    else:
        for line in _lines(found, rows):
            typer.echo(line)
        if write is not None:
            typer.echo(f"{write}: {counted(len(kept), 'row')}, without {numbers(found.rows)}")


@dataclass(slots=True, kw_only=True)
class _Runs:
    """Runs the command with parts of the pack.

    Attributes:
        pack: the whole of it.
        command: what to run.
        folder: for the parts and for what the command prints.
        timeout_s: how long a run may take.
        told: what came of each run, as plain data.
    """

    pack: Pack
    command: Sequence[str]
    folder: Path
    timeout_s: float | None
    told: list[dict[str, Any]]

    def judge(self, rows: Rows) -> tuple[Verdict, str]:
        """The verdict on some rows, and why it is bad."""
        # Equal parts have equal names: nothing but the rows tells one run from another.
        part = self.folder / "pack.json"
        part.write_bytes(dumps(reduced(self.pack, rows)).encode())
        verdict, why = self._run(part)
        self.told.append({"rows": [row + 1 for row in rows], "verdict": verdict.value, "why": why})
        return verdict, why

    def _run(self, part: Path) -> tuple[Verdict, str]:
        words = [word.replace("{pack}", str(part)) for word in self.command]
        said = self.folder / "output"
        with said.open("wb") as output:
            try:
                # A session of its own, so that its children end with it.
                process = subprocess.Popen(
                    words, env=job_environment(TUNEFARM_PACK=str(part)), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as e:
                raise UserError(f"cannot run {words[0]}: {e.strerror}", hint="name a command after `--`") from None
        try:
            code = process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            return Verdict.BAD, f"still running after {self.timeout_s:g} s"
        finally:
            _end(process)
        if code in NOT_RUN:
            why = ": ".join(filter(None, (f"exit code {code}", _last_line(said))))
            raise UserError(f"cannot run {' '.join(words)}: {why}", hint="name a command after `--`")
        if code in (0, SKIPPED):
            return (Verdict.GOOD, "") if code == 0 else (Verdict.SKIP, "")
        how = _signal(-code) if code < 0 else f"exit code {code}"
        return Verdict.BAD, ": ".join(filter(None, (how, _last_line(said))))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a command and of its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time ones have no name
        return f"signal {number}"


def _last_line(file: Path) -> str:
    """The last line that is not empty: of a traceback, what went wrong."""
    with file.open("rb") as output:
        output.seek(max(0, file.stat().st_size - 4096))
        lines = output.read().decode(errors="replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _lines(found: Found, rows: Sequence[tuple[Table, Row]]) -> list[str]:
    lines = []
    for culprits in found.culprits:
        lines.append("bad by itself:" if len(culprits) == 1 else f"bad together, {counted(len(culprits), 'row')}:")
        for number in culprits:
            table, row = rows[number]
            lines.append(f"  {number + 1}  {table.kernel} on {table.device.name}, {row.match.label}: {row.config}")
    rest = "good without" if found.is_clean else "nothing can be told of the pack without"
    lines.append(f"{rest} {numbers(found.rows)}; {counted(found.num_tries, 'run')}")
    if found.num_skipped:
        skipped = counted(found.num_skipped, "run")
        lines.append(f"note: {skipped} said nothing (exit code 125), so there may be fewer rows to blame")
    return lines


def _plain(found: Found, rows: Sequence[tuple[Table, Row]]) -> dict[str, Any]:
    def plain(number: int) -> dict[str, Any]:
        table, row = rows[number]
        return {
            "row": number + 1, "kernel": table.kernel, "device": table.device.key, "calls": row.match.label,
            "config": row.config.to_json(),
        }  # fmt: skip

    return {
        "culprits": [[plain(number) for number in culprits] for culprits in found.culprits],
        "good_without": found.is_clean,
        "skipped": found.num_skipped,
    }
