"""A training-like loop that loads a pack: eager and compiled, over rows of whole cache lines of all lengths.

    python experiments/training.py packs/softmax.json

Needs a CUDA device. Prints how many graphs torch.compile made, how often the kernel was benchmarked (never), and which
row of the pack answered. Without a pack the kernel's default config is used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch._inductor.compile_fx import compile_fx
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.runtime.autotuner import Autotuner

import tunefarm

sys.path.insert(0, str(Path(__file__).parent / "kernels"))
from softmax import softmax

LENGTHS = (256, 512, 1024, 2048, 4096, 6400, 8192, 12800, 16384, 65536, 131072)


def count_benchmarks() -> Counter[str]:
    """Counts, by kernel, every candidate that Triton or Inductor times from now on."""
    timed: Counter[str] = Counter()

    def watch(owner: type, method: str) -> None:
        original = getattr(owner, method)

        def counted(self: object, *args: object, **kwargs: object) -> object:
            timed[self.fn.__name__] += 1
            return original(self, *args, **kwargs)

        setattr(owner, method, counted)

    watch(Autotuner, "_bench")
    watch(CachingAutotuner, "bench")
    return timed


def train(name: str, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """One step at every length, checked against double precision."""
    began, worst = time.perf_counter(), 0.0
    for n_cols in LENGTHS:
        x = torch.randn(64, n_cols, device="cuda", dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 1)
        expected = torch.softmax((x * 2).double(), 1)
        error = (step(x).double() - expected).abs() / expected
        worst = max(worst, error.max().item())
    seconds = time.perf_counter() - began
    print(f"{name:28s} {len(LENGTHS)} lengths in {seconds:.1f} s, worst relative error {worst:.1e} (bf16: 3.9e-03)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", nargs="?", type=Path, help="left out: the default config")
    pack = parser.parse_args().pack
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is visible (see `tunefarm doctor`)")
    if pack:
        tunefarm.activate(pack)
    timed, graphs = count_benchmarks(), []

    def step(x: torch.Tensor) -> torch.Tensor:
        return softmax(x * 2)

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(module)
        return compile_fx(module, inputs)

    train("eager", step)
    train("torch.compile, dynamic", torch.compile(step, fullgraph=True, dynamic=True, backend=backend))
    print(
        f"{len(graphs)} graphs; benchmark calls for softmax_kernel: {timed['softmax_kernel']}, "
        f"for kernels that Inductor generated: {timed.total() - timed['softmax_kernel']}"
    )
    print(tunefarm.report())


if __name__ == "__main__":
    main()
