"""Reading an existing `@triton.autotune` kernel: its configs are the space, its key and hooks are the workload's.

Known by their attributes, so Triton need not be imported. Facts of `triton/runtime/autotuner.py`: an Autotuner has
`configs`, `keys`, `reset_to_zero`, `restore_value`; a Heuristics has `values`; each has `fn`, what it wraps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.config import CODE_OPTIONS, Config, Value
from tunefarm.errors import SpecError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.source import HOME, python_function


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a kernel takes.

    Attributes:
        kernel: its name.
        arguments: all parameters, in order.
        constexprs: those that are `tl.constexpr`.
        computed: those that `@triton.heuristics` computes; they cannot be tuned.
    """

    kernel: str
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...]
    computed: tuple[str, ...] = ()

    @property
    def tunable(self) -> tuple[str, ...]:
        """Constexprs that a config may set."""
        return tuple(name for name in self.constexprs if name not in self.computed)

    def config(self, values: Mapping[str, Value]) -> Config:
        """A config from one flat mapping: parameters of the kernel are params, the rest launch options.

        Raises:
            UserError: a value is of no legal type.
        """
        return Config(
            params=FrozenMap((k, v) for k, v in values.items() if k in self.arguments),
            options=FrozenMap((k, v) for k, v in values.items() if k not in self.arguments),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuned:
    """What an autotuned kernel declares.

    Attributes:
        configs: the declared configs in order; equal ones once.
        key: arguments that identify a problem.
        restore: arguments restored before every launch.
        zero: arguments zeroed before every launch.
        pre_hook: called with the named arguments and the config's values before every launch, in production too;
            None if the configs have none.
        early_config_prune: the kernel's own pruning, see `prune`; None if it has none.
        perf_model: the kernel's own estimate of a config's time, with which Triton measures only `top_k` of them. It
            saves Triton time and excludes nothing as illegal, so the farm does not obey it.
        top_k: how many configs (an integer) or what share of them (a float) `perf_model` would leave.
    """

    configs: tuple[Config, ...]
    key: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    pre_hook: Callable[[dict[str, Any]], Any] | None = None
    early_config_prune: Callable[..., Sequence[Any]] | None = None
    perf_model: Callable[..., float] | None = None
    top_k: float = 1.0
    _declared: tuple[tuple[Any, Config], ...] = field(default=(), repr=False, compare=False)

    def prune(
        self, configs: Sequence[Config], named: Mapping[str, Any], keywords: Mapping[str, Any]
    ) -> tuple[Config, ...]:
        """What the kernel's `early_config_prune` leaves of its configs for one launch, in the order given.

        Args:
            configs: declared configs.
            named: the launch's positional arguments by name.
            keywords: the launch's keyword arguments.

        Raises:
            SpecError: the user's function raises, or gives something that is not among what it got.
        """
        if self.early_config_prune is None:
            return tuple(configs)
        wanted = set(configs)
        given = [original for original, config in self._declared if config in wanted]
        name = getattr(self.early_config_prune, "__name__", "early_config_prune")
        try:
            left = list(self.early_config_prune(given, dict(named), **keywords))
        except Exception as e:
            raise SpecError(f"{name} raised {e.__class__.__name__}: {e}", hint="it prunes the kernel's configs") from e
        by_identity = {id(original): config for original, config in self._declared}
        if any(id(original) not in by_identity for original in left):
            raise SpecError(f"{name} returned a config that it was not given", hint="it may only leave configs out")
        kept = {by_identity[id(original)] for original in left}
        return tuple(config for config in configs if config in kept)


def layers(kernel: Any) -> list[Any]:
    """A kernel and everything it wraps, outermost first; the last is the jitted function.

    Raises:
        SpecError: it is no jitted kernel, or one that no worker can import.
    """
    function = python_function(kernel)
    chain = [kernel]
    while getattr(chain[-1], "fn", None) is not function and hasattr(chain[-1], "fn"):
        chain.append(chain[-1].fn)
    if not hasattr(chain[-1], "fn") or not (hasattr(chain[-1], "params") or hasattr(chain[-1], "arg_names")):
        raise SpecError(
            f"{getattr(kernel, '__name__', kernel)!r} is not a Triton kernel", hint="decorate it with @triton.jit"
        )
    if "<locals>" in function.__qualname__:
        raise SpecError(
            f"kernel {function.__qualname__} is defined inside another function",
            hint=f"{HOME}, so that workers can import it",
        )
    return chain


def signature_of(kernel: Any) -> Signature:
    """What a kernel takes.

    Raises:
        SpecError: it is no jitted kernel, or one that no worker can import.
    """
    chain = layers(kernel)
    params = inspect.signature(chain[-1].fn).parameters.values()
    return Signature(
        kernel=chain[-1].fn.__name__,
        arguments=tuple(p.name for p in params),
        # By annotation, as Triton does; under TRITON_INTERPRET=1 a kernel has no parameters of its own to ask.
        constexprs=tuple(p.name for p in params if "constexpr" in str(p.annotation)),
        computed=tuple(name for layer in chain if _is_heuristics(layer) for name in layer.values),
    )


def _is_heuristics(layer: Any) -> bool:
    return isinstance(getattr(layer, "values", None), Mapping)


def read_autotuned(kernel: Any) -> Autotuned | None:
    """What an autotuned kernel declares; None for a kernel without `@triton.autotune`.

    Raises:
        SpecError: it is tuned twice, or its launches depend on hooks that cannot be carried over.
    """
    tuners = [layer for layer in layers(kernel) if hasattr(layer, "configs") and hasattr(layer, "keys")]
    if not tuners:
        return None
    signature = signature_of(kernel)
    if len(tuners) > 1:
        raise SpecError(f"kernel {signature.kernel} is autotuned twice", hint="keep one @triton.autotune")
    # A kernel under tunefarm.autotune keeps what its author declared apart from what packs add.
    tuner = getattr(tuners[0], "declared", tuners[0])
    if getattr(tuner, "user_defined_pre_hook", False) or getattr(tuner, "user_defined_post_hook", False):
        raise SpecError(
            f"@triton.autotune of {signature.kernel} has its own pre_hook or post_hook, which runs only while tuning",
            hint="use restore_value and reset_to_zero, or a pre_hook shared by all its configs",
        )
    declared = tuple((original, _config(original, tuner.configs, signature)) for original in tuner.configs)
    return Autotuned(
        configs=tuple(dict.fromkeys(config for _, config in declared)),
        key=tuple(tuner.keys or ()),
        restore=tuple(tuner.restore_value or ()),
        zero=tuple(tuner.reset_to_zero or ()),
        pre_hook=_shared_hook(tuner.configs, signature),
        early_config_prune=tuner.early_config_prune,
        perf_model=tuner.perf_model,
        top_k=tuner.configs_top_k,
        _declared=declared,
    )


def _config(original: Any, configs: Sequence[Any], signature: Signature) -> Config:
    values = dict(original.all_kwargs())
    if code := sorted(values.keys() & CODE_OPTIONS):
        raise SpecError(
            f"a config of {signature.kernel} runs other code than the kernel's ({', '.join(code)})",
            hint="leave that config out",
        )
    if all(config.num_ctas == 1 for config in configs):
        values.pop("num_ctas", None)  # One CTA is what a launch without clusters has.
    try:
        return signature.config(values)
    except UserError as e:
        raise SpecError(f"a config of {signature.kernel}: {e}", hint="config values are plain scalars") from None


def _shared_hook(configs: Sequence[Any], signature: Signature) -> Callable[[dict[str, Any]], Any] | None:
    hooks: list[Callable[[dict[str, Any]], Any] | None] = [config.pre_hook for config in configs]
    if any(hook is not hooks[0] for hook in hooks):
        raise SpecError(
            f"configs of {signature.kernel} have different pre_hooks, which no pack can carry",
            hint="give all of them one pre_hook that reads the config's values from its argument",
        )
    return hooks[0]
