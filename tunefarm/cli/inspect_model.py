"""`tunefarm inspect --model`: how torch.compile takes a function apart. No GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunefarm.config import counted

if TYPE_CHECKING:
    from tunefarm.inductor.breaks import Break
    from tunefarm.inductor.dissection import Dissection, Graph

_MOST_OPS = 8
"""Operations of a graph that are named."""


def inspect_model(reference: str, device: str, out: Path | None, *, as_json: bool) -> None:
    """Runs the dissection and shows it.

    Args:
        reference: `FILE.py:FUNCTION` or `PACKAGE.MODULE:FUNCTION`.
        device: arch or name of the GPU that kernels are generated for.
        out: folder to write the graphs to.
        as_json: print one JSON document.

    Raises:
        UserError: the function cannot be imported, is not as it should be, or raises.
    """
    from tunefarm.cli.folders import cache_folder, write_texts
    from tunefarm.cli.packages import require
    from tunefarm.device import named, nominal
    from tunefarm.inductor import standin

    where = named(device)
    nominal(where.arch)
    require("torch", "triton")
    # Before anything imports torch.
    standin.prepare(cache_folder())
    from tunefarm.inductor.dissection import dissect

    found = dissect(reference, ".", where)
    written = write_texts(out, texts(found)) if out is not None else []
    if as_json:
        typer.echo(json.dumps(plain(found) | {"written": [str(path) for path in written]}, indent=1))
    elif written:
        for path in written:
            typer.echo(path)
    else:
        typer.echo(f"{reference} for {where.arch}: {_summary(found)}")
        for line in _lines(found):
            typer.echo(line)


def texts(found: Dissection) -> dict[str, str]:
    """The graphs as code, by the names of their files."""
    taken = {f"graph.{number}.py": graph.text for number, graph in enumerate(found.graphs, 1)}
    lowered = {f"lowered.{number}.py": graph.text for number, graph in enumerate(found.lowered, 1)}
    return {name: f"{text.rstrip()}\n" for name, text in {**taken, **lowered}.items()}


def plain(found: Dissection) -> dict[str, Any]:
    """A dissection as plain data; the texts of graphs are left to `--out`."""
    return {
        "graphs": [{"ops": dict(graph.ops)} for graph in found.graphs],
        "lowered": [
            {"ops": dict(graph.ops), "backward": graph.is_backward, "uncacheable": graph.uncacheable}
            for graph in found.lowered
        ],
        "kernels": [asdict(fusion) for fusion in found.fusions],
        "library_calls": found.library_calls,
        "breaks": [asdict(broken) for broken in found.breaks],
        "unseen": found.unseen,
    }


def _summary(found: Dissection) -> str:
    parts = [
        counted(len(found.graphs), "graph"), counted(len(found.breaks), "break"),
        counted(len(found.fusions), "kernel"), counted(found.library_calls, "library call"),
    ]  # fmt: skip
    return ", ".join(parts)


def _lines(found: Dissection) -> Iterator[str]:
    for number, graph in enumerate(found.graphs, 1):
        yield f"graph {number}: {_ops(graph)}"
    for number, graph in enumerate(found.lowered, 1):
        way = "backward" if graph.is_backward else "forward"
        mine = [fusion for fusion in found.fusions if fusion.graph == number]
        yield f"lowered {number}, {way}: {_ops(graph)}; {counted(len(mine), 'kernel')}"
        for fusion in mine:
            yield f"    {fusion.kernel}: {counted(len(fusion.ops), 'operation')}: {', '.join(fusion.ops)}"
        if graph.uncacheable:
            yield f"    Inductor's cache does not keep it: {graph.uncacheable}"
    for broken in found.breaks:
        yield from _told(broken)
    if found.unseen:
        yield f"note: lowered graphs and kernels end where values were needed: {found.unseen}"


def _ops(graph: Graph) -> str:
    named = list(graph.ops.items())
    shown = [f"{name} x {number}" if number > 1 else name for name, number in named[:_MOST_OPS]]
    more = [f"{len(named) - _MOST_OPS} kinds more"] if len(named) > _MOST_OPS else []
    return f"{counted(sum(graph.ops.values()), 'operation')}: {', '.join(shown + more)}"


def _told(broken: Break) -> Iterator[str]:
    yield f"break at {broken.file}:{broken.line}: {broken.text}"
    yield f"    {broken.reason}{f': {broken.explanation}' if broken.explanation else ''}"
    if broken.is_eager:
        yield "    the whole function is run without being compiled: its graph cannot be broken there"
    for hint in broken.hints:
        yield f"    may help: {hint}"
