"""Problem: the facts of one kernel call that decide which config is best for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import Value
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap

SPELLING = {
    "bool": "u1", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2": "fp8e5", "float8_e5m2fnuz": "fp8e5b16",
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)}, **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip
"""Element types in Triton's spelling, by torch's."""


def read_dtype(word: str) -> str:
    """An element type that a person or a file names in torch's spelling or in Triton's, in the latter.

    Raises:
        UserError: it is none.
    """
    plain = word.removeprefix("torch.")
    dtype = SPELLING.get(plain, plain)
    if dtype not in SPELLING.values():
        raise UserError(f"{word!r} is no element type", hint=f"it is one of {', '.join(SPELLING.values())}")
    return dtype


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
