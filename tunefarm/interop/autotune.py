"""Triton's own `.autotune.json` and the config files of flash-linear-attention, both keyed as an autotuner keys calls.

A key is the values of the autotuner's `key` arguments, then the dtype of each tensor argument in the order of the
signature: `[4096, true, "torch.bfloat16", "torch.float32"]`. Names stand in neither file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefarm.config import Config, Value
from tunefarm.document import parse_json, read_text
from tunefarm.errors import DocumentError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.interop.foreign import Answer, Foreign, config_of, file_name, with_fixed
from tunefarm.pack import Table
from tunefarm.problem import SPELLING, read_dtype

_TORCH = {ours: theirs for theirs, ours in SPELLING.items()}


def read_triton(path: Path, names: Sequence[str], fixed: Mapping[str, Value]) -> Foreign:
    """Reads one file of Triton's cache: one call, and the time of every config that was tried.

    Args:
        path: the file, `KERNEL.autotune.json`.
        names: arguments of the key, in its order.
        fixed: further arguments and their values.

    Raises:
        DocumentError: it is of another form.
    """
    file = str(path)
    data = _object(parse_json(read_text(path), where=file, infinities=True), file, "")
    timings = data.get("configs_timings")
    if not isinstance(timings, list) or not isinstance(data.get("key"), list):
        raise DocumentError("has no key and configs_timings", file=file, hint="Triton writes it with cache_results")
    times: list[tuple[float, Config]] = []
    left_out = []
    for i, timing in enumerate(timings):
        at = f"configs_timings[{i}]"
        if not isinstance(timing, list) or len(timing) != 2:
            raise DocumentError("is no pair of config and time", file=file, key=at)
        median_ms = _median(timing[1], file, f"{at}[1]")
        if median_ms is None:
            continue  # it failed
        try:
            times.append((median_ms, _config(timing[0], file, f"{at}[0]")))
        except UserError as e:
            left_out.append(str(e))
    best = [min(times, key=lambda pair: pair[0])] if times else []
    dims, dtypes = _key(data["key"], names, file, "key")
    return Foreign(
        file=file, kernel=path.name.removesuffix(".autotune.json"), left_out=tuple(left_out),
        answers=tuple(
            Answer(dims=with_fixed(dims, fixed, file=file), dtypes=FrozenMap(dtypes), config=config, median_ms=ms)
            for ms, config in best
        ),
    )  # fmt: skip


def read_fla(path: Path, names: Sequence[str], fixed: Mapping[str, Value]) -> Foreign:
    """Reads a config file of flash-linear-attention: one kernel, a config for each call that was tuned.

    Args:
        path: the file, `GPU/KERNEL.json`.
        names: arguments of the keys, in their order.
        fixed: further arguments and their values.

    Raises:
        DocumentError: it is of another form, or of the older one, which holds one config for all calls.
    """
    file = str(path)
    data = _object(parse_json(read_text(path), where=file), file, "")
    if "autotune_entries" not in data:
        raise DocumentError(
            "holds one config for all calls, which is no row of a pack", file=file, key="autotune_entries",
            hint="let flash-linear-attention tune again and write keys beside its configs",
        )  # fmt: skip
    answers = []
    for key, entry in _object(data["autotune_entries"], file, "autotune_entries").items():
        at = f"autotune_entries.{key}"
        entry = _object(entry, file, at)
        dims, dtypes = _key(entry.get("autotune_key"), names, file, f"{at}.autotune_key")
        config = _config(entry.get("config"), file, f"{at}.config")
        answers.append(Answer(dims=with_fixed(dims, fixed, file=file), dtypes=FrozenMap(dtypes), config=config))
    for name in ("kernel_name", "triton_version"):
        if not isinstance(data.get(name, ""), str | None):
            raise DocumentError(f"is {type(data[name]).__name__}, not text", file=file, key=name)
    left_out = ("default_config: a pack has no row for all other calls",) if data.get("default_config") else ()
    return Foreign(
        file=file, kernel=str(data.get("kernel_name") or path.stem), triton=str(data.get("triton_version") or ""),
        device=path.resolve().parent.name.replace("_", " "), answers=tuple(answers), left_out=left_out,
    )  # fmt: skip


def write_fla(table: Table, names: Sequence[str]) -> tuple[str, str]:
    """A table as a config file of flash-linear-attention, which takes rows at the points where they were measured.

    Args:
        table: of one of its kernels.
        names: arguments of the autotuner's key, then of the tensors, in the order of the signature.

    Returns:
        Name and text of the file.

    Raises:
        UserError: a row knows nothing of a name, or two rows have one key.
    """
    entries: dict[str, Any] = {}
    for row in table.rows:
        missing = [name for name in names if name not in row.measured_at and name not in row.match.dtypes]
        if missing or not names:
            known = ", ".join((*row.measured_at, *row.match.dtypes))
            what = ", ".join(missing) or "a key without names"
            hint = f"--name each of {known}, in the key's order"
            raise UserError(f"rows of {table.kernel} say nothing of {what}", hint=hint)
        key = [row.measured_at[n] if n in row.measured_at else _torch(row.match.dtypes[n]) for n in names]
        digest = hashlib.md5(json.dumps(key, separators=(",", ":")).encode(), usedforsecurity=False).hexdigest()
        if digest in entries:
            raise UserError(f"two rows of {table.kernel} have the key {key}", hint="choose rows with --only NAME=VALUE")
        options = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, **row.config.options}
        entries[digest] = {"autotune_key": key, "config": {"kwargs": dict(row.config.params), **options}}
    body = {
        "kernel_name": table.kernel, "triton_version": table.key_parts.get("triton"), "autotune_entries": entries,
        "default_config": None,
    }  # fmt: skip
    return file_name(f"{table.kernel}.json"), json.dumps(body, indent=1) + "\n"


def _torch(dtype: str) -> str:
    return f"torch.{_TORCH.get(dtype, dtype)}"


def _object(value: Any, file: str, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"must be an object, is {type(value).__name__}", file=file, key=key)
    return value


def _median(timing: Any, file: str, key: str) -> float | None:
    """Triton keeps (median, 20 %, 80 %) in ms; configs that failed have infinities."""
    value = timing[0] if isinstance(timing, list) and timing else timing
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise DocumentError(f"is {value!r}, no time in ms", file=file, key=key)
    return float(value) if math.isfinite(value) else None


def _config(value: Any, file: str, key: str) -> Config:
    data = _object(value, file, key)
    kwargs = _object(data.get("kwargs", {}), file, f"{key}.kwargs")
    rest = {k: v for k, v in data.items() if k != "kwargs"}
    return config_of({**kwargs, **rest}, file=file, key=key)


def _key(value: Any, names: Sequence[str], file: str, key: str) -> tuple[dict[str, Value], dict[str, str]]:
    if not isinstance(value, list) or len(value) != len(names):
        count = len(value) if isinstance(value, list) else 0
        raise DocumentError(
            f"has {count} values, {len(names)} names are given: {json.dumps(value)}", file=file, key=key,
            hint="say --name for each: the autotuner's key, then the tensors in the order of the signature",
        )  # fmt: skip
    dims: dict[str, Value] = {}
    dtypes: dict[str, str] = {}
    for name, part in zip(names, value, strict=True):
        if isinstance(part, str) and part.startswith("torch."):
            try:
                dtypes[name] = read_dtype(part)
            except UserError as e:
                raise DocumentError(f"{name}: {e.args[0]}", file=file, key=key, hint=e.hint) from None
        elif isinstance(part, bool | int | float | str | None):
            dims[name] = part
        else:
            raise DocumentError(f"{name} is {type(part).__name__}, not a scalar", file=file, key=key)
    return dims, dtypes
