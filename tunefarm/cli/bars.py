"""Bars of a terminal, with lines below them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text


class Bars(Progress):
    """Bars with lines below them.

    Attributes:
        below: the lines.
    """

    below: tuple[str, ...] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, then the lines."""
        yield from super().get_renderables()
        yield from (Text(line, no_wrap=False, overflow="fold") for line in self.below)
