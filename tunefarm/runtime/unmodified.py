"""Kernels of jobs that know nothing of tunefarm: they are adopted as they are made, wherever that is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tunefarm.runtime.active import ACTIVE

AUTOTUNER = "triton.runtime.autotuner"
_SHOWN_IN = (AUTOTUNER, "triton.runtime", "triton")
"""Modules under which `autotune` goes."""


def adopt_as_made() -> None:
    """Adopts each kernel that `@triton.autotune` makes from now on and that an active pack has a table of.

    Triton is not loaded for this: what is to be done is done once the job loads it. Autotuners that others derive from
    Triton's class, and make without its decorator, are left as they are: `install` adopts those.
    """
    if (module := sys.modules.get(AUTOTUNER)) is not None:
        _wrap(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _wrap(module: ModuleType) -> None:
    stock: Any = vars(module)["autotune"]
    if hasattr(stock, "__wrapped__"):
        return

    def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        decorate = stock(*args, **kwargs)

        def adopted(kernel: Any) -> Any:
            from tunefarm.runtime.autotuner import adopt, autotuners

            made = decorate(kernel)
            for tuner in autotuners(made):
                if tuner.base_fn.__name__ in {t.kernel for a in ACTIVE.activations for t in a.pack.tables}:
                    adopt(tuner, owned=False)
            return made

        return adopted

    autotune.__wrapped__ = stock  # type: ignore[attr-defined]
    autotune.__doc__ = stock.__doc__
    for name in _SHOWN_IN:
        shown = sys.modules.get(name)
        if shown is not None and getattr(shown, "autotune", None) is stock:
            shown.autotune = autotune  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for Triton's autotuner, finds it as everybody would, and sees it loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != AUTOTUNER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_wrap(module: ModuleType) -> None:
            load(module)
            _wrap(module)

        spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec
