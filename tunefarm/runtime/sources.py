"""Where a pack comes from: a file, a folder of packs, data of a package, or MLflow's registry."""

from __future__ import annotations

import contextlib
import importlib.resources
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import PackError, UserError
from tunefarm.pack import Pack, Table, bind, seal
from tunefarm.pack_reader import load_pack, open_pack

PACKAGE = "pkg:"
REGISTRY = "models:"
DAMAGED_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a source held.

    Attributes:
        label: what people call it.
        pack: the packs found, as one; None where none could be read.
        damaged: what was wrong with the others.
    """

    label: str
    pack: Pack | None
    damaged: tuple[PackError, ...] = ()


def find_packs(source: str | Path | Pack, *, thoroughly: bool = False, registry: str = "") -> Found:
    """Reads the packs of a source; damaged ones are told, not raised.

    Args:
        source: a pack; the path of one, or of a folder whose `*.json` are packs; `pkg:PACKAGE[/PATH]` for either among
            a package's data; `models:/NAME@ALIAS` or `models:/NAME/VERSION` for one in MLflow's registry.
        thoroughly: look into every row now, not when a kernel asks for it.
        registry: tracking URI of MLflow's registry; empty for the one that MLflow is set up with.

    Raises:
        PackError: nothing is there, or two packs of a folder hold a table for one kernel, device and key.
        UserError: the package cannot be imported, or the registry cannot be asked.
    """
    if isinstance(source, Pack):
        pack = seal(source)
        return Found(label=f"pack {pack.digest[:12]}", pack=pack)
    if source == "":  # a path of this text is the working folder
        raise PackError("the source has no name", hint="name a pack, or a folder of packs")
    label, read = str(source), load_pack if thoroughly else open_pack
    with _place(label, registry) as place:
        files = _files(place, label)
        packs: list[tuple[str, Pack]] = []
        damaged: list[PackError] = []
        for file in files:
            try:
                packs.append((file.name, read(file)))
            except PackError as error:
                damaged.append(error)
    return Found(label=label, pack=_united(packs, label) if packs else None, damaged=tuple(damaged))


def _files(place: Path, label: str) -> list[Path]:
    """The packs at a place that must be there; on a rank any other error would leave the others waiting for it."""
    try:
        if not place.exists():
            raise PackError("no such file", file=label, hint="packs are written by `tunefarm sweep`")
        # glob would pass over a folder that may not be looked into.
        files = sorted(f for f in place.iterdir() if f.match("*.json")) if place.is_dir() else [place]
    except OSError as e:
        raise PackError(f"cannot be read: {e.strerror}", file=label, hint="may this user look into it?") from None
    if not files:
        raise PackError("is a folder without packs", file=label, hint="its *.json files are taken")
    return files


@contextlib.contextmanager
def _place(source: str, registry: str) -> Iterator[Path]:
    """The file or folder that a source names, there for as long as the context lasts."""
    if source.startswith(PACKAGE):
        name, _, inside = source.removeprefix(PACKAGE).partition("/")
        try:
            data = importlib.resources.files(name)
        except (ImportError, TypeError, ValueError) as error:
            raise UserError(
                f"{source}: cannot import {name or 'a package without a name'}: {error}",
                hint="write pkg:PACKAGE or pkg:PACKAGE/PATH",
            ) from None
        for part in (part for part in inside.split("/") if part):
            if part == "..":
                raise UserError(f"{source} leads out of the package", hint="name a file or folder inside it")
            data = data.joinpath(part)
        with importlib.resources.as_file(data) as path:
            yield path
    elif source.startswith(REGISTRY):
        from tunefarm.runtime.registry import fetch

        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            yield fetch(source, Path(folder), registry)
    else:
        yield Path(source)


def _united(packs: list[tuple[str, Pack]], label: str) -> Pack:
    """Packs as one, with one digest: which of two tables for the same launches is meant nobody can say."""
    owner: dict[tuple[str, str, str], str] = {}
    tables: list[Table] = []
    for name, pack in packs:
        for table in pack.tables:
            if owner.setdefault(table.place, name) != name:
                raise PackError(
                    f"{owner[table.place]} and {name} both hold a table of {table.kernel} on {table.device.name}",
                    file=label, hint="merge them, or keep one",
                )  # fmt: skip
            tables.append(table)
    return packs[0][1] if len(packs) == 1 else bind(tables)
