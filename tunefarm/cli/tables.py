"""Numbers and tables that stay readable: where the terminal is too narrow for a table, each row is a paragraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def time_text(ms: float | None) -> str:
    """A duration for people."""
    if ms is None:
        return "n/a"
    return f"{ms * 1000:.1f} us" if ms < 1 else f"{ms:.3f} ms"


def print_table(out: Console, table: Table) -> None:
    """Prints a table, or its rows one below the other if its longest words do not fit side by side."""
    from rich.measure import Measurement

    if Measurement.get(out, out.options.update(width=10_000), table).minimum <= out.width:
        out.print(table)
        return
    if table.title:
        out.print(table.title, markup=False)
    width = max((len(str(column.header)) for column in table.columns), default=0)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        out.print()
        for column, cell in zip(table.columns, cells, strict=True):
            out.print(f"{column.header!s:{width}}  {cell}")
    out.print()
