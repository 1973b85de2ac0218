"""Which row would answer a call, and why: the lookup of a training job, asked from outside. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tunefarm.config import Value, read_value
from tunefarm.device import Device
from tunefarm.errors import UserError
from tunefarm.generated import public
from tunefarm.pack import Row, Table
from tunefarm.problem import Problem, read_dtype
from tunefarm.runtime.kernels import problem_of
from tunefarm.runtime.lookup import Activation, Offer, Shortlist, explain, find, shortlist


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Where a call would run.

    Attributes:
        kernel: name of the kernel.
        source_hash: of the kernel there.
        device: the GPU.
        triton: the version of Triton.
        layer: who asks.
        torch: the version of torch, if Inductor does.
    """

    kernel: str
    source_hash: str
    device: Device
    triton: str
    layer: int = 1
    torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a lookup would find.

    Attributes:
        problem: the call.
        assumed: what the question left open and was taken from the rows, for people.
        offer: the row that answers, or None.
        nearer: rows on nearer devices that do not answer, and why; without an answer, the nearest rows.
        listed: all that the pack holds for this kernel and device.
    """

    problem: Problem
    assumed: tuple[str, ...]
    offer: Offer | None
    nearer: tuple[str, ...]
    listed: Shortlist


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands for a tensor: what `problem_of` asks one about."""

    dtype: str
    address: int

    def data_ptr(self) -> int:
        return self.address


def here_of(
    activation: Activation, kernel: str, device: Device, *, source_hash: str = "", triton: str = "", layer: int = 0,
    torch: str = "",
) -> tuple[Here, tuple[Table, ...]]:  # fmt: skip
    """Where a call would run; what nobody says is as the pack's tables of the kernel have it.

    Args:
        activation: the pack.
        kernel: name of the kernel.
        device: the GPU.
        source_hash: of the kernel, or how it begins.
        triton: the version of Triton.
        layer: who asks; 0 if nobody says.
        torch: the version of torch.

    Raises:
        UserError: the pack has no table of the kernel, or its tables differ in what nobody said.
    """
    tables = tuple(t for t in activation.pack.tables if t.kernel == kernel and layer in (0, t.layer))
    if not tables:
        known = ", ".join(sorted({table.kernel for table in activation.pack.tables})) or "none at all"
        raise UserError(f"has no table of kernel {kernel}", file=activation.label, hint=f"it has {known}")
    layer = int(_only("--layer", activation, kernel, dict.fromkeys(str(table.layer) for table in tables)))
    releases = dict.fromkeys(str(table.key_parts.get("torch", "")) for table in tables)
    hashes = dict.fromkeys(table.source_hash for table in tables)
    begun = [known for known in hashes if source_hash and known.startswith(source_hash)]
    versions = dict.fromkeys(str(table.key_parts.get("triton")) for table in tables)
    here = Here(
        kernel=kernel,
        source_hash=begun[0] if len(begun) == 1 else source_hash or _only("--source-hash", activation, kernel, hashes),
        device=device,
        triton=triton or _only("--triton", activation, kernel, versions),
        layer=layer,
        torch="" if layer == 1 else public(torch) or _only("--torch", activation, kernel, releases),
    )
    return here, tables


def _only(flag: str, activation: Activation, kernel: str, values: Collection[str]) -> str:
    if len(values) > 1:
        listed = ", ".join(value[:12] for value in sorted(values))
        raise UserError(
            f"tables of {kernel} differ: {listed}", file=activation.label, hint=f"say with {flag} which is used there"
        )
    return next(iter(values))


def ask(
    activation: Activation, here: Here, tables: Sequence[Table], arguments: Mapping[str, str], unspecialised: set[str]
) -> Reply:
    """What a job's lookup would find for a call.

    Args:
        activation: the pack, and on which terms it is used.
        here: where the call would run.
        tables: the pack's tables of the kernel.
        arguments: by name a number, `true`, `false`, `none`, a dtype, or a dtype and `:unaligned`.
        unspecialised: arguments that the kernel exempts from specialisation.

    Raises:
        UserError: an argument that no row knows, a dtype that is none, or one that must be said.
    """
    asking = [row for t in tables if t.source_hash == here.source_hash for row in t.rows]
    asking = asking or [row for t in tables for row in t.rows]  # as the runtime: to say what a call misses
    dims = tuple(dict.fromkeys(name for row in asking for name in row.match.dims))
    absent = [name for row in asking for name, fact in row.match.facts.items() if fact == "none"]
    dtypes: dict[str, set[str]] = {}
    for row in asking:
        for name, dtype in row.match.dtypes.items():
            dtypes.setdefault(name, set()).add(dtype)
    tensors = tuple(dict.fromkeys([*dtypes, *absent]))
    if strange := sorted(arguments.keys() - {*dims, *tensors}):
        known = ", ".join((*dims, *tensors)) or "no argument"
        raise UserError(f"no row of {here.kernel} asks about {', '.join(strange)}", hint=f"its rows ask about {known}")
    if odd := sorted(unspecialised - {*dims, *tensors}):
        raise UserError(f"no row of {here.kernel} asks about {', '.join(odd)}, named as --unspecialised",
                        hint=f"its rows ask about {', '.join((*dims, *tensors))}")  # fmt: skip
    values: dict[str, Any] = {name: _value(name, arguments[name], asking) for name in dims if name in arguments}
    assumed: list[str] = []
    for name in tensors:
        if name not in arguments:
            dtype = _assumed(name, dtypes.get(name, set()), optional=name in absent)
            assumed.append(f"{name} {dtype}")
            values[name] = None if dtype == "none" else _Tensor(dtype, 0)
        elif arguments[name] != "none":
            values[name] = _tensor(name, arguments[name], dtypes.get(name, set()))
    problem = problem_of(values, dims, tensors)
    specialised = {*dims, *tensors} - unspecialised
    listed = shortlist(
        [activation], here.kernel, here.source_hash, here.device, here.triton, layer=here.layer, torch=here.torch
    )
    # Inductor asks for generated kernels by their text, which holds all else.
    offer = find(listed.offers, problem, specialised) if here.layer != 3 else next(iter(listed.offers), None)
    # Offers are sorted by step: those in front of the first that is as near as the answer are nearer ones.
    passed = list(takewhile(lambda other: offer is None or other.step is not offer.step, listed.offers))
    nearer = explain(passed, (), problem, specialised).splitlines() if passed else []
    return Reply(
        problem=problem, assumed=tuple(assumed), offer=offer, nearer=tuple(line.strip() for line in nearer),
        listed=listed,
    )  # fmt: skip


def _assumed(name: str, dtypes: set[str], *, optional: bool) -> str:
    choices = sorted(dtypes | ({"none"} if optional else set()))
    if len(choices) != 1:
        raise UserError(f"{name} is missing", hint=f"rows know {', '.join(f'{name}={c}' for c in choices)}")
    return choices[0]


def _value(name: str, text: str, rows: Sequence[Row]) -> Value:
    try:
        value = read_value(text)
    except UserError as e:
        raise UserError(f"{name}={text[:40]} {e.args[0]}", hint=e.hint) from None
    known = list(dict.fromkeys(row.match.dims[name] for row in rows if name in row.match.dims))
    if isinstance(value, str) and not any(isinstance(other, str) for other in known):
        raise UserError(f"{name}={text} is no value that a row has", hint=f"rows have {_shown(known)}")
    return value


def _shown(known: Sequence[Any]) -> str:
    listed = [f"({k[0]}, {k[1]}]" if isinstance(k, tuple) else str(k) for k in known[:5]]
    return ", ".join([*listed, *(["..."] if len(known) > 5 else [])])


def _tensor(name: str, text: str, known: Collection[str]) -> _Tensor:
    dtype, colon, note = text.partition(":")
    hint = f"write {name}=bf16, or {name}=bf16:unaligned"
    if colon and note != "unaligned":
        raise UserError(f"{name}={text} is no dtype", hint=hint)
    try:
        return _Tensor(dtype if dtype in known else read_dtype(dtype), 1 if note else 0)
    except UserError as e:
        raise UserError(f"{name}={text} is no dtype", hint=f"{hint}; {e.hint}") from None
