"""First call and steady state of three functions: eager, torch.compile, max-autotune, and torch.compile with a pack.

    python experiments/benchmarks/first_call.py --pack packs/blocks.json
    python experiments/benchmarks/first_call.py --tune sweeps/blocks --pack packs/blocks.json   # makes the pack first

Each cell is a process of its own with empty Inductor and Triton caches. The first call is one step, forward and
backward, from the call of torch.compile to the end of the GPU's work; imports and the start of CUDA come before it.
Steady state is the time of a step once 10 have gone by: the median of 40 groups of 10 steps with its 95 % interval, as
the host and the GPU make it together. Benchmarks are candidates that Inductor or Triton timed. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from blocks import CASES
from sitting import end_well

MODES = ("eager", "torch.compile", "max-autotune", "with pack")
WARM_STEPS, GROUPS, STEPS = 10, 40, 10
WORST_ERROR = 0.02
"""Of outputs and gradients against eager: a norm over a norm, in bf16."""


def count_benchmarks() -> list[str]:
    """Names of all candidates that are timed from now on."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
    from triton.runtime.autotuner import Autotuner

    timed: list[str] = []

    def watch(owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            timed.append(getattr(self, "name", "") or getattr(getattr(self, "fn", None), "__name__", owner.__name__))
            return original(self, *args, **kwargs)

        setattr(owner, method, counted)

    for owner, method in (
        (CachingAutotuner, "bench"), (TritonTemplateCaller, "benchmark"), (ExternKernelCaller, "benchmark"),
        (Autotuner, "_bench"),
    ):  # fmt: skip
        watch(owner, method)
    return timed


def cell(case: str, mode: str, pack: str) -> dict[str, Any]:
    """Measures one cell in this process."""
    import torch

    import tunefarm

    torch.manual_seed(0)
    function, inputs = CASES[case]()
    leaves = [*inputs, *(function.parameters() if isinstance(function, torch.nn.Module) else ())]
    with torch.no_grad():
        out = function(*inputs)
    gradient = torch.randn_like(out)
    timed = count_benchmarks()

    def stepping(called: Callable[..., Any]) -> Callable[[], Any]:
        def step() -> Any:
            for leaf in leaves:
                leaf.grad = None
            result = called(*inputs)
            result.backward(gradient)
            return result

        return step

    torch.cuda.synchronize()
    began = time.perf_counter()
    if mode == "with pack":
        tunefarm.activate(pack)
    how = {"max-autotune": {"mode": "max-autotune-no-cudagraphs"}}.get(mode, {})
    step = stepping(function if mode == "eager" else torch.compile(function, **how))
    step()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - began
    steady = steady_ms(step)
    ours = [step().detach(), *(leaf.grad for leaf in leaves)]
    theirs = [stepping(function)().detach(), *(leaf.grad for leaf in leaves)]
    error = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(ours, theirs, strict=True))
    assert error < WORST_ERROR, f"{case} {mode}: results are off by {error:.3g}"
    told = tunefarm.report()
    return {
        "first_s": first_s, "steady_ms": steady, "benchmarks": timed, "error": error, "hits": told.num_hits,
        "misses": told.num_misses, "report": str(told),
    }  # fmt: skip


def steady_ms(step: Callable[[], Any]) -> list[float]:
    """Milliseconds a step, by group."""
    import torch

    for _ in range(WARM_STEPS):
        step()
    found = []
    for _ in range(GROUPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / STEPS)
    return found


def interval(times: list[float]) -> tuple[float, float, float]:
    """Median and the 95 % interval that the order of the samples gives it."""
    ordered, n = sorted(times), len(times)
    reach = math.ceil(0.98 * math.sqrt(n))
    return statistics.median(ordered), ordered[max(0, n // 2 - reach)], ordered[min(n - 1, n // 2 + reach)]


def in_fresh_process(case: str, mode: str, pack: str) -> dict[str, Any]:
    """A cell, measured in a process of its own with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TUNEFARM")}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        words = [sys.executable, __file__, "--cell", case, mode, "--pack", pack]
        # Of what max-autotune says of each product it tries nobody reads a word, unless something fails.
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{case}, {mode}: the process ended with {done.returncode}\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def tell(found: dict[tuple[str, str], dict[str, Any]], cases: list[str]) -> None:
    """Prints the table, and how the pack does beside the others."""
    import torch
    import triton

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}, {date.today()}\n")
    print("| function | | " + " | ".join(MODES) + " |\n|---|---|" + "---|" * len(MODES))
    for case in cases:
        cells = [found[case, mode] for mode in MODES]
        print(f"| {case} | first call, s | " + " | ".join(f"{c['first_s']:.2f}" for c in cells) + " |")
        times = ("{:.3f} ({:.3f} - {:.3f})".format(*interval(c["steady_ms"])) for c in cells)
        print("| | steady, ms | " + " | ".join(times) + " |")
        print("| | benchmarks | " + " | ".join(str(len(c["benchmarks"])) for c in cells) + " |")
    gains = []
    for case in cases:
        ours, most, plain = (found[case, mode] for mode in ("with pack", "max-autotune", "torch.compile"))
        gains.append(interval(most["steady_ms"])[0] / interval(ours["steady_ms"])[0])
        print(
            f"{case}: first call {ours['first_s'] / most['first_s']:.2f} x max-autotune's, "
            f"{ours['first_s'] / plain['first_s']:.2f} x torch.compile's; steady state {gains[-1]:.3f} x as fast as "
            f"max-autotune; {ours['hits']} hits, {ours['misses']} misses"
        )
    print(f"geometric mean {statistics.geometric_mean(gains):.3f} x as fast as max-autotune")


def tune(folder: Path, pack: Path, cases: list[str]) -> None:
    """Makes the pack: harvests what torch.compile makes of the functions, and sweeps it."""
    blocks = Path(__file__).with_name("blocks.py")
    cli = [sys.executable, "-m", "tunefarm.cli"]
    began = time.perf_counter()
    harvests = [
        subprocess.Popen([*cli, "harvest", f"{blocks}:{case}", "--out", str(folder / case), "--export", str(pack)])
        for case in cases
    ]
    codes = [harvest.wait() for harvest in harvests]
    if any(codes):
        sys.exit("a harvest failed")
    folders = [str(folder / case) for case in cases]
    where = ["--fleet", "inline", "--tracking", "none", "--sweeps", str(folder / "sweeps"), "--out", str(pack)]
    done = subprocess.run([*cli, "sweep", *folders, *where, "--quiet"], check=False)
    print(f"harvested and swept in {time.perf_counter() - began:.0f} s, exit code {done.returncode}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", required=True, help="the pack of the last column")
    parser.add_argument("--tune", metavar="FOLDER", help="make the pack first; experiments and sweeps go there")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES), help="of the functions")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES), help=argparse.SUPPRESS)
    parser.add_argument("--cell", nargs=2, metavar=("FUNCTION", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(*options.cell, options.pack)))
        return
    if options.tune:
        tune(Path(options.tune), Path(options.pack), options.only)
    if not options.modes:
        return
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for case in options.only:
        for mode in options.modes:
            found[case, mode] = each = in_fresh_process(case, mode, options.pack)
            median, low, high = interval(each["steady_ms"])
            print(
                f"{case:12s} {mode:14s} first call {each['first_s']:6.2f} s, steady {median:.3f} ms "
                f"({low:.3f} - {high:.3f}), {len(each['benchmarks'])} benchmarks, error {each['error']:.1e}",
                flush=True,
            )
            if mode == "with pack":
                print(each["report"], flush=True)
    if set(options.modes) == set(MODES):
        tell(found, options.only)


if __name__ == "__main__":
    end_well(main)
