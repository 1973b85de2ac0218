"""Interception: the one kernel launch inside a production call, caught before it happens.

The launch is written once, in production code. Running that code with the kernel's `run` replaced tells everything
about it: kernel, grid, arguments, what the compiler specialises on. With tensors on `meta` it costs no memory and
needs no GPU.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
        config: params and options the launch was made with, as far as they were passed.
    """

    kernel: Any
    arguments: dict[str, Any]
    grid: tuple[int, int, int]
    signature: dict[str, str]
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
        scalars: dict[str, Value] = {n: v for n, v in self.arguments.items() if _plain(v)}
        constexprs = {n for n, t in self.signature.items() if t == "constexpr" and n not in self.facts}
        if key is None:
            dims: dict[str, Value] = {n: v for n, v in scalars.items() if isinstance(v, int) and n not in constexprs}
        else:
            # A tensor among the key names is covered by its dtype, as in Triton.
            dims = {n: scalars[n] for n in key if n in scalars}
        dtypes = {n: t.removeprefix("*k").removeprefix("*") for n, t in self.signature.items() if t.startswith("*")}
        return Problem(dims=FrozenMap(dims), dtypes=FrozenMap(dtypes), facts=self.facts)


def _constant(value: Any) -> str:
    # A jitted function passed as a constexpr is known by its text, not by its address.
    return getattr(value, "cache_key", None) or repr(value)


def default_config(workload: Workload) -> Config | None:
    """The config production uses untuned: the workload's word, or an autotuned kernel's first; None if unknown."""
    if workload.default is not None:
        return workload.default
    autotuned = workload.autotuned
    return autotuned.configs[0] if autotuned else None


def learn(
    workload: Workload, inputs: Mapping[str, Any], config: Config | None, target: int, observe: Any = None
) -> Launch:
    """Runs the workload's call up to its launch, which does not happen.

    Args:
        workload: whose call.
        inputs: its arguments, usually on `meta`.
        config: what to launch with; None leaves the launch as production code makes it.
        target: arch to specialise for, such as 90.
        observe: called with the call's outputs, if given.

    Returns:
        The launch.

    Raises:
        SpecError: the call raised, or launched the kernel not exactly once.
    """
    launches: list[Launch] = []
    with _no_other_launch(), intercept(workload, config, target, launches.append):
        try:
            outputs = call(workload, inputs, config)
        except SpecError:
            raise
        except Exception as e:
            line = _last_line(e)
            raise SpecError(
                f"the call of {workload.name} raised {type(e).__name__}: {e}{line}",
                hint="it must run on tensors without data (device meta): no .item(), no branches on values",
            ) from None
    if len(launches) != 1:
        raise SpecError(
            f"the call of {workload.name} launched {workload.signature.kernel} {len(launches)} times",
            hint="a workload's call must launch its kernel exactly once; name the kernel that the call really launches",
        )
    if observe is not None:
        observe(outputs)
    return launches[0]


def call(workload: Workload, inputs: Mapping[str, Any], config: Config | None) -> Any:
    """Runs the production call; one that takes an argument `config` is told the config's params."""
    if config is not None and "config" in inspect.signature(workload.call).parameters:
        return workload.call(**inputs, config=dict(config.params))
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
    hook = workload.autotuned.pre_hook if workload.autotuned else None
    binder, backend = _binder(inner, target)

    def launch(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        return on_launch(_bind(inner, binder, backend, grid, args, kwargs))

    def enter(*args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        merged = {**kwargs, **(chosen.flat if chosen else {})}
        if hook is not None:
            hook({**dict(zip(inner.arg_names, args, strict=False)), **merged})
        if entry is inner:
            return launch(*args, grid=grid, **merged)
        if hasattr(entry, "configs"):
            return entry.fn.run(*args, grid=grid, warmup=False, **merged)
        return type(entry).run(entry, *args, grid=grid, warmup=False, **merged)

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


_binders: dict[tuple[int, int], tuple[Any, Any]] = {}


def _binder(kernel: Any, target: int) -> tuple[Any, Any]:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    found = _binders.get((id(kernel), target))
    if found is None:
        backend = make_backend(GPUTarget("cuda", target, 32))
        found = create_function_from_signature(kernel.signature, kernel.params, backend), backend
        _binders[id(kernel), target] = found
    return found


def _bind(kernel: Any, binder: Any, backend: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    from triton import knobs

    options_in = {**kwargs, "debug": bool(kwargs.get("debug", kernel.debug) or knobs.runtime.debug)}
    options_in["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    bound, specialization, extra = binder(*args, **options_in)
    options, signature, constants, attributes = kernel._pack_args(backend, options_in, bound, specialization, extra)
    known = [name for name in kernel.arg_names if name in kwargs and signature[name] == "constexpr"]
    used: dict[str, Value] = {name: kwargs[name] for name in known}
    passed = {n: v for n, v in kwargs.items() if n not in kernel.arg_names and hasattr(options, n)}
    return Launch(
        kernel=kernel,
        arguments=dict(bound),
        grid=_grid(grid, bound),
        signature=signature,
        constants=constants,
        attributes=attributes,
        facts=FrozenMap(_facts(kernel, specialization)),
        options=options,
        config=Config(params=FrozenMap({k: v for k, v in used.items() if _plain(v)}), options=FrozenMap(passed)),
    )


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


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


def _last_line(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
