"""Figures of a report as files of their own, for whoever shows pictures and not pages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tunefarm.record.account import StudyAccount
from tunefarm.record.figures import label
from tunefarm.record.markup import Markup, join, tag
from tunefarm.record.report import ceilings
from tunefarm.record.sheet import Figure
from tunefarm.record.study_report import figures
from tunefarm.record.style import ALONE

SCALE = 2.0
"""Of a picture that nobody fits into a column: letters of 24 pixels."""
MARGIN, CAPTION = 10, 26

_PARTS = re.compile(r'<svg viewBox="0 0 ([0-9.]+) ([0-9.]+)"[^>]*>(.*)</svg>', re.DOTALL)


def drawn(study: StudyAccount) -> dict[str, bytes]:
    """The figures that a report shows of a study as SVG files, by name."""
    return named([*figures(study), *ceilings([study])])


def named(found: Iterable[Figure]) -> dict[str, bytes]:
    """Figures as SVG files, named after their titles."""
    return {f"{_file(figure.title)}.svg": standalone(figure) for figure in found}


def _file(title: str) -> str:
    # What it is of, the folder and the run tell.
    return re.sub(r"\W+", "_", title.partition(" of ")[0].lower())


def standalone(figure: Figure) -> bytes:
    """A figure with its title above it, its looks and a ground of its own."""
    parts = _PARTS.fullmatch(figure.picture)
    assert parts is not None, "as `figures.figure` makes them"
    width, height = float(parts[1]) + 2 * MARGIN, float(parts[2]) + CAPTION + 2 * MARGIN
    left, top = -MARGIN, -CAPTION - MARGIN
    inside = join(
        [
            tag("style", Markup(ALONE)), tag("desc", figure.words),
            tag("rect", x=left, y=top, width=width, height=height, fill="#fff"),
            label(0, -10, figure.title, class_="name"), Markup(parts[3]),
        ]
    )  # fmt: skip
    return tag(
        "svg", inside, xmlns="http://www.w3.org/2000/svg", viewBox=f"{left} {top} {width:g} {height:g}",
        width=width * SCALE, height=height * SCALE,
    ).encode()  # fmt: skip
