"""Problem: the facts of one kernel call that decide which config is best for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import Value
from tunefarm.frozen import FrozenMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One call's facts, named by the kernel's own arguments.

    Attributes:
        dims: scalar arguments that identify the problem (Triton's `key`), by argument name.
        dtypes: element type of each tensor argument in Triton's spelling (`bf16`, `fp32`, `i64`), by argument name.
        facts: what the compiler specialises on, by argument name: `div16` (an integer divisible by 16, or a pointer
            aligned to 16 bytes), `one` (an integer equal to 1, compiled in), `none` (an absent argument). An argument
            that is not listed has none of these.
    """

    dims: FrozenMap[Value] = field(default_factory=FrozenMap)
    dtypes: FrozenMap[str] = field(default_factory=FrozenMap)
    facts: FrozenMap[str] = field(default_factory=FrozenMap)

    @property
    def key(self) -> str:
        """The canonical key of the problem inside one kernel."""
        parts: list[tuple[str, FrozenMap[Any]]] = [("dims", self.dims), ("dtypes", self.dtypes), ("facts", self.facts)]
        return "; ".join(f"{word} " + " ".join(f"{k}={v}" for k, v in sorted(part.items())) for word, part in parts)

    @property
    def label(self) -> str:
        """Short form for people, such as `8192x4096 bf16`; not unique."""
        sizes = "x".join(str(v) for v in self.dims.values())
        return " ".join(dict.fromkeys([sizes, *self.dtypes.values()])).strip()

    def to_json(self) -> dict[str, Any]:
        """The form that files hold."""
        return {"dims": dict(self.dims), "dtypes": dict(self.dtypes), "facts": dict(self.facts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Problem:
        """Reads what `to_json` wrote."""
        return cls(**{word: FrozenMap(data.get(word, {})) for word in ("dims", "dtypes", "facts")})
