"""What another tool's file says, and how it becomes a pack: nothing that it does not say is made up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import CODE_OPTIONS, LAUNCH_OPTIONS, MAX_BITS, Config, Value, is_small
from tunefarm.device import Device
from tunefarm.errors import DocumentError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Bounds, Match, Pack, Provenance, Row, Table, seal
from tunefarm.ranges import bounded

OPTIONS = (*LAUNCH_OPTIONS, "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Launch options that stand among the params in other tools' configs; the last three are AMD's."""

_MAY_BE_ZERO = ("num_stages", "waves_per_eu", "matrix_instr_nonkdim")
UNKNOWN = "unknown"
MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One config of a foreign file and what it is for.

    Attributes:
        dims: by the name of the kernel's argument.
        dtypes: of the tensor arguments, by name, in Triton's spelling.
        config: what to use.
        median_ms: as the file says, or None.
    """

    dims: FrozenMap[Value]
    dtypes: FrozenMap[str]
    config: Config
    median_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A foreign file, read.

    Attributes:
        file: its path.
        kernel: the kernel's name, or empty.
        device: name of the device, or empty.
        triton: version of Triton, or empty.
        answers: its configs.
        ranges: dims between whose values the tool itself picks the nearest.
        left_out: what a pack cannot hold, for people.
    """

    file: str
    kernel: str = ""
    device: str = ""
    triton: str = ""
    answers: tuple[Answer, ...]
    ranges: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the file does not say.

    Attributes:
        kernel: its name.
        source_hash: of the kernel that the file was tuned for: whoever imports vouches for it.
        device: where it was tuned.
        triton: version of Triton, or `unknown`.
        timer: how it was timed, or `unknown`.
        sweep: where the file comes from, for people.
        experiment: digest of the file.
        created: ISO date.
        tunefarm: this release.
        ranges: further dims that may range.
    """

    kernel: str
    source_hash: str
    device: Device
    triton: str = UNKNOWN
    timer: str = UNKNOWN
    sweep: str
    experiment: str
    created: str
    tunefarm: str
    ranges: tuple[str, ...] = field(default=())


def to_pack(foreign: Foreign, terms: Terms) -> Pack:
    """The file as a pack of imported rows. Intervals and outputs' checks are nobody's word, so rows have none.

    Raises:
        DocumentError: nothing is in it; two configs are for one problem; a dim that may range is no integer; no
            tensor's dtype is known, so rows would answer calls of any.
    """
    if not foreign.answers:
        raise DocumentError("holds no config that a pack can", file=foreign.file, hint="; ".join(foreign.left_out))
    ranges = {*foreign.ranges, *terms.ranges}
    rows: dict[Any, Row] = {}
    for answer in foreign.answers:
        row = _row(foreign.file, answer, ranges)
        if row.identity in rows:
            raise DocumentError(
                f"holds two configs for {row.match.label}", file=foreign.file,
                hint="name a dim in which they differ, or import one of them",
            )  # fmt: skip
        rows[row.identity] = row
    key_parts = FrozenMap[Any](
        source_hash=terms.source_hash, backend_options=FrozenMap(), triton=terms.triton, capability=terms.device.arch
    )
    provenance = Provenance(
        sweep=terms.sweep, experiment=terms.experiment, toolchain=FrozenMap(triton=terms.triton), timer=terms.timer,
        source="imported", tunefarm=terms.tunefarm, created=terms.created, checked=False,
    )  # fmt: skip
    table = Table(
        kernel=terms.kernel, source_hash=terms.source_hash, device=terms.device, key_parts=key_parts,
        provenance=provenance, rows=bounded(tuple(rows.values())),
    )  # fmt: skip
    return seal(Pack(tables=(table,)))


def _wrong(value: Any) -> str:
    """What is wrong with a value of a dim, param or option; empty if nothing is."""
    if not isinstance(value, bool | int | float | str | None):
        return f"is {type(value).__name__}, not a scalar"
    if isinstance(value, int) and not is_small(value):
        return f"is an integer of {value.bit_length()} bits, a kernel's have {MAX_BITS} at most"
    return f"is {value}, not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""


def _row(file: str, answer: Answer, ranges: set[str]) -> Row:
    if not answer.dtypes:
        raise DocumentError("names no tensor and its dtype", file=file, hint="say --tensor NAME=DTYPE for each")
    for name, value in answer.dims.items():
        if wrong := _wrong(value):
            raise DocumentError(f"{name} {wrong}", file=file)
        if name in answer.dtypes:
            raise DocumentError(f"has {name} both as a number and as a tensor", file=file, hint="name it once")
    dims: dict[str, Value | Bounds] = dict(answer.dims)
    for name in ranges:
        value = answer.dims.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DocumentError(f"has {name}={value!r}, which cannot range", file=file, hint="only integers can")
        dims[name] = (value - 1, value)
    # As in a call: the values decide, and a tuner's own tensors are new and so aligned.
    facts = {name: fact for name, value in answer.dims.items() if (fact := _fact(value))}
    facts |= dict.fromkeys(answer.dtypes, "div16")
    match = Match(dims=FrozenMap(dims), dtypes=answer.dtypes, facts=FrozenMap(facts))
    return Row(
        match=match, measured_at=answer.dims, config=answer.config, median_ms=answer.median_ms, interval_ms=None
    )  # fmt: skip


def _fact(value: Value) -> str:
    if not isinstance(value, int) or isinstance(value, bool):
        return ""
    return "one" if value == 1 else "div16" if value % 16 == 0 else ""


def with_fixed(dims: Mapping[str, Value], fixed: Mapping[str, Value], *, file: str) -> FrozenMap[Value]:
    """What the file says of a call, and what it does not.

    Raises:
        UserError: a value is given that the file says itself.
    """
    if both := sorted(dims.keys() & fixed.keys()):
        raise UserError(f"says itself that {both[0]} is {dims[both[0]]}", file=file, hint=f"leave out --set {both[0]}")
    return FrozenMap({**dims, **fixed})


def file_name(name: str) -> str:
    """A name for a file, if it is one everywhere: a pack's words must not lead out of the folder.

    Raises:
        UserError: it holds what no file name may, or is too long.
    """
    if re.search(r'[<>:"/\\|?*\x00-\x1f]', name) or name.startswith(".") or len(name.encode()) > MAX_NAME_BYTES:
        raise UserError(f"{name!r} is no name for a file", hint="the other tool finds its files by kernel and device")
    return name


def config_of(values: Mapping[str, Any], *, file: str, key: str) -> Config:
    """A config in which params and launch options stand side by side.

    Raises:
        DocumentError: a value is no scalar, or code.
    """
    for name, value in values.items():
        if name in CODE_OPTIONS and value is not None:
            raise DocumentError("is code, which a pack cannot hold", file=file, key=f"{key}.{name}")
        if wrong := _wrong(value):
            raise DocumentError(wrong, file=file, key=f"{key}.{name}")
        least = 0 if name in _MAY_BE_ZERO else 1
        if name in OPTIONS and value is not None and (type(value) is not int or value < least):
            raise DocumentError(f"is {value!r}, not an integer >= {least}", file=file, key=f"{key}.{name}")
    # One CTA, no limit of registers and no other code are what Triton does anyway.
    usual = {"num_ctas": 1, "maxnreg": None, **dict.fromkeys(CODE_OPTIONS)}
    said = {k: v for k, v in values.items() if k not in usual or v != usual[k]}
    return Config(
        params=FrozenMap((k, v) for k, v in said.items() if k not in OPTIONS),
        options=FrozenMap((k, v) for k, v in said.items() if k in OPTIONS),
    )
