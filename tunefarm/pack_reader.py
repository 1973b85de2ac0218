"""Reading packs: nothing damaged, foreign or changed gets through, and rows that nobody asks about cost nothing.

A pack as `pack.dumps` writes it has one row a line in canonical JSON, so a table's digest can be checked over its text.
Its rows are then parsed when they are looked into: a job asks for the tables of the kernels it launches, on its device.
Any other text (another program has laid it out anew) is parsed whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, overload

from tunefarm.config import CODE_OPTIONS, MAX_BITS, Config, Value, is_small
from tunefarm.device import Device
from tunefarm.document import canonical, parse_json, read_text
from tunefarm.errors import PackError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import (
    FORMAT,
    LAYERS,
    SOURCES,
    VERSIONS,
    Bounds,
    Code,
    Match,
    Pack,
    Provenance,
    Row,
    Table,
    bind,
    in_order,
    key_of,
    seal,
    table_head,
)

MAX_BYTES = 64 << 20

_CONTROL = re.compile(
    r"(?<!\\)(?:\\\\)*\\(?:[bfnrt]|u00(?:[01][0-9a-f]|7f|[89][0-9a-f])|u(?:202[a-e]|206[6-9]))"
    r"|[\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
    re.IGNORECASE,
)
"""In JSON text, what moves a terminal's cursor or turns its words around; a pack has no use for any, and is shown."""

_SCALAR = (bool, int, float, str, NoneType)
_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (float, int), "bool": bool}
_ROWS_BEGIN, _BETWEEN, _ROWS_END = '"rows": [\n', ",\n", "\n]}"


def load_pack(path: Path | str) -> Pack:
    """Reads and checks a pack.

    Raises:
        PackError: the file is missing, damaged, changed by hand, of another format or of a newer version.
    """
    return _looked_into(open_pack(path))


def open_pack(path: Path | str) -> Pack:
    """Reads and checks a pack, save that rows as `dumps` writes them are parsed when somebody looks into them.

    Raises:
        PackError: as `load_pack`. What is wrong with rows whose digest is right is raised where they are looked into.
    """
    return _parse(read_text(Path(path), error=PackError, max_bytes=MAX_BYTES), str(path))


def parse_pack(text: str, *, where: str) -> Pack:
    """Reads and checks the text of a pack.

    Args:
        text: as `dumps` writes it.
        where: the file or the sender, for messages.

    Raises:
        PackError: as `load_pack`.
    """
    return _looked_into(_parse(text, where))


def _looked_into(pack: Pack) -> Pack:
    return Pack(tables=tuple(replace(table, rows=tuple(table.rows)) for table in pack.tables), digest=pack.digest)


def _parse(text: str, where: str) -> Pack:
    if ("\\" in text or "\x7f" in text or not text.isascii()) and (found := _CONTROL.search(text)):
        line = text.count("\n", 0, found.start()) + 1
        raise PackError(f"holds a control character in line {line}", file=where, hint="export it again without")
    # What the way by lines does not take has another layout, or a defect that the other way says.
    return _parse_by_lines(text, where) or _parse_whole(text, where)


def _parse_by_lines(text: str, where: str) -> Pack | None:
    """A pack laid out as `dumps` does, without looking into its rows; None if it is anything else."""
    first, *others = text.split(_ROWS_BEGIN)
    bodies, frame = [], first
    for number, other in enumerate(others):
        body, _, rest = other.partition(_ROWS_END)
        bodies.append(body)
        frame += f'"rows": {number}}}{rest}'
    read = _Reader(where)
    try:
        data = parse_json(frame, where=where, error=PackError)
        tables = _tables_of(read, data)
        if [table.get("rows") for table in tables] != list(range(len(bodies))):
            return None
        pairs = enumerate(zip(tables, bodies, strict=True))
        found = [_read_table(read, table, f"tables[{i}]", body) for i, (table, body) in pairs]
        pack = bind(found)
    except (PackError, ValueError, AttributeError):
        return None
    kept = all(
        (table.key, table.digest) == (key_of(table), _digest_of(table, body))
        for table, body in zip(found, bodies, strict=True)
    )
    return pack if kept and pack.digest == data.get("digest") else None


def _digest_of(table: Table, body: str) -> str:
    """The digest of a table over the text of its rows."""
    rows = body.replace(_BETWEEN, ",")
    return hashlib.sha256(f"[{canonical(table_head(table))},[{rows}]]".encode()).hexdigest()


def _parse_whole(text: str, where: str) -> Pack:
    data = parse_json(text, where=where, error=PackError)
    read = _Reader(where)
    tables = tuple(_read_table(read, table, f"tables[{i}]") for i, table in enumerate(_tables_of(read, data)))
    digest = read.get(data, "digest", str, "")
    try:
        sealed = seal(Pack(tables=tables))
    except (ValueError, OverflowError) as e:  # an infinity such as 1e999, or half a surrogate pair
        raise PackError(f"holds a value that is no plain data: {e}", file=where, hint="export it again") from None
    for i, (table, expected) in enumerate(zip(tables, sealed.tables, strict=True)):
        if (table.key, table.digest) != (expected.key, expected.digest):
            raise PackError(
                f"does not match its digest: the table of {table.kernel} was changed after export",
                file=where, key=f"tables[{i}]", hint="export it again",
            )  # fmt: skip
    if digest != sealed.digest:
        raise PackError(
            "does not match its digest: tables were changed after export", file=where, hint="export it again"
        )
    return sealed


def _tables_of(read: _Reader, data: Any) -> list[Any]:
    """The tables in what a file holds, which must be a pack of a version that this release reads."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PackError("is not a tunefarm pack", file=read.file, hint="packs are written by `tunefarm sweep`")
    version = data.get("version")
    if type(version) is not int or version not in VERSIONS:
        hint = "update tunefarm" if isinstance(version, int) else "export it again"
        reads = " and ".join(map(str, VERSIONS))
        raise PackError(f"has version {version!r}, this release reads {reads}", file=read.file, hint=hint)
    tables: list[Any] = read.get(data, "tables", list, "")
    return tables


class _Rows(Sequence[Row]):
    """The rows of a table, parsed when first looked into; equal to the tuple of them.

    Args:
        body: their lines.
        read: names the file.
        at: the table's place in it.
        source: of the table's times.
    """

    __slots__ = ("_at", "_body", "_read", "_rows", "_source")

    def __init__(self, body: str, read: _Reader, at: str, source: str) -> None:
        self._body, self._read, self._at, self._source = body, read, at, source
        self._rows: tuple[Row, ...] | None = None

    def _all(self) -> tuple[Row, ...]:
        if self._rows is None:
            lines = self._body.split(_BETWEEN) if self._body else []
            data = [self._parsed(line, f"{self._at}.rows[{i}]") for i, line in enumerate(lines)]
            rows = _read_rows(self._read, data, self._at, self._source)
            if rows != in_order(rows):
                raise self._read.error(f"{self._at}.rows", "is not in order")
            self._rows, self._body = rows, ""
        return self._rows

    def _parsed(self, line: str, at: str) -> Any:
        data = parse_json(line, where=self._read.file, error=PackError)
        try:
            plain = canonical(data) == line
        except ValueError:  # an infinity such as 1e999
            plain = False
        if not plain:
            raise self._read.error(at, "is not written as tunefarm writes it")
        return data

    def __len__(self) -> int:
        return self._body.count("\n") + bool(self._body) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, _Rows) else other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._all(),)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes fields out of parsed JSON and names file, place and defect where one is not as it should be."""

    file: str

    def get(self, data: Any, name: str, kind: type | tuple[type, ...], at: str) -> Any:
        key = f"{at}.{name}".strip(".")
        if not isinstance(data, dict):
            raise self.error(at, f"must be an object, is {type(data).__name__}")
        if name not in data:
            raise self.error(key, "is missing")
        return self.checked(data[name], kind, key)

    def checked(self, value: Any, kind: type | tuple[type, ...], at: str) -> Any:
        # A bool is an int to isinstance, and never one in a pack.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, _SCALAR)):
            raise self.error(at, f"is of the wrong type ({type(value).__name__})")
        if isinstance(value, int) and not is_small(value):
            raise self.error(at, f"is an integer of {value.bit_length()} bits, {MAX_BITS} are the most")
        return value

    def pair(self, value: Any, kind: type | tuple[type, ...], at: str) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise self.error(at, "must be a pair of numbers")
        return self.checked(value[0], kind, at), self.checked(value[1], kind, at)

    def bounds(self, value: Any, measured: Value, at: str) -> Bounds:
        low, high = self.pair(value, int, at)
        if not low < high:
            raise self.error(at, f"is ({low}, {high}], which holds nothing")
        if type(measured) is not int:
            raise self.error(at, "is a range, and measured_at has no integer for it")
        return low, high

    def time(self, value: Any, at: str) -> float | None:
        time: float | None = self.checked(value, (float, int, NoneType), at)
        if time is not None and time <= 0:
            raise self.error(at, f"is {time} ms, no time")
        return time

    def scalar(self, value: Any, at: str) -> Value:
        scalar: Value = self.checked(value, _SCALAR, at)
        return scalar

    def scalars(self, data: Any, name: str, at: str) -> FrozenMap[Any]:
        values = self.get(data, name, dict, at)
        return FrozenMap({k: self.scalar(v, f"{at}.{name}.{k}") for k, v in values.items()})

    def strings(self, data: Any, name: str, at: str) -> FrozenMap[str]:
        values = self.get(data, name, dict, at)
        return FrozenMap({k: self.checked(v, str, f"{at}.{name}.{k}") for k, v in values.items()})

    def config(self, data: Any, at: str) -> Config:
        parts = {part: self.scalars(data, part, at) for part in ("params", "options")}
        for part, values in parts.items():
            if named := sorted(values.keys() & CODE_OPTIONS):
                raise PackError("may name a file of code to run in the kernel's place", file=self.file,
                                key=f"{at}.{part}.{named[0]}", hint="a pack holds no code: use another")  # fmt: skip
        try:
            return Config(**parts)
        except UserError as e:
            raise self.error(at, str(e)) from None

    def error(self, key: str, message: str) -> PackError:
        return PackError(message, file=self.file, key=key, hint="export it again")


def _read_table(read: _Reader, data: Any, at: str, body: str | None = None) -> Table:
    """A table; with the lines of its rows, those are left for later."""
    device = read.get(data, "device", dict, at)
    for part in fields(Device):
        if part.name in device or part.default is MISSING:
            read.get(device, part.name, _KINDS[str(part.type)], f"{at}.device")
    origin = read.get(data, "provenance", dict, at)
    place = f"{at}.provenance"
    names = ("sweep", "experiment", "timer", "source", "tunefarm", "created")
    provenance = Provenance(
        toolchain=read.strings(origin, "toolchain", place), checked=origin.get("checked", True),
        **{n: read.get(origin, n, str, place) for n in names},
    )  # fmt: skip
    if not isinstance(provenance.checked, bool):
        raise read.error(f"{place}.checked", "is neither true nor false")
    if provenance.source not in SOURCES:
        raise read.error(f"{place}.source", f"is {provenance.source!r}, not one of {', '.join(SOURCES)}")
    key_parts = read.get(data, "key_parts", dict, at)
    layer = read.checked(data.get("layer", 1), int, f"{at}.layer")
    if layer not in LAYERS:
        raise read.error(f"{at}.layer", f"is {layer}, not one of {', '.join(map(str, LAYERS))}")
    rows: Sequence[Row]
    if body is None:
        rows = _read_rows(read, read.get(data, "rows", list, at), at, provenance.source)
    else:
        rows = _Rows(body, read, at, provenance.source)
    return Table(
        kernel=read.get(data, "kernel", str, at),
        source_hash=read.get(data, "source_hash", str, at),
        device=Device.from_json(device),
        key_parts=FrozenMap({k: FrozenMap(v) if isinstance(v, dict) else v for k, v in key_parts.items()}),
        provenance=provenance,
        rows=rows,
        layer=layer,
        key=read.get(data, "key", str, at),
        digest=read.get(data, "digest", str, at),
    )  # fmt: skip


def _read_rows(read: _Reader, data: Sequence[Any], at: str, source: str) -> tuple[Row, ...]:
    rows = tuple(_read_row(read, row, f"{at}.rows[{i}]") for i, row in enumerate(data))
    untimed = next((i for i, row in enumerate(rows) if row.median_ms is None or row.interval_ms is None), None)
    if untimed is not None and source != "imported":
        raise read.error(f"{at}.rows[{untimed}]", "has no time or interval, which only imported rows may lack")
    return rows


def _read_row(read: _Reader, data: Any, at: str) -> Row:
    match = read.get(data, "match", dict, at)
    measured_at = read.scalars(data, "measured_at", at)
    dims: dict[str, Value | Bounds] = {}
    for name, value in read.get(match, "dims", dict, f"{at}.match").items():
        place = f"{at}.match.dims.{name}"
        ranges = isinstance(value, list)
        dims[name] = read.bounds(value, measured_at.get(name), place) if ranges else read.scalar(value, place)
    default = read.get(data, "default", (dict, NoneType), at)
    code = read.get(data, "code", dict, at) if "code" in data else None
    interval = read.get(data, "interval_ms", (list, NoneType), at)
    numbers = {name: read.get(data, name, (float, int, NoneType), at) for name in ("gain", "margin")}
    times = {name: read.time(read.get(data, name, object, at), f"{at}.{name}") for name in ("median_ms", "default_ms")}
    return Row(
        match=Match(
            dims=FrozenMap(dims),
            dtypes=read.strings(match, "dtypes", f"{at}.match"),
            facts=read.strings(match, "facts", f"{at}.match"),
        ),
        measured_at=measured_at,
        config=read.config(read.get(data, "config", dict, at), f"{at}.config"),
        interval_ms=None if interval is None else read.pair(interval, (float, int), f"{at}.interval_ms"),
        default=None if default is None else read.config(default, f"{at}.default"),
        code=None if code is None else _read_code(read, code, f"{at}.code"),
        **numbers,
        **times,
    )


def _read_code(read: _Reader, data: Any, at: str) -> Code:
    numbers = {name: read.get(data, name, int, at) for name in ("registers", "spills", "shared_bytes")}
    return Code(sha256=read.get(data, "sha256", str, at), **numbers)
