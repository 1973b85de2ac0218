"""The picture of a search's progress: the share of the optimum by configs measured, a line for each contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 360, 56, 24, 40
COLOURS = ("#2f81f7", "#8250df", "#2da44e", "#d4a72c", "#8c959f", "#e5534b", "#bf3989")
DASHES = ("", "6 3", "2 2", "8 3 2 3")
"""Once all colours are given, they come again with the next of these."""
STYLE = """\
text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a }
.rule { stroke: #8c959f; stroke-opacity: .35 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } }
"""


def picture(curves: Mapping[str, Mapping[int, float]], after: Sequence[int]) -> str:
    """As SVG.

    Args:
        curves: by name of the contender, the share after so many configs; not every one has a value for each.
        after: the numbers of configs for which there may be one, ascending.
    """
    shown = [count for count in after if any(count in curve for curve in curves.values())]
    low = min(0.95, *(min(curve.values()) for curve in curves.values()))
    legend = 44 + 7 * max(map(len, curves))
    right, height = WIDTH - legend, max(HEIGHT, TOP + BOTTOM + 18 * len(curves))

    def place(count: int, value: float) -> tuple[float, float]:
        x = LEFT + (right - LEFT) * shown.index(count) / max(1, len(shown) - 1)
        return x, TOP + (height - TOP - BOTTOM) * (1 - value) / (1 - low)

    parts = []
    for step in range(5):
        value = 1 - step * (1 - low) / 4
        _, y = place(shown[0], value)
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * value:.0f} %</text>')
    for count in shown:
        x, _ = place(count, 1)
        parts.append(f'<text x="{x:.1f}" y="{height - 20}" text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{LEFT}" y="{height - 4}">configs measured; share of the best config\'s speed</text>')
    for number, (name, curve) in enumerate(curves.items()):
        stroke = _stroke(number)
        points = " ".join("{:.1f},{:.1f}".format(*place(count, value)) for count, value in curve.items())
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        y = TOP + 18 * number + 5
        parts.append(f'<line x1="{right + 12}" x2="{right + 30}" y1="{y}" y2="{y}" {stroke}/>')
        parts.append(f'<text x="{right + 36}" y="{y + 4}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f"<style>\n{STYLE}</style>", *parts, "</svg>", ""])


def _stroke(number: int) -> str:
    """Colour and dashes of a line; the same for two of them only where all pairs are given."""
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    colour = f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"'
    return f'{colour} stroke-dasharray="{dashes}"' if dashes else colour
