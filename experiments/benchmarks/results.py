"""What `compare.py` recorded, and what people see of it: one JSON line a problem, a table, a picture.

{"workload", "problem", "device", "arch", "toolchain": {...}, "date", "num_bytes", "flops", "copy_tbps",
 "matmul_tflops", "config", "contenders": {name: {"samples_us": [...], "with_host"} | {"error"}}, "telemetry": {...}}

Sample i of every contender was taken in round i.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tunefarm.document import write_atomic
from tunefarm.errors import DocumentError
from tunefarm.trial import median_interval

CONTENDERS = ("default", "tuned", "eager", "compile", "max-autotune")
BEGIN, END = "<!-- what compare.py wrote -->", "<!-- until here -->"

Record = Mapping[str, Any]


def load(path: Path) -> list[dict[str, Any]]:
    """The records of a file, oldest first; none if there is no file.

    Raises:
        DocumentError: a line is no record.
    """
    records = []
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.exists() else (), 1):
        try:
            record = json.loads(line)
            record["workload"], record["problem"], record["device"], record["contenders"]
        except (ValueError, KeyError, TypeError) as e:
            raise DocumentError(
                f"line {number} is no record of a comparison: {type(e).__name__}: {e}", file=str(path),
                hint="remove the line, and compare that problem again",
            ) from None  # fmt: skip
        records.append(record)
    return records


def merge(records: Sequence[Record], fresh: Record) -> list[Record]:
    """The records with a new one: in place of an older one of the same problem and device, or at the end."""

    def identity(record: Record) -> tuple[str, ...]:
        return record["workload"], record["problem"], record["device"]

    replaced = [fresh if identity(record) == identity(fresh) else record for record in records]
    return replaced if fresh in replaced else [*replaced, fresh]


def save(path: Path, records: Sequence[Record]) -> None:
    """Writes the records, one a line."""
    write_atomic(path, "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode())


def median_us(record: Record, name: str) -> float | None:
    """Median time of a contender in microseconds; None where it failed or did not take part."""
    samples = record["contenders"].get(name, {}).get("samples_us")
    return statistics.median(samples) if samples else None


def gain(record: Record) -> tuple[float, tuple[float, float]] | None:
    """(Median of the rounds' ratios of default to tuned, its 95 % interval); None where one is missing."""
    if any(median_us(record, name) is None for name in ("default", "tuned")):
        return None
    samples = [record["contenders"][name]["samples_us"] for name in ("default", "tuned")]
    ratios = [a / b for a, b in zip(*samples, strict=True)]
    return statistics.median(ratios), median_interval(ratios)


def ceiling_us(record: Record) -> tuple[float, str] | None:
    """(least time of a problem in microseconds, `memory` or `compute`, which bounds it); None where both are unknown.

    Memory moves at the measured rate of a copy; arithmetic runs at the best rate seen, of `torch.mm` or a contender.
    """
    times = [median_us(record, name) for name in record["contenders"]]
    fastest = min((time for time in times if time is not None), default=None)
    bounds = []
    if record["num_bytes"] and record["copy_tbps"]:
        bounds.append((record["num_bytes"] / record["copy_tbps"] / 1e6, "memory"))
    if record["flops"] and record["matmul_tflops"]:
        seen = record["flops"] / fastest / 1e6 if fastest else 0.0
        bounds.append((record["flops"] / max(record["matmul_tflops"], seen) / 1e6, "compute"))
    return max(bounds, default=None)


def share(record: Record, name: str) -> float | None:
    """A contender's speed as a fraction of the ceiling; above 1 where outputs stay in the L2 cache."""
    time, ceiling = median_us(record, name), ceiling_us(record)
    return ceiling[0] / time if time and ceiling else None


def table(records: Sequence[Record]) -> str:
    """The records as Markdown, one table for each device and toolchain."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        tools = ", ".join(f"{name} {record['toolchain'][name]}" for name in sorted(record["toolchain"]))
        groups.setdefault(f"{record['device']} ({record['arch']}), {tools}", []).append(record)
    return "\n".join(_group(where, group) for where, group in groups.items())


def _group(where: str, records: Sequence[Record]) -> str:
    dates = sorted({record["date"] for record in records})
    names = [name for name in CONTENDERS if any(name in record["contenders"] for record in records)]
    notes: list[str] = []
    rounds = [len(c["samples_us"]) for r in records for c in r["contenders"].values() if c.get("samples_us")]
    between = f"{min(rounds)} to {max(rounds)}" if rounds and min(rounds) < max(rounds) else f"{max(rounds, default=0)}"
    lines = [
        f"{where}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}. Microseconds: medians of {between} samples, "
        "interleaved in random order, L2 flushed before each."
        + (" Blank: did not take part." if any(n not in r["contenders"] for r in records for n in names) else ""),
        "",
        "| problem | " + " | ".join(names) + " | gain | rate | of ceiling |",
        "|---|" + "--:|" * (len(names) + 3),
    ]
    for record in records:
        cells = [_time(record, name, notes) for name in names]
        of_ceiling = share(record, "tuned")
        cells += [_gain(record), _rate(record), f"{100 * of_ceiling:.0f} %" if of_ceiling else ""]
        lines.append(f"| {record['workload']} {record['problem']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(["", *notes] if notes else []), ""])


def _time(record: Record, name: str, notes: list[str]) -> str:
    contender = record["contenders"].get(name)
    if contender is None:
        return ""
    if error := contender.get("error"):
        notes.append(f"- {record['workload']} {record['problem']}, {name}: {error}")
        return "failed"
    if contender.get("with_host"):
        notes.append(
            f"- {record['workload']} {record['problem']}, {name}: the call waits for the GPU, so that its host's work "
            "is in the time"
        )
    return f"{median_us(record, name):.1f}" + ("*" if contender.get("with_host") else "")


def _gain(record: Record) -> str:
    found = gain(record)
    if found is None:
        return ""
    value, (low, high) = found
    return f"{value:.2f}x" + (" (tie)" if low <= 1 <= high else "")


def _rate(record: Record) -> str:
    time, ceiling = median_us(record, "tuned"), ceiling_us(record)
    if time is None or ceiling is None:
        return ""
    if ceiling[1] == "memory":
        return f"{record['num_bytes'] / time / 1e6:.2f} TB/s"
    return f"{record['flops'] / time / 1e6:.0f} TFLOP/s"


def insert(text: str, block: str, *, file: str) -> str:
    """A document with the block between its two markers.

    Raises:
        DocumentError: it has no such place.
    """
    pattern = re.compile(f"({re.escape(BEGIN)}\n).*?({re.escape(END)})", re.DOTALL)
    found, count = pattern.subn(lambda match: f"{match[1]}\n{block.strip()}\n\n{match[2]}", text)
    if count != 1:
        raise DocumentError(
            f"has {count} places for the table", file=file, hint=f"write one: a line {BEGIN}, and below it {END}"
        )
    return found


WIDTH, RIGHT, TOP, ROW, GAP, LETTER = 900, 60, 64, 18, 8, 7
STYLE = """\
text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a }
.name { font-weight: 600; fill: #24292f }
.rule { stroke: #8c959f; stroke-opacity: .35 }
.ceiling { stroke: #8c959f }
.tuned { fill: #2f81f7 }
.reach { fill: #2f81f7; fill-opacity: .3 }
.default { fill: none; stroke: #e5534b; stroke-width: 2 }
.eager { fill: #8c959f }
.compile { fill: #d4a72c }
.max-autotune { fill: #2da44e }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .name { fill: #e6edf3 } }
"""


def picture(records: Sequence[Record]) -> str:
    """The records as SVG: for each problem how much of the ceiling each contender reaches, the tuned one as a bar."""
    shown = [record for record in records if ceiling_us(record) is not None]
    shares = [share(record, name) or 0.0 for record in shown for name in record["contenders"]]
    left = 16 + LETTER * max((len(f"{record['workload']} {record['problem']}") for record in shown), default=0)
    scale = (WIDTH - left - RIGHT) / max([1.0, *shares])
    parts, y, workload = [], TOP, ""
    for record in shown:
        if workload and record["workload"] != workload:
            y += GAP
        parts += _row(record, y, left, scale, named=record["workload"] != workload)
        workload = record["workload"]
        y += ROW
    grid = []
    for percent in range(0, int(100 * max([1.0, *shares])) + 1, 20):
        x = left + scale * percent / 100
        kind = "ceiling" if percent == 100 else "rule"
        grid.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{y + 4}"/>')
        grid.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{percent} %</text>')
    devices = ", ".join(dict.fromkeys(record["device"] for record in shown))
    legend = f'<text x="0" y="16"><tspan class="name">{escape(devices)}</tspan></text>'
    x = left
    for name in CONTENDERS:
        if any(name in record["contenders"] for record in shown):
            legend += _mark(name, x + 6, 12) + f'<text x="{x + 16}" y="16">{name}</text>'
            x += 34 + LETTER * len(name)
    legend += f'<text x="{WIDTH}" y="16" text-anchor="end">speed, of the ceiling</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 8}" width="{WIDTH}" height="{y + 8}">'
    return "\n".join([head, f"<style>\n{STYLE}</style>", legend, *grid, *parts, "</svg>", ""])


def _row(record: Record, y: int, left: int, scale: float, *, named: bool) -> list[str]:
    name = f'<tspan class="name">{escape(record["workload"])}</tspan> ' if named else ""
    middle = y + ROW / 2
    label = f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{name}{escape(record["problem"])}</text>'
    parts = [label]
    if tuned := share(record, "tuned"):
        width = scale * tuned
        parts.append(f'<rect class="reach" x="{left}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>')
        parts.append(_mark("tuned", left + width, middle))
        parts.append(f'<text x="{WIDTH}" y="{middle + 4}" text-anchor="end">{100 * tuned:.0f} %</text>')
    for name in CONTENDERS:
        if name != "tuned" and (reached := share(record, name)):
            parts.append(_mark(name, left + scale * reached, middle))
    return parts


def _mark(name: str, x: float, y: float) -> str:
    """A contender's mark, told from the others by its form, too."""
    if name == "tuned":
        return f'<rect class="tuned" x="{x - 4:.1f}" y="{y - 6:.1f}" width="4" height="12"/>'
    if name == "default":
        return f'<circle class="default" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    forms = {"eager": "M-4-4h8v8h-8z", "compile": "M0-5 5 4h-10z", "max-autotune": "M0-5 5 0 0 5-5 0z"}
    return f'<path class="{name}" d="{forms[name]}" transform="translate({x:.1f} {y:.1f})"/>'
