"""What an experiment needs beside it on another machine: its file, what it learns from, and its workload's files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tunefarm.errors import SpecError
from tunefarm.spec.bundling import bundled
from tunefarm.spec.experiment import Experiment


def belongings(experiment: Experiment) -> list[Path]:
    """The files, without importing any of them; the experiment's own first.

    Of a workload they are those that a driver sends to its workers. Landscapes stay here: elsewhere is a GPU.

    Raises:
        SpecError: a file that is named is not there, or cannot be parsed; or all of them are too large to be sent.
    """
    for key, source in _sources(experiment):
        _check(experiment, key, source)
    found = {experiment.folder.resolve() / experiment.path.name: None}
    if (bundle := bundled(experiment).workload.bundle) is not None:
        found |= {Path(bundle.root, name): None for name, _ in bundle.files}
    for number, known in enumerate(experiment.search.learn_from):
        if not known.is_file():
            raise experiment.error(
                f"search.learn_from[{number}]", f"{known}: no such file", "name one, or leave it out"
            )
        found.setdefault(known.parent.resolve() / known.name)
    return list(found)


def _sources(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Keys that name the workload, and the files that they name; names of modules are left out."""
    ref = experiment.workload
    named = {"workload": ref.object} if ref.object else {
        f"workload.{name}": getattr(ref, name) for name in ("call", "kernel", "reference")
    }  # fmt: skip
    for key, reference in named.items():
        source = reference.rpartition(":")[0]
        if source.endswith(".py") or "/" in source:
            yield key, source


def _check(experiment: Experiment, key: str, source: str) -> None:
    """Refuses what no driver could import: it would say so only once it is there."""
    path = (experiment.folder / source).absolute()
    if not path.is_file():
        raise experiment.error(key, f"{path} cannot be read: no such file", "paths start at the experiment's folder")
    try:
        ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None)
        raise SpecError(f"cannot be parsed: {e}", file=f"{path}:{line}" if line else str(path)) from None
