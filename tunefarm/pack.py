"""Pack: the file training code loads. Which config each kernel uses, by device and by the facts of the call.

{"format": "tunefarm-pack", "version": 1, "digest", "tables": [
   {"kernel", "source_hash", "device": {...}, "key", "key_parts": {...}, "provenance": {...}, "digest", "rows": [
      {"match": {"dims": {name: value | [lo, hi]}, "dtypes": {...}, "facts": {...}}, "measured_at": {name: value},
       "config": {"params": {...}, "options": {...}}, "median_ms", "interval_ms", "default", "default_ms", "gain",
       "margin", "code": {"sha256", "registers", "spills", "shared_bytes"}}]}]}

`code` is left out where it is not known, as in rows of releases that did not ask. A pack with imported rows, with such
code, or with tables for Inductor (`"layer": 2` or `3`), says version 2, so that releases that do not know them refuse
it and say why.
Rows stand one a line and sorted, so that a pack reads well in the diff of a pull request. Data only: reading a pack
runs nothing and opens no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from tunefarm.config import Config, Value
from tunefarm.device import Device
from tunefarm.document import digest, one_row_a_line
from tunefarm.frozen import FrozenMap

FORMAT, VERSIONS = "tunefarm-pack", (1, 2)
Bounds: TypeAlias = tuple[int, int]
"""(lo, hi]: the integers above lo up to hi."""

SOURCES = ("measured", "replayed", "imported")
"""The better proven first."""

LAYERS = (1, 2, 3)
"""Who consults a table: Triton's autotuners, Inductor choosing a GEMM template, Inductor's own generated kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The calls a row is for.

    Attributes:
        dims: by argument name the exact value, or the range (lo, hi] in which it must lie.
        dtypes: element type of each tensor argument.
        facts: what the compiler specialises on, exactly: a dim or pointer that is not listed must not be `div16` (or
            `one`). `none` stands for an absent argument.
    """

    dims: FrozenMap[Value | Bounds] = field(default_factory=FrozenMap)
    dtypes: FrozenMap[str] = field(default_factory=FrozenMap)
    facts: FrozenMap[str] = field(default_factory=FrozenMap)

    @property
    def label(self) -> str:
        """For people: `n_cols in (724, 1448] div16, bf16`. What goes without saying is left out."""
        parts = []
        for name, value in self.dims.items():
            if isinstance(value, tuple):
                parts.append(f"{name} in ({value[0]}, {value[1]}] {self.facts.get(name, 'not div16')}")
            else:
                parts.append(f"{name}={value}")
        parts += dict.fromkeys(self.dtypes.values())
        parts += [f"{name} unaligned" for name in self.dtypes if name not in self.facts]
        return ", ".join(parts + [f"no {name}" for name, fact in self.facts.items() if fact == "none"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a config compiled to where it was timed.

    Attributes:
        sha256: of the machine code without what only debuggers read: two editions of a kernel, or two compilers, that
            agree in it are one and the same to a GPU.
        registers: per thread.
        spills: 4-byte registers spilled to local memory per thread.
        shared_bytes: shared memory of a block.
    """

    sha256: str
    registers: int
    spills: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One answer.

    Attributes:
        match: the calls it is for.
        measured_at: the dims of the problem that was measured; with the dtypes and facts of `match` its identity.
        config: what to use.
        median_ms: in the finals; None where an imported file does not say.
        interval_ms: 95 % interval of the median; None where an imported file does not say.
        default: the config used without tuning, or None.
        default_ms: its median in the same finals, or None.
        gain: default_ms / median_ms, or None.
        margin: runner-up's median over the winner's, minus 1, or None.
        code: what `config` compiled to, or None where that is not known; a pack leaves it out then.
    """

    match: Match
    measured_at: FrozenMap[Value]
    config: Config
    median_ms: float | None
    interval_ms: tuple[float, float] | None
    default: Config | None = None
    default_ms: float | None = None
    gain: float | None = None
    margin: float | None = None
    code: Code | None = None

    @property
    def identity(self) -> tuple[FrozenMap[Any], ...]:
        """Equal for two rows of one table that answer the same measured problem."""
        return self.measured_at, self.match.dtypes, self.match.facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where rows come from.

    Attributes:
        sweep: name of the experiment.
        experiment: digest of the experiment as it was swept.
        toolchain: versions of torch, triton, python, driver under which the times were taken.
        timer: how they were taken.
        source: `measured`, `replayed`, or `imported` from another tool's file.
        tunefarm: the release that wrote them.
        created: ISO date.
        checked: the winners' outputs were compared with a reference's. A pack says so only where they were not.
    """

    sweep: str
    experiment: str
    toolchain: FrozenMap[str]
    timer: str
    source: str
    tunefarm: str
    created: str
    checked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of one kernel on one device.

    Attributes:
        kernel: name of the kernel.
        source_hash: of the kernel and of what it calls.
        device: where the rows were measured.
        key_parts: what `key` is taken over (`source_hash`, `backend_options`, `triton`, `capability`), so that a
            mismatch can be explained.
        provenance: where the rows come from.
        rows: first match wins. A tuple, or what reads as one when it is looked into.
        layer: who consults the table, one of `LAYERS`. A pack says so only where it is not 1.
        key: SHA-256 of the key parts; set by `seal`.
        digest: over everything in the table; set by `seal`.
    """

    kernel: str
    source_hash: str
    device: Device
    key_parts: FrozenMap[Any]
    provenance: Provenance
    rows: Sequence[Row]
    layer: int = 1
    key: str = ""
    digest: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Kernel, device and key: two tables with one place answer the same launches."""
        return self.kernel, self.device.key, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What training code loads.

    Attributes:
        tables: by kernel, device and key.
        digest: one for all; equal digests on all ranks mean equal choices on all ranks.
    """

    tables: tuple[Table, ...]
    digest: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """`measured`, `replayed`: normally one of them."""
        return tuple(sorted({table.provenance.source for table in self.tables}))

    @property
    def num_rows(self) -> int:
        """Rows in all tables."""
        return sum(len(table.rows) for table in self.tables)


def seal(pack: Pack) -> Pack:
    """The pack in its one order, with keys and digests set."""
    return bind(_seal_table(table) for table in pack.tables)


def bind(tables: Iterable[Table]) -> Pack:
    """A sealed pack of tables that are."""
    ordered = tuple(sorted(tables, key=lambda table: table.place))
    return Pack(tables=ordered, digest=digest([table.digest for table in ordered]))


def _seal_table(table: Table) -> Table:
    rows = in_order(table.rows)
    table = replace(table, rows=rows, key=key_of(table), digest="")
    return replace(table, digest=digest([table_head(table), [plain(row) for row in rows]]))


def key_of(table: Table) -> str:
    """SHA-256 of a table's key parts."""
    return digest(plain(table.key_parts))


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows in the order in which a table holds them."""
    return tuple(sorted(rows, key=_row_order))


def _row_order(row: Row) -> tuple[Any, ...]:
    def numeric(value: Value) -> tuple[bool, float, str]:
        number = isinstance(value, int | float)
        return not number, float(value) if isinstance(value, int | float) else 0.0, str(value)

    match = row.match
    pointers = [name for name in match.facts if name in match.dtypes]
    facts = sorted(item for item in match.facts.items() if item[0] not in match.dtypes)
    dims = [(name, numeric(value)) for name, value in sorted(row.measured_at.items())]
    # A trace cannot see alignment and takes the first row: the one measured with aligned pointers, as they mostly are.
    return sorted(match.dtypes.items()), facts, dims, -len(pointers), sorted(pointers)


def dumps(pack: Pack) -> str:
    """The text of a sealed pack: equal packs give equal bytes."""
    tables = ",\n".join(
        one_row_a_line({**table_head(t), "digest": t.digest}, [plain(r) for r in t.rows], "rows").rstrip()
        for t in pack.tables
    )
    news = any(table.layer != 1 or any(row.code for row in table.rows) for table in pack.tables)
    version = VERSIONS["imported" in pack.sources or news]
    return f'{{"format": "{FORMAT}", "version": {version},\n"digest": "{pack.digest}",\n"tables": [\n{tables}\n]}}\n'


def table_head(table: Table) -> dict[str, Any]:
    """What of a table its digest covers and its file says before the rows."""
    names = ("kernel", "source_hash", "device", "key", "key_parts", "provenance")
    layer = {} if table.layer == 1 else {"layer": table.layer}
    return {name: plain(getattr(table, name)) for name in names} | layer


def plain(value: Any) -> Any:
    """A part of a pack as the JSON that stands in the file."""
    if isinstance(value, Config | Device):
        return value.to_json()
    if isinstance(value, Provenance) and value.checked:
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "checked"}
    if isinstance(value, Row) and value.code is None:
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "code"}
    if isinstance(value, Row | Match | Provenance | Code):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value
