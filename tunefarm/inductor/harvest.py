"""Harvest: what torch.compile generates for a function, forward and backward, collected before it is compiled.

The function is traced with tensors that hold no memory, by the very code that a job runs: Dynamo, AOTAutograd, Inductor
with its passes. Only the last step is left out: instead of what was generated, the traced graph is interpreted, and
that on shapes alone.
"""

from __future__ import annotations

import contextlib
import copy
import io
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tunefarm.device import Device
from tunefarm.errors import SpecError, TunefarmError
from tunefarm.gemm import Gemm
from tunefarm.inductor.gemms import recording_gemms
from tunefarm.inductor.kernel import Generated, Untunable, read_generated
from tunefarm.inductor.standin import standing_in
from tunefarm.spec.importing import import_object

HINT = "it returns (callable, inputs), and runs on tensors without data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was generated.

    Attributes:
        kernels: that can be tuned, each once.
        left: name of each that cannot, and why.
        breaks: why the function is more than one graph.
        products: matrix products asked for, and how often; none where an active pack answers them.
    """

    kernels: tuple[Generated, ...]
    left: tuple[tuple[str, str], ...]
    breaks: tuple[str, ...]
    products: Mapping[Gemm, int]


def harvest(reference: str, folder: str, device: Device, *, products: bool = True) -> Harvest:
    """Runs torch.compile on what a function of no arguments returns: a callable, and a tuple of inputs.

    Both are made where the GPU is the default device. If an output requires a gradient, the backward is harvested, too.

    Args:
        reference: `file.py:object` or `package.module:object`.
        folder: where the file's path starts.
        device: to generate for.
        products: listen to which matrix products are asked for, all of which are then the library's; else they are as
            active packs have them.

    Raises:
        SpecError: the object cannot be imported, is not as described, raises, or makes Inductor generate nothing.
        UserError: this machine has a GPU of another arch.
    """
    make = import_object(reference, folder)
    listening: AbstractContextManager[Mapping[Gemm, int]] = recording_gemms() if products else nullcontext({})
    with standing_in(device), listening as asked:
        sources, breaks = generate(make, reference)
        kernels, left = read_kernels(dict.fromkeys(sources, 1))
    if not (kernels or left or asked):
        raise SpecError(
            f"torch.compile generates no Triton kernel for {reference}",
            hint="its tensors must lie on the GPU, and something must be left for Inductor to fuse",
        )
    tunable = tuple(kernel for kernel, _ in kernels)
    return Harvest(kernels=tunable, left=tuple(left), breaks=breaks, products=dict(asked))


def read_kernels(
    sources: Mapping[tuple[str, str], int],
) -> tuple[list[tuple[Generated, int]], dict[tuple[str, str], int]]:
    """What can be tuned of what Inductor generated, and (name, reason) of what cannot, with how often each is launched.

    Args:
        sources: launches by (name, text of the file), written with `benchmark_kernel` on.
    """
    kernels: dict[str, Generated] = {}
    launches: Counter[str] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    for (name, source), number in sources.items():
        kernel = _read(name, source)
        if isinstance(kernel, tuple):
            left[kernel] += number
        elif (other := kernels.setdefault(kernel.key, kernel)).buffers != kernel.buffers:
            reason = f"Inductor cannot tell it from {other.module}, of other element types or strides"
            left[kernel.name, reason] += number
        else:
            launches[kernel.key] += number
    return [(kernel, launches[key]) for key, kernel in kernels.items()], dict(left)


def generate(
    make: Any, reference: str, on_graph: Callable[[Any], None] = lambda _: None
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The files that Inductor generates, by the names of their kernels; and what breaks the graph.

    Args:
        make: the function that returns a callable and its inputs; here that may be anything.
        reference: where it was found.
        on_graph: is shown each graph that is taken up.

    Raises:
        SpecError: as of `harvest`.
    """
    import torch
    from torch._dynamo.utils import counters
    from torch._subclasses.fake_tensor import FakeTensorMode

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        on_graph(graph)
        return _backend(graph, inputs)

    sources: list[tuple[str, str]] = []
    torch._dynamo.reset()
    counters.clear()
    with explained(reference), FakeTensorMode(allow_non_fake_inputs=True):
        # A module's parameters are swapped when it is moved or cast. That fails where something refers to them weakly,
        # as the book of tensors without memory does, in which they merely are looked up.
        nobody = SimpleNamespace(getweakrefs=lambda _: [])
        with torch.device("cuda"), mock.patch("torch.utils.weakref", nobody):
            function, inputs = made_by(make, reference)
        with _collecting(sources):
            outputs = torch.compile(function, backend=backend)(*inputs)
            _backward(outputs)
    return sources, tuple(counters["graph_break"])


def made_by(make: Any, reference: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The callable and the inputs that a function of no arguments returns.

    Raises:
        SpecError: it is no function, or returns something else.
    """
    if not callable(make):
        raise SpecError(f"{reference} is a {type(make).__name__}, not a function", hint=HINT)
    made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise SpecError(f"{reference} returned {what}, not (callable, inputs)", hint=HINT)
    function, inputs = made
    return function, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _backward(outputs: Any) -> None:
    import torch
    from torch.utils._pytree import tree_leaves

    wanted = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if wanted:
        torch.autograd.backward(wanted, [torch.empty_like(tensor) for tensor in wanted])


@contextlib.contextmanager
def explained(reference: str) -> Iterator[None]:
    """Turns what the user's function, or the tracing of it, raises into one error."""
    try:
        yield
    except TunefarmError:
        raise
    except (Exception, SystemExit) as e:  # a script's own exit would pass for a harvest that went well
        frames = [f for f in traceback.extract_tb(e.__traceback__) if "/torch/" not in f.filename]
        mine = [f for f in frames if f.filename != __file__ and "/tunefarm/" not in f.filename]
        cause = _cause(e)
        first = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        where = f"{mine[-1].filename}:{mine[-1].lineno}" if mine else ""
        raise SpecError(f"{reference} raised {type(cause).__name__}: {first}", file=where, hint=HINT) from None


def _cause(error: BaseException) -> BaseException:
    """What torch.compile wraps in errors of its own, whose first lines say only that there is something."""
    while type(error).__module__.startswith("torch._") and (inner := error.__cause__ or error.__context__):
        error = inner
    return error


def _backend(graph: Any, inputs: Sequence[Any]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, inner_compile=_generate_only)


def _generate_only(graph: Any, inputs: Sequence[Any], **terms: Any) -> Any:
    """Inductor's own compilation; what it returns is not run."""
    import torch
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        traced = copy.deepcopy(graph)
    compile_fx_inner(graph, inputs, **terms)

    def run(arguments: list[Any]) -> Any:
        return torch.fx.Interpreter(traced).run(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def _collecting(sources: list[tuple[str, str]]) -> Iterator[None]:
    """While active, files that Inductor would compile go to `sources`, and nothing is cached."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch._inductor.async_compile import AsyncCompile

    def collect(self: Any, name: str, source: str, *_: Any, **__: Any) -> Any:
        sources.append((name, source))
        return lambda *_, **__: None

    def skip(*_: Any, **__: Any) -> Any:
        return lambda *_, **__: None

    stubs = {"triton": collect, "cpp": skip, "cpp_pybinding": skip}
    with contextlib.ExitStack() as stack:
        for name, stub in stubs.items():
            stack.enter_context(mock.patch.object(AsyncCompile, name, stub, create=True))
        # The benchmark that Inductor can write beside a kernel tells its buffers.
        stack.enter_context(inductor.patch(benchmark_kernel=True, fx_graph_cache=False))
        stack.enter_context(functorch.patch(enable_autograd_cache=False))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _read(name: str, source: str) -> Generated | tuple[str, str]:
    from torch._inductor.runtime import hints

    try:
        kernel = read_generated(source, vars(hints))
        if not kernel.inputs:
            raise Untunable("it takes no tensor that says where its outputs belong")
        return replace(kernel, configs=_configs(kernel))
    except Untunable as e:
        return name, str(e)


def _configs(kernel: Generated) -> tuple[Mapping[str, int], ...]:
    """What Inductor's heuristics would have a job try, in their order."""
    from torch._inductor.runtime import triton_heuristics

    found: list[Any] = []

    def capture(size_hints: Any, configs: Sequence[Any], *_: Any, **__: Any) -> Any:
        found.extend(configs)
        return lambda function: function

    meta = copy.deepcopy(dict(kernel.meta))
    with mock.patch.object(triton_heuristics, "cached_autotune", capture):
        getattr(triton_heuristics, kernel.heuristic)(**meta, filename="")
    least = getattr(triton_heuristics, "_enforce_reduction_config_block_minimums", None)
    if least is not None and kernel.heuristic != "pointwise":
        found = least(found, meta["size_hints"], meta["inductor_meta"])
    flat = [
        {**{k: int(v) for k, v in c.kwargs.items() if k in kernel.params}, "num_warps": c.num_warps,
         "num_stages": c.num_stages} for c in found
    ]  # fmt: skip
    return tuple({tuple(config.items()): config for config in flat}.values())
