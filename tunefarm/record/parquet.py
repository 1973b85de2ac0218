"""Every candidate of a study in one Parquet file, for whoever reads it with pandas, DuckDB or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_table(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Writes a table; a column in which kinds of values are mixed is text.

    Args:
        path: of the file.
        names: of the columns; where a param is called as a column of ours is, the later one gets a `_2`.
        rows: with a value, or None, for each.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    for number, name in enumerate(names):
        columns[f"{name}_2" if name in columns else name] = _column([row[number] for row in rows])
    pq.write_table(pa.table(columns), path)


def _column(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values])
    return pa.array(values)
