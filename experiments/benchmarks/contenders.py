"""The GPU's side of `compare.py`: what takes part for one problem, the ceiling, and the times of all, interleaved.

Every contender is called as users call it: our kernel through its production call, with and without the pack, and the
workload's reference eagerly and compiled. A sample starts with the GPU asleep for longer than the host needs to queue
flush and call, so that it holds the work of the GPU alone; where it was awake too early, the sample is taken again
after a longer sleep. All are called with the same tensors: addresses alone make a difference. That outputs are right
was checked by the sweep.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tunefarm
from tunefarm.bench import telemetry
from tunefarm.bench.launch import call
from tunefarm.bench.loaded import Loaded
from tunefarm.bench.meter import NUM_WARMUP
from tunefarm.bench.tensors import make_inputs
from tunefarm.errors import UserError
from tunefarm.pack import Pack
from tunefarm.runtime.activation import deactivate
from tunefarm.spec.experiment import Resolved
from tunefarm.study import Study

NUM_ROUNDS, MIN_ROUNDS = 40, 10
"""Rounds that count; fewer, but not fewer than the second, where they take longer than they may."""
CYCLES_PER_US = 2000
"""Of `torch.cuda._sleep`, at the highest clock: at a lower one the GPU sleeps longer, which does no harm."""
FIRST_SLEEP_US, LONGEST_SLEEP_US = 100, 12_800
COPY_BYTES, MATMUL_SIZES = 1 << 30, (8192, 8192, 8192)


class OutOfTime(BaseException):
    """A contender was not ready in time. No `Exception`: compilers catch those and go on with something else."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `OutOfTime` inside the block after so many seconds, and again every five if something swallows it."""

    def ring(*_: Any) -> None:
        raise OutOfTime(f"not ready within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])[:300]


@dataclass(slots=True, kw_only=True)
class Contender:
    """What is timed.

    Attributes:
        loaded: calls it.
        pack: in use while it is called.
        config: the tuned one's, for people.
        sleep_us: how long the GPU sleeps before a sample.
        with_host: samples that began before the host had queued everything, even after the longest sleep.
    """

    loaded: Loaded
    pack: Pack | None = None
    config: str = ""
    sleep_us: int = FIRST_SLEEP_US
    with_host: int = 0

    def sample(self, flush: torch.Tensor) -> None:
        """Queues one cold sample that holds no work of the host."""
        use(self.pack)
        while True:
            torch.cuda._sleep(self.sleep_us * CYCLES_PER_US)
            self.loaded.sample(flush)
            began, _ = self.loaded.samples[-1]
            if not began.query():
                return
            if self.with_host or self.sleep_us >= LONGEST_SLEEP_US:
                # The call itself waits for the GPU: no sleep is long enough.
                self.with_host += 1
                self.sleep_us = FIRST_SLEEP_US
                return
            self.loaded.samples.pop()
            self.sleep_us *= 2


_used: list[Pack | None] = [None]


def use(pack: Pack | None) -> None:
    """Makes a pack the one in use; None for no pack."""
    if pack is not _used[0]:
        deactivate()
        if pack is not None:
            tunefarm.activate(pack)
        _used[0] = pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One problem and what it takes to compare all contenders on it.

    Attributes:
        resolved: the experiment.
        study: the problem.
        pack: of the tuned contender.
        limit_s: for a contender to get ready, compiling included.
        rounds_s: for the rounds of all; the least number of rounds is taken whatever that takes.
        flush: written before each sample.
        announce: told the name of each contender before anything of it runs, and nothing before what concerns all.
    """

    resolved: Resolved
    study: Study
    pack: Pack | None
    limit_s: float
    rounds_s: float
    flush: torch.Tensor
    announce: Callable[[str], None]

    def record(self, names: Sequence[str], copy_tbps: float) -> dict[str, Any]:
        """What `results` keeps of the problem. An error of one contender is its result; one of all is everyone's.

        Raises:
            Exception: the CUDA context is lost.
        """
        workload, variables, device = self.resolved.workload, self.study.variables, self.study.device
        record: dict[str, Any] = {
            "workload": self.resolved.experiment.name, "problem": self.problem, "device": device.name,
            "arch": device.arch, "toolchain": dict(telemetry.toolchain()), "date": datetime.date.today().isoformat(),
            "num_bytes": float(workload.num_bytes(**variables)) if workload.num_bytes else 0.0,
            "flops": float(workload.flops(**variables)) if workload.flops else 0.0,
            "copy_tbps": copy_tbps, "matmul_tflops": 0.0, "config": "", "contenders": {},
        }  # fmt: skip
        if not names:
            return record
        self.announce("")
        try:
            inputs = make_inputs(workload, variables, "cuda")
            if record["flops"]:
                record["matmul_tflops"] = self._matmul_tflops(inputs)
            record["contenders"], record["config"] = self._run(names, inputs)
        except Exception as e:
            torch.cuda.synchronize()
            record["contenders"] = {name: {"error": first_line(e)} for name in names}
        record["telemetry"] = dict(telemetry.sample())
        return record

    @property
    def problem(self) -> str:
        """The problem for people: `8192x4096 bf16`."""
        return self.study.label.removeprefix(f"{self.study.workload} {self.study.device.arch} ")

    def _matmul_tflops(self, inputs: dict[str, Any]) -> float:
        sizes, variables = [MATMUL_SIZES], self.study.variables
        if {"M", "N", "K"} <= variables.keys():
            sizes.append((int(variables["M"]), int(variables["N"]), int(variables["K"])))
        dtypes = {value.dtype for value in inputs.values() if isinstance(value, torch.Tensor)}
        floats = sorted((dtype for dtype in dtypes if dtype.is_floating_point), key=lambda dtype: dtype.itemsize)
        rates = [0.0]
        for size in sizes if floats else ():
            with contextlib.suppress(RuntimeError):  # sizes that PyTorch's matmul refuses in this type set no ceiling
                rates.append(matmul_tflops(floats[0], *size, self.flush))
        return max(rates)

    def _run(self, names: Sequence[str], inputs: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """(By name the samples in microseconds, or the error; the tuned config)."""
        torch._dynamo.reset()  # another problem's compiled code would count as this one's recompilations
        found: dict[str, Any] = {}
        ready: dict[str, Contender] = {}
        for name in names:
            self.announce(name)
            try:
                with limited(self.limit_s):
                    ready[name] = self._start(name, inputs)
            except (Exception, OutOfTime) as e:
                found[name] = {"error": first_line(e)}
                torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.announce("")
        found |= interleave(ready, self.flush, self.rounds_s)
        use(None)
        return found, ready["tuned"].config if "tuned" in ready else ""

    def _start(self, name: str, inputs: dict[str, Any]) -> Contender:
        """A contender after its first calls, everything compiled."""
        workload = self.resolved.workload
        if name == "default":
            return self._start_ours(None, inputs)
        if name == "tuned":
            if self.pack is None:
                raise UserError("there is no pack: the sweep gave no winner")
            tunefarm.install(workload.kernel)
            return self._start_ours(self.pack, inputs)
        if workload.reference is None:
            raise UserError(f"workload {workload.name} has no reference")
        reference = workload.reference
        if name != "eager":
            mode = "max-autotune-no-cudagraphs" if name == "max-autotune" else None
            reference = torch.compile(reference, mode=mode, dynamic=False)
        arguments = tuple(inputs.values())
        for _ in range(2):
            reference(*arguments)
        torch.cuda.synchronize()
        return Contender(loaded=Loaded(fire=lambda: reference(*arguments)))

    def _start_ours(self, pack: Pack | None, inputs: dict[str, Any]) -> Contender:
        workload = self.resolved.workload
        use(None)  # forgets what was counted
        use(pack)

        def fire() -> Any:
            return call(workload, inputs, workload.default)

        for _ in range(2):  # a config of the pack that fails at the first call is a miss at the second
            fire()
        torch.cuda.synchronize()
        if pack is None:
            return Contender(loaded=Loaded(fire=fire))
        report = tunefarm.report()
        if report.misses or not report.hits:
            reasons = [*(miss.reason for miss in report.misses), *report.refused, "its kernel was not asked for"]
            raise UserError(f"no row of the pack answers: {reasons[0]}")
        return Contender(loaded=Loaded(fire=fire), pack=pack, config=report.hits[0].config)


def interleave(contenders: dict[str, Contender], flush: torch.Tensor, rounds_s: float) -> dict[str, Any]:
    """Times contenders, one sample of each a round, in an order drawn anew each round.

    Args:
        contenders: by name, warm.
        flush: written before each sample.
        rounds_s: seconds after which there are no more rounds, once there are `MIN_ROUNDS`.
    """
    found: dict[str, Any] = {}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    began = time.monotonic()
    for number in range(NUM_WARMUP + NUM_ROUNDS):
        if number >= NUM_WARMUP + MIN_ROUNDS and time.monotonic() - began > rounds_s:
            break
        shuffle(order)
        for name in tuple(order):
            try:
                contenders[name].sample(flush)
            except Exception as e:
                found[name] = {"error": first_line(e)}
                order.remove(name)
        torch.cuda.synchronize()
    for name in order:
        samples_us = [round(1000 * ms, 3) for ms in contenders[name].loaded.durations_ms()]
        found[name] = {"samples_us": samples_us[NUM_WARMUP:]}
        if contenders[name].with_host:
            found[name]["with_host"] = True
    return found


def median_ms(fire: Callable[[], Any], flush: torch.Tensor, num_samples: int = 15) -> float:
    """Median time of something in milliseconds, under the contenders' timer."""
    contender = Contender(loaded=Loaded(fire=fire))
    for _ in range(NUM_WARMUP + num_samples):
        contender.sample(flush)
    return float(torch.tensor(contender.loaded.durations_ms()[NUM_WARMUP:]).median())


def copy_tbps(flush: torch.Tensor) -> float:
    """Bandwidth of a copy in TB/s, bytes read and bytes written."""
    source = torch.empty(COPY_BYTES, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / median_ms(lambda: target.copy_(source), flush) / 1e9


def matmul_tflops(dtype: torch.dtype, m: int, n: int, k: int, flush: torch.Tensor) -> float:
    """Rate of PyTorch's own matmul in TFLOP/s."""
    narrow = dtype.itemsize == 1
    made = torch.bfloat16 if narrow else dtype
    a = torch.randn(m, k, device="cuda", dtype=made).to(dtype)
    b = torch.randn(n, k, device="cuda", dtype=made).to(dtype).t()
    one = torch.ones((), device="cuda")

    def fire() -> Any:
        if narrow:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return torch.mm(a, b)

    return 2 * m * n * k / median_ms(fire, flush) / 1e9
