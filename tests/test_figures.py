"""Figures: their places are computed here again, from numbers alone; and markup lets nothing through."""

from __future__ import annotations

import math
import random
import re
from xml.etree import ElementTree

import pytest

from tunefarm.record.figures import (
    HEIGHT,
    LEFT,
    NUM_BINS,
    RIGHT,
    WIDTH,
    Effect,
    Scale,
    course,
    distribution,
    effects,
    fates,
    roofline,
    running,
    shares,
    short,
)
from tunefarm.record.markup import Markup, join, tag, text

SVG = "{http://www.w3.org/2000/svg}"


def shapes(picture: str, name: str, class_: str = "") -> list[ElementTree.Element]:
    """Elements of a picture, which parses."""
    found = ElementTree.fromstring(picture).iter(f"{SVG}{name}")
    return [element for element in found if class_ in (element.get("class") or "")]


def words(picture: str) -> list[str]:
    return [element.text or "" for element in shapes(picture, "text")]


# ---- markup ----


def test_what_is_no_markup_is_escaped_wherever_it_stands() -> None:
    hostile = """<script>alert("1")</script> & 'x'"""
    made = tag("td", hostile, title=hostile)
    assert "<script" not in made
    assert ElementTree.fromstring(made).text == ElementTree.fromstring(made).get("title") == hostile
    assert join([hostile, tag("b", hostile)]).count("<") == 2
    assert text(tag("b", "x")) == "<b>x</b>"
    assert not isinstance(tag("b") + "<", Markup), "what is put together by hand is text again"


def test_documents_hold_no_control_characters() -> None:
    assert text("a\x00b\x1bc\ud800d\te") == "a?b?c?d\te"
    ElementTree.fromstring(tag("p", "".join(map(chr, range(0x300))) + "\ufffe"))


def test_attributes() -> None:
    assert tag("a", class_="b", data_v=1, open=None, x=0.25, y=2.0) == '<a class="b" data-v="1" x="0.2" y="2"></a>'
    assert tag("meta", name="n") == '<meta name="n">'


# ---- scales ----


@pytest.mark.parametrize("seed", range(40))
def test_ticks_lie_on_the_axis_in_order(seed: int) -> None:
    drawn = random.Random(seed)
    low = 10 ** drawn.uniform(-4, 5)
    scale = Scale(low=low, high=low * (1 + 10 ** drawn.uniform(-3, 3)), start=10, end=90, is_log=bool(seed % 2))
    ticks = scale.ticks
    assert 2 <= len(ticks) <= 24
    assert ticks == sorted(set(ticks))
    assert all(scale.low * 0.999 <= tick <= scale.high * 1.001 for tick in ticks)
    places = [scale(tick) for tick in ticks]
    assert places == sorted(places)
    assert (scale(scale.low), scale(scale.high), scale(scale.high * 9)) == (10, 90, 90)


def test_numbers_are_short() -> None:
    given = (0.0, 1.0, 1438.8, 20.833, 0.0012345, 12345.6, -3.25, math.inf)
    assert [short(value) for value in given] == ["0", "1", "1439", "20.83", "0.001234", "12346", "-3.25", "n/a"]


# ---- figures ----


def test_the_distribution_counts_every_candidate_and_marks_two() -> None:
    times_ms = [0.010 * 1.07**k for k in range(50)]
    picture = distribution(times_ms, 0.010, 0.050)
    bars = shapes(picture, "rect", "bar")
    assert sum(int(bar[0].text or 0) for bar in bars) == 50
    assert len(bars) <= NUM_BINS
    low, high = math.log(10 / 1.02), math.log(max(times_ms) * 1e3 * 1.02)
    for class_, us in (("winner", 10.0), ("default", 50.0)):
        (mark,) = shapes(picture, "line", f"mark {class_}")
        wanted = LEFT + (math.log(us) - low) / (high - low) * (WIDTH - RIGHT - LEFT)
        assert float(mark.get("x1") or 0) == pytest.approx(wanted, abs=0.1)
    assert {"winner 10", "default 50"} <= set(words(picture))


@pytest.mark.parametrize("times_ms", [[0.01], [0.01, 0.01], [1e-6, 1e4]])
def test_few_times_make_a_figure_too(times_ms: list[float]) -> None:
    assert shapes(distribution(times_ms, None, None), "rect", "bar")
    assert shapes(course([(float(k), ms) for k, ms in enumerate(times_ms, 1)], "measurements", None), "path")


def test_the_course_falls_where_a_time_was_the_best_so_far() -> None:
    points = [(1.0, 0.030), (2.0, 0.040), (3.0, 0.020), (4.0, 0.025), (5.0, 0.010)]
    assert running(points) == [points[0], points[2], points[4]]
    picture = course(points, "measurements", 0.030)
    (dots,) = shapes(picture, "path", "dots")
    places = re.findall(r"M([0-9.]+) ([0-9.]+)h0", dots.get("d") or "")
    assert len(places) == 5
    assert all(0 < float(y) < HEIGHT for _, y in places)
    (way,) = shapes(picture, "path", "way")
    across = [float(x) for x in re.findall(r"H([0-9.]+)", way.get("d") or "")]
    wanted = [LEFT + x / 5 * (WIDTH - RIGHT - LEFT) for x in (3, 5, 5)]
    assert across == pytest.approx(wanted, abs=0.1)
    assert "default 30" in words(picture)


def test_effects_show_best_and_median_of_each_value() -> None:
    many = [Effect(value="64", num=4, num_timed=3, best=1.0, median=2.0), Effect(value="128", num=2)]
    picture = effects([("BLOCK", many), ("x" * 40, [Effect(value="<", num=1, num_timed=1, best=1.5, median=4.0)])])
    assert [float(c.get("cx") or 0) for c in shapes(picture, "circle")] == pytest.approx(
        [124, 124 + math.log(1.5) / math.log(4) * (WIDTH - RIGHT - 124)], abs=0.1
    )
    assert {"BLOCK", "64", "128", "not timed", "<"} <= set(words(picture))


def test_a_bar_of_fates_is_divided_by_counts() -> None:
    picture = fates([("measured", 30), ("failed", 0), ("left", 70)])
    widths = [float(r.get("width") or 0) for r in shapes(picture, "rect", "fate") if r.get("height") == "14"]
    assert widths == pytest.approx([WIDTH * 0.3, WIDTH * 0.7], abs=0.1)
    assert words(picture) == ["30 measured", "70 left"]


def test_shares_are_as_long_as_they_say() -> None:
    picture = shares([("a", 0.5, 0.25), ("b" * 80, 1.2, None)])
    bars = shapes(picture, "rect", "winner")
    assert [float(bar.get("width") or 0) for bar in bars] == pytest.approx(
        [(WIDTH - 4) * 0.5 / 1.2, WIDTH - 4], abs=0.1
    )
    assert {"50%", "120%"} <= set(words(picture))


def test_a_roofline_is_above_what_the_memory_allows() -> None:
    # 4000 GB/s: at 10 FLOP per byte 40 TFLOP/s at most.
    picture = roofline([("memory", 10.0, 30.0, 20.0), ("arithmetic", 1000.0, 700.0, None)], 4000.0)
    (roof,) = shapes(picture, "line", "roof")
    slope = (float(roof.get("y1") or 0) - float(roof.get("y2") or 0)) / (
        float(roof.get("x2") or 0) - float(roof.get("x1") or 0)
    )
    won = shapes(picture, "circle", "winner")
    x, y = float(won[0].get("cx") or 0), float(won[0].get("cy") or 0)
    at_x = float(roof.get("y1") or 0) - slope * (x - float(roof.get("x1") or 0))
    assert at_x < y, "the point lies below the roof, which is up the page"
    assert len(shapes(picture, "circle", "default")) == 1
