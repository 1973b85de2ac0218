"""How often the verdict of finals errs: equal things told apart (A/A), and a planted slowdown of 3 % not found.

    python experiments/benchmarks/noise.py experiments/softmax.yaml experiments/matmul.yaml [--json FILE]

For the first problem of each experiment the default config is built on CPUs and loaded twice; both are timed as
finalists are, by the same code: by turns, in an order drawn anew each round and in every comparison, with a cold L2, on
the same tensors, until the medians are known. A/A: neither may be called better. With `--apart` each has tensors of its
own, which shows what addresses do. Planted: after each launch of one of them the GPU spins for 3 % of the time, after
the other's it spins for nothing, so that the slowdown is real, known, and the same for every kernel.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sitting import end_well, live_arch, studies

from tunefarm.bench.launch import Launch, call, default_config, intercept, learn
from tunefarm.bench.loaded import Loaded, load_kernel
from tunefarm.bench.meter import NUM_WARMUP, Question
from tunefarm.bench.sampling import in_turn
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, Built, build
from tunefarm.cli.opening import open_experiment
from tunefarm.device import nominal
from tunefarm.document import write_atomic
from tunefarm.errors import TunefarmError, UserError
from tunefarm.search.rungs import FINALS
from tunefarm.spec.experiment import Resolved
from tunefarm.study import Study
from tunefarm.trial import describe

CONFIDENCE, PLANTED, LEAST_US = 0.99, 0.03, 20.0
"""Of the verdict; the slowdown; and the kernels in which it must be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of one experiment.

    Attributes:
        label: of the problem.
        time_us: median of the default config.
        num_equal: A/A comparisons.
        num_false: those in which one side was called better.
        num_planted: comparisons with a planted slowdown; none for a kernel that is too short.
        num_found: those in which it was found.
        slowdown: median over them of the medians' ratio, minus 1.
        error: why there is nothing, or empty.
    """

    label: str
    time_us: float = 0.0
    num_equal: int = 0
    num_false: int = 0
    num_planted: int = 0
    num_found: int = 0
    slowdown: float = 0.0
    error: str = ""


def table(tallies: Sequence[Tally]) -> str:
    """The tallies and their sums."""
    width = max((len(tally.label) for tally in tallies), default=0)
    lines = [f"{'':{width}s} {'time us':>9s} {'A/A':>5s} {'false':>6s} {'planted':>8s} {'found':>6s} {'slowdown':>9s}"]
    for t in tallies:
        if t.error:
            lines.append(f"{t.label:{width}s} {t.error}")
            continue
        planted = f"{t.num_planted:8d} {t.num_found:6d} {t.slowdown:9.1%}" if t.num_planted else ""
        if t.time_us < LEAST_US:
            planted = f"under {LEAST_US:.0f} us"
        lines.append(f"{t.label:{width}s} {t.time_us:9.1f} {t.num_equal:5d} {t.num_false:6d} {planted}")
    equal, false = sum(t.num_equal for t in tallies), sum(t.num_false for t in tallies)
    planted, found = sum(t.num_planted for t in tallies), sum(t.num_found for t in tallies)
    lines.append(f"A/A at {CONFIDENCE:.0%} confidence: {false} of {equal} comparisons call one of two equals better")
    if planted:
        lines.append(
            f"planted {PLANTED:.0%}: found in {found} of {planted} comparisons ({found / planted:.0%}), kernels of "
            f"{LEAST_US:.0f} us and more"
        )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The default config of a problem, ready to be loaded.

    Attributes:
        resolved: the experiment.
        study: the problem.
        built: its machine code.
        apart: two of it share no tensors.
    """

    resolved: Resolved
    study: Study
    built: Built
    apart: bool

    def question(self, order_seed: int) -> Question:
        """What finals ask, in one of many orders."""
        return Question(
            ref=self.resolved.experiment.ref, device=self.study.device, problem=self.study.problem,
            variables=self.study.variables, candidates=(), rung=FINALS.number, num_samples=FINALS.num_samples,
            max_samples=FINALS.max_samples, precision=FINALS.precision, interleaved=True, order_seed=order_seed,
        )  # fmt: skip

    def pair(self) -> list[Loaded]:
        """The config twice."""
        first = self.load()
        assert first.again is not None
        return [first, first.again(self.load().arguments if self.apart else first.arguments)]

    def load(self) -> Loaded:
        """The kernel with new arguments of the production call."""
        workload, artifact = self.resolved.workload, self.built.artifact
        assert artifact is not None
        loads: list[Loaded] = []

        def on_launch(launch: Launch) -> None:
            loads.append(Loaded.of(workload, load_kernel(launch, artifact)[launch.grid], launch.arguments))

        with intercept(workload, self.built.config, self.study.device.target, on_launch):
            call(workload, make_inputs(workload, self.study.variables, "cuda"), self.built.config)
        return loads[0]


def order(paths: Sequence[Path], arch: str) -> list[tuple[Resolved, Study, BuildRequest]]:
    """What is to be built for an arch: the default config of the first problem of each experiment.

    Raises:
        UserError: an experiment has no problem that is not empty.
    """
    found, device = [], nominal(arch)
    for path in paths:
        resolved = open_experiment(path)
        if arch not in [spec.arch for spec in resolved.experiment.devices]:
            print(f"{path.stem}: not for {arch}: left out", flush=True)
            continue
        first = next(iter(studies(resolved, device)), None)
        if first is None:
            raise UserError("has only empty problems", file=str(path), key="problems", hint="leave the file out")
        workload = resolved.workload
        untuned = learn(workload, make_inputs(workload, first.variables, "meta"), workload.default, device.target)
        request = BuildRequest(
            ref=resolved.experiment.ref, variables=first.variables, target=device.target,
            configs=(default_config(workload) or untuned.config,),
        )  # fmt: skip
        found.append((resolved, first, request))
    return found


def alternate(contestants: Sequence[Loaded], flush: Any, question: Question) -> list[list[float]]:
    """Samples in ms of each, taken as finals take them, without the warm-up."""
    durations = in_turn(dict(enumerate(contestants)), question, flush)
    return [taken[NUM_WARMUP:] for taken in durations.values()]


def spinning(loaded: Loaded, cycles: int) -> Loaded:
    """The same with a spin of the GPU after each launch."""
    import torch

    def fire() -> None:
        loaded.fire()
        torch.cuda._sleep(cycles)

    return Loaded(fire=fire, reset=loaded.reset)


def cycles_per_ms(flush: Any, question: Question) -> float:
    """How many cycles the GPU spins in a millisecond."""
    import torch

    many = 1_000_000
    pair = [Loaded(fire=lambda cycles=cycles: torch.cuda._sleep(cycles)) for cycles in (0, many)]
    none_ms, many_ms = (statistics.median(samples) for samples in alternate(pair, flush, question))
    return many / (many_ms - none_ms)


def judge(subject: Subject, flush: Any, num_equal: int, num_planted: int) -> Tally:
    """Compares a config with itself, and with itself slowed down."""
    from tunefarm.search.crown import is_better

    rate = cycles_per_ms(flush, subject.question(0))
    times: list[float] = []
    num_false = 0
    for seed in range(num_equal):
        a, b = alternate(subject.pair(), flush, subject.question(seed))
        num_false += is_better(a, b, CONFIDENCE, seed) or is_better(b, a, CONFIDENCE, seed)
        times.append(statistics.median([*a, *b]))
    time_us = 1000 * statistics.median(times)
    ratios, num_found = [], 0
    for seed in range(num_planted if time_us >= LEAST_US else 0):
        plain, slowed = subject.pair()
        ask = subject.question(num_equal + seed)
        (idle,) = alternate([spinning(plain, 0)], flush, ask)
        cycles = round(PLANTED * statistics.median(idle) * rate)
        a, b = alternate([spinning(plain, 0), spinning(slowed, cycles)], flush, ask)
        num_found += is_better(a, b, CONFIDENCE, seed)
        ratios.append(statistics.median(b) / statistics.median(a) - 1)
    return Tally(
        label=subject.study.label, time_us=time_us, num_equal=num_equal, num_false=num_false, num_planted=len(ratios),
        num_found=num_found, slowdown=statistics.median(ratios) if ratios else 0.0,
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> list[Tally]:
    """Builds, then judges one experiment after the other; the file is written after each."""
    planned = order(arguments.experiments, live_arch())
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        builts = [built for (built,) in pool.map(build, [request for _, _, request in planned])]
    import torch

    from tunefarm.bench.gpu import FLUSH_BYTES
    from tunefarm.bench.steady import hold
    from tunefarm.bench.telemetry import live_device, toolchain, uuid

    device, lock = live_device(), hold(uuid())
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    head = {
        "device": device.name, "toolchain": dict(toolchain()), "date": datetime.date.today().isoformat(),
        "confidence": CONFIDENCE, "planted": PLANTED, "apart": arguments.apart,
        "min_rounds": FINALS.num_samples, "max_rounds": FINALS.max_samples,
    }  # fmt: skip
    tallies: list[Tally] = []
    for (resolved, study, _), built in zip(planned, builts, strict=True):
        if built.failure is not None:
            tally = Tally(label=study.label, error=describe(built.failure))
        else:
            study = dataclasses.replace(study, device=device)
            subject = Subject(resolved=resolved, study=study, built=built, apart=arguments.apart)
            try:
                tally = judge(subject, flush, arguments.equal, arguments.planted)
            except TunefarmError as e:
                tally = Tally(label=study.label, error=str(e))
        tallies.append(tally)
        print(table(tallies[-1:]).splitlines()[1], flush=True)
        if arguments.json is not None:
            rows = [dataclasses.asdict(tally) for tally in tallies]
            write_atomic(arguments.json, json.dumps({**head, "experiments": rows}, indent=1).encode())
    lock.close()
    print(f"{device.name}, {FINALS.num_samples} to {FINALS.max_samples} rounds of each comparison, cold L2")
    return tallies


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("experiments", type=Path, nargs="+")
    add("--equal", type=int, default=34, metavar="N", help="A/A comparisons of each experiment; default: %(default)s")
    add("--planted", type=int, default=7, metavar="N", help="of each with a slowdown; default: %(default)s")
    add("--apart", action="store_true", help="each side with tensors of its own")
    add("--json", type=Path, metavar="FILE", help="the figures for machines")
    return parser.parse_args(words)


def main() -> None:
    print(table(run(parse())))


if __name__ == "__main__":
    end_well(main)
