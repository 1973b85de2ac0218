"""`tunefarm pack which`: what a training job's lookup would find, and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefarm.cli.tables import time_text
from tunefarm.device import named
from tunefarm.errors import UserError
from tunefarm.pack_reader import load_pack
from tunefarm.runtime.lookup import Activation
from tunefarm.runtime.which import Here, Reply, ask, here_of


def which(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The pack.", show_default=False)],
    kernel: Annotated[str, typer.Argument(help="Name of the kernel.", show_default=False)],
    call: Annotated[
        list[str] | None,
        typer.Argument(help="The call: n_cols=5000 x_ptr=bf16 bias_ptr=none y_ptr=bf16:unaligned.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="H100, sm_90, or a name as the driver reports it.")] = "",
    strict: Annotated[bool, typer.Option("--strict", help="As activate(strict=True) would.")] = False,
    allow_replayed: Annotated[
        bool, typer.Option("--allow-replayed", help="As activate(allow_replayed=True) would.")
    ] = False,
    source_hash: Annotated[str, typer.Option(help="Of the kernel in use, or its start; else the pack's own.")] = "",
    triton: Annotated[str, typer.Option(help="Version of Triton in use; else the pack's own.")] = "",
    layer: Annotated[
        int, typer.Option(min=0, max=3, help="Who asks: 1 autotuners, 2 Inductor's templates, 3 its own kernels.")
    ] = 0,
    torch: Annotated[str, typer.Option(help="Version of torch in use, for layers 2 and 3; else the pack's own.")] = "",
    unspecialised: Annotated[
        list[str] | None, typer.Option(help="An argument that the kernel names in do_not_specialize.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain a lookup: the row of PACK that answers a call of KERNEL, or why none does. Exit code 1 if none does.

    Example: tunefarm pack which packs/softmax.json softmax_kernel n_cols=5000 --device H100
    """
    if not re.fullmatch(r"[0-9a-f]{0,64}", source_hash):
        raise UserError(f"--source-hash {source_hash!r} is no source hash", hint="`pack show --json` has it")
    pack = load_pack(file)
    activation = Activation(pack=pack, label=str(file), strict=strict, allow_replayed=allow_replayed)
    known = [table.device for table in pack.tables]
    if not device and len({d.key for d in known}) != 1:
        names = ", ".join(sorted({d.name for d in known})) or "none"
        raise UserError("no device is named", hint=f"say --device; the pack was tuned on {names}")
    target = named(device, known) if device else known[0]
    here, tables = here_of(activation, kernel, target, source_hash=source_hash, triton=triton, layer=layer, torch=torch)
    reply = ask(activation, here, tables, _arguments(call or []), set(unspecialised or ()))
    if as_json:
        typer.echo(json.dumps(_plain(here, reply), indent=1))
    else:
        for word, text in _lines(file, here, reply):
            typer.echo(f"{word:<9}{text}")
    if reply.offer is None:
        raise typer.Exit(1)


def _arguments(words: list[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value) or name in arguments:
            what = "is given twice" if name in arguments else "is no argument of a call"
            raise UserError(f"{word!r} {what}", hint="write name=value, such as n_cols=5000 or x_ptr=bf16")
        arguments[name] = value
    return arguments


def _lines(file: Path, here: Here, reply: Reply) -> list[tuple[str, str]]:
    device = here.device
    where = f"{device.name} ({device.arch}, {device.num_sms} SMs)"
    torch = f"torch {here.torch}, " if here.torch else ""
    lines = [
        ("call", f"{here.kernel}, {reply.problem.key}"),
        ("on", f"{where}, {torch}Triton {here.triton}, source {here.source_hash[:12]}"),
    ]
    if reply.assumed:
        lines.append(("assumed", f"{', '.join(reply.assumed)}, as in the pack; tensors aligned to 16 bytes"))
    if offer := reply.offer:
        row, table = offer.row, offer.table
        source = table.provenance.source
        lines += [
            ("answer", str(row.config)),
            ("row", f"{row.match.label}; measured at {_point(row.measured_at)}; {time_text(row.median_ms)}"),
            ("table", f"{file}: {table.kernel} on {table.device.name}, key {table.key[:12]}, {source}"),
            ("step", str(offer.step)),
        ]
    else:
        lines.append(("answer", "none: no row fits"))
    lines += [("passed" if reply.offer else "because", line) for line in reply.nearer]
    lines += [("refused", reason) for reason in reply.listed.refused]
    return lines + [("note", note) for note in reply.listed.notes]


def _point(measured_at: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in measured_at.items()) or "no dims"


def _plain(here: Here, reply: Reply) -> dict[str, Any]:
    offer = reply.offer
    return {
        "kernel": here.kernel,
        "device": here.device.key,
        "source_hash": here.source_hash,
        "triton": here.triton,
        "problem": reply.problem.to_json(),
        "assumed": list(reply.assumed),
        "step": None if offer is None else str(offer.step),
        "table": None if offer is None else offer.table.digest,
        "row": None if offer is None else offer.row.match.label,
        "config": None if offer is None else offer.row.config.to_json(),
        "nearer": list(reply.nearer),
        "refused": list(reply.listed.refused),
        "notes": list(reply.listed.notes),
    }
