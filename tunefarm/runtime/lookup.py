"""Lookup: which row of the active packs answers a call, and why not where none does. Standard library only."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tunefarm.config import LIBRARY, Value
from tunefarm.device import Device
from tunefarm.errors import PackError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Row, Table
from tunefarm.problem import Problem

BANDWIDTH_TOLERANCE = 0.1
POLICIES = ("stock", "default", "nearest", "error")
STRETCH = 2
"""With `nearest` a row answers calls up to so many times beyond its range, where no other row does."""


class Step(enum.StrEnum):
    """How near the device of a table is to the one at hand; nearer ones are asked first."""

    DEVICE = "same device"
    TWIN = "same arch, SM count and bandwidth"
    ARCH = "same arch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activation:
    """A pack in use, and on which terms.

    Attributes:
        pack: the pack.
        label: its path, or its digest shortened.
        on_miss: `stock` (installed kernels tune as ever; our own use their default), `default` (the first declared
            config), `nearest` (the first row that answers when its ranges are stretched, else the default) or `error`.
        strict: whatever would be passed over or reported is an error instead.
        allow_replayed: use rows whose times were replayed from a landscape.
        device: match against this device in place of the one that holds the tensors.
    """

    pack: Pack
    label: str
    on_miss: str = "stock"
    strict: bool = False
    allow_replayed: bool = False
    device: Device | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """A row that may answer calls of one kernel on one device.

    Attributes:
        row: the row.
        step: how near its device is.
        table: where it stands.
        activation: the pack it stands in.
        is_near: the row is for calls beyond those it was tuned for.
    """

    row: Row
    step: Step
    table: Table
    activation: Activation
    is_near: bool = False

    @property
    def how(self) -> str:
        """How near it is, for people."""
        return f"{self.step.value}, nearest" if self.is_near else self.step.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """What the active packs hold for one kernel on one device.

    Attributes:
        offers: in the order in which they are asked; the first that matches answers.
        refused: why tables of this kernel cannot be used, for people.
        notes: why tables are used though something about them differs, for people.
    """

    offers: tuple[Offer, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def step_of(tuned: Device, here: Device) -> Step | None:
    """How near the device of a table is to the one at hand; None if its rows say nothing about it.

    Names are compared whole: `NVIDIA H20` is not a kind of `NVIDIA H200`.
    """
    if (tuned.vendor, tuned.arch) != (here.vendor, here.arch):
        return None
    if (tuned.name, tuned.num_sms, tuned.mig) == (here.name, here.num_sms, here.mig):
        return Step.DEVICE
    slower, faster = sorted((tuned.bandwidth_gbps, here.bandwidth_gbps))
    alike = slower > 0 and faster <= slower * (1 + BANDWIDTH_TOLERANCE)
    if alike and (tuned.num_sms, tuned.mig) == (here.num_sms, here.mig):
        return Step.TWIN
    return Step.ARCH


def shortlist(
    activations: Sequence[Activation], kernel: str, source_hash: str, device: Device, triton: str, *, layer: int = 1,
    torch: str = "",
) -> Shortlist:  # fmt: skip
    """What the active packs hold for one kernel on one device.

    Args:
        activations: oldest first; of two equally near rows the later activation's answers.
        kernel: name of the kernel.
        source_hash: of the kernel as it is here.
        device: where the call runs; an activation may name another.
        triton: version of Triton here.
        layer: who asks; kernels that Inductor generated and that share a name are none of each other's business.
        torch: version of torch here; Inductor's tables are for one version.
    """
    found: list[tuple[tuple[int, bool, int, bool], Offer]] = []
    refused: list[str] = []
    notes: list[str] = []
    for age, activation in enumerate(reversed(activations)):
        for table in activation.pack.tables:
            if (table.kernel, table.layer) != (kernel, layer) or (layer == 3 and table.source_hash != source_hash):
                continue
            here = activation.device or device
            step, where = step_of(table.device, here), f"{activation.label}: {kernel} on {table.device.name}"
            differs, foreign = _differs(table, triton), _foreign(table)
            strictly = differs, foreign, _farther(here) if step is Step.ARCH else ""
            why = _refusal(table, here, source_hash, torch, allow_replayed=activation.allow_replayed)
            why = why or (next(filter(None, strictly), "") if activation.strict else "")
            rows, illegible = readable(table) if not why else ((), "")
            why = why or illegible
            if why or step is None:
                refused.append(f"{where}: {why}")
                continue
            notes += [f"{where}: {note}" for note in (differs, foreign) if note]
            order = list(Step).index(step), bool(differs), age, bool(foreign)
            for row in rows:
                # Inductor is given a row's config as its only choice, and has nothing to fall back on.
                must_know = layer != 1 and step is Step.ARCH and row.config != LIBRARY
                if too_large := _too_large(row, here, must_know=must_know):
                    refused.append(f"{where}, {row.match.label}: {too_large}")
                else:
                    found.append((order, Offer(row=row, step=step, table=table, activation=activation)))
    found.sort(key=lambda pair: pair[0])
    offers = [offer for _, offer in found]
    if activations and activations[-1].on_miss == "nearest":
        # As rows of their own they are compared alike by launches and by traces.
        for stretch in (1, STRETCH):
            offers += [replace(offer, row=row, is_near=True) for _, offer in found for row in _near(offer.row, stretch)]
    return Shortlist(offers=tuple(offers), refused=tuple(refused), notes=tuple(notes))


def _refusal(table: Table, here: Device, source_hash: str, torch: str, *, allow_replayed: bool) -> str:
    """Why a table is of no use on any terms; empty if it is of some."""
    if step_of(table.device, here) is None:
        return f"tuned for {table.device.arch}, here is {here.arch}"
    if table.source_hash != source_hash:
        return f"the kernel's source has changed (tuned {table.source_hash[:12]}, here is {source_hash[:12]})"
    if table.layer != 1 and table.key_parts.get("torch") != torch:
        return f"tuned under torch {table.key_parts.get('torch')}, here is {torch}"
    if table.provenance.source == "replayed" and not allow_replayed:
        return "its times were replayed from a landscape; allow_replayed=True uses them"
    return ""


def _differs(table: Table, triton: str) -> str:
    tuned = table.key_parts.get("triton")
    return f"tuned under Triton {tuned}, here is {triton}" if tuned != triton else ""


def _farther(here: Device) -> str:
    return f"tuned on another device of the same arch, here is {here.name}"


def _foreign(table: Table) -> str:
    imported = table.provenance.source == "imported"
    return f"imported ({table.provenance.sweep}), not measured by tunefarm" if imported else ""


def readable(table: Table) -> tuple[Sequence[Row], str]:
    """The rows of a table, or why they cannot be read: they are parsed late, under whatever digest is right."""
    try:
        return tuple(table.rows), ""
    except PackError as error:
        return (), str(error)


def _too_large(row: Row, here: Device, *, must_know: bool) -> str:
    """Why a config cannot be launched on a device, or might not, as far as the pack tells; empty if it can."""
    if row.code is None:
        return f"{_farther(here)}, and the row does not say what it takes" if must_know else ""
    if row.code.shared_bytes <= here.shared_bytes:
        return ""
    return (
        f"{row.config} takes {row.code.shared_bytes} bytes of shared memory, a block on {here.name} has "
        f"{here.shared_bytes}"
    )


def _near(row: Row, stretch: int) -> Iterator[Row]:
    """A row for calls so many times beyond its ranges, whether or not their dims are divisible by 16.

    Nothing comes of a row without ranges: its dims are exact because they make another kernel.
    """
    ranges = {name: value for name, value in row.match.dims.items() if isinstance(value, tuple)}
    if not ranges:
        return
    wide = {name: (max(0, low // stretch), high * stretch) for name, (low, high) in ranges.items()}
    others = {name: fact for name, fact in row.match.facts.items() if name not in ranges}
    for facts in itertools.product(("", "div16", "one"), repeat=len(ranges)):
        known = {name: fact for name, fact in zip(ranges, facts, strict=True) if fact}
        match = replace(row.match, dims=FrozenMap({**row.match.dims, **wide}), facts=FrozenMap({**others, **known}))
        # A dim of 1 has a kernel of its own: only a range that holds it is about that one.
        if match != row.match and not any(fact == "one" and wide[name][0] >= 1 for name, fact in known.items()):
            yield replace(row, match=match)


def find(offers: Sequence[Offer], problem: Problem, specialised: Collection[str]) -> Offer | None:
    """The offer that answers a call, or None."""
    return next((o for o in offers if not difference(o.row.match, problem, specialised)), None)


def difference(match: Match, problem: Problem, specialised: Collection[str]) -> tuple[str, ...]:
    """Why a row is not for a call; empty if it is.

    Args:
        match: of the row.
        problem: of the call.
        specialised: arguments on whose divisibility the compiler specialises; facts of others say nothing.
    """
    return (
        *(
            f"{name} is {problem.dtypes.get(name, 'no tensor')}, tuned {match.dtypes.get(name, 'no tensor')}"
            for name in sorted({*match.dtypes, *problem.dtypes})
            if match.dtypes.get(name) != problem.dtypes.get(name)
        ),
        *(
            f"{name} is {problem.dims.get(name, 'not passed')!r}, tuned {_expected(expected)}"
            for name, expected in match.dims.items()
            if name not in problem.dims or not fits(expected, problem.dims[name])
        ),
        *(
            f"{name} is {problem.facts.get(name, 'not div16')}, tuned {match.facts.get(name, 'not div16')}"
            for name in sorted({*match.facts, *problem.facts})
            if (name in specialised or "none" in (match.facts.get(name), problem.facts.get(name)))
            and match.facts.get(name) != problem.facts.get(name)
            and not _exact(match, name)
        ),
    )


def fits(expected: Value | tuple[int, int], value: Value) -> bool:
    """Whether a dim's value is the expected one, or lies in the expected range."""
    if isinstance(expected, tuple):
        return isinstance(value, int | float) and expected[0] < value <= expected[1]
    return expected == value


def _exact(match: Match, name: str) -> bool:
    # The value settles the fact.
    return name in match.dims and not isinstance(match.dims[name], tuple)


def _distance(row: Row, problem: Problem) -> float:
    """Sum over the dims of the factors between a call and the problem that was measured, as logarithms."""
    pairs = ((row.measured_at.get(name), value) for name, value in problem.dims.items())
    return sum(abs(math.log(a / b)) for a, b in pairs if isinstance(a, int) and isinstance(b, int) and a > 0 and b > 0)


def _expected(value: Value | tuple[int, int]) -> str:
    return f"for ({value[0]}, {value[1]}]" if isinstance(value, tuple) else repr(value)


def explain(offers: Sequence[Offer], refused: Sequence[str], problem: Problem, specialised: Collection[str]) -> str:
    """Why no row answers a call: the rows that come nearest, and what was refused. One reason a line."""
    differences = [(difference(offer.row.match, problem, specialised), offer) for offer in offers]
    nearest = sorted(differences, key=lambda pair: (len(pair[0]), _distance(pair[1].row, problem)))[:3]
    lines = [f"  nearest row {offer.row.match.label}: {'; '.join(why)}" for why, offer in nearest]
    lines += [f"  refused {reason}" for reason in refused]
    return "\n".join(lines or ["  no active pack has a row of this kernel for this device"])
