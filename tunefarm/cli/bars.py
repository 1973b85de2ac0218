"""Bars of a terminal or of a notebook, with lines below them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
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


_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


class NotebookBars(Bars):
    """The same as an output of a notebook's cell: written over as it goes on, and kept in its last state.

    rich itself would need widgets, which not every notebook shows, and which are gone where it is only read.

    Attributes:
        every_s: how often it is written at most.

    Args:
        columns: as of `rich.progress.Progress`.
        width: in letters.
        clock: seconds since some fixed moment.
    """

    every_s = 0.5

    def __init__(self, *columns: Any, width: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(*columns, disable=True)
        self._width, self._clock, self._due_s = width, clock, 0.0
        self._handle: Any = None

    def start(self) -> None:
        """Makes the output."""
        from IPython.display import display

        self._handle = display(self._told(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Writes it, if that was not done just now."""
        if self._handle is not None and self._clock() >= self._due_s:
            self._handle.update(self._told(), raw=True)
            self._due_s = self._clock() + self.every_s

    def stop(self) -> None:
        """Writes how it ended."""
        self._due_s = 0.0
        self.refresh()
        self._handle = None

    def _told(self) -> dict[str, str]:
        page = Console(file=io.StringIO(), record=True, width=self._width, force_jupyter=False, force_terminal=True)
        page.print(self.get_renderable())
        plain = page.export_text(clear=False).rstrip()
        return {"text/plain": plain, "text/html": page.export_html(code_format=_HTML, inline_styles=True)}
