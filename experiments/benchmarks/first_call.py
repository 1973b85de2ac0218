"""First call and steady state of three functions: eager, torch.compile, max-autotune, and torch.compile with a pack.

    python experiments/benchmarks/first_call.py --pack packs/blocks.json
    python experiments/benchmarks/first_call.py --tune sweeps/blocks --pack packs/blocks.json   # makes the pack first

Each cell is a process of its own with empty Inductor and Triton caches. The first call is one step, forward and
backward, from the call of torch.compile to the end of the GPU's work; imports and the start of CUDA come before it, and
no other process works then. For the steady state the four processes of a function take turns, so that a GPU that slows
down under load does so for all: the median of 40 groups of 10 steps with its 95 % interval, as the host and the GPU
make it together. Benchmarks are candidates that Inductor or Triton timed. Needs a CUDA device; max-autotune alone takes
several minutes, so `--keep FILE` keeps each function's figures, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from blocks import CASES
from sitting import end_well

MODES = ("eager", "torch.compile", "max-autotune", "with pack")
WARM_STEPS, ROUNDS, GROUPS, STEPS = 20, 5, 8, 10
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


def cell(case: str, mode: str, pack: str) -> None:
    """Measures one cell in this process: the first call at once, the steady state a turn for each line of input."""
    import torch

    import tunefarm

    # What the compiler prints is not for the reader of our figures.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
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
    ours = [step().detach(), *(leaf.grad for leaf in leaves)]
    theirs = [stepping(function)().detach(), *(leaf.grad for leaf in leaves)]
    error = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(ours, theirs, strict=True))
    assert error < WORST_ERROR, f"{case} {mode}: results are off by {error:.3g}"
    told = tunefarm.report()
    first = {"first_s": first_s, "benchmarks": timed, "error": error, "hits": told.num_hits, "misses": told.num_misses}
    print(json.dumps({**first, "report": str(told)}), file=channel)
    del ours, theirs, out
    for _ in sys.stdin:
        print(json.dumps(turn_ms(step)), file=channel)


def turn_ms(step: Callable[[], Any]) -> list[float]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a cell gave: what it told after its first call, and the times of its steps."""

    case: str
    mode: str
    told: dict[str, Any]
    steady_ms: list[float]

    def __str__(self) -> str:
        median, low, high = interval(self.steady_ms)
        return (
            f"{self.case:12s} {self.mode:14s} first call {self.told['first_s']:6.2f} s, steady {median:.3f} ms "
            f"({low:.3f} - {high:.3f}), {len(self.told['benchmarks'])} benchmarks, error {self.told['error']:.1e}"
        )


class Cell:
    """A cell in a process of its own with empty caches, as a context; its first call is over when it is entered."""

    def __init__(self, case: str, mode: str, pack: str) -> None:
        self._case, self._mode = case, mode
        self._words = [sys.executable, __file__, "--cell", case, mode, "--pack", pack]
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Cell:
        folder = self._held.enter_context(tempfile.TemporaryDirectory())
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TUNEFARM")}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        # Of what max-autotune says of each product it tries nobody reads a word, unless something fails.
        self._said = self._held.enter_context(tempfile.TemporaryFile("w+"))
        self._process = subprocess.Popen(
            self._words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        self._held.callback(self._process.communicate)
        self._told: dict[str, Any] = self._answer()
        self._steady_ms: list[float] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def turn(self) -> None:
        """Times some steps."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._steady_ms += self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        code = self._process.wait()
        self._said.seek(0)
        sys.exit(f"{self._case}, {self._mode}: the process ended with {code}\n{self._said.read()[-4000:]}")

    @property
    def figures(self) -> Figures:
        """What it gave so far."""
        return Figures(case=self._case, mode=self._mode, told=self._told, steady_ms=self._steady_ms)


def measured(case: str, modes: list[str], pack: str) -> dict[str, Figures]:
    """The cells of one function, by mode."""
    with contextlib.ExitStack() as stack:
        cells = [stack.enter_context(Cell(case, mode, pack)) for mode in modes]
        for number in range(ROUNDS):
            for each in random.Random(number).sample(cells, len(cells)):
                each.turn()
        return {mode: cell.figures for mode, cell in zip(modes, cells, strict=True)}


def kept(path: Path | None, terms: dict[str, Any]) -> dict[str, dict[str, Figures]]:
    """Figures of functions that an earlier run of the same command has kept, on the same terms."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    found: dict[str, dict[str, Figures]] = {}
    for data in map(json.loads, lines):
        if data.pop("terms") == terms:
            found.setdefault(data["case"], {})[data["mode"]] = Figures(**data)
    return found


def keep(path: Path | None, terms: dict[str, Any], cells: dict[str, Figures]) -> None:
    """Adds figures to a file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps({"terms": terms, **asdict(each)}) + "\n" for each in cells.values())


def terms_of(pack: str) -> dict[str, Any]:
    """What figures must agree in to stand in one table."""
    import torch
    import triton

    here = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    return {**here, "pack": sha256(Path(pack).read_bytes()).hexdigest(), "date": str(date.today())}


def tell(found: dict[str, dict[str, Figures]], terms: dict[str, Any]) -> None:
    """Prints the table, and how the pack does beside the others."""
    print("\n{device}, torch {torch}, Triton {triton}, {date}\n".format(**terms))
    print("| function | | " + " | ".join(MODES) + " |\n|---|---|" + "---|" * len(MODES))
    for case, cells in found.items():
        told = [cells[mode].told for mode in MODES]
        print(f"| {case} | first call, s | " + " | ".join(f"{each['first_s']:.2f}" for each in told) + " |")
        times = ("{:.3f} ({:.3f} - {:.3f})".format(*interval(cells[mode].steady_ms)) for mode in MODES)
        print("| | steady, ms | " + " | ".join(times) + " |")
        print("| | benchmarks | " + " | ".join(str(len(each["benchmarks"])) for each in told) + " |")
    gains = []
    for case, cells in found.items():
        ours, most, plain = (cells[mode] for mode in ("with pack", "max-autotune", "torch.compile"))
        gains.append(interval(most.steady_ms)[0] / interval(ours.steady_ms)[0])
        first_s = ours.told["first_s"]
        print(
            f"{case}: first call {first_s / most.told['first_s']:.2f} x max-autotune's, "
            f"{first_s / plain.told['first_s']:.2f} x torch.compile's; steady state {gains[-1]:.3f} x as fast as "
            f"max-autotune; {ours.told['hits']} hits, {ours.told['misses']} misses"
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
    parser.add_argument("--keep", metavar="FILE", type=Path, help="keep figures there, and go on from those it has")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES), help="of the functions")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES), help=argparse.SUPPRESS)
    parser.add_argument("--cell", nargs=2, metavar=("FUNCTION", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        cell(*options.cell, options.pack)
        return
    if options.tune:
        tune(Path(options.tune), Path(options.pack), options.only)
    if not options.modes:
        return
    terms = terms_of(options.pack)
    found = kept(options.keep, terms)
    for case in options.only:
        if not set(options.modes) <= found.get(case, {}).keys():
            found[case] = measured(case, options.modes, options.pack)
            keep(options.keep, terms, found[case])
        for each in found[case].values():
            print(each, flush=True)
            if each.mode == "with pack":
                print(each.told["report"], flush=True)
    if set(options.modes) == set(MODES):
        tell({case: found[case] for case in options.only}, terms)


if __name__ == "__main__":
    end_well(main)
