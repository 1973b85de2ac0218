"""Kernels that obey packs, in eager launches and inside torch.compile, and never benchmark because of it.

torch.compile does not run an autotuner: it captures `configs` and traces `early_config_prune`. So the pack's configs
stand in `configs` behind the declared ones, and the prune function picks exactly one of them by comparisons that the
tracer turns into guards: ranges give one graph per range, where a look-up by exact shape would give one per shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from tunefarm.config import Config
from tunefarm.errors import UserError
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.binding import BINDING, Binding
from tunefarm.runtime.choice import Choice, attempt
from tunefarm.runtime.kernels import current, jitted, triton_config
from tunefarm.runtime.quick import UNKNOWN

ADOPTED = "_tunefarm_adopted"
"""Attribute of a jitted function that an adopted autotuner launches."""


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *,
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
) -> Callable[[Any], Any]:
    """Marks a kernel that takes its config from the active packs; takes the place of `@triton.autotune`.

    Without a row for a call the first config is used. Nothing is ever benchmarked in a training job: the other configs
    are the space that a sweep searches, and so are the remaining arguments.

    Where the content of an argument depends on the config (token ids padded to whole blocks), `kernel.config_for`
    tells the config of a launch beforehand, given its arguments. Like rows it looks at scalars, and at dtype and
    alignment of tensors, so their content may be filled in afterwards. Nothing is launched or counted.

    Args:
        configs: `triton.Config` or `tunefarm.Config`; the first is the default.
        key: arguments that identify a problem.
        prune_configs_by: as for `triton.autotune`; the default is then the first config that it leaves.
        reset_to_zero: arguments zeroed before every measurement.
        restore_value: arguments restored after every measurement.

    Raises:
        UserError: there is no config.
    """
    if not configs:
        raise UserError("autotune needs at least one config", hint="the first one is the default")

    def decorate(kernel: Any) -> Any:
        import triton

        tuner = triton.autotune(
            configs=[triton_config(c) if isinstance(c, Config) else c for c in configs],
            key=list(key), prune_configs_by=prune_configs_by, reset_to_zero=reset_to_zero, restore_value=restore_value,
        )(kernel)  # fmt: skip
        adopt(tuner, owned=True)
        return tuner

    return decorate


def adopt(tuner: Any, *, owned: bool) -> bool:
    """Makes an autotuner obey the active packs, present and to come.

    Args:
        tuner: a `triton.runtime.Autotuner`, or of a subclass of it.
        owned: marked with `autotune`, so its fallback is its first config; a stranger's fallback is what it did before.

    Returns:
        False if it was adopted before.
    """
    if (binding := tuner.__dict__.get(BINDING)) is not None:
        binding.owned = binding.owned or owned
        return False
    tuner.__dict__[BINDING] = Binding.of(tuner, owned=owned)
    # torch.compile refuses autotuners with settings of the deprecated interface; they matter to benchmarks alone, and
    # a benchmark of the stock autotuner keeps them in `_do_bench`.
    tuner.num_warmups = tuner.num_reps = None
    tuner.use_cuda_graph = False
    stock: type = type(tuner)
    tuner.__class__ = _obedient(stock)
    jitted(tuner).__dict__[ADOPTED] = True
    return True


def autotuners(target: Any) -> Iterator[Any]:
    """The autotuners in a kernel (under heuristics, too), or in a module."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    for layer in list(vars(target).values()) if isinstance(target, ModuleType) else [target]:
        while isinstance(layer, KernelInterface):
            if isinstance(layer, Autotuner):
                yield layer
            layer = getattr(layer, "fn", None)


@functools.cache
def _obedient(stock: type) -> type:
    """The subclass of an autotuner class whose objects obey packs.

    Single inheritance, made per class: an object's class can only be swapped for one of the same memory layout.
    """

    def of(tuner: Any) -> Binding:
        binding: Binding = tuner.__dict__[BINDING]
        return binding

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        binding = of(self)
        choice = binding.choose(args, kwargs)
        with current(choice.index):
            launched = _obey(self, binding, choice, args, kwargs)
        binding.keep(choice, launched, args, kwargs)
        return launched

    def warmup(self: Any, *args: Any, **kwargs: Any) -> Any:
        binding = of(self)
        choice = binding.choose(args, kwargs)
        config = choice.config
        with current(choice.index):
            if config is None and binding.tunes(choice):
                return binding.stock.warmup(*args, **kwargs)
            config = config or binding.fall_back_config(args, kwargs)
            return [self.fn.warmup(*args, **kwargs, **config.all_kwargs())]

    def config_for(self: Any, *args: Any, **kwargs: Any) -> Config:
        """The config that a launch with these arguments would use, for arguments whose content depends on it."""
        return of(self).config_for(args, kwargs)

    members = {
        "__getitem__": _over,
        "run": run,
        "config_for": config_for,
        "warmup": warmup,
        "configs": property(lambda self: of(self).configs, lambda self, new: of(self).redeclare("configs", new)),
        "early_config_prune": property(
            lambda self: of(self).prune, lambda self, new: of(self).redeclare("early_config_prune", new)
        ),
        "perf_model": property(lambda self: of(self).perf_model),
        "declared": property(lambda self: of(self).stock, doc="The autotuner as its author wrote it."),
        "__module__": stock.__module__,
        "__doc__": stock.__doc__,
    }
    return type(f"Packed{stock.__name__}", (stock,), members)


def _over(tuner: Any, grid: Any) -> Callable[..., Any]:
    """What launches an adopted kernel over a grid."""
    binding = tuner.__dict__[BINDING]

    def launch(*args: Any, **kwargs: Any) -> Any:
        for form in binding.forms:  # Those of now: a launcher may be kept for long.
            done = form(grid, *args, **kwargs)
            if done is not UNKNOWN:
                return done
        return tuner.run(*args, grid=grid, warmup=False, **kwargs)

    return launch


def _obey(tuner: Any, binding: Binding, choice: Choice, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if choice.config is None:
        return _fall_back(tuner, binding, choice, args, kwargs)
    launch = functools.partial(_launch, tuner, choice.config, args, kwargs)
    if choice.offer is None:
        return launch()
    fall_back = functools.partial(_fall_back, tuner, binding, choice, args, kwargs)
    return attempt(choice, launch, None if ACTIVE.is_strict else fall_back, binding.condemn)


def _launch(tuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def _fall_back(tuner: Any, binding: Binding, choice: Choice, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if not binding.tunes(choice):
        return _launch(tuner, binding.fall_back_config(args, kwargs), args, kwargs)
    launched = binding.stock.run(*args, **kwargs)
    tuner.best_config = getattr(binding.stock, "best_config", None)
    return launched
