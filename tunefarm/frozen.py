"""An immutable, hashable mapping: the field type for values that hold names and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

V = TypeVar("V")


class FrozenMap(Mapping[str, V]):
    """A read-only mapping from names to values.

    Two maps are equal, and hash alike, when they hold the same pairs, whatever the order; iteration keeps the
    order of construction, so that tables print their columns as the user wrote them.
    """

    __slots__ = ("_data", "_hash")

    def __init__(self, items: Mapping[str, V] | Iterable[tuple[str, V]] = (), /, **more: V) -> None:
        self._data: dict[str, V] = {**dict(items), **more}
        self._hash: int | None = None

    def __getitem__(self, key: str) -> V:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._data.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return self._data == other._data
        return NotImplemented

    def __repr__(self) -> str:
        return f"FrozenMap({self._data!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (self._data,)
