"""What was noted of a job's launches, and the file that a process leaves of it. Torch is not imported for that."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from tunefarm.config import Value
from tunefarm.document import write_atomic
from tunefarm.gemm import Gemm
from tunefarm.runtime.active import log
from tunefarm.runtime.environment import rank
from tunefarm.runtime.kernels import is_aligned, live_device, spelling, tensor_of

FORMAT, VERSION = "tunefarm-capture", 1

MAX_CALLS = 1000
"""Different calls of one kernel; a seed among its arguments makes each call another."""

EVERY_S = 5.0
"""Seconds between two writings, at least: a job that is killed leaves what it did until then."""

SHARE = 0.02
"""Of a job's time, at most: where there is much to write it is written less often."""

Call = tuple[tuple[str, Any], ...]
"""Arguments by name: what is hashable of each."""


@dataclass(slots=True, eq=False)
class _Launched:
    """A kernel that the host launches.

    Attributes:
        function: what it is called, and where it stands.
        code: of its function, which keeps the job's kernel, and what that holds, no longer than the job does.
        calls: how often it was launched with what.
        others: launches beyond `MAX_CALLS` kinds, and those whose arguments cannot be told.
    """

    function: Mapping[str, str]
    code: CodeType
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

    def __reduce__(self) -> tuple[Any, ...]:
        # A graph that Inductor takes from its cache again is another one, and runs by itself.
        return graph_of, (self.products,)


def graph_of(products: Counter[Gemm]) -> _Graph:
    """A graph with products in it, noted."""
    graph = _Graph(products)
    NOTED.graphs.append(graph)
    return graph


@dataclass(slots=True, kw_only=True)
class Noted:
    """What was noted in this process.

    Attributes:
        launched: by identity of the code; kernels that a job makes anew, again and again, are one.
        generated: launches of Inductor's kernels, by (file, name).
        graphs: with products in them.
        products: asked for outside of any graph that could be told, as often as they were.
        gpu: number of the one that was current where the first kernel was launched: threads have their own.
        sources: of generated kernels, by file, as a job may remove them before it ends.
    """

    launched: dict[int, _Launched] = field(default_factory=dict)
    generated: Counter[tuple[str, str]] = field(default_factory=Counter)
    graphs: list[_Graph] = field(default_factory=list)
    products: Counter[Gemm] = field(default_factory=Counter)
    gpu: int | None = None
    sources: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.launched, self.generated, self.graphs, self.products))

    def clear(self) -> None:
        """Forgets all of it."""
        for part in (self.launched, self.generated, self.graphs, self.products):
            part.clear()
        self.gpu = None


NOTED = Noted()

# ---- what is noted ----


def note_launch(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Counts a launch of a kernel by the host."""
    code = kernel.fn.__code__
    known = NOTED.launched.get(id(code))
    if known is None:
        known = NOTED.launched.setdefault(id(code), _Launched(_function(kernel.fn), code))
        begin()
    names = kernel.arg_names
    try:
        call = (*zip(names, map(_seen, args), strict=False), *((k, _seen(v)) for k, v in kwargs.items() if k in names))
        number = known.calls.get(call, 0)
    except Exception:  # a tensor without memory, sizes that are symbols
        known.others += 1
        return
    if number or len(known.calls) < MAX_CALLS:
        known.calls[call] = number + 1
    else:
        known.others += 1


def note_generated(file: str, name: str) -> None:
    """Counts a launch of a kernel that Inductor generated into a file."""
    is_new = (file, name) not in NOTED.generated
    NOTED.generated[file, name] += 1
    if is_new:
        begin()


def begin() -> None:
    """Has a writer begin, now that there is something to write, and notes which GPU the thread that launches uses."""
    torch = sys.modules.get("torch")
    if NOTED.gpu is None and torch is not None and torch.cuda.is_initialized():
        NOTED.gpu = torch.cuda.current_device()
    for writer in _writers:
        writer.begin()


def _seen(argument: Any) -> Any:
    """What of an argument tells one call from another. Of floats that is nothing: they differ from step to step."""
    kind = type(argument)
    if kind is int or kind is bool or kind is str or argument is None:
        return kind, argument
    tensor = tensor_of(argument)
    if tensor is None or not hasattr(tensor, "stride"):
        return kind, None
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, is_aligned(argument)


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
    if NOTED.gpu is None:
        return None
    return live_device(NOTED.gpu).to_json()


def _function(function: Any) -> dict[str, str]:
    return {
        "name": function.__name__, "module": function.__module__, "path": function.__qualname__,
        "file": function.__code__.co_filename,
    }  # fmt: skip


def _kernel(known: _Launched) -> dict[str, Any]:
    return {
        **known.function, "others": known.others,
        "calls": [
            {"arguments": {name: _argument(seen) for name, seen in call}, "launches": launches}
            for call, launches in list(known.calls.items())
        ],
    }  # fmt: skip


def _argument(seen: Any) -> dict[str, Any]:
    if len(seen) == 4:
        shape, strides, dtype, aligned = seen
        return {"shape": shape, "strides": strides, "dtype": spelling(dtype), "is_aligned": aligned}
    kind, value = seen
    plain: Value | None = value
    return {"value": plain} if kind in (int, bool, str, type(None)) else {"type": kind.__name__}


def _text(file: str) -> str:
    if file not in NOTED.sources:
        try:
            NOTED.sources[file] = Path(file).read_text("utf-8")
        except (OSError, ValueError):
            return ""
    return NOTED.sources[file]


class _Writer:
    """Writes what was noted: now and then, from the first on, and when the process ends.

    A process that launches nothing, as most of those that load data or compile for others, gets no thread: a fork of
    one with several is not what its author meant.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun, self._writing = threading.Lock(), threading.Lock()
        self._error = ""

    def begin(self) -> None:
        """Starts to write now and then, once."""
        if self._begun.acquire(blocking=False):
            # What multiprocessing forks ends without Python's own farewell, but not without this one.
            if (util := sys.modules.get("multiprocessing.util")) is not None:
                util.Finalize(None, self.write, exitpriority=-1)
            threading.Thread(target=self._keep_writing, name="tunefarm-capture", daemon=True).start()

    def _keep_writing(self) -> None:
        cost_s = 0.0
        while True:
            time.sleep(max(EVERY_S, cost_s / SHARE))
            began_s = time.monotonic()
            self.write()
            cost_s = time.monotonic() - began_s

    def write(self) -> None:
        """Writes it; what keeps it from that is logged, once."""
        # One at a time: else the last word may be written over by the one before.
        if not NOTED:
            return
        with self._writing:
            try:
                path = self._folder / f"{socket.gethostname()}-{os.getpid()}.json"
                write_atomic(path, json.dumps(to_json()).encode())
            except Exception as error:  # a job ends as it would without
                if self._error != str(error):
                    self._error = str(error)
                    log.warning("what was captured is not written to %s: %s", self._folder, error)


_writers: list[_Writer] = []
"""The one of this process, once there is one."""


def write_into(folder: Path) -> None:
    """What is noted from now on is written into a folder; nothing is begun before there is something."""
    _writers[:] = [_Writer(folder)]


def write_now() -> None:
    """Writes what was noted, if anything was; as at the end of a process."""
    for writer in _writers:
        writer.write()
