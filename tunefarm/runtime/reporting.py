"""What packs did in this process: for people, for machines, and on disk where an operator asks for it.

Standard library only.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunefarm.config import counted
from tunefarm.document import digest as digest_of
from tunefarm.document import write_atomic
from tunefarm.exposition import HITS, MISSES, NEVER_ASKED, PACKS, Sample, expose, sample
from tunefarm.problem import Problem
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.environment import rank

FORMAT, VERSION = "tunefarm-report", 1


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
        problem: the facts of the call, as far as rows name them; None for what came after too many others.
        reason: why, one reason a line.
        launches: eager launches.
        graphs: traces by torch.compile; their dims are symbols and not told.
    """

    kernel: str
    problem: Problem | None
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
            call = miss.problem.key if miss.problem is not None else "other calls"
            lines += [f"missed {miss.kernel}: {call} ({times})"]
            lines += [line for line in miss.reason.splitlines() if line]
        lines += [f"refused {reason}" for reason in self.refused]
        lines += [f"never asked: {table}" for table in self.never_asked]
        return "\n".join(lines)


def report() -> Report:
    """What the active packs did so far in this process. What was only asked for, as by `config_for`, is not told."""
    # Other threads go on meanwhile: a list is made of all at once.
    return Report(
        packs=tuple(activation.label for activation in ACTIVE.activations),
        hits=tuple(
            Hit(
                kernel=kernel, step=offer.how, match=offer.row.match.label, config=str(offer.row.config),
                pack=offer.activation.label, launches=tally.launches, graphs=tally.graphs,
            )
            for (kernel, offer), tally in list(ACTIVE.hits.items())
            if tally.launches or tally.graphs
        ),
        misses=tuple(
            Miss(kernel=kernel, problem=problem, reason=reason, launches=tally.launches, graphs=tally.graphs)
            for (kernel, problem, reason), tally in list(ACTIVE.misses.items())
            if tally.launches or tally.graphs
        ),
        refused=tuple(dict.fromkeys(reason for reasons in list(ACTIVE.refused.values()) for reason in reasons)),
        never_asked=tuple(
            f"{table.kernel} on {table.device.name} ({activation.label})"
            for activation in ACTIVE.activations
            for table in activation.pack.tables
            if (table.kernel, table.digest) not in ACTIVE.asked
        ),
    )  # fmt: skip


def digest() -> str:
    """One digest for all packs in use, oldest first, for checkpoints and logs; empty if there is none.

    Equal digests on equal devices mean equal choices.
    """
    packs = [activation.pack.digest for activation in ACTIVE.activations]
    return digest_of(packs) if packs else ""


def to_json(told: Report) -> dict[str, Any]:
    """A report as a file holds it."""
    misses = [
        {**asdict(miss), "problem": miss.problem.to_json() if miss.problem is not None else None}
        for miss in told.misses
    ]
    return {
        "format": FORMAT, "version": VERSION, "rank": rank(), "host": socket.gethostname(), "pid": os.getpid(),
        "digest": digest(), **asdict(told), "misses": misses,
    }  # fmt: skip


def prometheus(told: Report) -> str:
    """A report in Prometheus's text format, as a textfile collector takes it."""
    place = {"rank": str(rank())}

    def samples() -> Iterator[Sample]:
        yield sample(PACKS, len(told.packs), **place, digest=digest(), packs=", ".join(told.packs))
        hits: Counter[tuple[str, str, str]] = Counter()
        for hit in told.hits:
            hits.update({(hit.kernel, hit.step, "launch"): hit.launches, (hit.kernel, hit.step, "graph"): hit.graphs})
        for (kernel, step, kind), number in hits.items():
            yield sample(HITS, number, **place, kernel=kernel, step=step, kind=kind)
        misses: Counter[tuple[str, str]] = Counter()
        for miss in told.misses:
            misses.update({(miss.kernel, "launch"): miss.launches, (miss.kernel, "graph"): miss.graphs})
        for (kernel, kind), number in misses.items():
            yield sample(MISSES, number, **place, kernel=kernel, kind=kind)
        yield sample(NEVER_ASKED, len(told.never_asked), **place)

    return expose(samples())


def write_report(folder: Path) -> Path:
    """Writes what packs did so far as JSON, and beside it as Prometheus text; returns the former's path.

    A file a process: ranks write into one folder.

    Raises:
        OSError: the folder cannot be written to.
    """
    told = report()
    path = folder / f"rank{rank()}-{socket.gethostname()}-{os.getpid()}.json"
    write_atomic(path, (json.dumps(to_json(told), indent=1) + "\n").encode())
    write_atomic(path.with_suffix(".prom"), prometheus(told).encode())
    return path


def write_at_exit(folder: str) -> None:
    """Writes a report when this process ends. What keeps it from that is logged, now if it shows, and harms nobody."""
    atexit.unregister(_write_quietly)
    # The job may be in another folder by then.
    atexit.register(_write_quietly, folder, Path(folder).absolute())
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _tell(folder, error)


def _write_quietly(folder: str, where: Path) -> None:
    try:
        write_report(where)
    except OSError as error:
        _tell(folder, error)


def _tell(folder: str, error: OSError) -> None:
    ACTIVE.warn_once(f"no report of packs is left in {folder}: {error.strerror}")
