"""Taking packs apart: fields out of parsed JSON, each of the type it must have."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Any

from tunefarm.config import Config, Value
from tunefarm.errors import PackError, UserError
from tunefarm.frozen import FrozenMap

SCALAR = (bool, int, float, str, NoneType)


@dataclass(frozen=True, slots=True)
class Reader:
    """Takes fields out of parsed JSON and names file, place and defect where one is not as it should be."""

    file: str

    def get(self, data: Any, name: str, kind: type | tuple[type, ...], at: str) -> Any:
        """The member of an object; `at` is where the object stands."""
        key = f"{at}.{name}".strip(".")
        if not isinstance(data, dict):
            raise self.error(at, f"must be an object, is {type(data).__name__}")
        if name not in data:
            raise self.error(key, "is missing")
        return self.checked(data[name], kind, key)

    def checked(self, value: Any, kind: type | tuple[type, ...], at: str) -> Any:
        """The value, if it is of this type."""
        # A bool is an int to isinstance, and never one in a pack.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, SCALAR)):
            raise self.error(at, f"is of the wrong type ({type(value).__name__})")
        return value

    def pair(self, value: Any, kind: type | tuple[type, ...], at: str) -> tuple[Any, Any]:
        """The two members of a list, both of this type."""
        if not isinstance(value, list) or len(value) != 2:
            raise self.error(at, "must be a pair of numbers")
        return self.checked(value[0], kind, at), self.checked(value[1], kind, at)

    def scalar(self, value: Any, at: str) -> Value:
        """The value, if it is no list and no object."""
        scalar: Value = self.checked(value, SCALAR, at)
        return scalar

    def scalars(self, data: Any, name: str, at: str) -> FrozenMap[Any]:
        """The member of an object that is itself an object of scalars."""
        values = self.get(data, name, dict, at)
        return FrozenMap({k: self.scalar(v, f"{at}.{name}.{k}") for k, v in values.items()})

    def strings(self, data: Any, name: str, at: str) -> FrozenMap[str]:
        """Likewise, of text."""
        values = self.get(data, name, dict, at)
        return FrozenMap({k: self.checked(v, str, f"{at}.{name}.{k}") for k, v in values.items()})

    def config(self, data: Any, at: str) -> Config:
        """The config that an object spells."""
        parts = {part: self.scalars(data, part, at) for part in ("params", "options")}
        try:
            return Config(**parts)
        except UserError as e:
            raise self.error(at, str(e)) from None

    def error(self, key: str, message: str) -> PackError:
        """The error to raise about a place in the file."""
        return PackError(message, file=self.file, key=key, hint="export it again")
