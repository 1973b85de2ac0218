"""Captured: what a job launched, read from what its processes left, and said as problems of experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tunefarm.config import Value
from tunefarm.device import Device
from tunefarm.document import parse_json, read_text
from tunefarm.errors import DocumentError
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import Gemm
from tunefarm.missed import Missed
from tunefarm.problem import Problem
from tunefarm.runtime.noted import FORMAT, VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that a kernel was called with.

    Attributes:
        shape: of it.
        strides: in elements.
        dtype: in Triton's spelling.
        is_aligned: starts at a multiple of 16 bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    is_aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """An argument of which the type alone is told: a float, or what a farm cannot make."""

    type: str


Argument = Tensor | Untold | Value | None
"""Of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that host code launched.

    Attributes:
        name: of its function.
        module: in which it is defined.
        path: in there.
        file: of it.
    """

    name: str
    module: str
    path: str
    file: str

    @property
    def target(self) -> str:
        """It as `tunefarm init` takes it: by its module, if that can be imported anywhere, else by its file."""
        is_installed = {"site-packages", "dist-packages"} & {*Path(self.file).parts}
        return f"{self.module if is_installed else self.file}:{self.path}"


@dataclass(slots=True, kw_only=True)
class Captured:
    """What all processes of a job launched.

    Attributes:
        kernels: launches of each, by arguments; under None those beyond what was told apart.
        generated: launches of what Inductor generated, by (name, text of its file).
        products: calls of each.
        devices: GPUs that were in use.
        num_processes: that told of something.
    """

    kernels: dict[Kernel, Counter[FrozenMap[Argument] | None]] = field(default_factory=dict)
    generated: Counter[tuple[str, str]] = field(default_factory=Counter)
    products: Counter[Gemm] = field(default_factory=Counter)
    devices: list[Device] = field(default_factory=list)
    num_processes: int = 0


def read_capture(folder: Path) -> Captured:
    """What the processes of a job left in a folder; nothing, if they left nothing.

    Raises:
        DocumentError: a file in it is damaged, or from another release.
    """
    found = Captured()
    for file in sorted(folder.glob("*.json")):
        data = parse_json(read_text(file), where=str(file))
        if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise DocumentError("is no capture of this release", file=str(file), hint="capture again")
        try:
            _take_in(found, data)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise DocumentError(f"is damaged: {e!r}", file=str(file), hint="leave it out") from None
    return found


def _take_in(found: Captured, data: Mapping[str, Any]) -> None:
    found.num_processes += 1
    if data["device"] is not None and (device := Device.from_json(data["device"])) not in found.devices:
        found.devices.append(device)
    for told in data["kernels"]:
        kernel = Kernel(**{word: str(told[word]) for word in ("name", "module", "path", "file")})
        calls = found.kernels.setdefault(kernel, Counter())
        for call in told["calls"]:
            calls[FrozenMap((name, _argument(a)) for name, a in call["arguments"].items())] += call["launches"]
        if told["others"]:
            calls[None] += told["others"]
    for told in data["generated"]:
        found.generated[str(told["name"]), str(told["source"])] += told["launches"]
    for told in data["products"]:
        gemm = Gemm(op=told["op"], problem=Problem.from_json(told["problem"]), refusal=told["refusal"])
        found.products[gemm] += told["calls"]


def _argument(data: Mapping[str, Any]) -> Argument:
    if "value" in data:
        value: Value | None = data["value"]
        return value
    if "type" in data:
        return Untold(type=str(data["type"]))
    return Tensor(
        shape=tuple(data["shape"]), strides=tuple(data["strides"]), dtype=data["dtype"], is_aligned=data["is_aligned"]
    )


def scalars_of(calls: Mapping[FrozenMap[Argument] | None, int]) -> dict[str, str]:
    """Types of the arguments that were a number, a truth value or text in all calls, by name."""
    seen: dict[str, set[str]] = {}
    for arguments in calls:
        for name, argument in (arguments or {}).items():
            kind = argument.type if isinstance(argument, Untold) else type(argument).__name__
            seen.setdefault(name, set()).add(kind)
    return {
        name: min(kinds) for name, kinds in seen.items() if len(kinds) == 1 and kinds < {"int", "float", "bool", "str"}
    }


def calls_of(
    calls: Mapping[FrozenMap[Argument] | None, int],
    name: str,
    *,
    key: tuple[str, ...] | None,
    constexprs: tuple[str, ...],
    tuned: frozenset[str],
) -> list[Missed]:
    """The calls of a kernel as what an experiment is to have, most often first.

    Args:
        calls: launches by arguments.
        name: of the kernel.
        key: scalar arguments that identify a problem; None for every integer.
        constexprs: arguments that are compiled in.
        tuned: those of them that a config or the kernel itself sets.
    """
    sums: Counter[Missed] = Counter()
    for arguments, launches in calls.items():
        sums[_asked(arguments, name, key, constexprs, tuned)] += launches
    return [replace(missed, launches=launches) for missed, launches in sums.most_common()]


def _asked(
    arguments: FrozenMap[Argument] | None,
    kernel: str,
    key: tuple[str, ...] | None,
    constexprs: tuple[str, ...],
    tuned: frozenset[str],
) -> Missed:
    if arguments is None:
        return Missed(kernel=kernel, problem=None)
    tensors = {name: a for name, a in arguments.items() if isinstance(a, Tensor)}
    plain = {n: a for n, a in arguments.items() if isinstance(a, int | str) and n not in tuned}
    numbers = {n: v for n, v in plain.items() if isinstance(v, int) and n not in constexprs}
    facts = {name: "div16" for name, tensor in tensors.items() if tensor.is_aligned}
    facts |= {name: "none" for name, a in arguments.items() if a is None and name not in tuned}
    problem = Problem(
        dims=FrozenMap(numbers if key is None else {name: plain[name] for name in key if name in plain}),
        dtypes=FrozenMap((name, tensor.dtype) for name, tensor in tensors.items()),
        facts=FrozenMap(facts),
    )
    sizes = [(f"{name}.shape[{i}]", size) for name, t in tensors.items() for i, size in enumerate(t.shape)]
    return Missed(
        kernel=kernel, problem=problem, shapes=FrozenMap((name, t.shape) for name, t in tensors.items()),
        given=FrozenMap((name, value) for name, value in plain.items() if name in constexprs),
        scalars=frozenset(arguments.keys() - tensors.keys()),
        sizes=FrozenMap([*numbers.items(), *sizes]),
    )  # fmt: skip
