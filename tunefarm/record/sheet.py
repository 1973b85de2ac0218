"""Sheets: what a report says, before it is known whether as a page or as Markdown. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.record.figures import short
from tunefarm.record.markup import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what it says.
        order: by what it is sorted, if not by its text.
        look: `code`, `name`, `good`, `bad`, `muted`, or empty.
        under: a config that stands below it.
        detail: more, for who asks.
    """

    text: str
    order: float | None = None
    look: str = ""
    under: str = ""
    detail: str = ""


Given: TypeAlias = Cell | str | int | float | None
"""What a row may be made of; numbers are written short, None is an empty cell."""


def cell(value: Given) -> Cell:
    """A value as a cell."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, int | float):
        return Cell(text=str(value) if isinstance(value, int) else short(value), order=float(value))
    return Cell(text=value or "")


def code(text: str) -> Cell:
    """A config, or what else is to be read letter by letter."""
    return Cell(text=text, look="code")


def named(text: str, config: str = "") -> Cell:
    """What a row is about, on one line, and its config below."""
    return Cell(text=text, look="name", under=config)


def time(ms: float | None) -> Cell:
    """A duration, in us as people read it."""
    return Cell(text="") if ms is None else Cell(text=short(ms * 1e3), order=ms)


def interval(pair: tuple[float, float] | None, factor: float = 1e3) -> str:
    """An interval, such as of a duration in ms, in us."""
    return "" if pair is None else f"{short(pair[0] * factor)} to {short(pair[1] * factor)}"


def sure(text: str, value: float | None, pair: tuple[float, float] | None, factor: float = 1e3) -> Cell:
    """A value with its interval."""
    if value is None:
        return Cell(text="")
    return Cell(text=f"{text} ({interval(pair, factor)})" if pair is not None else text, order=value)


def percent(share: float | None, digits: int = 1) -> Cell:
    """A share."""
    return Cell(text="") if share is None else Cell(text=f"{share:.{digits}%}", order=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its name, and whether it holds numbers."""

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        title: above it.
        columns: from left to right.
        rows: as they stand before anybody sorts them.
        note: below it.
        is_folded: shown when somebody asks for it.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    is_folded: bool = False


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Given]], *, note: str = "", is_folded: bool = False
) -> Table:
    """A table, without the columns in which nothing stands.

    Args:
        title: above it.
        columns: names; those of numbers begin with `#`, which is not shown.
        rows: a value for each column.
        note: below it.
        is_folded: shown when somebody asks for it.
    """
    cells = [tuple(cell(value) for value in row) for row in rows]
    kept = [number for number in range(len(columns)) if any(row[number].text for row in cells)]
    return Table(
        title=title, note=note, is_folded=is_folded,
        columns=tuple(Column(name=columns[n].removeprefix("#"), is_number=columns[n].startswith("#")) for n in kept),
        rows=tuple(tuple(row[number] for number in kept) for row in cells),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture.

    Attributes:
        title: above it.
        picture: as SVG.
        words: what it says to those who have only words.
        says_all: whether it shows all that the words say.
    """

    title: str
    picture: Markup
    words: str
    says_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        title: of the part.
        gist: beside the title, in a few words.
        sentences: at its beginning.
        figures: then these.
        tables: then these.
        is_folded: None for a part that always shows; else whether it opens when somebody asks for it only.
    """

    title: str
    gist: str = ""
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    is_folded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report.

    Attributes:
        title: of it.
        badge: `measured`, `replayed`, ...: where its times come from.
        warnings: what nobody may overlook.
        facts: (name, value), the first things to see.
        sections: the rest.
    """

    title: str
    badge: str
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = field(default_factory=tuple)
