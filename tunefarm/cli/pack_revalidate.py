"""`tunefarm pack revalidate`: a pack brought to the Triton, and to the kernel, that are here now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.cli.folders import check_new
from tunefarm.cli.opening import FleetKind, MeterKind
from tunefarm.cli.pack_check import Experiments
from tunefarm.cli.tables import time_text
from tunefarm.config import counted
from tunefarm.document import write_atomic
from tunefarm.errors import UserError
from tunefarm.pack import Pack, dumps, plain
from tunefarm.pack_reader import load_pack
from tunefarm.record.scan import LEDGER

if TYPE_CHECKING:
    from tunefarm.pasts import Story
    from tunefarm.renewal import Renewed
    from tunefarm.spec.experiment import Resolved


def revalidate(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The pack.", show_default=False)],
    experiments: Experiments,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The pack to write: a new file, or PACK itself.", show_default=False),
    ] = None,
    meter: Annotated[MeterKind, typer.Option(help="GPU, replay, or whichever is there.")] = MeterKind.GPU,
    sweep: Annotated[
        Path | None, typer.Option(help="Folder of a sweep, whose ledger knows the runners-up.", show_default=False)
    ] = None,
    fleet: Annotated[FleetKind, typer.Option(help="Where jobs run.")] = FleetKind.INLINE,
    address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="A running Ray cluster.")] = None,
    builders: Annotated[int | None, typer.Option(min=1, max=1024, help="Build workers; default: one a CPU.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Renew a PACK after a change of Triton or of the kernel: rows of the same machine code keep their times.

    Rows of other code, or of code that the pack does not tell, are measured again beside the default: that takes a GPU.
    Without one they stay as they were. Exit code 1 if any row does.

    Example: tunefarm pack revalidate packs/softmax.json experiments/softmax.yaml -o packs/softmax.json
    """
    pack = load_pack(file)
    if not pack.num_rows:
        raise UserError("holds no row to revalidate", file=str(file), hint="name a pack with rows")
    if out is not None:
        check_new(out, beside=file)
    told, notices = _renew(
        pack, file, experiments, meter=meter, sweep=sweep, fleet=fleet, address=address, builders=builders,
        quiet=quiet or as_json,
    )  # fmt: skip
    from tunefarm.renewal import Fate, assemble

    new = assemble(told)
    is_written = out is not None and (new.digest != pack.digest or not out.exists())
    if out is not None and is_written:
        write_atomic(out, dumps(new).encode())
    if as_json:
        rows = [_plain(each) for each in told]
        document = {"pack": str(out or file), "digest": new.digest, "rows": rows, "notes": notices}
        typer.echo(json.dumps(document, indent=1))
    else:
        for each in told:
            typer.echo(_line(each))
        fates = [each.fate for each in told]
        counts = ", ".join(f"{fates.count(fate)} {fate.value}" for fate in Fate if fate in fates)
        typer.echo(f"{file}: {counted(len(told), 'row')}: {counts}")
        for notice in notices:
            typer.echo(f"note: {notice}")
        unwritten = "not written: name a file with -o" if out is None else "not written: nothing changed"
        typer.echo(f"{out or file}: {'written' if is_written else unwritten}")
    if any(each.fate is Fate.LEFT for each in told):
        raise typer.Exit(1)


def _renew(
    pack: Pack, file: Path, experiments: Sequence[Path], *, meter: MeterKind, sweep: Path | None, fleet: FleetKind,
    address: str | None, builders: int | None, quiet: bool,
) -> tuple[list[Renewed], list[str]]:  # fmt: skip
    from tunefarm.bench.store import BuildStore
    from tunefarm.checkup import require_kernels
    from tunefarm.cli import opening
    from tunefarm.cli.folders import store_folder
    from tunefarm.cli.terminal import Progress
    from tunefarm.dispatch import Dispatch
    from tunefarm.renewal import Means, renew

    opening.check_fleet(fleet, address)
    resolved = [opening.open_experiment(path, ship=True) for path in experiments]
    require_kernels(pack, [each.workload.packed_as[0] for each in resolved], file)
    stories = _stories(sweep, resolved)
    use_gpu = meter is not MeterKind.REPLAY and (bool(address) or opening.has_gpu())
    refs = [each.experiment.ref for each in resolved]
    workers = opening.open_fleet(fleet, address, use_gpu=use_gpu, builders=builders, refs=refs)
    try:
        with Progress(quiet=quiet) as progress:
            dispatch = Dispatch(workers)
            means = Means(
                experiments=resolved, dispatch=dispatch, store=BuildStore(store_folder()), stories=stories,
                num_builders=sum(worker.role == "build" for worker in workers.workers), watcher=progress,
                live=opening.live_devices(workers) if use_gpu else (),
                meter=meter.value if use_gpu or meter is not MeterKind.GPU else "",
            )  # fmt: skip
            return renew(pack, means), dispatch.notices
    finally:
        workers.close()


def _stories(sweep: Path | None, experiments: Sequence[Resolved]) -> list[Story]:
    if sweep is None:
        return []
    from tunefarm.pasts import read_stories

    ledger = sweep / LEDGER
    if not ledger.exists():
        raise UserError("holds no ledger.jsonl", file=str(sweep), hint="--sweep takes a folder such as sweeps/softmax")
    kernels = dict.fromkeys(each.workload.signature.kernel for each in experiments)
    if len(kernels) > 1:
        raise UserError("a ledger tells of one kernel", key="--sweep", hint="name the experiments of one kernel")
    return [story for kernel in kernels for story in read_stories(ledger, kernel)]


def _line(each: Renewed) -> str:
    text = f"{each.fate.value:<9}  {each.label}"
    if each.now != each.row:
        config = f"{each.now.config}, " if each.now.config != each.row.config else ""
        text += f" -> {config}{time_text(each.now.median_ms)}, was {time_text(each.row.median_ms)}"
    return f"{text} ({each.reason})" if each.reason else text


def _plain(each: Renewed) -> dict[str, Any]:
    return {
        "kernel": each.table.kernel,
        "device": each.table.device.key,
        "calls": each.row.match.label,
        "fate": each.fate.value,
        "reason": each.reason,
        "old": plain(each.row),
        "new": plain(each.now),
    }
