"""What training code calls: activate a pack, install kernels of others, and report what was used.

Standard library only until a kernel is touched.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.config import counted
from tunefarm.device import Device
from tunefarm.errors import MissError, PackError, UserError
from tunefarm.pack import Pack, load_pack, seal
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.autotuner import adopt, autotuners
from tunefarm.runtime.lookup import POLICIES, Activation


def activate(
    source: str | Path | Pack,
    *,
    on_miss: str = "stock",
    strict: bool = False,
    allow_replayed: bool = False,
    device: Device | None = None,
) -> Pack | None:
    """Puts a pack into use for kernels marked with `autotune` and for installed ones, now and later.

    Of several active packs the later one answers first; its word on misses counts. What torch.compile has compiled
    before is compiled again, except with kernels that were not yet installed, or that restore or zero arguments.

    Args:
        source: the path of a pack, or a pack.
        on_miss: for a call that no row answers: `stock` (an installed kernel tunes as ever, a kernel of our own uses
            its default), `default` (the first declared config, no tuning anywhere) or `error`.
        strict: every call must be answered by a row measured on this device (or its twin), with this Triton and this
            source of the kernel; anything else raises and prints the difference.
        allow_replayed: use rows whose times were replayed from a landscape, not measured.
        device: match against this device in place of the one that holds the tensors.

    Returns:
        The pack in use; None if the file is damaged, which is logged and otherwise as if there were no pack.

    Raises:
        PackError: there is no such file; with `strict` also if it is damaged.
        MissError: `strict`, and the pack holds replayed rows that are not allowed.
        UserError: `on_miss` is none of the three.
    """
    if on_miss not in POLICIES:
        raise UserError(f"on_miss is {on_miss!r}", hint=f"it is one of {', '.join(POLICIES)}")
    if isinstance(source, Pack):
        pack, label = seal(source), f"pack {seal(source).digest[:12]}"
    else:
        label = str(source)
        try:
            pack = load_pack(source)
        except PackError as e:
            if strict or not Path(source).exists():
                raise
            ACTIVE.warn_once(f"no pack is used: {e}")
            return None
    if "replayed" in pack.sources and not allow_replayed:
        message = f"{label}: its times were replayed from a landscape, not measured"
        if strict:
            raise MissError(message, hint="sweep on a GPU, or pass allow_replayed=True")
        ACTIVE.warn_once(f"{message}: its rows are not used (allow_replayed=True uses them)")
    ACTIVE.add(
        Activation(pack=pack, label=label, on_miss=on_miss, strict=strict, allow_replayed=allow_replayed, device=device)
    )
    return pack


def deactivate() -> None:
    """Takes all packs out of use and forgets what was counted; adopted kernels stay adopted. For tests."""
    ACTIVE.clear()


def install(target: Any) -> list[str]:
    """Makes autotuned kernels of others obey the active packs, present and to come. Doing it again does nothing.

    Args:
        target: a kernel with `@triton.autotune` on it, or a module or its dotted name: all such kernels that stand in
            it.

    Returns:
        Names of the kernels that obey now, those adopted before included.

    Raises:
        UserError: nothing in `target` is an autotuned kernel.
    """
    if isinstance(target, str):
        try:
            target = importlib.import_module(target)
        except ImportError as e:
            raise UserError(
                f"cannot import {target}: {e}", hint="give a module, its dotted name, or a kernel"
            ) from None
    found = {id(tuner): tuner for tuner in autotuners(target)}
    if not found:
        raise UserError(
            f"{getattr(target, '__name__', target)!r} holds no kernel with @triton.autotune",
            hint="a kernel without it is marked with @tunefarm.autotune",
        )
    for tuner in found.values():
        adopt(tuner, owned=False)
    return sorted(tuner.base_fn.__name__ for tuner in found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A row that answered calls.

    Attributes:
        kernel: that was launched.
        step: how near the device of the row's table is.
        match: the calls it is for.
        config: what was used.
        pack: where the row stands.
        launches: eager launches.
        graphs: traces by torch.compile; a compiled graph launches without telling.
    """

    kernel: str
    step: str
    match: str
    config: str
    pack: str
    launches: int
    graphs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Calls that no row answered.

    Attributes:
        kernel: that was launched.
        problem: the facts of the call, as far as rows name them.
        reason: why, one reason a line.
        launches: eager launches.
        graphs: traces by torch.compile.
    """

    kernel: str
    problem: str
    reason: str
    launches: int
    graphs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the active packs did so far in this process.

    Attributes:
        packs: labels of the active packs, oldest first.
        hits: rows that answered.
        misses: calls that no row answered.
        refused: why tables could not be used.
        never_asked: tables whose kernel was never launched or traced here.
    """

    packs: tuple[str, ...]
    hits: tuple[Hit, ...]
    misses: tuple[Miss, ...]
    refused: tuple[str, ...]
    never_asked: tuple[str, ...]

    @property
    def num_hits(self) -> int:
        """Launches and traces that a row answered."""
        return sum(hit.launches + hit.graphs for hit in self.hits)

    @property
    def num_misses(self) -> int:
        """Launches and traces that none did."""
        return sum(miss.launches + miss.graphs for miss in self.misses)

    def __str__(self) -> str:
        hits, misses = counted(self.num_hits, "hit"), counted(self.num_misses, "miss", "misses")
        lines = [f"packs: {', '.join(self.packs) or 'none'}; {hits}, {misses}"]
        if self.hits:
            cells = [("kernel", "step", "match", "config", "launches", "graphs")]
            cells += [(h.kernel, h.step, h.match, h.config, str(h.launches), str(h.graphs)) for h in self.hits]
            widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
            lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        for miss in self.misses:
            times = f"{counted(miss.launches, 'launch', 'launches')}, {counted(miss.graphs, 'graph')}"
            lines += [f"missed {miss.kernel}: {miss.problem} ({times})"]
            lines += [line for line in miss.reason.splitlines() if line]
        lines += [f"refused {reason}" for reason in self.refused]
        lines += [f"never asked: {table}" for table in self.never_asked]
        return "\n".join(lines)


def report() -> Report:
    """What the active packs did so far in this process."""
    return Report(
        packs=tuple(activation.label for activation in ACTIVE.activations),
        hits=tuple(
            Hit(
                kernel=kernel, step=offer.step.value, match=offer.row.match.label, config=str(offer.row.config),
                pack=offer.activation.label, launches=tally.launches, graphs=tally.graphs,
            )
            for (kernel, offer), tally in ACTIVE.hits.items()
        ),
        misses=tuple(
            Miss(kernel=kernel, problem=problem, reason=reason, launches=tally.launches, graphs=tally.graphs)
            for (kernel, problem, reason), tally in ACTIVE.misses.items()
        ),
        refused=tuple(dict.fromkeys(reason for reasons in ACTIVE.refused.values() for reason in reasons)),
        never_asked=tuple(
            f"{table.kernel} on {table.device.name} ({activation.label})"
            for activation in ACTIVE.activations
            for table in activation.pack.tables
            if (table.kernel, table.digest) not in ACTIVE.asked
        ),
    )  # fmt: skip
