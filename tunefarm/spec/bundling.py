"""What a workload is made of, as files: those it names, the modules beside them that they import, and listed data.

Nothing is imported. Imports are read from the source, those inside functions too, and looked for where Python would
look first: in the folder of the workload's file, then in the experiment's. What is found elsewhere is an installed
package, which workers have of their own. Whether git ignores a file does not matter.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunefarm.bundle import Bundle
from tunefarm.spec.experiment import Experiment

MAX_BYTES = 20 << 20
"""The most that a workload's files may hold together: they are sent to every process that works for it."""

_OURS = "tunefarm"


def bundled(experiment: Experiment) -> Experiment:
    """The experiment with its workload's files gathered, so that workers need not see this machine's folders.

    Raises:
        SpecError: a listed file cannot be read, or all of them are too large to be sent.
    """
    gathering = _gather(experiment)
    if not gathering.contents:
        return experiment  # an installed package's: workers have it or say that they have not
    return replace(experiment, workload=replace(experiment.workload, bundle=gathering.bundle()))


def gathered(experiment: Experiment) -> Mapping[Path, bytes]:
    """The same files by their absolute path here.

    Raises:
        SpecError: as for `bundled`.
    """
    return _gather(experiment).contents


def _gather(experiment: Experiment) -> _Gathering:
    gathering = _Gathering(experiment)
    for number, name in enumerate(experiment.files):
        gathering.take_listed(name, f"files[{number}]")
    workload = experiment.workload
    for reference in dict.fromkeys((workload.object, workload.call, workload.kernel, workload.reference)):
        gathering.take_named(reference.rpartition(":")[0])
    return gathering


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder that modules are imported from, and where what lies there is found by workers.

    They are one, save beside a symbolic link to a file: Python looks beside the file itself.
    """

    real: Path
    known_as: Path


@dataclass(slots=True)
class _Gathering:
    """Files by their absolute path on this machine."""

    experiment: Experiment
    contents: dict[Path, bytes] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Of the experiment."""
        return self.experiment.folder.resolve()

    def bundle(self) -> Bundle:
        """All of them, under the folder that holds them and the experiment."""
        root = Path(os.path.commonpath([self.folder, *(path.parent for path in self.contents)]))
        return Bundle.of(root, {path.relative_to(root).as_posix(): data for path, data in self.contents.items()})

    def take_listed(self, name: str, key: str) -> None:
        """A file that the experiment lists."""
        path = Path(os.path.normpath(self.folder / name))
        if not path.is_file():
            raise self.experiment.error(
                key, f"{name} is a folder" if path.is_dir() else f"{name}: no such file",
                "name files, relative to the experiment's folder",
            )  # fmt: skip
        try:
            self._add(path, path)
        except OSError as e:
            raise self.experiment.error(key, f"{name} cannot be read: {e.strerror}") from None

    def take_named(self, source: str) -> None:
        """What one of the workload's references names; whatever is wrong with it, importing it will say."""
        here = _Place(self.folder, self.folder)
        if source.endswith(".py") or "/" in source:
            path = Path(os.path.normpath(self.folder / source))
            beside = _Place(path.resolve().parent, path.parent)
            self._take(path, path, [beside, here])
        elif source:
            self._find(source, [here], [here])

    def _take(self, real: Path, known_as: Path, places: Sequence[_Place]) -> None:
        """A module's file, and what it imports."""
        if known_as in self.contents or not real.is_file():
            return
        try:
            tree = ast.parse(self._add(real, known_as))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for level, name in _imported(tree):
            if level:
                up = _Place(_above(real, level), _above(known_as, level))
                self._find(name, [up], places)
            elif name.partition(".")[0] != _OURS:
                self._find(name, places, places)

    def _find(self, name: str, where: Sequence[_Place], places: Sequence[_Place]) -> None:
        """A module with the packages around it, from the first place that has them."""
        for place in where:
            found = [file for file in _files_of(name) if (place.real / file).is_file()]
            for file in found:
                self._take(place.real / file, place.known_as / file, places)
            if found:
                return

    def _add(self, real: Path, known_as: Path) -> bytes:
        self.sizes[known_as] = real.stat().st_size
        self._check_size()
        if known_as not in self.contents:
            self.contents[known_as] = real.read_bytes()
        return self.contents[known_as]

    def _check_size(self) -> None:
        """Refuses what is too large before it is read."""
        total = sum(self.sizes.values())
        if total <= MAX_BYTES:
            return
        largest = sorted(self.sizes.items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{os.path.relpath(path, self.folder)} ({size / 2**20:.1f} MiB)" for path, size in largest)
        raise self.experiment.error(
            "files" if self.experiment.files else "workload",
            f"the workload's files hold {total / 2**20:.1f} MiB, more than the {MAX_BYTES >> 20} MiB that are sent to "
            f"workers: {shown}",
            "make large data in `inputs`, or read it from a path that every worker has",
        )


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(how many levels up, dotted name) of whatever a module may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.level, module
            for alias in node.names:  # each a module, or an object in one
                yield node.level, f"{module}.{alias.name}".lstrip(".")


def _files_of(name: str) -> Iterator[Path]:
    """Where a module, and the packages around it, may lie; without a name, the package itself."""
    if not name:
        yield Path("__init__.py")
        return
    inner = Path()
    for part in name.split("."):
        yield inner / f"{part}.py"
        inner /= part
        yield inner / "__init__.py"


def _above(file: Path, level: int) -> Path:
    return file.parents[min(level, len(file.parents)) - 1]
