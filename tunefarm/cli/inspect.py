"""`tunefarm inspect`: what a config compiles to, stage by stage. No GPU."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tunefarm.config import Config
    from tunefarm.inspecting import Look
    from tunefarm.plan import PlannedStudy
    from tunefarm.spec.experiment import Resolved


class Stage(enum.StrEnum):
    """What is made of a kernel on its way to the GPU."""

    TTIR = "ttir"
    TTGIR = "ttgir"
    LLIR = "llir"
    PTX = "ptx"
    SASS = "sass"


WITHOUT_SOURCE = "what Triton compiled of it elsewhere can be inspected all the same: name the .cubin in its cache"


def inspect(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT]", help="Experiment file, or a .cubin of Triton's.", show_default=False),
    ] = None,
    model: Annotated[
        str, typer.Option(help="In its place: what torch.compile makes of FILE.py:FUNCTION.", show_default=False)
    ] = "",
    study: Annotated[
        str,
        typer.Option(help="Its number, its name, or variables: n_cols=4096; default: the first.", show_default=False),
    ] = "",
    device: Annotated[
        str,
        typer.Option(help="Arch or name of the GPU; default: the experiment's first, or sm_90.", show_default=False),
    ] = "",
    config: Annotated[str, typer.Option(help="`default`, `winner`, or 'BLOCK=1024 num_warps=4'.")] = "default",
    against: Annotated[str, typer.Option(help="A second config, to be shown beside.", show_default=False)] = "",
    sweep: Annotated[
        str, typer.Option(help="Whose winner: a ledger, its folder, or a name; default: its own.", show_default=False)
    ] = "",
    pack: Annotated[
        Path | None, typer.Option(help="Whose winner, in the place of a sweep's.", show_default=False)
    ] = None,
    stage: Annotated[Stage | None, typer.Option(help="Print this stage's text only.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the stages to, or --stage.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what a config of EXPERIMENT compiles to: registers, spills, shared memory, occupancy and what limits it,
    instructions, widths of loads, tensor cores, loops; and what is worth a try for that.

    Nothing is launched: it is compiled for the arch on the CPU, and disassembled. What a config leaves out is as in
    the default.

    With --model: the graphs that torch.compile makes of what FUNCTION() returns, (callable, inputs), where and why
    they break, and which operations are fused to which kernel.

    Example: tunefarm inspect experiments/softmax.yaml --study n_cols=4096 --against num_warps=8
    """
    from tunefarm.errors import UserError

    if as_json and stage is not None:
        raise UserError("--json leaves no place for --stage", hint="leave one out, or write the stage to --out")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError("is no folder", file=str(out), hint="name a folder to write stages to")
    if (sweep or pack) and "winner" not in (config, against):
        raise UserError("--sweep and --pack say whose winner, and none is shown", hint="add --config winner")
    of_study = bool(study or config != "default" or against or sweep or pack)
    if model or file is None:
        _model(file, model, device, out, of_study=of_study or stage is not None, as_json=as_json)
        return
    if file.suffix != ".cubin":
        title, looks = _experiment(file, study, device, [config, *([against] if against else [])], sweep, pack)
    elif of_study:
        raise UserError("a cubin is one config of one problem", file=str(file), hint="name it with --device at most")
    else:
        title, looks = _cubin(file, device)
    _show(title, looks, stage, out, as_json=as_json)


def _show(title: str, looks: Sequence[Look], stage: Stage | None, out: Path | None, *, as_json: bool) -> None:
    written = _write(looks, out, stage) if out is not None else []
    if as_json:
        from tunefarm.cli.inspect_card import plain

        document = {"study": title, "configs": [plain(look) for look in looks], "written": [str(p) for p in written]}
        typer.echo(json.dumps(document, indent=1))
    elif written:
        for path in written:
            typer.echo(path)
    elif stage is not None:
        _print_stage(looks, stage)
    else:
        _print(title, looks)


def _model(file: Path | None, model: str, device: str, out: Path | None, *, of_study: bool, as_json: bool) -> None:
    from tunefarm.cli.inspect_model import inspect_model
    from tunefarm.errors import UserError

    if bool(file) == bool(model):
        message = "both an experiment and a model are named" if model else "nothing to inspect is named"
        raise UserError(message, hint="name an experiment file, or --model FILE.py:FUNCTION")
    if of_study:
        raise UserError(
            "--study, --config, --against, --sweep, --pack and --stage are about an experiment",
            hint="leave them out with --model: its graphs are written to --out",
        )
    inspect_model(model, device or "sm_90", out, as_json=as_json)


def _cubin(file: Path, device: str) -> tuple[str, list[Look]]:
    from tunefarm.cli.packages import require
    from tunefarm.device import named
    from tunefarm.inspecting import look_at_cubin

    require("triton")
    look = look_at_cubin(file, named(device) if device else None)
    return str(file), [look]


def _experiment(
    file: Path, study: str, device: str, texts: Sequence[str], sweep: str, pack: Path | None
) -> tuple[str, list[Look]]:
    from tunefarm.cli import opening
    from tunefarm.device import named, nominal
    from tunefarm.errors import SpecError
    from tunefarm.inspecting import choose, look
    from tunefarm.plan import Target, plan
    from tunefarm.source import HOME

    try:
        resolved = opening.open_experiment(file)
    except SpecError as e:
        if HOME not in e.hint:
            raise
        raise SpecError(str(e.args[0]), file=e.file, key=e.key, hint=f"{e.hint}; {WITHOUT_SOURCE}") from None
    _ = resolved.workload  # recordings have no kernel
    arch = named(device).arch if device else resolved.experiment.devices[0].arch
    planned = plan(resolved, [Target(device=nominal(arch))])
    mine = choose(planned, study, str(file))
    configs = [_config(text, mine, resolved, sweep, pack) for text in texts]
    title = f"study {planned.index(mine) + 1} of {len(planned)}: {mine.study.label}"
    return title, [look(resolved, mine, config) for config in configs]


def _config(text: str, study: PlannedStudy, resolved: Resolved, sweep: str, pack: Path | None) -> Config:
    from tunefarm.cli.ledgers import find_ledger
    from tunefarm.inspecting import default_config, packed_config, swept_config, written_config

    if text == "default":
        return default_config(study)
    if text != "winner":
        return written_config(study, resolved, text)
    if pack is not None:
        return packed_config(study, resolved.workload, pack)
    return swept_config(study, find_ledger(sweep or resolved.experiment.name, Path("sweeps")))


def _write(looks: Sequence[Look], out: Path, stage: Stage | None) -> list[Path]:
    from tunefarm.cli.folders import write_texts

    texts: dict[str, str] = {}
    for number, look in enumerate(looks):
        mark = "" if len(looks) == 1 else f".{('one', 'other')[number]}"
        start = f"{look.inspection.kernel}.{look.inspection.device.arch}{mark}"
        texts |= {f"{start}.{name}": text for name, text in look.texts.items() if stage is None or name == stage}
    return write_texts(out, texts)


def _print_stage(looks: Sequence[Look], stage: Stage) -> None:
    from tunefarm.errors import UserError

    for look in looks:
        if stage not in look.texts:
            there = ", ".join(look.texts)
            raise UserError(f"its {stage.value} is not beside it", hint=f"what can be had is {there}")
        if len(looks) > 1:
            typer.echo(f"==== {look.inspection.config}")
        typer.echo(look.texts[stage])


def _print(title: str, looks: Sequence[Look]) -> None:
    from tunefarm.cli.inspect_card import UNMEASURED, card, table, told
    from tunefarm.cli.tables import print_table
    from tunefarm.cli.terminal import console

    it = looks[0].inspection
    typer.echo(f"{it.kernel} on {it.device.arch}, by the limits of {it.device.name}; {title}")
    if len(looks) == 1:
        for line in card(it):
            typer.echo(line)
    else:
        print_table(console(), table(it, looks[1].inspection))
    for number, look in enumerate(looks):
        if len(looks) > 1:
            typer.echo(f"{('one', 'other')[number]}: {look.inspection.config}")
        for line in told(look.findings):
            typer.echo(line)
        if not look.findings:
            typer.echo("nothing found that is worth a look")
    typer.echo(f"note: {UNMEASURED}")
