"""`tunefarm pack import` and `pack export`: other tools' tables, in and out."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tunefarm import __version__
from tunefarm.cli.folders import check_output
from tunefarm.config import Value, counted, read_value
from tunefarm.device import named
from tunefarm.document import read_bytes, write_atomic
from tunefarm.errors import UserError
from tunefarm.interop import autotune, moe
from tunefarm.interop.foreign import UNKNOWN, Foreign, Terms, to_pack
from tunefarm.pack import Table, dumps
from tunefarm.pack_reader import load_pack, parse_pack
from tunefarm.problem import read_dtype

T = TypeVar("T")


class Source(enum.StrEnum):
    """Whose tables can be read."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRITON = "triton-autotune"
    FLA = "fla"


class Target(enum.StrEnum):
    """Whose tables can be written."""

    VLLM = "vllm"
    SGLANG = "sglang"
    FLA = "fla"


Dims = Annotated[list[str] | None, typer.Option("--dim", help="vllm, sglang: M=ARGUMENT; likewise E and N.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="triton-autotune, fla: an argument of the key.")]
Fixed = Annotated[list[str] | None, typer.Option("--set", help="ARGUMENT=VALUE that the file does not say.")]
Sources = Annotated[list[Path] | None, typer.Option("--device-from", help="A pack that was tuned on the device.")]


def import_pack(
    file: Annotated[Path, typer.Argument(help="The other tool's file.", show_default=False)],
    source: Annotated[Source, typer.Option("--from", help="Whose file it is.", show_default=False)],
    out: Annotated[Path, typer.Option("--output", "-o", help="The pack to write.", show_default=False)],
    source_hash: Annotated[str, typer.Option(help="Of the kernel that it was tuned for, all 64 digits.")] = "",
    kernel_source: Annotated[str, typer.Option(help="Or where that kernel is: FILE.py:NAME or module:NAME.")] = "",
    kernel: Annotated[str, typer.Option(help="Its name, where the file does not say.")] = "",
    device: Annotated[str, typer.Option(help="Where it was tuned, where the file does not say.")] = "",
    device_from: Sources = None,
    triton: Annotated[str, typer.Option(help="Version of Triton, where the file does not say.")] = "",
    timer: Annotated[str, typer.Option(help="How it was timed.")] = UNKNOWN,
    dims: Dims = None,
    names: Names = None,
    fixed: Fixed = None,
    tensors: Annotated[
        list[str] | None, typer.Option("--tensor", help="vllm, sglang: NAME=DTYPE of a tensor argument.")
    ] = None,
    ranges: Annotated[list[str] | None, typer.Option("--range", help="An argument that may range.")] = None,
) -> None:
    """Make a pack of another tool's FILE. What the file does not say is asked for, or stays unknown: times above all.

    Example: tunefarm pack import E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json --from vllm -o packs/moe.json
    --kernel fused_moe_kernel --source-hash 3f... --dim M=num_tokens --dim E= --dim N=N --tensor a_ptr=bf16
    """
    if out.exists():
        raise UserError("is there already", file=str(out), hint="import to another file, then `tunefarm pack merge`")
    check_output(out)
    if bool(source_hash) == bool(kernel_source):
        raise UserError(
            "the file does not say which source of the kernel it was tuned for",
            file=str(file), hint="say --source-hash or --kernel-source: rows are refused where the source differs",
        )  # fmt: skip
    if source_hash and not re.fullmatch(r"[0-9a-f]{64}", source_hash):
        raise UserError(f"--source-hash {source_hash!r} is no source hash", hint="64 digits, whole: `pack show --json`")
    _check_words(source, {"--dim": dims, "--tensor": tensors, "--name": names})
    foreign = _read(source, file, dims or (), names or (), _values(fixed), _dtypes(tensors))
    if not (kernel or foreign.kernel):
        raise UserError("does not name the kernel", file=str(file), hint="say --kernel")
    if not (device or foreign.device):
        raise UserError("does not name the device", file=str(file), hint="say --device")
    known = [table.device for pack in device_from or () for table in load_pack(pack).tables]
    try:
        where = named(device or foreign.device, known)
    except UserError as e:
        raise UserError(str(e.args[0]), file=str(file), hint=f"{e.hint}; --device-from PACK knows more") from None
    terms = Terms(
        kernel=kernel or foreign.kernel, source_hash=source_hash or _hash(kernel_source), device=where,
        triton=triton or foreign.triton or UNKNOWN, timer=timer, sweep=f"{source}: {file.name}",
        experiment=hashlib.sha256(read_bytes(file)).hexdigest(), created=datetime.now(UTC).date().isoformat(),
        tunefarm=__version__, ranges=tuple(ranges or ()),
    )  # fmt: skip
    pack = to_pack(foreign, terms)
    parse_pack(text := dumps(pack), where=str(file))  # what no pack can hold is refused now, not by a job
    write_atomic(out, text.encode())
    typer.echo(f"{out}: {counted(pack.num_rows, 'imported row')} of {terms.kernel} on {where.name}")
    for text in foreign.left_out:
        typer.echo(f"  left out {text}")
    unknown = [name for name, value in (("triton", terms.triton), ("timer", timer)) if value == UNKNOWN]
    untimed = all(row.median_ms is None for row in pack.tables[0].rows)
    typer.echo(f"  unknown: {', '.join([*unknown, 'times' if untimed else 'intervals', 'whether outputs are right'])}")


def export_pack(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The pack.", show_default=False)],
    target: Annotated[Target, typer.Option("--to", help="Whose form.", show_default=False)],
    out: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.", show_default=False)],
    kernel: Annotated[str, typer.Option(help="Which kernel's table.")] = "",
    device: Annotated[str, typer.Option(help="Which device's table.")] = "",
    dims: Dims = None,
    names: Names = None,
    fixed: Fixed = None,
    dtype: Annotated[str, typer.Option(help="vllm, sglang: the tool's word, such as fp8_w8a8.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="NAME=VALUE: rows measured so, or of that dtype.")] = None,
    allow_replayed: Annotated[bool, typer.Option("--allow-replayed", help="Rows that nobody measured, too.")] = False,
) -> None:
    """Write a table of PACK in another tool's form. Times and provenance stay behind: there is no place for them.

    Example: tunefarm pack export packs/moe.json --to vllm -o configs --dim M=num_tokens --dim E= --dim N=N --set E=8
    """
    tables = load_pack(file).tables
    key = named(device, [table.device for table in tables]).key if device else ""
    table = _only(moe.one_of(tables, kernel, key), only or ())
    if table.provenance.source == "replayed" and not allow_replayed:
        raise UserError("its times were replayed, not measured", file=str(file), hint="--allow-replayed exports them")
    if target is Target.FLA:
        name, text = autotune.write_fla(table, names or ())
    else:
        sglang = target is Target.SGLANG
        name, text = moe.write(table, _pairs(dims), _values(fixed), dtype=dtype, sglang=sglang)
    file, data = out / name, text.encode()
    check_output(file)
    if file.exists() and read_bytes(file) != data:  # most likely what the tool came with
        raise UserError("is there already, and another", file=str(file), hint="name another folder, or remove it")
    write_atomic(file, data)
    typer.echo(f"{file}: {counted(len(table.rows), 'row')} of {table.kernel} on {table.device.name}")


def _read(
    source: Source, file: Path, dims: Sequence[str], names: Sequence[str], fixed: dict[str, Value],
    tensors: dict[str, str],
) -> Foreign:  # fmt: skip
    if source is Source.TRITON:
        return autotune.read_triton(file, names, fixed)
    if source is Source.FLA:
        return autotune.read_fla(file, names, fixed)
    return moe.read(file, _pairs(dims), tensors, fixed)


def _check_words(source: Source, given: dict[str, Sequence[str] | None]) -> None:
    """Refuses what this tool's files do not need, and what names two things alike."""
    moe_only = source in (Source.VLLM, Source.SGLANG)
    for flag, words in given.items():
        if words and (flag == "--name") == moe_only:
            raise UserError(f"{flag} {words[0]} says nothing of a file of {source.value}", hint="leave it out")
    arguments = [name for name in _pairs(given["--dim"]).values() if name] + list(given["--name"] or ())
    if twice := sorted({name for name in arguments if arguments.count(name) > 1}):
        raise UserError(f"{twice[0]} is named twice", hint="each argument of the kernel holds one thing")
    if strange := sorted(_pairs(given["--dim"]).keys() - set(moe.DIMS)):
        raise UserError(f"--dim {strange[0]}=... is nothing that a file holds", hint=f"it holds {', '.join(moe.DIMS)}")


def _dtypes(words: Sequence[str] | None) -> dict[str, str]:
    return _read_each("--tensor", words, read_dtype)


def _values(words: Sequence[str] | None) -> dict[str, Value]:
    return _read_each("--set", words, read_value)


def _read_each(flag: str, words: Sequence[str] | None, read: Callable[[str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, text in _pairs(words).items():
        try:
            found[name] = read(text)
        except UserError as e:
            raise UserError(f"{flag} {name}={text[:40]}: {e.args[0]}", hint=e.hint) from None
    return found


def _only(table: Table, only: Sequence[str]) -> Table:
    rows = table.rows
    for name, value in _pairs(only).items():
        rows = tuple(r for r in rows if value in (str(r.measured_at.get(name)), r.match.dtypes.get(name)))
    return replace(table, rows=rows)


def _pairs(words: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or name in pairs:
            raise UserError(f"{word!r} is no NAME=VALUE, or is given twice", hint="write --dim M=num_tokens")
        pairs[name] = value
    return pairs


def _hash(kernel_source: str) -> str:
    from tunefarm.source import source_hash
    from tunefarm.spec.importing import import_object

    return source_hash(import_object(kernel_source, "."))
