"""Fused-MoE tables of vLLM and SGLang: a file a shape, device and dtype; in it a config for each number of tokens.

`E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json`, `{"16": {"BLOCK_SIZE_M": 16, ...}}`.
vLLM writes the version of Triton into the file, SGLang into the folder (`triton_3_4_0`), a blank into the block shape
and `_down` at the end of the name for the second product. Both pick the nearest number of tokens, however far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefarm.config import Value
from tunefarm.document import parse_json, read_text
from tunefarm.errors import DocumentError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.interop.foreign import Answer, Foreign, config_of, file_name, with_fixed
from tunefarm.pack import Table

DIMS = ("M", "E", "N")
"""What a file calls the number of tokens, of experts and the width of one."""

_NAME = re.compile(
    r"E=(?P<E>[1-9]\d*),N=(?P<N>[1-9]\d*),device_name=(?P<device>[^,]+?)(,dtype=(?P<dtype>[^,]+?))?"
    r"(,block_shape=\[\d+, ?\d+\])?(_down)?\.json"
)
_FOLDER = re.compile(r"triton_(\d+_\d+_\d+)")


def read(path: Path, arguments: Mapping[str, str], tensors: Mapping[str, str], fixed: Mapping[str, Value]) -> Foreign:
    """Reads a file of either tool.

    Args:
        path: the file, under its published name.
        arguments: for each of M, E and N the kernel's argument that holds it; empty if none does.
        tensors: dtype of each tensor argument.
        fixed: further arguments and their values.

    Raises:
        DocumentError: name or content are not of that form.
        UserError: an argument is not named.
    """
    file = str(path)
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise DocumentError(
            "is not named as vLLM and SGLang name their tables", file=file,
            hint="E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json; dtype may be missing",
        )  # fmt: skip
    _all_named(arguments)
    data = parse_json(read_text(path), where=file)
    if not isinstance(data, dict):
        raise DocumentError(f"must be an object, is {type(data).__name__}", file=file)
    version = data.pop("triton_version", "")
    if not isinstance(version, str):
        raise DocumentError(f"is {version!r}, no version", file=file, key="triton_version")
    folder = _FOLDER.fullmatch(path.resolve().parent.name)
    answers = []
    for key, values in data.items():
        if not re.fullmatch(r"[1-9][0-9]{0,18}", key):
            raise DocumentError("is no number of tokens", file=file, key=key, hint="write it as 16, without zeros")
        if not isinstance(values, dict):
            raise DocumentError("is no config", file=file, key=key)
        told = {"M": int(key), "E": int(named["E"]), "N": int(named["N"])}
        dims = {arguments[name]: value for name, value in told.items() if arguments[name]}
        config = config_of(values, file=file, key=key)
        answers.append(Answer(dims=with_fixed(dims, fixed, file=file), dtypes=FrozenMap(tensors), config=config))
    return Foreign(
        file=file, device=named["device"].replace("_", " "), answers=tuple(answers),
        triton=version or (folder[1].replace("_", ".") if folder else ""),
        ranges=(arguments["M"],) if arguments["M"] else (),
    )  # fmt: skip


def _all_named(arguments: Mapping[str, str]) -> None:
    if missing := [name for name in DIMS if name not in arguments]:
        raise UserError(
            f"which argument of the kernel holds {' and '.join(missing)} is not said",
            hint="say --dim M=ARGUMENT for each of M, E and N, or --dim E= where no argument holds it",
        )


def write(
    table: Table, arguments: Mapping[str, str], fixed: Mapping[str, Value], *, dtype: str, sglang: bool
) -> tuple[str, str]:
    """A table in the published form.

    Args:
        table: of the kernel, with rows for one E and N and one set of dtypes.
        arguments: for each of M, E and N the kernel's argument that holds it; empty if none does.
        fixed: E and N where no argument holds them.
        dtype: the tool's word for how weights and activations are quantised, or empty.
        sglang: SGLang's form, not vLLM's.

    Returns:
        The path under the tool's folder of configs, and the text.

    Raises:
        UserError: rows differ in what one file holds once.
    """
    _all_named(arguments)
    triton = str(table.key_parts.get("triton"))
    shapes: set[tuple[Value, Value]] = set()
    shared: list[dict[str, Value]] = []
    configs: dict[int, Any] = {}
    for row in table.rows:
        values = {name: fixed.get(name, row.measured_at.get(arguments[name])) for name in DIMS}
        tokens, shape = values["M"], (values["E"], values["N"])
        if any(not isinstance(v, int) or isinstance(v, bool) for v in values.values()):
            raise UserError(f"row {row.match.label} has {values}", hint="name the arguments, or say --set E=8")
        shapes.add(shape)
        assert isinstance(tokens, int)
        if tokens in configs or len(shapes) > 1:
            raise UserError(
                f"rows of {table.kernel} differ in more than M: {row.match.label}",
                hint="one file holds one E, one N and one set of dtypes: choose rows with --only NAME=VALUE",
            )
        configs[tokens] = row.config.flat
        shared.append({**{k: v for k, v in row.measured_at.items() if k not in arguments.values()}, **row.match.dtypes})
    if differ := sorted({name for each in shared for name in each if not _is_one(shared, list(configs), name)}):
        raise UserError(
            f"rows of {table.kernel} differ in {', '.join(differ)}, which the file does not say",
            hint="choose rows with --only NAME=VALUE",
        )
    if not configs:
        raise UserError(f"no row of {table.kernel} is left to export", hint="see `tunefarm pack show`")
    ((experts, width),) = shapes
    name = f"E={experts},N={width},device_name={table.device.name.replace(' ', '_')}"
    name += f",dtype={dtype}.json" if dtype else ".json"
    body: dict[str, Any] = {} if sglang else {"triton_version": triton}
    body |= {str(tokens): configs[tokens] for tokens in sorted(configs)}
    folder = file_name(f"triton_{triton.replace('.', '_')}") + "/" if sglang else ""
    return folder + file_name(name), json.dumps(body, indent=4) + "\n"


def _is_one(shared: Sequence[Mapping[str, Value]], tokens: Sequence[int], name: str) -> bool:
    """Whether a dim or dtype is the same in all rows, or a dim is so many times the number of tokens."""
    values = [each.get(name) for each in shared]
    numbers = all(type(value) is int for value in values)
    return len(set(values)) == 1 or (numbers and len({v / t for v, t in zip(values, tokens, strict=True)}) == 1)  # type: ignore[operator]


def one_of(tables: Sequence[Table], kernel: str, device: str) -> Table:
    """The one table that is meant.

    Raises:
        UserError: there is none, or more than one.
    """
    found = [t for t in tables if (not kernel or t.kernel == kernel) and device in ("", t.device.key)]
    if len(found) != 1:
        known = "; ".join(f"{t.kernel} on {t.device.name}" for t in tables)
        raise UserError(
            f"{len(found)} tables fit, one is exported at a time", hint=f"say --kernel and --device: {known}"
        )
    return found[0]
