"""Kernels of jobs that know nothing of tunefarm: they are adopted as they are made, wherever that is."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.loading import once_loaded

AUTOTUNER = "triton.runtime.autotuner"


def adopt_as_made() -> None:
    """Adopts each autotuner made from now on, of Triton's class or one derived from it, for a kernel of which
    an active pack has a table.

    Triton is not loaded for this: what is to be done is done once the job loads it.
    """
    once_loaded(AUTOTUNER, _watch)


def _watch(module: ModuleType) -> None:
    base: Any = vars(module)["Autotuner"]
    if not getattr(base.__init__, "watched", False):
        _watch_class(base)
        base.__init_subclass__ = classmethod(_watch_class)


def _watch_class(cls: Any) -> None:
    stock = vars(cls).get("__init__")
    if stock is None:
        return

    # torch.compile asks for the signature of Triton's own.
    @functools.wraps(stock)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if type(self).__init__ is init:
            _adopt(self)

    init.watched = True  # type: ignore[attr-defined]
    cls.__init__ = init


def _adopt(tuner: Any) -> None:
    from tunefarm.runtime.autotuner import ADOPTED, adopt
    from tunefarm.runtime.kernels import jitted

    # torch.compile makes autotuners of its own around a kernel it traces, of the one config that our own left it.
    named = {table.kernel for activation in ACTIVE.activations for table in activation.pack.tables}
    if tuner.base_fn.__name__ in named and ADOPTED not in jitted(tuner).__dict__:
        adopt(tuner, owned=False)
