"""What a job launches that a farm could tune, counted as it runs; which is all that a job with `capture` does besides.

Three kinds: Triton kernels that the host launches, with what they are called with; kernels that Inductor generates, as
they are launched; and matrix products that Inductor is asked for, as often as the graphs run in which they are. What
an autotuner launches to time its configs is none of the job's. What a CUDA graph replays is seen once.

Torch and Triton are watched once the job loads them. Nothing here may harm it: what cannot be noted is left out.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tunefarm.errors import UserError
from tunefarm.gemm import Gemm
from tunefarm.runtime.active import log
from tunefarm.runtime.loading import once_loaded
from tunefarm.runtime.noted import NOTED, begin, graph_of, note_generated, note_launch, write_into, write_now

_GRAPH = "_tunefarm_graph"

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
        once_loaded(name, functools.partial(_try, watch))
    write_into(folder)
    atexit.register(write_now)

    def start_over() -> None:
        # The thread that writes stayed with the parent, and may hold a lock there.
        NOTED.clear()
        write_into(folder)

    os.register_at_fork(after_in_child=start_over)


# ---- what is watched ----


def _try(watch: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        watch(module)
    except Exception as error:  # a release that is made otherwise: the job's import is not to fail by that
        log.warning("what %s launches is not captured: %r", module.__name__, error)


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
                with contextlib.suppress(Exception):
                    note_launch(self, args, kwargs)
            return stock(self, *args, grid=grid, warmup=warmup, **kwargs)

        return run

    _around(vars(module)[of], "run", make)


def _watch_generated(module: ModuleType) -> None:
    def make(stock: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("benchmark_run"):
                with contextlib.suppress(Exception):
                    note_generated(self.filename or "", self.inductor_meta.get("kernel_name", ""))
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
                if _here.asked and hasattr(made, "__dict__"):  # what is compiled ahead of time does not run here
                    made.__dict__[_GRAPH] = graph_of(_here.asked)
                return made
            finally:
                _here.asked = before

        return compile_

    _around(module, "fx_codegen_and_compile", compiling)

    def calling(stock: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (graph := self.__dict__.get(_GRAPH)) is not None:
                graph.runs += 1
                if graph.runs == 1:
                    with contextlib.suppress(Exception):
                        begin()
            return stock(self, *args, **kwargs)

        return call

    _around(sys.modules["torch._inductor.output_code"].CompiledFxGraph, "__call__", calling)
