"""Launches of kinds of calls that were decided before, at less than the cost of Triton's own.

A plain launch binds the arguments, works out what the compiler specialises on, spells that as a text, and looks the
kernel up. Once a config is chosen and the kernel is compiled, all that is left is to see that a call is of the same
kind. So for the classes of arguments that a kernel was called with, a function is written that takes the kernel's
parameters, makes one key of dtypes, alignment, divisibility, devices and the values of dims, and launches what was kept
under it. A call of any other kind goes the long way, as do all while a profiler's launch hooks are set, and all on GPUs
that are not NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.kernels import Signature

MAX_KEPT = 1 << 16
"""Kinds of calls a form keeps: the values of dims are part of a kind, and may never come again."""

MAX_FORMS = 4
"""They are tried one after the other."""

UNKNOWN = object()
"""Answers a call that is of no known kind: nothing was launched."""

_UNSET = object()
_INT = ("{0} % 16 == 0", "{0} == 1", "-0x80000000 <= {0} <= 0x7fffffff", "{0} <= 0x7fffffffffffffff")
_GUARDS = {"own": "{0} is not _tf_unset", "tensor": "{0}.__class__ not in _tf_tensors"}
_TENSOR = ("{0}.dtype", "{0}.data_ptr() % 16 == 0", "{0}.get_device()")

_TEXT = """
def {name}(_tf_grid, /, {parameters}, **_tf_rest):
    if {guards}:
        return _tf_unknown
    _tf_found = _tf_kept.get({key})
    if _tf_found is None:
        return _tf_unknown
    _tf_compiled, _tf_run, _tf_function, _tf_packed, _tf_index, _tf_config, _tf_tally{own} = _tf_found
    if _tf_device() != _tf_index:
        return _tf_unknown
    if _tf_callable(_tf_grid):
        _tf_grid = _tf_grid({bound})
    _tf_axes = _tf_len(_tf_grid)
    _tf_run(
        _tf_grid[0], _tf_grid[1] if _tf_axes > 1 else 1, _tf_grid[2] if _tf_axes > 2 else 1, _tf_stream(_tf_index),
        _tf_function, _tf_packed, None, None, None, {arguments}
    )
    _tf_tally.launches += 1
    _tf_tuner.best_config = _tf_config
    return _tf_compiled


def _tf_key({parameters}):
    return {key}
"""


def know_nothing(_grid: Any, /, *_args: Any, **_kwargs: Any) -> Any:
    """The form of a kernel that has not been launched yet."""
    return UNKNOWN


@dataclass(slots=True, kw_only=True, eq=False)
class Quick:
    """The quick way to launch one kernel, under one generation of packs.

    Attributes:
        tuner: the adopted autotuner, over a plain jitted function.
        arguments: all parameters of the kernel, in order.
        defaults: values of those that have one.
        dims: those whose very value decides.
        constexprs: those that are compiled in.
        generation: of the active packs; once it is another no form answers any more.
        forms: functions (grid, *arguments) that launch a call, or answer `UNKNOWN`; one for the classes of arguments.
    """

    tuner: Any
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    dims: frozenset[str]
    constexprs: frozenset[str]
    generation: int
    forms: tuple[Callable[..., Any], ...] = (know_nothing,)
    _known: dict[Any, tuple[dict[Any, Any], Callable[..., Any]]] = field(default_factory=dict)

    def keep(self, values: Mapping[str, Any], config: Any, compiled: Any, tally: Any, index: int) -> None:
        """Remembers a launch that went well, if its like can be told by the arguments alone.

        Args:
            values: what the caller passed, by name.
            config: the `triton.Config` that was used.
            compiled: what Triton returned.
            tally: counts launches.
            index: of the GPU.
        """
        given = config.all_kwargs()
        own = {name: given[name] for name in self.arguments if name in given}
        if own.keys() & values.keys() or not values.keys() <= set(self.arguments):
            return
        parts = _launcher(compiled)
        kinds = self._kinds({**self.defaults, **values}, own)
        if parts is None or kinds is None or config.pre_hook is not None or not self._is_plain():
            return
        if kinds not in self._known:
            if len(self._known) == MAX_FORMS:
                return
            kept: dict[Any, Any] = {}
            form, key = self._written(kinds, tuple(own), kept)
            self._known[kinds] = kept, key
            self.forms = (form, *self.forms)
        kept, key = self._known[kinds]
        if len(kept) >= MAX_KEPT:
            kept.clear()
        kept[key(**values)] = (compiled, *parts, index, config, tally, *own.values())

    def _is_plain(self) -> bool:
        """Whether nothing but the kernel has a part in a launch now, nor anything but config and call in its code."""
        from triton import knobs
        from triton.runtime import driver

        # Triton's backend for AMD also compiles in whether a tensor's storage is less than 2 GiB, and may change that.
        if driver.active.get_current_target().backend != "cuda":
            return False
        runtime = knobs.runtime
        hooks = runtime.launch_enter_hook, runtime.launch_exit_hook
        watched = any(getattr(hook, "calls", True) for hook in hooks) or self.tuner.fn.pre_run_hooks
        altered = runtime.debug or runtime.add_stages_inspection_hook or knobs.compilation.instrumentation_mode
        return not watched and not altered

    def _kinds(self, values: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[tuple[str, Any], ...] | None:
        """The class of each argument, `own` for those of the config; None if one of them is not understood here."""
        import torch

        tensors = (torch.Tensor, torch.nn.Parameter)
        plain = (int, bool, float, str, type(None))
        kinds: list[tuple[str, Any]] = []
        for name in self.arguments:
            kind = type(values.get(name, _UNSET))
            if name in own:
                kinds.append((name, "own"))
            elif kind in tensors and name not in self.constexprs:
                kinds.append((name, "tensor"))
            elif kind in plain:
                kinds.append((name, kind))
            else:
                return None
        return tuple(kinds) if ("tensor" in dict(kinds).values()) else None

    def _written(
        self, kinds: Sequence[tuple[str, Any]], own: Sequence[str], kept: dict[Any, Any]
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The form for such arguments, and the function that gives the key of a call."""
        import torch
        from triton import knobs
        from triton.runtime import driver

        runtime, used = knobs.runtime, self.tuner.fn.used_global_vals
        names: dict[str, Any] = {
            "_tf_callable": callable, "_tf_len": len,  # parameters of a kernel may be called that, too
            "_tf_unknown": UNKNOWN, "_tf_unset": _UNSET, "_tf_kept": kept, "_tf_tuner": self.tuner,
            "_tf_tensors": frozenset((torch.Tensor, torch.nn.Parameter)), "_tf_active": ACTIVE,
            "_tf_device": torch._C._cuda_getDevice, "_tf_stream": driver.active.get_current_stream,
            "_tf_settings": vars(runtime), "_tf_settings_then": dict(vars(runtime)),
            "_tf_compiling": vars(knobs.compilation), "_tf_compiling_then": dict(vars(knobs.compilation)),
            "_tf_pre_run": self.tuner.fn.pre_run_hooks,
            "_tf_enter": runtime.launch_enter_hook, "_tf_leave": runtime.launch_exit_hook,
            "_tf_used": used, "_tf_changed": lambda: any(g.get(name) != v for (name, _), (v, g) in used.items()),
        }  # fmt: skip
        parameters: list[str] = []
        key: list[str] = []
        guards = [
            "_tf_rest", f"_tf_active.generation != {self.generation}", "_tf_used and _tf_changed()",
            "_tf_pre_run", "_tf_settings != _tf_settings_then", "_tf_compiling != _tf_compiling_then",
            "_tf_enter.calls", "_tf_leave.calls",
        ]  # fmt: skip
        for name, kind in kinds:
            optional = bool(parameters) and "=" in parameters[-1]
            if name in self.defaults and kind != "own":
                names[f"_tf_default_{name}"] = self.defaults[name]
                parameters.append(f"{name}=_tf_default_{name}")
            else:
                parameters.append(f"{name}=_tf_unset" if optional or kind == "own" else name)
            names[f"_tf_class_{name}"] = kind
            guards.append(_GUARDS.get(kind, "{0}.__class__ is not _tf_class_{0}").format(name))
            key += [part.format(name) for part in self._parts(name, kind)]
        text = _TEXT.format(
            name=self.tuner.base_fn.__name__, parameters=", ".join(parameters), guards=" or ".join(guards),
            key=f"({', '.join(key)},)", own="".join(f", {name}" for name in own),
            bound=f"{{{', '.join(f'{name!r}: {name}' for name in self.arguments)}}}",
            arguments=", ".join(self.arguments),
        )  # fmt: skip
        exec(text, names)  # nothing in it comes from a pack: names are parameters of a Python function
        return names[self.tuner.base_fn.__name__], names["_tf_key"]

    def _parts(self, name: str, kind: Any) -> tuple[str, ...]:
        """What of an argument belongs to the key; its class is known."""
        if kind == "tensor":
            return _TENSOR
        if kind in ("own", type(None)):
            return ()
        if kind is int and name not in self.constexprs | self.dims:
            return _INT
        # A float that is no constexpr is never compiled in.
        return ("{0}",) if kind is not float or name in self.constexprs | self.dims else ()


def make_quick(tuner: Any, signature: Signature, dims: Collection[str], generation: int) -> Quick | None:
    """The quick way to launch a kernel; None if something besides it has a part in every launch.

    Args:
        tuner: the adopted autotuner.
        signature: what the kernel takes.
        dims: arguments whose very value decides.
        generation: of the active packs.
    """
    from triton.runtime.jit import JITFunction

    if type(tuner.fn) is not JITFunction:
        return None
    return Quick(
        tuner=tuner, arguments=signature.arguments, defaults=signature.defaults, dims=frozenset(dims),
        constexprs=frozenset(param.name for param in tuner.fn.params if param.is_constexpr), generation=generation,
    )  # fmt: skip


def _launcher(compiled: Any) -> tuple[Any, ...] | None:
    """What launches a compiled kernel: its function to call, the GPU's, and its metadata."""
    try:
        return compiled.run, compiled.function, compiled.packed_metadata
    except AttributeError:
        return None
