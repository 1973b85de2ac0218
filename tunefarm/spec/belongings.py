"""What an experiment needs beside it on another machine: its file, its workload's, and what these import from there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tunefarm.errors import SpecError
from tunefarm.spec.experiment import Experiment


def belongings(experiment: Experiment) -> list[Path]:
    """The files, without importing any of them; the experiment's own first.

    What is imported and does not lie beside the file that imports it is expected to be installed there. Landscapes stay
    here: elsewhere is a GPU.

    Raises:
        SpecError: a file that is named is not there, or cannot be parsed.
    """
    found: dict[Path, None] = {experiment.path.absolute(): None}
    for key, reference in _references(experiment):
        for path in _named(experiment, key, reference):
            _follow(path, found)
    for number, known in enumerate(experiment.search.learn_from):
        if not known.is_file():
            raise experiment.error(
                f"search.learn_from[{number}]", f"{known}: no such file", "name one, or leave it out"
            )
        found.setdefault(known.absolute())
    return list(found)


def _references(experiment: Experiment) -> Iterator[tuple[str, str]]:
    ref = experiment.workload
    if ref.object:
        yield "workload", ref.object
        return
    for name in ("call", "kernel", "reference"):
        if reference := getattr(ref, name):
            yield f"workload.{name}", reference


def _named(experiment: Experiment, key: str, reference: str) -> list[Path]:
    """The files behind `file.py:object`, or behind `package.module:object` where it lies beside the experiment."""
    source = reference.rpartition(":")[0]
    if source.endswith(".py") or "/" in source:
        path = (experiment.folder / source).absolute()
        if not path.is_file():
            raise experiment.error(
                key, f"{path} cannot be read: no such file", "paths start at the experiment's folder"
            )
        return [path]
    return _beside(experiment.folder.absolute(), source)


def _beside(folder: Path, module: str) -> list[Path]:
    """What importing a dotted module loads from a folder: its packages' `__init__` and itself."""
    files: list[Path] = []
    place = folder
    for name in module.split("."):
        place = place / name
        if (place / "__init__.py").is_file():
            files.append(place / "__init__.py")
        elif place.with_suffix(".py").is_file():
            return [*files, place.with_suffix(".py")]
        else:
            return files  # an attribute, or nothing of ours
    return files


def _follow(path: Path, found: dict[Path, None], root: Path | None = None) -> None:
    """Adds a file and what it imports from its own folder, or from the one that its package lies in."""
    if path in found:
        return
    found[path] = None
    root = root or path.parent
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None)
        raise SpecError(f"cannot be parsed: {e}", file=f"{path}:{line}" if line else str(path)) from None
    for module in _imports(tree, path.parent.relative_to(root).parts):
        for file in _beside(root, module):
            _follow(file, found, root)


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Every module that a file may import, late or early; of `from a import b` also `a.b`, which may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*above, *([node.module] if node.module else [])))
            yield from (f"{source}.{alias.name}" if source else alias.name for alias in node.names)
