"""Figures of a report as inline SVG: pure functions of numbers. Colours are classes, which the page's style names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunefarm.record.markup import Child, Markup, tag

WIDTH = 380
"""Of a figure, in its own units: narrow enough for a phone, so that letters keep their size there."""
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 34, 34
HEIGHT = 230
MAX_POINTS = 300
MOST = 3.0
"""Times beyond this multiple of the best are shown as that where the way to the best is the matter."""
NUM_BINS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Places of values along an axis.

    Attributes:
        low: value at its beginning.
        high: value at its end.
        start: place of the beginning.
        end: place of the end.
        is_log: whether equal ratios are equally far apart.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is; what lies beyond an end is at that end."""
        low, high, at = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        part = 0.5 if high == low else (at - low) / (high - low)
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values along it, three to eight of them where there is room."""
        if not self.is_log:
            return _round(self.low, self.high, 5)
        span = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
            found = [d * 10.0**power for power in span for d in digits if self.low <= d * 10.0**power <= self.high]
            if len(found) >= 3:
                return found
        return _round(self.low, self.high, 4)


def _round(low: float, high: float, num: int) -> list[float]:
    """Round values between two, about `num` of them."""
    if high <= low:
        return [low]
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(d * power for d in (1, 2, 5, 10) if d * power >= rough)
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number as axes and tables show it: four digits, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "n/a"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    shown = f"{value:.{min(digits, 9)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def figure(name: str, parts: Iterable[Child], *, height: float = HEIGHT, width: float = WIDTH) -> Markup:
    """A picture that says its name to those who cannot see it."""
    size = f"0 0 {width:g} {height:g}"
    return tag("svg", *parts, viewBox=size, role="img", aria_label=name, xmlns="http://www.w3.org/2000/svg")


def label(x: float, y: float, words: str, anchor: str = "start", class_: str | None = None) -> Markup:
    """Words in a picture."""
    return tag("text", words, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _across(scale: Scale, top: float, bottom: float, unit: str) -> list[Markup]:
    """The horizontal axis: rules, numbers and unit."""
    made = []
    for value in scale.ticks:
        made += [line(scale(value), top, scale(value), bottom, "rule")]
        made += [label(scale(value), bottom + 14, short(value), "middle")]
    return [*made, label(scale.end, bottom + 29, unit, "end", "unit")]


def _upward(scale: Scale, left: float, right: float, unit: str, top: float) -> list[Markup]:
    """The vertical axis: rules, numbers and unit."""
    made = []
    for value in scale.ticks:
        made += [line(left, scale(value), right, scale(value), "rule")]
        made += [label(left - 6, scale(value) + 4, short(value), "end")]
    return [*made, label(2, top, unit, "start", "unit")]


def _mark(x: float, y: float, bottom: float, words: str, class_: str) -> list[Markup]:
    """An upright line with its name on the side where there is room."""
    side, dx = ("end", -5.0) if x > WIDTH * 0.55 else ("start", 5.0)
    return [line(x, y - 9, x, bottom, f"mark {class_}"), label(x + dx, y, words, side, class_)]


def distribution(times_ms: Sequence[float], winner_ms: float | None, default_ms: float | None) -> Markup:
    """How many candidates take how long, with the winner and the default marked; time on a logarithmic scale.

    Args:
        times_ms: of every candidate that was timed; at least one.
        winner_ms: time of the winner, if there is one.
        default_ms: time of the default, if it runs.
    """
    marks = [ms for ms in (winner_ms, default_ms) if ms is not None]
    low_us, high_us = min((*times_ms, *marks)) * 1e3 / 1.02, max((*times_ms, *marks)) * 1e3 * 1.02
    across = Scale(low=low_us, high=high_us, start=LEFT, end=WIDTH - RIGHT, is_log=True)
    counts = bins([across(ms * 1e3) for ms in times_ms], across.start, across.end)
    bottom = HEIGHT - BOTTOM
    upward = Scale(low=0, high=max(counts), start=bottom, end=TOP + 16)
    step = (across.end - across.start) / NUM_BINS
    bars = [
        tag("rect", tag("title", count), x=across.start + index * step + 0.5, y=upward(count), width=step - 1,
            height=bottom - upward(count), class_="bar")
        for index, count in enumerate(counts)
        if count
    ]  # fmt: skip
    whole = [tick for tick in upward.ticks if tick == int(tick)]
    rules = [line(LEFT, upward(tick), WIDTH - RIGHT, upward(tick), "rule") for tick in whole]
    numbers = [label(LEFT - 6, upward(tick) + 4, short(tick), "end") for tick in whole]
    parts = [*rules, *numbers, label(2, 11, "candidates", "start", "unit"), *_across(across, bottom, bottom + 3, "us")]
    parts += bars
    if default_ms is not None:
        parts += _mark(across(default_ms * 1e3), TOP + 8, bottom, f"default {short(default_ms * 1e3)}", "default")
    if winner_ms is not None:
        parts += _mark(across(winner_ms * 1e3), TOP - 8, bottom, f"winner {short(winner_ms * 1e3)}", "winner")
    return figure("Distribution of the candidates' times", parts)


def bins(places: Sequence[float], start: float, end: float, num: int = NUM_BINS) -> list[int]:
    """How many of some places lie in each of `num` equal parts between two."""
    counts = [0] * num
    for place in places:
        counts[min(num - 1, max(0, int((place - start) / (end - start) * num)))] += 1
    return counts


def course(points: Sequence[tuple[float, float]], unit: str, default_ms: float | None) -> Markup:
    """Times as they were taken, and the best so far, against what they cost.

    Args:
        points: (cost so far, time in ms) of each measurement in turn; at least one.
        unit: of the cost.
        default_ms: time of the default, if it runs.
    """
    best = running(points)
    times_us = [ms * 1e3 for _, ms in points] + ([default_ms * 1e3] if default_ms is not None else [])
    across = Scale(low=0, high=max(x for x, _ in points), start=LEFT, end=WIDTH - RIGHT)
    # How bad the bad ones are says nothing of the way to the best: they lie on the upper edge.
    low_us = min(times_us)
    high_us = min(max(times_us), low_us * MOST) * 1.05
    bottom = HEIGHT - BOTTOM
    upward = Scale(low=low_us / 1.03, high=max(high_us, low_us * 1.1), start=bottom, end=TOP - 12, is_log=True)
    every = math.ceil(len(points) / MAX_POINTS)
    # Lines without length and with round ends: a path holds a hundred dots in the room of ten circles.
    dots = "".join(f"M{across(x):.0f} {upward(ms * 1e3):.1f}h0" for x, ms in points[::every])
    way = f"M{across(best[0][0]):.1f} {upward(best[0][1] * 1e3):.1f}"
    way += "".join(f"H{across(x):.1f}V{upward(ms * 1e3):.1f}" for x, ms in best[1:]) + f"H{across.end:.1f}"
    parts: list[Markup] = [*_upward(upward, LEFT, WIDTH - RIGHT, "us", 11), *_across(across, bottom, bottom + 3, unit)]
    if default_ms is not None:
        y = upward(default_ms * 1e3)
        parts += [
            line(LEFT, y, WIDTH - RIGHT, y, "mark default"),
            label(WIDTH - RIGHT, y - 4, f"default {short(default_ms * 1e3)}", "end", "default"),
        ]
    parts += [tag("path", d=dots, class_="dots"), tag("path", d=way, class_="way")]
    return figure("Best time so far against cost", parts)


def running(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points at which a series reached a new low."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is known of the candidates in which a param has one value.

    Attributes:
        value: as text.
        num: candidates that have it.
        num_timed: of those that were timed.
        best: time of the fastest, over that of the fastest of all; None where none was timed.
        median: the same of the middle one.
    """

    value: str
    num: int
    num_timed: int = 0
    best: float | None = None
    median: float | None = None


MAX_ROWS = 44
"""Values shown in the picture of effects; tables have them all."""


def effects(found: Sequence[tuple[str, Sequence[Effect]]]) -> Markup:
    """Of each param and value, from the fastest candidate that has it to the middle one.

    Args:
        found: params with what is known of their values; at least one was timed.
    """
    shown = [effect.median for _, many in found for effect in many if effect.median is not None]
    across = Scale(low=1.0, high=min(16.0, max(1.15, *shown)), start=124, end=WIDTH - RIGHT, is_log=True)
    parts: list[Markup] = []
    y = 14.0
    num_rows = 0
    for name, many in found:
        if num_rows + len(many) > MAX_ROWS and num_rows:
            break
        parts.append(label(0, y, name if len(name) <= 30 else f"{name[:27]}...", "start", "name"))
        for effect in many[:MAX_ROWS]:
            y += 15
            num_rows += 1
            said = effect.value if len(effect.value) <= 14 else f"{effect.value[:11]}..."
            parts.append(label(116, y + 4, said or "(empty)", "end"))
            parts.append(line(across.start, y, across.end, y, "rule"))
            if effect.best is None or effect.median is None:
                parts.append(label(across.start + 4, y + 4, "not timed" if effect.num else "", "start", "unit"))
                continue
            parts.append(line(across(effect.best), y, across(effect.median), y, "span"))
            parts.append(tag("circle", cx=across(effect.best), cy=y, r=4, class_="winner fill"))
        y += 20
    parts = [*_across(across, 6, y - 8, "time over the best: fastest to median"), *parts]
    return figure("Effect of each param", parts, height=y + 26)


def fates(counts: Sequence[tuple[str, int]]) -> Markup:
    """A bar of all candidates, divided by what became of them."""
    total = max(1, sum(count for _, count in counts))
    parts: list[Markup] = []
    x, at = 0.0, 0.0
    for name, count in counts:
        if count:
            width = WIDTH * count / total
            parts.append(
                tag("rect", tag("title", f"{count} {name}"), x=x, y=0, width=width, height=14, class_=f"fate {name}")
            )
            x += width
    row = 0
    for name, count in counts:
        if count:
            words = f"{count} {name}"
            if at + 16 + 7 * len(words) > WIDTH:
                row, at = row + 1, 0.0
            parts.append(tag("rect", x=at, y=22 + 16 * row, width=9, height=9, class_=f"fate {name}"))
            parts.append(label(at + 13, 31 + 16 * row, words))
            at += 26 + 6.6 * len(words)
    return figure("What became of the candidates", parts, height=38 + 16 * row)


def shares(rows: Sequence[tuple[str, float, float | None]]) -> Markup:
    """Bars: the share of the memory bandwidth that winners reach, and where defaults stand.

    Args:
        rows: (label, winner's share, default's share or None).
    """
    most = max(1.0, *(share for _, share, _ in rows))
    across = Scale(low=0, high=most * 100, start=0, end=WIDTH - 4)
    parts: list[Markup] = []
    y = 8.0
    for name, won, default in rows:
        x = across(won * 100)
        parts.append(label(0, y + 6, name if len(name) <= 44 else f"{name[:41]}..."))
        parts.append(label(WIDTH - 4, y + 6, f"{won:.0%}", "end", "winner"))
        parts.append(tag("rect", x=0, y=y + 11, width=WIDTH - 4, height=9, class_="track"))
        parts.append(tag("rect", x=0, y=y + 11, width=x, height=9, class_="winner fill"))
        if default is not None:
            at = across(default * 100)
            parts.append(line(at, y + 8, at, y + 23, "mark default"))
        y += 34
    parts += [label(0, y + 8, "% of the memory bandwidth", "start", "unit")]
    parts += [label(WIDTH - 4, y + 8, "| default", "end", "default")]
    return figure("Share of the memory bandwidth", parts, height=y + 16)


def roofline(rows: Sequence[tuple[str, float, float, float | None]], bandwidth_gbps: float) -> Markup:
    """Arithmetic rate over arithmetic intensity, under the roof that the memory's bandwidth makes.

    Args:
        rows: (label, FLOP per byte, winner's TFLOP/s, default's TFLOP/s or None).
        bandwidth_gbps: of the device.
    """
    rates = [rate for _, _, won, default in rows for rate in (won, default) if rate is not None]
    low_x, high_x = min(x for _, x, _, _ in rows) / 2, max(x for _, x, _, _ in rows) * 2
    across = Scale(low=low_x, high=high_x, start=LEFT, end=WIDTH - RIGHT, is_log=True)
    bottom = HEIGHT - BOTTOM
    roof = [(x, x * bandwidth_gbps / 1e3) for x in (low_x, high_x)]
    high = max(rates) * 2
    upward = Scale(low=min(*rates, high / 4) / 2, high=high, start=bottom, end=TOP - 12, is_log=True)
    # Where the roof leaves the picture, or enters it.
    ends = [(min(max(x, upward.low / bandwidth_gbps * 1e3), upward.high / bandwidth_gbps * 1e3), y) for x, y in roof]
    parts = [
        *_upward(upward, LEFT, WIDTH - RIGHT, "TFLOP/s", 11),
        *_across(across, bottom, bottom + 3, "FLOP per byte"),
    ]
    (x1, y1), (x2, y2) = ends
    if x2 > x1:
        parts.append(line(across(x1), upward(y1), across(x2), upward(y2), "mark roof"))
        parts.append(label(across(x2) - 6, upward(y2) + 14, "memory", "end", "unit"))
    for name, x, won, default in rows:
        if default is not None:
            parts.append(line(across(x), upward(default), across(x), upward(won), "span"))
            parts.append(tag("circle", cx=across(x), cy=upward(default), r=3.5, class_="default hollow"))
        parts.append(tag("circle", tag("title", name), cx=across(x), cy=upward(won), r=4, class_="winner fill"))
    return figure("Roofline", parts)
