"""Markup: HTML and SVG made of tags, in which what is not markup already is always escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup: made by `tag` and `join` only, never of what somebody wrote."""

    __slots__ = ()


Child: TypeAlias = str | int | float | None
"""What a tag may hold: text is escaped, `Markup` is not, None is nothing."""

_VOID = frozenset({"br", "meta"})


def plain(text: str) -> str:
    """Text without what no document may hold: control characters and halves of characters become `?`."""
    return _CONTROLS.sub("?", text)


def text(value: Child) -> Markup:
    """A value as markup."""
    if isinstance(value, Markup):
        return value
    return Markup("" if value is None else escape(plain(str(value))))


def join(children: Iterable[Child]) -> Markup:
    """Children in a row."""
    return Markup("".join(text(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Child) -> Markup:
    """An element.

    Args:
        name: of the tag.
        children: what is in it.
        attributes: by name. `class_` and `for_` lose the last stroke, others turn into dashes; None leaves one out.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    head = f"<{name}{said}>"
    return Markup(head if name in _VOID else f"{head}{join(children)}</{name}>")


def _number(value: Child) -> Child:
    # A tenth of a pixel is finer than anybody sees.
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
