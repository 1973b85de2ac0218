"""A report as one HTML page that needs nothing else: no server, no network, no script to be read."""

from __future__ import annotations

from collections.abc import Iterator

from tunefarm.config import counted
from tunefarm.record.markup import Child, Markup, join, tag
from tunefarm.record.sheet import Cell, Column, Figure, Report, Section, Table
from tunefarm.record.style import CSS, SCRIPT

MARK = "<!doctype html>\n<!-- tunefarm report -->"
"""How a page begins: such a file may be written over by the next."""

MAX_BYTES = 1_900_000
"""Of a page: what a browser on a phone opens at once, and what mail and pull requests take."""

LIMITS = (400, 120, 40, 12)
"""Rows of a table, fewer where a page would be too large."""


def page(report: Report) -> bytes:
    """The page, UTF-8. Of very many studies tables are cut, then figures left out; the page says so."""
    for is_bare in (False, True):
        for limit in LIMITS:
            if len(made := _page(report, limit, is_bare).encode()) <= MAX_BYTES:
                return made
    return made


def _page(report: Report, limit: int, is_bare: bool) -> str:
    body = [
        tag("h1", f"{report.title} ", tag("span", report.badge, class_=f"badge {report.badge.split()[-1]}")),
        *(tag("p", warning, class_="warn") for warning in report.warnings),
        tag("div", *(tag("div", tag("b", value), tag("span", name)) for name, value in report.facts), class_="facts"),
        *([tag("p", "Too many studies for one page: figures are left out.", class_="warn")] if is_bare else []),
        *(_section(section, limit, is_bare) for section in report.sections),
        tag(
            "p",
            "Made by tunefarm report from ledgers alone. Click on the head of a column to sort by it.",
            class_="note",
        ),
    ]
    head = [
        tag("meta", charset="utf-8"), tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Whatever a name holds, nothing is fetched and no script but ours runs.
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", f"tunefarm report: {report.title}"), tag("style", Markup(CSS)),
    ]  # fmt: skip
    html = tag("html", tag("head", *head), tag("body", tag("main", *body), tag("script", Markup(SCRIPT))), lang="en")
    return f"{MARK}\n{html}\n"


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def _section(section: Section, limit: int, is_bare: bool) -> Markup:
    content: list[Child] = [tag("p", sentence) for sentence in section.sentences]
    if section.figures and not is_bare:
        content.append(tag("div", *map(_figure, section.figures), class_="figures"))
    for each in section.tables:
        is_alone = len(section.tables) == 1 and each.title == section.title
        content += _table(each, limit, has_title=not is_alone)
    if section.is_folded is None:
        return tag("section", tag("h2", section.title), *content, class_="part")
    summary = tag("summary", tag("b", section.title), " ", tag("span", section.gist, class_="soft"))
    return tag("details", summary, *content, class_="part", open=None if section.is_folded else "")


def _figure(figure: Figure) -> Markup:
    words = tag("p", figure.words, class_="note")
    return tag("figure", tag("figcaption", figure.title), figure.picture, *([] if figure.says_all else [words]))


def _table(table: Table, limit: int, *, has_title: bool) -> Iterator[Markup]:
    head = tag("tr", *(tag("th", column.name, class_="n" if column.is_number else None) for column in table.columns))
    rows = [tag("tr", *map(_cell, row, table.columns)) for row in table.rows[:limit]]
    content: list[Child] = [tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")]
    if num_cut := len(table.rows) - len(rows):
        content.append(tag("p", f"{counted(num_cut, 'row')} more: see the ledger.", class_="note"))
    if table.note:
        content.append(tag("p", table.note, class_="note"))
    if table.is_folded:
        title = f"{table.title} ({len(table.rows)})"
        yield tag("details", tag("summary", title), *content, class_="fold")
    else:
        yield from [tag("h3", table.title)] if has_title else []
        yield join(content)


WIDE = 60
"""Characters from which a cell is given room."""


def _cell(cell: Cell, column: Column) -> Markup:
    words: Child = tag("code", cell.text) if cell.look == "code" else cell.text
    if cell.under:
        words = join([words, tag("br"), tag("code", cell.under)])
    if cell.detail:
        words = join([words, tag("details", tag("summary", "more"), tag("pre", cell.detail))])
    looks = [
        "n" if column.is_number else "", cell.look if cell.look != "code" else "",
        "wide" if len(cell.text) > WIDE or cell.detail or (cell.look == "code" and len(cell.text) > WIDE / 2) else "",
    ]  # fmt: skip
    order = None if cell.order is None else repr(cell.order)
    return tag("td", words, class_=" ".join(filter(None, looks)) or None, data_v=order)
