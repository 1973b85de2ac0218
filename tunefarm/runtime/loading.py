"""What is to be done to a module once the job loads it: nothing heavy is imported for packs that nobody may need."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def once_loaded(name: str, act: Callable[[ModuleType], None]) -> None:
    """Does something to a module: now if it is loaded, else as soon as it is; the same only once."""
    if (module := sys.modules.get(name)) is not None:
        act(module)
    elif not any(isinstance(f, _Finder) and (f.name, f.act) == (name, act) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for a module, finds it as everybody would, and sees it loaded."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name, self.act = name, act

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        # It waits on: whoever asks for a module may only want to know whether it is there.
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            load(module)
            # Others may wait for it, too; who came first acts first.
            mine = [finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.name == name]
            for finder in reversed(mine):
                sys.meta_path.remove(finder)
                finder.act(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec
