"""What a pack costs a training job: microseconds a launch, milliseconds to activate, milliseconds to import.

    python experiments/benchmarks/launch.py [--runs 9] [--launches 500]

Host time of a launch, for a kernel of 4 arguments and one of 12: a plain `@triton.jit` kernel, Triton's autotuner with
one config and with several (tuned before), the same kernel with a pack, and what no launch can go below: the compiled
kernel's own `run` with everything at hand. The runs of all take turns. Loading costs are those of fresh processes.
Needs a CUDA device for launches; without one they are left out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from sitting import positive

import tunefarm
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.source import source_hash

NUM_TABLES, NUM_ROWS = 40, 10_000


@triton.jit
def four(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def twelve(a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (columns < n)
    left = tl.load(a + rows * stride_am + columns * stride_ak, mask=inside)
    right = tl.load(b + rows * stride_bk + columns * stride_bn, mask=inside)
    tl.store(c + rows * stride_cm + columns * stride_cn, left + right * k, mask=inside)


CONFIGS = [triton.Config({"BLOCK": 32}, num_warps=warps) for warps in (4, 1, 2)]
TUNED = Config(params={"BLOCK": 16}, options={"num_warps": 2})


def table(kernel: str, text: str, device: Device, rows: tuple[Row, ...]) -> Table:
    """A table as a sweep would export it."""
    provenance = Provenance(
        sweep="launch", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", source="measured",
        tunefarm=tunefarm.__version__, created=str(date.today()),
    )  # fmt: skip
    parts = FrozenMap(source_hash=text, triton=triton.__version__, capability=device.arch)
    return Table(kernel=kernel, source_hash=text, device=device, key_parts=parts, provenance=provenance, rows=rows)


def row(config: Config, dtypes: tuple[str, ...], facts: dict[str, str], **dims: Any) -> Row:
    """A row for fp32 tensors."""
    match = Match(
        dims=FrozenMap(dims), dtypes=FrozenMap((name, "fp32") for name in dtypes),
        facts=FrozenMap({**dict.fromkeys(dtypes, "div16"), **facts}),
    )  # fmt: skip
    measured_at = FrozenMap((name, value[1] if isinstance(value, tuple) else value) for name, value in dims.items())
    return Row(match=match, measured_at=measured_at, config=config, median_ms=0.01, interval_ms=(0.009, 0.011))


def contenders(kernel: Any, args: tuple[Any, ...], grid: Any) -> dict[str, Callable[[], Any]]:
    """Ways to launch a kernel with these arguments, each seen to work."""
    key = ["n"]
    one = triton.autotune(configs=CONFIGS[:1], key=key)(kernel)
    several = triton.autotune(configs=CONFIGS, key=key)(kernel)
    packed = tunefarm.autotune(configs=CONFIGS[:1], key=key)(kernel)
    compiled = kernel[grid](*args, BLOCK=32, num_warps=4)
    bound = (*args, 32)
    axes = grid({"BLOCK": 32, "n": 32, "m": 32})
    size = (*axes, 1, 1)[:3]
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    stream = torch.cuda.current_stream().cuda_stream
    ways: dict[str, Callable[[], Any]] = {
        "@triton.jit": lambda: kernel[grid](*args, BLOCK=32, num_warps=4),
        "@triton.autotune, one config": lambda: one[grid](*args),
        "@triton.autotune, three configs": lambda: several[grid](*args),
        "with a pack": lambda: packed[grid](*args),
        "CompiledKernel.run (floor)": lambda: run(*size, stream, function, metadata, None, None, None, *bound),
    }
    for way in ways.values():
        way()
        way()
    used = {**packed.best_config.kwargs, "num_warps": packed.best_config.num_warps}
    assert used == {"BLOCK": 16, "num_warps": 2}, "the pack is not obeyed"
    return ways


def measure(ways: dict[str, Callable[[], Any]], runs: int, launches: int) -> dict[str, list[float]]:
    """Microseconds a launch, by way and run; ways in another order each run."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(runs):
        for name in random.Random(seed).sample(list(ways), len(ways)):
            way = ways[name]
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(launches):
                way()
            found[name].append((time.perf_counter() - began) / launches * 1e6)
    torch.cuda.synchronize()
    return found


def launches(runs: int, number: int) -> None:
    """Prints the table of launch costs."""
    from tunefarm.runtime.kernels import live_device

    device = live_device(torch.cuda.current_device())
    x = torch.zeros(32, 32, device="cuda")
    pack = Pack(
        tables=(
            table("four", source_hash(four), device, (row(TUNED, ("x", "y", "out"), {}, n=1024),)),
            table("twelve", source_hash(twelve), device, (row(TUNED, ("a", "b", "c"), {}, n=32),)),
        )
    )
    tunefarm.activate(seal(pack), strict=True)
    cases: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
        "4 arguments": (four, (x, x, x, 1024), lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)),
        "12 arguments": (twelve, (x, x, x, 32, 32, 32, 32, 1, 32, 1, 32, 1), lambda meta: (1,)),
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}, {date.today()}")
    print(f"Host time of a launch in us: median (lowest - highest) of {runs} runs of {number}\n")
    print("| launch | " + " | ".join(cases) + " |\n|---|" + "---|" * len(cases))
    found = {case: measure(contenders(*parts), runs, number) for case, parts in cases.items()}
    for name in next(iter(found.values())):
        times = (each[name] for each in found.values())
        cells = (f"{statistics.median(t):.1f} ({min(t):.1f} - {max(t):.1f})" for t in times)
        print(f"| {name} | {' | '.join(cells)} |")
    for case, times in found.items():
        plain, packed = (statistics.median(times[name]) for name in ("@triton.jit", "with a pack"))
        print(f"\nwith {case} a launch with a pack takes {packed / plain:.2f} x that of @triton.jit", end="")
    print()


LOADING = """
import sys, time
began = time.perf_counter()
import tunefarm
imported = time.perf_counter()
import tunefarm.runtime.activation
ready = time.perf_counter()
pack = tunefarm.activate(sys.argv[1])
done = time.perf_counter()
assert pack.num_rows == int(sys.argv[2])
third = [m for m in sys.modules if m.split(".")[0] in ("torch", "triton", "numpy", "yaml", "mlflow")]
assert not third, third
print((imported - began) * 1e3, (done - ready) * 1e3)
"""


def loading(runs: int) -> None:
    """Prints what importing and activating cost, in fresh processes."""
    device = nominal("sm_90")
    per_table = NUM_ROWS // NUM_TABLES
    tables = []
    for number in range(NUM_TABLES):
        params = ({"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32 << i % 3} for i in range(per_table))
        configs = (Config(params=each, options={"num_warps": 4}) for each in params)
        rows = tuple(row(c, ("a", "b", "c"), {}, m=(i, i + 1), n=4096, k=4096) for i, c in enumerate(configs))
        tables.append(table(f"kernel_{number}", "0" * 64, device, rows))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pack.json"
        file.write_text(dumps(seal(Pack(tables=tuple(tables)))))
        size = file.stat().st_size / 1e6
        found = []
        for _ in range(runs):
            words = [sys.executable, "-c", LOADING, str(file), str(NUM_ROWS)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found.append([float(word) for word in done.stdout.split()])
    imported, activated = (sorted(column) for column in zip(*found, strict=True))
    print(f"\n`import tunefarm`: {statistics.median(imported):.1f} ms ({imported[0]:.1f} - {imported[-1]:.1f})")
    print(
        f"activating a pack of {NUM_ROWS} rows ({size:.1f} MB), besides imports: {statistics.median(activated):.1f} ms "
        f"({activated[0]:.1f} - {activated[-1]:.1f}), median (lowest - highest) of {runs} fresh processes"
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=positive, default=9, help="of each way to launch")
    parser.add_argument("--launches", type=positive, default=500, help="a run")
    options = parser.parse_args()
    if torch.cuda.is_available():
        launches(options.runs, options.launches)
    else:
        print("no CUDA device: launches are left out")
    loading(options.runs)


if __name__ == "__main__":
    main()
