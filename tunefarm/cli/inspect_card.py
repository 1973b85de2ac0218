"""What a look inside a compiled config shows: a card of one, a table of two, findings, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tunefarm.bench import sass
from tunefarm.bench.findings import Finding
from tunefarm.bench.inspection import Inspection, Loop
from tunefarm.bench.listing import Place
from tunefarm.config import Config, counted
from tunefarm.device import KIB, Device
from tunefarm.occupancy import MAX_REGISTERS

if TYPE_CHECKING:
    from rich.table import Table

    from tunefarm.inspecting import Look

_FEWEST = 0.02
"""Share of the instructions from which a kind is shown by itself."""

_MOST_LOOPS = 6

UNMEASURED = (
    "counted in the code, for which no GPU is needed: how often each runs, what stalls and how long, is not told"
)


def rows(it: Inspection) -> list[tuple[str, str]]:
    """The figures of a compiled config, each by its name."""
    limits = ", ".join(f"{name} {number}" for name, number in it.occupancy.limits.items())
    found = [
        ("config", str(it.config)),
        ("registers", f"{it.usage.registers} of {MAX_REGISTERS} a thread"),
        ("spills", _spills(it)),
        ("shared memory", f"{it.shared_bytes} B a block"),
        ("occupancy", _occupancy(it)),
        ("blocks allowed", limits),
        ("grid", _grid(it)),
        ("instructions", f"{it.num_instructions}: {_mix(it)}"),
        ("global loads", _widths(it.loads)),
        ("global stores", _widths(it.stores)),
        ("async copies", _widths(it.copies)),
        ("TMA", _counts(it.tma)),
        ("tensor cores", _counts(it.tensor)),
        ("loops", ", ".join(f"{stage} {number}" for stage, number in it.num_loops.items())),
    ]
    found += [(f"  loop {number}", _loop(loop)) for number, loop in enumerate(it.loops[:_MOST_LOOPS], 1)]
    if more := len(it.loops) - _MOST_LOOPS:
        found += [("  more loops", str(more))] if more > 0 else []
    found.append(("code", ", ".join(f"{stage} {size / KIB:.1f} KiB" for stage, size in it.stage_bytes.items())))
    if it.stage_s:
        parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in it.stage_s.items())
        found.append(("compiled in", f"{sum(it.stage_s.values()):.2f} s: {parts}"))
    return found


TIMES = ("compiled in",)
"""Rows that differ from one time to the next."""


def _spills(it: Inspection) -> str:
    if not it.spill_store_bytes + it.spill_load_bytes:
        return "none" if not it.usage.stack_bytes else f"none; {it.usage.stack_bytes} B of stack a thread"
    return f"{it.spill_store_bytes} B written, {it.spill_load_bytes} B read a thread; {it.usage.stack_bytes} B of stack"


def _occupancy(it: Inspection) -> str:
    held = it.occupancy
    blocks = f"{counted(held.blocks, 'block')} on an SM, {held.warps} of {held.max_warps} warps"
    return f"{held.share:.0%}: {blocks}; limit: {', '.join(held.limiters)}"


def _grid(it: Inspection) -> str:
    if not it.grid:
        return "not known"
    text = f"{counted(it.num_programs, 'program')} of {counted(it.num_warps, 'warp')}"
    text += f" in clusters of {it.num_ctas}" if it.num_ctas > 1 else ""
    return f"{text}, {it.waves:.1f} waves on {it.device.num_sms} SMs" if it.occupancy.blocks else text


def _mix(it: Inspection) -> str:
    shares = {kind: number / it.num_instructions for kind, number in it.kinds.items()}
    shown = [f"{kind} {share:.0%}" for kind, share in shares.items() if share >= _FEWEST]
    rest = sum(share for share in shares.values() if share < _FEWEST)
    return ", ".join(shown + ([f"others {rest:.0%}"] if rest else []))


def _widths(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{number} x {width} B a thread" for width, number in widths.items()) or "none"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in counts.items()) or "none"


def _loop(loop: Loop) -> str:
    where = f"{loop.lines[0]}-{loop.lines[-1].line}" if loop.lines else "lines not known"
    inside = "  inside another: " if loop.depth else ""
    text = f"{inside}{where}, {counted(loop.num_instructions, 'instruction')}"
    text += f", unrolled {loop.copies} times by the assembler" if loop.copies > 1 else ""
    shown = (
        sass.TENSOR,
        sass.TMA,
        sass.ASYNC_COPY,
        sass.GLOBAL_LOAD,
        sass.GLOBAL_STORE,
        sass.LOCAL_LOAD,
        sass.LOCAL_STORE,
    )
    kinds = [f"{loop.kinds[kind]} {kind}" for kind in shown if loop.kinds.get(kind)]
    return "; ".join([text, ", ".join(kinds)] if kinds else [text])


def card(it: Inspection) -> list[str]:
    """One config, a figure a line."""
    return [f"{name:<15}{text}" for name, text in rows(it)]


def table(first: Inspection, second: Inspection) -> Table:
    """Two configs side by side; what differs is marked."""
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("figure", "", "one", "other"):
        grid.add_column(name, overflow="fold")
    sides = dict(rows(first)), dict(rows(second))
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(name, "") for side in sides)
        grid.add_row(name, "*" if one != other and name not in TIMES else "", one, other)
    return grid


def told(findings: Sequence[Finding]) -> Iterator[str]:
    """Findings, each with its evidence and with what may help."""
    for finding in findings:
        yield f"{finding.kind}: {finding.evidence[0]}"
        yield from (f"    {line}" for line in finding.evidence[1:])
        yield f"    may help: {finding.advice}"


def plain(look: Look) -> dict[str, Any]:
    """A look as plain data; the texts are left to `--stage`."""
    it = look.inspection
    held = it.occupancy
    shown: dict[str, Any] = _plain(it)
    shown["occupancy"] |= {"warps": held.warps, "share": held.share, "limiters": list(held.limiters)}
    return shown | {
        "num_programs": it.num_programs, "waves": round(it.waves, 3), "findings": _plain(look.findings),
        "stages": list(look.texts),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Config | Device):
        return value.to_json()
    if isinstance(value, Place):
        return str(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
