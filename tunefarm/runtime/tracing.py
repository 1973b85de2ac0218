"""The function by which torch.compile learns a kernel's config: traced, so that ranges become guards.

Dynamo traces an autotuner's `early_config_prune` whenever it traces a launch. Ours asks `offered` (which runs for real,
once per trace) for the few rows that fit the call's dtypes, compares dims, and picks one config by its position in the
declared list. What it compares with are constants of the trace: no guard is spent on the table. The generation of the
active packs is guarded, so a pack activated later is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tunefarm.config import LAUNCH_OPTIONS
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.runtime.kernels import spelling

TracedRow: TypeAlias = tuple[int, int, tuple[tuple[str, str], ...], tuple[tuple[str, Any], ...], tuple[Any, ...]]
"""(number for `chosen`, position of the config or -1 for the fallback, facts, exact dims, (name, lo, hi) ranges)."""


def make_prune(
    *,
    generation: str,
    tensors: tuple[str, ...],
    defaults: Mapping[str, Any],
    offered: Callable[[Any, tuple[Any, ...], tuple[str, ...]], tuple[int, tuple[TracedRow, ...]]],
    chosen: Callable[[Any, int], None],
    missed: Callable[[Any, tuple[Any, ...]], bool],
    fall_back: Callable[..., Any],
) -> Callable[..., Any]:
    """An `early_config_prune` that returns exactly one config for a call that a row answers.

    Args:
        generation: of the active packs. A string: Dynamo might take an integer for a symbol.
        tensors: tensor arguments that rows name.
        defaults: values of arguments that rows name, for calls that leave them out.
        offered: takes device index, ((tensor, dtype or None), ...) and names of the arguments passed; gives how many
            configs of the list the kernel declared itself (they come first), and the rows.
        chosen: is told the device index and the number of the row that answered.
        missed: is told the device index and dtypes of a call that no row answers; says whether one config must do, as
            nothing may be benchmarked here; it may raise.
        fall_back: (declared configs, named arguments, **keywords) -> configs, for a call that no row answers.
    """
    import torch

    tensor = torch.Tensor
    # Run for real while tracing; results are constants, and so the calls leave nothing in the graph.
    ask, tell_hit, tell_miss = (_run_for_real(function) for function in (offered, chosen, missed))

    def prune(configs: Any, named_args: Any, /, **kwargs: Any) -> Any:
        call = {**defaults, **named_args, **kwargs}
        seen: tuple[Any, ...] = ()
        index = None
        for name in tensors:
            value = call.get(name)
            if value is None:
                seen = (*seen, (name, None))
            elif isinstance(value, tensor):
                seen = (*seen, (name, value.dtype))
                index = value.device.index
        num_declared, rows = ask(generation, index, seen, tuple(call))
        for number, position, facts, exact, ranges in rows:
            if not _fits(call, facts, exact, ranges):
                continue
            if position < 0:
                break
            tell_hit(generation, index, number)
            return [configs[position]]
        only_one = tell_miss(generation, index, seen)
        left = fall_back(configs[:num_declared], named_args, **kwargs)
        return left[:1] if only_one else left

    return prune


def _fits(call: Any, facts: Any, exact: Any, ranges: Any) -> bool:
    for name, expected in exact:
        if call[name] != expected:
            return False
    for name, fact in facts:
        if fact == "div16":
            if call[name] % 16 != 0:
                return False
        elif fact == "one":
            if call[name] != 1:
                return False
        elif call[name] == 1 or call[name] % 16 == 0:
            return False
    for name, low, high in ranges:  # noqa: SIM110  traced: a generator would not be
        if call[name] <= low or call[name] > high:
            return False
    return True


def _run_for_real(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def run(_generation: str, *args: Any) -> Any:
        return function(*args)

    marked: Callable[..., Any] = torch.compiler.assume_constant_result(run)  # type: ignore[no-untyped-call]
    return marked


def make_fall_back(*, early_config_prune: Any, perf_model: Any, top_k: float | int, only_first: bool) -> Any:
    """What a kernel does for a call that no row answers: its own pruning, or its first config.

    Args:
        early_config_prune: the kernel's own, or None.
        perf_model: the kernel's own, or None.
        top_k: how many configs (an integer) or what share of them the model leaves.
        only_first: the first config that is left is the answer.
    """

    def fall_back(configs: Any, named_args: Any, /, **kwargs: Any) -> Any:
        left = configs
        if early_config_prune is not None:
            left = early_config_prune(configs, named_args, **kwargs)
        if perf_model is not None and not only_first:
            limit = max(1, int(len(configs) * top_k)) if isinstance(top_k, float) else top_k
            if len(left) > limit:
                times = [float(perf_model(**named_args, **kwargs, **config.all_kwargs())) for config in left]
                order = sorted(range(len(times)), key=times.__getitem__)
                left = [left[i] for i in order[:limit]]
        return left[:1] if only_first else left

    return fall_back


UNSELECTABLE = (
    "this torch cannot prune the configs of a kernel that has heuristics, or num_warps, num_stages or num_ctas among "
    "its parameters"
)


def selectable(tuner: Any) -> bool:
    """Whether torch.compile can be given a config per call of this kernel.

    Up to torch 2.12 it forgets where such a kernel came from before it prunes, and raises.
    """
    from torch._higher_order_ops.triton_kernel_wrap import TritonHOPifier

    plain = not hasattr(tuner.fn, "values") and not set(LAUNCH_OPTIONS) & set(tuner.arg_names)
    return plain or hasattr(TritonHOPifier, "recreate_variable")


def seen_problem(seen: tuple[Any, ...]) -> Problem:
    """What is constant in a trace: dtypes and absences. Its dims are symbols.

    Args:
        seen: ((tensor, dtype or None), ...).
    """
    return Problem(
        dtypes=FrozenMap({name: spelling(dtype) for name, dtype in seen if dtype is not None}),
        facts=FrozenMap({name: "none" for name, dtype in seen if dtype is None}),
    )
