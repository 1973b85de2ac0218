"""Kernels without an autotuner whose host code picks block sizes and warps: packs give them launch options.

The grid and the constexprs remain the host's, so a row answers only calls that pass the constexprs it was tuned with.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from tunefarm.errors import MissError
from tunefarm.problem import Problem
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.binding import BINDING, Binding
from tunefarm.runtime.choice import Choice, attempt
from tunefarm.runtime.kernels import current, signature_of

UNTRACEABLE = (
    "torch.compile reads the launch options in the host's code, so compiled calls keep those; "
    "packs reach eager launches of kernels without @triton.autotune"
)


def plain_kernels(target: Any) -> Iterator[Any]:
    """The kernels without an autotuner in a kernel (under heuristics, too), or those that a module defines.

    Among the latter are functions that only kernels call; those are never launched, and nothing comes of it.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    in_module = isinstance(target, ModuleType)
    for layer in list(vars(target).values()) if in_module else [target]:
        while isinstance(layer, KernelInterface) and not isinstance(layer, Autotuner):
            inner = getattr(layer, "fn", None)
            if not isinstance(inner, KernelInterface):
                if not in_module or getattr(inner, "__module__", None) == target.__name__:
                    yield layer
                break
            layer = inner


def adopt_plain(kernel: Any) -> bool:
    """Makes a jitted function take its launch options from the active packs, present and to come.

    Args:
        kernel: a `triton.runtime.JITFunction`.

    Returns:
        False if it was adopted before.
    """
    if BINDING in kernel.__dict__:
        return False
    import triton

    names = kernel.__dict__.pop("arg_names", None) or list(signature_of(kernel).arguments)
    # The binding of an autotuner with one config, which leaves everything to the host.
    alone = SimpleNamespace(
        fn=kernel, configs=[triton.Config({})], arg_names=names, early_config_prune=None, perf_model=None,
        configs_top_k=1.0, restore_value=[], reset_to_zero=[],
    )  # fmt: skip
    binding = Binding(tuner=alone, stock=alone, owned=False, signature=signature_of(kernel), options_only=True)
    kernel.__dict__[BINDING] = binding
    stock: type = type(kernel)
    kernel.__class__ = _obedient(stock)
    return True


@functools.cache
def _obedient(stock: Any) -> type:
    """The subclass of a jitted function's class whose objects obey packs."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        binding: Binding = self.__dict__[BINDING]
        choice = binding.choose(args, kwargs)
        launch = functools.partial(stock.run, self, *args, grid=grid, warmup=warmup)
        with current(choice.index):
            return launch(**kwargs) if choice.offer is None else _obey(binding, choice, launch, kwargs)

    def arg_names(self: Any) -> list[str]:
        binding: Binding = self.__dict__[BINDING]
        _refuse_traces(binding)
        names: list[str] = binding.stock.arg_names
        return names

    members = {"run": run, "arg_names": property(arg_names), "__module__": stock.__module__, "__doc__": stock.__doc__}
    # Triton knows a function that is passed to a kernel by the name of its class.
    return type(stock.__name__, (stock,), members)


def _obey(binding: Binding, choice: Choice, launch: Any, kwargs: dict[str, Any]) -> Any:
    assert choice.offer is not None
    options = choice.offer.row.config.options
    with_row = functools.partial(launch, **{**kwargs, **options})
    fall_back = functools.partial(launch, **kwargs)
    return attempt(choice, with_row, None if ACTIVE.is_strict else fall_back, binding.condemn)


def _refuse_traces(binding: Binding) -> None:
    """Says that compiled calls are not reached: while tracing, torch asks for the names of the arguments."""
    import torch

    if torch._guards.TracingContext.try_get() is None or not binding.has_rows:
        return
    if ACTIVE.is_strict:
        raise MissError(f"no row answers {binding.signature.name}: {UNTRACEABLE}", hint="call it outside torch.compile")
    ACTIVE.warn_once(f"{binding.signature.name}: {UNTRACEABLE}")
    ACTIVE.miss(binding.signature.name, Problem(), UNTRACEABLE).graphs += 1
