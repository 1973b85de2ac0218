"""Config: one assignment of everything that is tunable."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap

Value: TypeAlias = bool | int | float | str | None

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Launch options that every Triton release from 3.6 to 3.9 knows; a backend may declare more."""

CODE_OPTIONS = frozenset({"extern_libs", "ir_override", "pre_hook", "ptx_options"})
"""What in Triton's configs is code, or names a file or words by which Triton or its assembler runs other code than the
kernel's: nobody may tune them, and no row may have them."""

MAX_BITS = 64
"""Of an integer that a kernel can be given. Optuna takes none that no float comes near, and neither do features."""


def is_small(value: int) -> bool:
    """Whether an integer has no more than `MAX_BITS`."""
    return value.bit_length() <= MAX_BITS


def show(value: Value) -> str:
    """A value as it appears in keys, logs and tables."""
    return str(value)


def read_value(text: str) -> Value:
    """A value as people write it: `true`, `false`, `none`, a number, or else text.

    Raises:
        UserError: it is a number that no kernel can be given.
    """
    words: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.casefold() in words:
        return words[text.casefold()]
    if re.fullmatch(r"[+-]?[0-9]+", text):
        # Python itself refuses to read very long ones.
        if len(text) > MAX_BITS or not is_small(int(text)):
            raise UserError(f"is an integer of {len(text)} digits", hint=f"a kernel's have {MAX_BITS} bits at most")
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise UserError(f"is {text}, no number", hint="write a finite one")
    return number


def counted(number: int, what: str, many: str = "") -> str:
    """So many of something, as people write it: `1 study`, `12 candidates`.

    Args:
        number: how many.
        what: one of them.
        many: several of them, where that is more than an `s` at the end.
    """
    return f"{number} {what if number == 1 else many or f'{what}s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One assignment: the kernel's tunable constexprs and the launch options.

    Attributes:
        params: values of `tl.constexpr` parameters of the kernel, by name.
        options: launch options by name (`num_warps`, `num_stages`, ... and whatever the backend declares). The two
            are kept apart because `torch.compile` counts a kernel's arguments and must not be handed an option as one.
    """

    params: FrozenMap[Value] = field(default_factory=FrozenMap)
    options: FrozenMap[Value] = field(default_factory=FrozenMap)

    def __post_init__(self) -> None:
        # Plain dicts are welcome in user code; the field is frozen either way.
        object.__setattr__(self, "params", FrozenMap(self.params))
        object.__setattr__(self, "options", FrozenMap(self.options))
        if both := self.params.keys() & self.options.keys():
            raise UserError(f"config names {', '.join(sorted(both))} both as a parameter and as a launch option")
        for name, value in self.flat.items():
            if not isinstance(value, bool | int | float | str | None):
                raise UserError(f"config value {name}={value!r} is not a number, a string, a boolean or null")
            if isinstance(value, int) and not is_small(value):
                message = f"config value {name} is an integer of {value.bit_length()} bits"
                raise UserError(message, hint=f"a kernel's have {MAX_BITS} at most")

    @property
    def flat(self) -> dict[str, Value]:
        """Params and options in one dict, params first."""
        return {**self.params, **self.options}

    @property
    def key(self) -> str:
        """The canonical key: equal configs have equal keys, whatever the order in which they were written."""
        return " ".join(
            f"{name}={show(value)}" for part in (self.params, self.options) for name, value in sorted(part.items())
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={show(value)}" for name, value in self.flat.items())

    def to_json(self) -> dict[str, Any]:
        """The form that files hold; `from_json` reads it back with the same types."""
        return {"params": dict(self.params), "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """Reads what `to_json` wrote.

        Raises:
            UserError: a value is of no legal type.
        """
        return cls(params=FrozenMap(data.get("params", {})), options=FrozenMap(data.get("options", {})))


LIBRARY = Config(params=FrozenMap(library="aten"))
"""No config of a kernel: torch's own library call in the kernel's place. Nothing is built for it."""
