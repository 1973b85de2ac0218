"""What an experiment needs beside it on another machine: its file, its workload's, and what it learns from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tunefarm.errors import SpecError
from tunefarm.spec.bundling import gathered
from tunefarm.spec.experiment import Experiment


def belongings(experiment: Experiment) -> list[Path]:
    """The files, without importing any of them; the experiment's own first.

    They are those that a fleet sends to its workers, see `bundling`. Landscapes stay here: elsewhere is a GPU.

    Raises:
        SpecError: a file that is named is not there, or cannot be parsed; or all of them are too large to be sent.
    """
    folder = experiment.folder.resolve()
    found: dict[Path, None] = {folder / experiment.path.name: None}
    for key, source in _sources(experiment):
        path = (experiment.folder / source).absolute()
        if not path.is_file():
            message = f"{path} cannot be read: no such file"
            raise experiment.error(key, message, "paths start at the experiment's folder")
    listed = {(folder / name).resolve() for name in experiment.files}
    for path, content in gathered(experiment).items():
        if path.suffix == ".py" and path.resolve() not in listed:
            _check_parses(path, content)
        found.setdefault(path)
    for number, known in enumerate(experiment.search.learn_from):
        if not known.is_file():
            raise experiment.error(
                f"search.learn_from[{number}]", f"{known}: no such file", "name one, or leave it out"
            )
        found.setdefault(known.parent.resolve() / known.name)
    return list(found)


def _sources(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """The files that the workload's references name, each with its key."""
    ref = experiment.workload
    named = {"workload": ref.object} if ref.object else {
        f"workload.{name}": getattr(ref, name) for name in ("call", "kernel", "reference")
    }  # fmt: skip
    for key, reference in named.items():
        source = reference.rpartition(":")[0]
        if source.endswith(".py") or "/" in source:
            yield key, source


def _check_parses(path: Path, content: bytes) -> None:
    try:
        ast.parse(content, str(path))
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None)
        raise SpecError(f"cannot be parsed: {e}", file=f"{path}:{line}" if line else str(path)) from None
