"""What a live kernel and a live call are, in tunefarm's words. Torch and Triton are imported when first needed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tunefarm.config import LAUNCH_OPTIONS, Config, Value
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.problem import SPELLING, Problem
from tunefarm.runtime.active import ACTIVE
from tunefarm.source import python_function

CURRENT = -1
"""The number of whichever GPU is the current one."""

HOW_TO_LAUNCH = frozenset({"grid", "warmup"})
"""Arguments of Triton's launcher that are no options of a kernel."""

_UNCHANGED: AbstractContextManager[Any] = nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a kernel takes.

    Attributes:
        name: of the kernel.
        arguments: all parameters, in order.
        defaults: values of parameters that have one.
        specialised: parameters on whose divisibility and equality to 1 Triton specialises.
        constexprs: parameters that are compiled in.
    """

    name: str
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    specialised: frozenset[str]
    constexprs: frozenset[str]


def jitted(kernel: Any) -> Any:
    """The jitted function inside a kernel, without autotuner and heuristics around it.

    Raises:
        SpecError: it is no Triton kernel.
    """
    function = python_function(kernel)
    while getattr(kernel, "fn", None) is not function:
        kernel = kernel.fn
    return kernel


def signature_of(kernel: Any) -> Signature:
    """What a kernel takes, read from the function inside it.

    Raises:
        SpecError: it is no Triton kernel.
    """
    function, inner = python_function(kernel), jitted(kernel)
    parameters = inspect.signature(function).parameters
    plain = {name for name, p in parameters.items() if "constexpr" not in str(p.annotation)}
    # Under the interpreter there are no such params; nothing is specialised there, and facts are compared all the same.
    exempt = {p.name for p in getattr(inner, "params", ()) if p.do_not_specialize or p.do_not_specialize_on_alignment}
    return Signature(
        name=function.__name__,
        arguments=tuple(parameters),
        defaults={name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty},
        specialised=frozenset(plain - exempt),
        constexprs=frozenset(parameters) - plain,
    )


def spelling(dtype: Any) -> str:
    """Triton's spelling of a torch dtype: `bf16` for `torch.bfloat16`."""
    name = str(dtype).removeprefix("torch.")
    return SPELLING.get(name, name)


def tensor_of(argument: Any) -> Any:
    """The tensor that an argument is, or that a tensor descriptor holds; None for anything else."""
    return argument if hasattr(argument, "data_ptr") else getattr(argument, "base", None)


def is_aligned(argument: Any) -> bool:
    """Whether it is a tensor that starts at a multiple of 16 bytes; of descriptors, which all do, nobody asks."""
    return hasattr(argument, "data_ptr") and argument.data_ptr() % 16 == 0


def problem_of(values: Mapping[str, Any], dims: tuple[str, ...], tensors: tuple[str, ...]) -> Problem:
    """The facts of a call, as far as rows of its kernel name them; of a dim that is no scalar, what it is instead.

    Args:
        values: arguments by name, defaults included.
        dims: names of the scalars that rows name.
        tensors: names of the tensors, present or absent, that rows name.
    """
    facts: dict[str, str] = {}
    dtypes: dict[str, str] = {}
    found: dict[str, Value] = {}
    for name in dims:
        if name in values:
            value = values[name]
            found[name] = value if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"
    for name, value in found.items():
        if isinstance(value, int) and not isinstance(value, bool):
            if value == 1:
                facts[name] = "one"
            elif value % 16 == 0:
                facts[name] = "div16"
    for name in tensors:
        value = values.get(name)
        tensor = tensor_of(value)
        if value is None:
            facts[name] = "none"
        elif tensor is not None:
            dtypes[name] = spelling(tensor.dtype)
            if is_aligned(value):
                facts[name] = "div16"
    return Problem(dims=FrozenMap(found), dtypes=FrozenMap(dtypes), facts=FrozenMap(facts))


def triton_config(config: Config, pre_hook: Any = None) -> Any:
    """A config as `triton.Config`. Options that it has no field for travel among the keywords, as Triton takes them."""
    import triton

    fields = {k: v for k, v in config.options.items() if k in LAUNCH_OPTIONS}
    rest = {k: v for k, v in config.options.items() if k not in LAUNCH_OPTIONS}
    return triton.Config({**config.params, **rest}, **fields, pre_hook=pre_hook)


def plain_config(config: Any, signature: Signature) -> Config:
    """A `triton.Config` of a kernel as a config; its pre_hook is left out."""
    flat = {name: value for name, value in config.all_kwargs().items() if (name, value) != ("num_ctas", 1)}
    return Config(
        params=FrozenMap((name, value) for name, value in flat.items() if name in signature.arguments),
        options=FrozenMap((name, value) for name, value in flat.items() if name not in signature.arguments),
    )


def unfit(config: Config, signature: Signature, theirs: Collection[str] = ()) -> str:
    """Why a row's config is none of a kernel, for people; empty if it is one.

    A config decides what is compiled and how it is launched, and nothing that a call passes; under a right digest a
    pack may hold anything.

    Args:
        config: the row's.
        signature: of the kernel.
        theirs: what the kernel's author tunes, constexprs or not.
    """
    params = config.params.keys() - signature.constexprs - {*theirs}
    options = config.options.keys() & (HOW_TO_LAUNCH | {*signature.arguments}) - {*LAUNCH_OPTIONS} - {*theirs}
    if names := sorted(params | options):
        return f"{', '.join(names)} is for the caller to say, not for a pack"
    for name in config.options.keys() & set(LAUNCH_OPTIONS):
        value, least = config.options[name], 0 if name == "num_stages" else 1
        if (type(value) is not int or value < least) and (name, value) != ("maxnreg", None):
            return f"{name} is {value!r}, no number >= {least}"
    return ""


def with_configs(
    declared: Sequence[Any], configs: Iterable[Config], signature: Signature
) -> tuple[list[Any], dict[Config, int]]:
    """Declared configs and those of packs behind them, and where each of the packs' stands among them.

    One that is declared keeps its place and its hook. One that cannot be used stands nowhere, and that is said once.
    """
    listed, said = list(declared), [config.all_kwargs() for config in declared]
    hooks = {id(config.pre_hook): config.pre_hook for config in declared}
    theirs = {name for kwargs in said for name in kwargs}
    ambiguous = "the declared configs have different pre_hooks, and a pack cannot say which it needs"
    positions: dict[Config, int] = {}
    for config in dict.fromkeys(configs):
        made = triton_config(config, pre_hook=next(iter(hooks.values())))
        position = next((i for i, other in enumerate(said) if other == made.all_kwargs()), len(listed))
        is_new = position == len(listed)
        if reason := unfit(config, signature, theirs) or (ambiguous if is_new and len(hooks) > 1 else ""):
            ACTIVE.warn_once(f"{signature.name}: {config} is not used: {reason}")
            continue
        listed += [made] if is_new else []
        positions[config] = position
    return listed, positions


def current(index: int | None) -> AbstractContextManager[Any]:
    """Makes a GPU the current one, on which Triton launches, as long as the context lasts.

    Args:
        index: its number; None leaves things as they are.
    """
    if index is None:
        return _UNCHANGED
    import torch

    return _UNCHANGED if torch.cuda.current_device() == index else torch.cuda.device(index)


def may_benchmark() -> bool:
    """Whether a kernel may time its configs now: not on one of many ranks, which would disagree, nor under capture."""
    import torch

    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        return False
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not (in_use and torch.cuda.is_current_stream_capturing())


@functools.cache
def triton_version() -> str:
    """The version of Triton in this process."""
    import triton

    return str(triton.__version__)


@functools.cache
def live_device(index: int) -> Device:
    """The identity of a GPU of this process.

    Args:
        index: its number, as `torch.device.index`.
    """
    import torch

    is_amd = getattr(torch.version, "hip", None) is not None
    return Device.of_driver(torch.cuda.get_device_properties(index), is_amd=is_amd)


def device_at(index: int | None) -> Device | None:
    """The device whose rows are for a call: the one that all activations name, else the GPU of the call.

    A device that is named is not asked for. Where there is no GPU it is the first that any activation names, or None.

    Args:
        index: number of the GPU; `CURRENT` for the current one, which puts CUDA to use; None if the call is on none.
    """
    if index is not None and not ACTIVE.names_device:
        import torch

        if torch.cuda.is_available():
            return live_device(torch.cuda.current_device() if index == CURRENT else index)
    return next((a.device for a in ACTIVE.activations if a.device is not None), None)
