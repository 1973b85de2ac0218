"""Importing what a user names: `file.py:object` or `package.module:object`, with errors a user can act on."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefarm.bundle import Bundle
from tunefarm.errors import SpecError, TunefarmError
from tunefarm.source import HOME
from tunefarm.spec.grammar import nearest

_HINTS = (
    (
        r"cuda|\bgpu|nvidia|active driver",
        "importing must work without a GPU: move what needs one inside a function",
    ),
    (r"should be defined in a Python file", HOME),
    (r"No module named", "install it where tunefarm runs, or put it beside the file"),
)

_HINTS_AWAY = {
    ModuleNotFoundError: "install it on every worker as it is on the driver; a module of your own that is imported by "
    "no `import` statement goes under the experiment's `files`",
    FileNotFoundError: "name what the workload reads under the experiment's `files`: only they and modules are sent",
}

UNFILLED = "FILL_IN"
"""A name in a drafted experiment that nobody but its author can give."""

_PREFIX = "tunefarm_workload"

_folders: set[Path] = set()
"""Folders of the workload files that this process has loaded."""

_shelved: dict[Path, dict[str, ModuleType]] = {}
"""Modules of unpacked bundles that are not at work, by folder; two bundles may have modules of one name."""

_entered: list[Path] = []
"""The folder of the unpacked bundle that is at work, if one is."""


def enter(bundle: Bundle | None) -> None:
    """Lets modules of an unpacked bundle be found under their names, and no other bundle's.

    Raises:
        Lacking: this process has not been sent it.
    """
    if bundle is None or not bundle.is_away:
        return
    folder = bundle.folder()
    if _entered == [folder]:
        return
    for last in _entered:
        _shelved[last] = {name: module for name, module in list(sys.modules.items()) if _lies_in(last, name, module)}
        for name in _shelved[last]:
            del sys.modules[name]
    _entered[:] = [folder]
    sys.modules.update(_shelved.pop(folder, {}))


def _lies_in(folder: Path, name: str, module: ModuleType) -> bool:
    if name.startswith(_PREFIX):  # a workload file: no two share a name
        return False
    said = getattr(module, "__dict__", {})  # some modules answer to any attribute
    around = said.get("__path__")  # all that a package without an `__init__.py` has
    places = [said.get("__file__"), *(around if isinstance(around, Iterable) else ())]
    return any(str(place).startswith(f"{folder}{os.sep}") for place in places)


def import_object(reference: str, folder: str, bundle: Bundle | None = None) -> Any:
    """The object that a reference names.

    Args:
        reference: `file.py:object`, relative to `folder`, or `package.module:object`; `object` may be dotted.
        folder: of the experiment file. It can be imported from while the module is imported.
        bundle: the files by which the object is found on workers.

    Raises:
        SpecError: the reference is malformed, the module is missing or raises, or it lacks the object.
        Lacking: this process has not been sent the bundle.
    """
    enter(bundle)
    source, colon, path = reference.rpartition(":")
    if not colon or not source or not re.fullmatch(r"[A-Za-z_][\w.]*", path):
        raise SpecError(f"{reference!r} names no object", hint="write file.py:object or package.module:object")
    if source.endswith(".ipynb"):
        raise SpecError(f"{reference!r} is in a notebook", hint=HOME)
    is_file = source.endswith(".py") or "/" in source
    module = _import_file(Path(folder, source), folder, bundle) if is_file else _import_module(source, folder, bundle)
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            known = nearest(name, [n for n in dir(found) if n[0] != "_"])
            raise SpecError(f"{source} has no {path!r}", hint=f"fill it in; {known}" if name == UNFILLED else known)
        found = getattr(found, name)
    return found


def _import_file(path: Path, folder: str, bundle: Bundle | None) -> ModuleType:
    known_as, version, beside = str(path.resolve()), "", [Path(folder)]
    if bundle is not None:
        known_as, version = os.path.normpath(path), bundle.digest
        path, beside = bundle.locate(path), [bundle.locate(folder)]
    try:
        text = path.read_bytes()
    except OSError as e:
        raise SpecError(f"{path} cannot be read: {e.strerror}", hint="paths start at the experiment's folder") from None
    # Stable for equal files, so that workers and drivers agree on it; unique, so that two files of one name can meet.
    tag = hashlib.sha256("\0".join((known_as, version, "")).encode() + text).hexdigest()[:12]
    name = "_".join((_PREFIX, re.sub(r"\W", "_", path.stem), tag))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", hint="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        _forget_strangers(path.resolve().parent)
        with (
            _importable(path.resolve().parent, *beside),
            _explained(str(path), str(path.resolve()), is_away=bundle is not None and bundle.is_away),
        ):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str, folder: str, bundle: Bundle | None) -> ModuleType:
    place = Path(folder).resolve() if bundle is None else bundle.locate(folder)
    with _importable(place), _explained(name, "", is_away=bundle is not None and bundle.is_away):
        return importlib.import_module(name)


@contextlib.contextmanager
def _importable(*folders: Path) -> Iterator[None]:
    added = [str(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)


def _forget_strangers(folder: Path) -> None:
    """Forgets modules that lie beside workloads of other folders under the name of one in this: each has its own."""
    here = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/__init__.py")}
    strangers = set()
    for name in here & sys.modules.keys():
        file = Path(getattr(sys.modules[name], "__file__", None) or "/")
        whose = file.parents[1] if file.name == "__init__.py" else file.parent
        if whose != folder and whose in _folders:
            strangers.add(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in strangers]:
        del sys.modules[name]  # who imported it keeps it
    _folders.add(folder)


@contextlib.contextmanager
def _explained(source: str, file: str, *, is_away: bool) -> Iterator[None]:
    """Turns what a user's module raises into one error that names the file, the line and a remedy.

    Args:
        source: what is imported.
        file: path of it, if it is one.
        is_away: it was sent here by a driver, which has imported it.
    """
    try:
        yield
    except (Exception, SystemExit) as e:
        where = _line_of(e, file) or source
        if isinstance(e, TunefarmError):
            raise SpecError(str(e.args[0]), file=where, key=getattr(e, "key", ""), hint=e.hint) from None
        message = f"{e.__class__.__name__}: {e.msg if isinstance(e, SyntaxError) else e}"
        hint = next((hint for pattern, hint in _HINTS if re.search(pattern, message, re.IGNORECASE)), "")
        at = ""
        if is_away:
            at = f" on worker node {socket.gethostname()}"
            hint = next((hint for kind, hint in _HINTS_AWAY.items() if isinstance(e, kind)), hint)
        raise SpecError(
            f"cannot be imported{at}: {message}", file=where, hint=hint or f"importing {source} alone must work"
        ) from None


def _line_of(error: BaseException, file: str) -> str:
    """`file:line` of the user's line that raised: the deepest frame in `file`, or outside libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__ and f.filename[0] != "<"]
    mine = [f for f in frames if f.filename == file] or [f for f in frames if "importlib" not in f.filename]
    return f"{mine[-1].filename}:{mine[-1].lineno}" if mine else ""
