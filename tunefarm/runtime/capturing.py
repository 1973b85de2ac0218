"""What a job launches that a farm could tune, counted as it runs; which is all that a job with `capture` does besides.

Three kinds: Triton kernels that the host launches, with what they are called with; kernels that Inductor generates, as
they are launched; and matrix products that Inductor is asked for, as often as the graphs run in which they are. What
an autotuner launches to time its configs is none of the job's. What a CUDA graph replays is seen once.

Torch and Triton are watched once the job loads them. Nothing here may harm it: what cannot be noted is left out.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefarm.config import Value
from tunefarm.document import write_atomic
from tunefarm.errors import UserError
from tunefarm.gemm import Gemm
from tunefarm.problem import SPELLING
from tunefarm.runtime.active import log
from tunefarm.runtime.environment import rank
from tunefarm.runtime.loading import once_loaded

FORMAT, VERSION = "tunefarm-capture", 1

MAX_CALLS = 1000
"""Different calls of one kernel; a seed among its arguments makes each call another."""

EVERY_S = 5.0
"""Seconds between two writings: a job that is killed leaves what it did until then."""

_GRAPH = "_tunefarm_graph"

Call = tuple[tuple[str, Any], ...]
"""Arguments by name: what is hashable of each."""


@dataclass(slots=True, eq=False)
class _Launched:
    """A kernel that the host launches.

    Attributes:
        kernel: its function.
        calls: how often it was launched with what.
        others: launches beyond `MAX_CALLS` kinds.
    """

    kernel: Any
    calls: dict[Call, int] = field(default_factory=dict)
    others: int = 0


@dataclass(slots=True, eq=False)
class _Graph:
    """A compiled graph.

    Attributes:
        products: asked for while it was compiled.
        runs: how often it was called.
    """

    products: Counter[Gemm]
    runs: int = 0


@dataclass(slots=True, kw_only=True)
class Noted:
    """What was noted in this process.

    Attributes:
        launched: by identity of the jitted function.
        generated: launches of Inductor's kernels, by (file, name).
        graphs: with products in them.
        products: asked for outside of any graph that could be told, as often as they were.
    """

    launched: dict[int, _Launched] = field(default_factory=dict)
    generated: Counter[tuple[str, str]] = field(default_factory=Counter)
    graphs: list[_Graph] = field(default_factory=list)
    products: Counter[Gemm] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return any((self.launched, self.generated, self.graphs, self.products))

    def clear(self) -> None:
        """Forgets all of it."""
        for part in (self.launched, self.generated, self.graphs, self.products):
            part.clear()


NOTED = Noted()
_here = threading.local()
"""Of each thread: `timing`, how many autotuners are timing configs; `asked`, the products of the graph it compiles."""


def capture_into(folder: Path) -> None:
    """Notes what this process launches from now on, and writes it into a folder now and then and when it ends."""
    watches: dict[str, Callable[[ModuleType], None]] = {
        "triton.runtime.autotuner": _watch_autotuners,
        "triton.runtime.jit": functools.partial(_watch_launches, "JITFunction"),
        "triton.runtime.interpreter": functools.partial(_watch_launches, "InterpretedFunction"),
        "torch._inductor.compile_fx": _watch_inductor,
        "torch._inductor.runtime.triton_heuristics": _watch_generated,
    }
    for name, watch in watches.items():
        once_loaded(name, watch)
    atexit.register(_write_quietly, folder)
    _keep_writing(folder)

    def start_over() -> None:
        NOTED.clear()
        _keep_writing(folder)

    os.register_at_fork(after_in_child=start_over)


# ---- what is watched ----


def _around(owner: Any, method: str, make: Callable[[Any], Any]) -> None:
    """Puts a function made of a method in its place, once; a release without that method is left as it is."""
    stock = getattr(owner, method, None)
    if stock is not None and not hasattr(stock, "of_capture"):
        made: Any = functools.wraps(stock)(make(stock))
        made.of_capture = True
        setattr(owner, method, made)


def _watch_autotuners(module: ModuleType) -> None:
    def make(stock: Any) -> Any:
        def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
            _here.timing = getattr(_here, "timing", 0) + 1
            try:
                return stock(self, *args, **kwargs)
            finally:
                _here.timing -= 1

        return bench

    _around(vars(module)["Autotuner"], "_bench", make)


def _watch_launches(of: str, module: ModuleType) -> None:
    def make(stock: Any) -> Any:
        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if not warmup and not getattr(_here, "timing", 0):
                _note_launch(self, args, kwargs)
            return stock(self, *args, grid=grid, warmup=warmup, **kwargs)

        return run

    _around(vars(module)[of], "run", make)


def _watch_generated(module: ModuleType) -> None:
    def make(stock: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("benchmark_run"):
                NOTED.generated[self.filename or "", self.inductor_meta.get("kernel_name", "")] += 1
            return stock(self, *args, **kwargs)

        return run

    _around(vars(module)["CachingAutotuner"], "run", make)


def _watch_inductor(module: ModuleType) -> None:
    """Lets Inductor write down what its kernels take, tell which products it is asked for, and how often graphs run."""
    from tunefarm.choosing import Chooser, choose
    from tunefarm.settings import set_default

    name = uuid.uuid4().hex  # No graph of another process is taken from a cache: its products would not be told.
    set_default("benchmark_kernel", True)

    def note(gemm: Gemm, index: int | None, counts: bool) -> None:
        asked: Counter[Gemm] | None = getattr(_here, "asked", None)
        (NOTED.products if asked is None else asked)[gemm] += counts

    try:
        choose(Chooser(answer=note, identity=lambda: f"capture {name}"))
    except UserError as error:
        log.warning("matrix products are not captured: %s", error)

    def compiling(stock: Any) -> Any:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            before, _here.asked = getattr(_here, "asked", None), Counter()
            try:
                made = stock(*args, **kwargs)
                if _here.asked:
                    graph = _Graph(_here.asked)
                    NOTED.graphs.append(graph)
                    made.__dict__[_GRAPH] = graph
                return made
            finally:
                _here.asked = before

        return compile_

    _around(module, "fx_codegen_and_compile", compiling)

    def calling(stock: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (graph := self.__dict__.get(_GRAPH)) is not None:
                graph.runs += 1
            return stock(self, *args, **kwargs)

        return call

    _around(sys.modules["torch._inductor.output_code"].CompiledFxGraph, "__call__", calling)


# ---- what is noted ----


def _note_launch(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    known = NOTED.launched.get(id(kernel))
    if known is None:
        known = NOTED.launched.setdefault(id(kernel), _Launched(kernel))
    names = kernel.arg_names
    call = (*zip(names, map(_seen, args), strict=False), *((k, _seen(v)) for k, v in kwargs.items() if k in names))
    if call in known.calls or len(known.calls) < MAX_CALLS:
        known.calls[call] = known.calls.get(call, 0) + 1
    else:
        known.others += 1


def _seen(argument: Any) -> Any:
    """What of an argument tells one call from another. Of floats that is nothing: they differ from step to step."""
    kind = type(argument)
    if kind is int or kind is bool or kind is str or argument is None:
        return kind, argument
    tensor = argument if hasattr(argument, "data_ptr") else getattr(argument, "base", None)
    if tensor is None or not hasattr(tensor, "stride"):
        return kind, None
    is_aligned = tensor is not argument or tensor.data_ptr() % 16 == 0
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, is_aligned


# ---- what is written ----


def to_json() -> dict[str, Any]:
    """What was noted so far in this process."""
    products = Counter(NOTED.products)
    for graph in list(NOTED.graphs):
        for gemm, number in graph.products.items():
            products[gemm] += number * graph.runs
    return {
        "format": FORMAT, "version": VERSION, "host": socket.gethostname(), "pid": os.getpid(), "rank": rank(),
        "device": _device(),
        "kernels": [_kernel(known) for known in list(NOTED.launched.values())],
        "generated": [
            {"file": file, "name": name, "source": _text(file), "launches": launches}
            for (file, name), launches in list(NOTED.generated.items())
        ],
        "products": [
            {"op": gemm.op, "problem": gemm.problem.to_json(), "refusal": gemm.refusal, "calls": calls}
            for gemm, calls in products.items()
            if calls
        ],
    }  # fmt: skip


def _device() -> dict[str, Any] | None:
    """The GPU of this process, if it has put one to use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from tunefarm.runtime.kernels import live_device

    return live_device(torch.cuda.current_device()).to_json()


def _kernel(known: _Launched) -> dict[str, Any]:
    function = known.kernel.fn
    return {
        "name": function.__name__, "module": function.__module__, "path": function.__qualname__,
        "file": function.__code__.co_filename, "others": known.others,
        "calls": [
            {"arguments": {name: _argument(seen) for name, seen in call}, "launches": launches}
            for call, launches in list(known.calls.items())
        ],
    }  # fmt: skip


def _argument(seen: Any) -> dict[str, Any]:
    if len(seen) == 4:
        shape, strides, dtype, is_aligned = seen
        name = str(dtype).removeprefix("torch.")
        return {"shape": shape, "strides": strides, "dtype": SPELLING.get(name, name), "is_aligned": is_aligned}
    kind, value = seen
    plain: Value | None = value
    return {"value": plain} if kind in (int, bool, str, type(None)) else {"type": kind.__name__}


def _text(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except OSError:
        return ""


def _keep_writing(folder: Path) -> None:
    def write() -> None:
        while True:
            time.sleep(EVERY_S)
            _write_quietly(folder)

    threading.Thread(target=write, name="tunefarm-capture", daemon=True).start()


def _write_quietly(folder: Path) -> None:
    if not NOTED:  # as of processes that compile for others
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{socket.gethostname()}-{os.getpid()}.json"
        write_atomic(path, json.dumps(to_json()).encode())
    except Exception as error:  # a job ends as it would without
        log.warning("what was captured is not written to %s: %s", folder, error)
