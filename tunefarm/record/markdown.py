"""A report as Markdown, for a pull request: the same words and tables, in words what figures show."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tunefarm.config import counted
from tunefarm.record.markup import plain
from tunefarm.record.sheet import Cell, Report, Section, Table

MARK = "<!-- tunefarm report -->"
"""How the text begins: such a file may be written over by the next, and a comment be found again."""

MAX_CHARACTERS = 60_000
"""A comment on GitHub takes 65,536."""

LIMITS = (20, 8, 3, 0)
"""Rows of a folded table, fewer where the text would be too long."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>&~$@-])")


def markdown(report: Report) -> str:
    """The text. Where there is too much, tables of single studies are cut, then the studies, and that is said."""
    for limit in LIMITS:
        if len(made := _text(report, limit)) <= MAX_CHARACTERS:
            return made
    cut = made[:MAX_CHARACTERS].rsplit("\n\n", 1)[0]
    # What is cut off lies in a fold, if anywhere.
    closed = "\n\n</details>" * (cut.count("<details>") - cut.count("</details>"))
    return f"{cut}{closed}\n\nMore than a comment can hold: see the page.\n"


def _text(report: Report, limit: int) -> str:
    facts = " · ".join(f"{escape(name)}: **{escape(value)}**" for name, value in report.facts)
    lines = [
        MARK,
        f"# {escape(report.title)} ({escape(report.badge)})",
        *(f"> {escape(w)}" for w in report.warnings),
        facts,
    ]
    for section in report.sections:
        lines += _section(section, limit)
    return "\n\n".join(lines) + "\n"


def _section(section: Section, limit: int) -> Iterator[str]:
    if section.is_folded is None:
        yield f"## {escape(section.title)}"
    else:
        yield f"<details><summary><b>{_in_html(section.title)}</b> {_in_html(section.gist)}</summary>"
    yield from (escape(sentence) for sentence in section.sentences)
    if section.figures:
        yield "\n".join(f"- {escape(figure.title)}: {escape(figure.words)}" for figure in section.figures)
    for table in section.tables:
        yield from _table(table, limit if section.is_folded is not None else max(limit, 60), section)
    if section.is_folded is not None:
        yield "</details>"


def _table(table: Table, limit: int, section: Section) -> Iterator[str]:
    if not table.rows or limit == 0:
        return
    if table.title != section.title:
        yield f"**{escape(table.title)}**"
    head = [escape(column.name) or " " for column in table.columns]
    rule = ["--:" if column.is_number else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows[:limit]]
    yield "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
    if num_cut := len(table.rows) - len(rows):
        yield f"{counted(num_cut, 'row')} more."
    if table.note:
        yield f"_{escape(table.note)}_"


def _cell(cell: Cell) -> str:
    if cell.look == "code" and "`" not in cell.text and cell.text.strip():
        return f"`{_code(cell.text)}`"
    return escape(cell.text) + (f"<br>`{_code(cell.under)}`" if cell.under and "`" not in cell.under else "")


def _code(text: str) -> str:
    # In a table a stroke ends the cell even inside code.
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(plain(text).split())


def _in_html(text: str) -> str:
    # Where a line begins with a tag, strokes before characters are shown, too.
    return _SPECIAL.sub(lambda found: f"&#{ord(found[1])};", _one_line(text)).replace("&#64;", "&#64;<!-- -->")


def escape(text: str) -> str:
    """Text in which nothing is markup, names nobody and breaks no line."""
    escaped = (
        _SPECIAL.sub(r"\\\1", _one_line(text)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
    )
    # GitHub looks for names in what it shows, where the stroke before one is gone; and makes links of bare addresses.
    return escaped.replace("\\@", "\\@<!-- -->").replace("://", "\\://")
