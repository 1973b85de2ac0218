"""Interception: the one kernel launch inside a production call, caught before it happens.

The launch is written once, in production code. Running that code with the kernel's `run` replaced tells everything
about it: kernel, grid, arguments, what the compiler specialises on. With tensors on `meta` it costs no memory and
needs no GPU.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunefarm.bundle import said
from tunefarm.config import Config, Value
from tunefarm.document import digest
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.spec.autotuned import layers
from tunefarm.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One intercepted launch, with all that compiling and launching it takes.

    Attributes:
        kernel: the jitted function.
        arguments: every kernel argument by name, constexprs included, in the kernel's order.
        grid: programs along x, y, z.
        signature: Triton type of each argument (`*bf16`, `i32`, `constexpr`).
        constants: constexpr values by position path, as `triton.compile` takes them.
        attributes: specialisation attributes by position path.
        facts: specialisation by argument name: `div16`, `one`, `none`.
        options: the backend's options after its own defaults.
        config: params the launch was made with, and options as far as they were passed; plain values only.
    """

    kernel: Any
    arguments: dict[str, Any]
    grid: tuple[int, int, int]
    signature: dict[str, Any]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    facts: FrozenMap[str]
    options: Any
    config: Config

    @property
    def specialization(self) -> str:
        """Digest of everything but kernel source, target and compiler that decides the binary."""
        options = {k: str(v) for k, v in self.options.__dict__.items() if k != "extern_libs"}
        constants = {str(path): _constant(value) for path, value in self.constants.items()}
        attributes = {str(path): str(value) for path, value in self.attributes.items()}
        return digest([self.signature, constants, attributes, options])

    def problem(self, key: tuple[str, ...] | None) -> Problem:
        """The facts of this call.

        Args:
            key: names of the scalar arguments that identify it; None for every integer.
        """
        scalars = _plain_ones(self.arguments)
        constexprs = {n for n, t in self.signature.items() if t == "constexpr" and n not in self.facts}
        if key is None:
            dims: dict[str, Value] = {n: v for n, v in scalars.items() if isinstance(v, int) and n not in constexprs}
        else:
            # A tensor among the key names is covered by its dtype, as in Triton.
            dims = {n: scalars[n] for n in key if n in scalars}
        found = {name: _TENSOR.match(kind) for name, kind in self.signature.items() if isinstance(kind, str)}
        dtypes = {name: match[1] for name, match in found.items() if match}
        return Problem(dims=FrozenMap(dims), dtypes=FrozenMap(dtypes), facts=self.facts)


# A pointer (`*bf16`, or `*kbf16` to constant memory) or a descriptor (`tensordesc<bf16[128, 64]>`), whose block is the
# config's affair and no fact of the call.
_TENSOR = re.compile(r"(?:\*k?|tensordesc\w*<)(\w+)")


def _constant(value: Any) -> str:
    # A jitted function passed as a constexpr is known by its text, not by its address.
    return getattr(value, "cache_key", None) or repr(value)


def default_config(workload: Workload) -> Config | None:
    """The config production uses untuned: the workload's word, or an autotuned kernel's first; None if unknown."""
    if workload.default is not None:
        return workload.default
    autotuned = workload.autotuned
    return autotuned.configs[0] if autotuned else None


def learn(workload: Workload, inputs: Mapping[str, Any], config: Config | None, target: int) -> Launch:
    """Runs the workload's call up to its launch, which does not happen.

    Args:
        workload: whose call.
        inputs: its arguments, usually on `meta`.
        config: what to launch with; None leaves the launch as production code makes it.
        target: arch to specialise for, such as 90.

    Returns:
        The launch.

    Raises:
        SpecError: the call raised, or launched the kernel not exactly once.
    """
    launches: list[Launch] = []
    with _no_other_launch(), intercept(workload, config, target, launches.append):
        try:
            call(workload, inputs, config)
        except SpecError:
            raise
        except (Exception, SystemExit) as e:
            raise SpecError(
                f"the call of {workload.name} raised {type(e).__name__}: {e}{users_line(e, or_any=True)}",
                hint="it must run on tensors without data (device meta): no .item(), no branches on values",
            ) from None
    if len(launches) != 1:
        raise SpecError(
            f"the call of {workload.name} launched {workload.signature.kernel} {len(launches)} times",
            hint="a workload's call must launch its kernel exactly once; name the kernel that the call really launches",
        )
    return launches[0]


def call(workload: Workload, inputs: Mapping[str, Any], config: Config | None) -> Any:
    """Runs the production call; one that takes an argument `config` is told the config's params.

    Raises:
        SpecError: it cannot do without a config, and there is none.
    """
    wanted = inspect.signature(workload.call).parameters.get("config")
    if wanted is None or wanted.kind is inspect.Parameter.VAR_KEYWORD:
        return workload.call(**inputs)
    if config is not None:
        return workload.call(**inputs, config=dict(config.params))
    if wanted.default is inspect.Parameter.empty:
        raise SpecError(
            f"the call of {workload.name} takes a config, and none is known without tuning",
            hint="give the workload a default",
        )
    return workload.call(**inputs)


@contextlib.contextmanager
def intercept(
    workload: Workload, config: Config | None, target: int, on_launch: Callable[[Launch], Any]
) -> Iterator[None]:
    """While active, launches of the workload's kernel go to `on_launch`, made with `config`.

    The kernel object's own `run` is replaced on the instance, innermost included, so heuristics between an autotuner
    and the kernel compute their constexprs from the config as they do in production.
    """
    chain = layers(workload.kernel)
    inner = chain[-1]
    # The config enters where production's would: at the autotuner, or at the outermost object where there is none.
    entry = next((layer for layer in chain if hasattr(layer, "configs")), chain[0])
    chosen = config if config is not None else (default_config(workload) if entry is not inner else None)
    autotuned = workload.autotuned
    hook = autotuned.pre_hook if autotuned else None
    binder, backend = _binder(inner, target)

    def launch(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        return on_launch(_bind(inner, binder, backend, grid, args, kwargs))

    def enter(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        # All by name: a constexpr that the call passes by position gives way to the config's, too.
        named = inner.signature.bind_partial(*args).arguments
        merged = {**named, **kwargs, **(chosen.flat if chosen else {})}
        if hook is not None:
            hook(dict(merged))
        if entry is inner:
            return launch(grid=grid, **merged)
        if hasattr(entry, "configs"):
            return entry.fn.run(grid=grid, warmup=False, **merged)
        return type(entry).run(entry, grid=grid, warmup=False, **merged)

    with _replaced(inner, launch), _replaced(entry, enter):
        yield


@contextlib.contextmanager
def _replaced(kernel: Any, run: Callable[..., Any]) -> Iterator[None]:
    before = kernel.__dict__.get("run")
    kernel.run = run
    try:
        yield
    finally:
        if before is None:
            del kernel.run
        else:
            kernel.run = before


@contextlib.contextmanager
def _no_other_launch() -> Iterator[None]:
    """Other kernels inside the call do nothing: their tensors hold no memory."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def skip(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        return None

    saved = JITFunction.run, Autotuner.run
    JITFunction.run, Autotuner.run = skip, skip
    try:
        yield
    finally:
        JITFunction.run, Autotuner.run = saved


_binders: dict[tuple[int, int], tuple[Any, Any, Any]] = {}


def _binder(kernel: Any, target: int) -> tuple[Any, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    # By identity, since hashing a kernel reads its source; kept alive beside it, so that none can take its place.
    key = id(kernel), target
    if key not in _binders:
        if not hasattr(kernel, "signature"):
            raise SpecError(
                "Triton interprets kernels in this process, and cannot compile them", hint="unset TRITON_INTERPRET"
            )
        backend = make_backend(GPUTarget("cuda", target, 32))
        _binders[key] = kernel, create_function_from_signature(kernel.signature, kernel.params, backend), backend
    return _binders[key][1:]


def _bind(kernel: Any, binder: Any, backend: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    from triton import knobs

    options_in = {**kwargs, "debug": bool(kwargs.get("debug", kernel.debug) or knobs.runtime.debug)}
    options_in["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    bound, specialization, extra = binder(*args, **options_in)
    options, signature, constants, attributes = kernel._pack_args(backend, options_in, bound, specialization, extra)
    params = {p.name: bound[p.name] for p in kernel.params if p.is_constexpr}
    passed = {n: v for n, v in kwargs.items() if n not in bound}
    return Launch(
        kernel=kernel,
        arguments=dict(bound),
        grid=_grid(grid, bound),
        signature=signature,
        constants=constants,
        attributes=attributes,
        facts=FrozenMap(_facts(kernel, specialization)),
        options=options,
        config=Config(params=_plain_ones(params), options=_plain_ones(passed)),
    )


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _plain_ones(values: Mapping[str, Any]) -> FrozenMap[Value]:
    return FrozenMap({name: value for name, value in values.items() if _plain(value)})


def _facts(kernel: Any, specialization: list[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    for param, (kind, value) in zip(kernel.params, specialization, strict=False):
        if param.is_constexpr:
            continue
        if kind == "constexpr":
            yield param.name, "none" if value is None else "one"
        elif isinstance(value, str) and "D" in value:
            yield param.name, "div16"


def _grid(grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
    sizes = tuple(int(n) for n in (grid(dict(bound)) if callable(grid) else grid))
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def users_line(error: BaseException, *, or_any: bool = False) -> str:
    """` (file:line)` of the deepest frame that is not a library's; empty if there is none.

    Args:
        error: as it was caught.
        or_any: take the deepest frame of all where none is the user's.
    """
    frames = [(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line)
              for frame, line in traceback.walk_tb(error.__traceback__)]  # fmt: skip
    users = [frame for frame in frames if frame[0].split(".")[0] not in ("torch", "triton", "tunefarm")]
    users = users or (frames if or_any else [])
    return said(f" ({users[-1][1]}:{users[-1][2]})") if users else ""
