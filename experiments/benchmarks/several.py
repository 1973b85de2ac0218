"""How much sooner several GPUs of one host have measured the same: every config of some experiments, the store warm.

    python experiments/benchmarks/several.py experiments/rope.yaml experiments/vector_add.yaml [--gpus 1 2]

First `tunefarm build` compiles what is to be measured. Then, for each number of GPUs, `tunefarm sweep` measures all of
it on so many, in a Ray cluster of its own and from an empty ledger; a number that the machine does not have is said.
The measuring phase goes from the first build that a measurement may ask for to the last winner: start-up of measuring
processes that are not yet there, calibration, finals and second GPUs' confirmations are in it. Held seconds are those
of all GPUs together, start-up apart; busy ones are of launching and timing alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from sitting import end_well, live_arch, positive, run, variant

COMMAND = [sys.executable, "-m", "tunefarm.cli"]


@dataclass(frozen=True)
class Phase:
    """Of one sweep: seconds of its measuring phase, GPU seconds held and busy, and what was done in them.

    Attributes:
        num_compiled: what the store did not have: probes between problems, which are chosen once winners are known.
    """

    seconds: float
    held_s: float
    busy_s: float
    num_measured: int
    num_compiled: int
    winners_us: tuple[float, ...]
    notices: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", type=Path, nargs="+")
    parser.add_argument("--gpus", type=positive, nargs="+", default=[1, 2], help="numbers of GPUs")
    parser.add_argument("--sampler", default="exhaustive", help="as in an experiment's `search` section")
    given = parser.parse_args()
    arch, there = live_arch(), visible()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        changed = []
        for path in given.experiments:
            sections = {"devices": [arch], "search": {"sampler": given.sampler}}
            changed.append(stack.enter_context(variant(path, **sections, export=str(folder / f"{path.stem}.json"))))
        words = [str(path) for path in changed]
        wall_s, _ = run([*COMMAND, "build", *words])
        print(f"compiled in {wall_s:.0f} s", flush=True)
        phases = {}
        for number in given.gpus:
            if number > len(there):
                print(f"{number} GPUs: not here, of {len(there)}", flush=True)
                continue
            phases[number] = measured(words, there[:number], folder / f"on-{number}")
    show(phases, *described())


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [one for one in named.split(",") if one.strip()]
    _, count = run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"])
    return [str(number) for number in range(int(count))]


def described() -> tuple[str, str]:
    """The device's name, and the versions."""
    code = "import torch, triton; print(torch.cuda.get_device_name(0)); print(torch.__version__, triton.__version__)"
    _, said = run([sys.executable, "-c", code])
    name, versions = said.strip().splitlines()[-2:]
    torch_version, triton_version = versions.split()
    return name, f"torch {torch_version}, Triton {triton_version}"


def measured(words: Sequence[str], gpus: Sequence[str], folder: Path) -> Phase:
    """Sweeps on these GPUs alone."""
    command = [*COMMAND, "sweep", *words, "--meter", "gpu", "--json", "--quiet", "--tracking", "none", "--fresh"]
    _, said = run([*command, "--sweeps", str(folder)], {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
    document = json.loads(said)
    events = [json.loads(line) for path in folder.glob("*/ledger.jsonl") for line in path.read_text().splitlines()]
    begun = min(event["at_s"] for event in events if event["event"] == "built")
    won = [event for event in events if event["event"] == "winner"]
    taken = [event["data"]["measurement"] for event in events if event["event"] == "measured"]
    taken += [one["measurement"] for e in events if e["event"] == "finals" for one in e["data"]["measurements"]]
    return Phase(
        seconds=max(event["at_s"] for event in won) - begun,
        held_s=document["gpu_held_s"],
        busy_s=sum(one["busy_s"] for one in taken if one),
        num_measured=len(taken),
        num_compiled=document["compiled"],
        winners_us=tuple(
            1e3 * event["data"]["winner"]["median_ms"]
            for event in sorted(won, key=lambda event: str(event["data"]["study"]))
            if event["data"]["winner"]
        ),
        notices=tuple(document["notices"]),
    )


def show(phases: dict[int, Phase], device: str, versions: str) -> None:
    print(f"\n{device}, {versions}, {date.today()}\n")
    print("| GPUs | measuring phase, s | held, s | busy, s | measurements | compiled |")
    print("|---|---|---|---|---|---|")
    for number, p in phases.items():
        print(f"| {number} | {p.seconds:.1f} | {p.held_s:.1f} | {p.busy_s:.1f} | {p.num_measured} | {p.num_compiled} |")
    first: Any = next(iter(phases.values()), None)
    for number, p in list(phases.items())[1:]:
        print(f"{number} GPUs: {p.seconds / first.seconds:.2f} x the measuring phase of {next(iter(phases))}")
        if len(p.winners_us) == len(first.winners_us):
            moved = [abs(a / b - 1) for a, b in zip(p.winners_us, first.winners_us, strict=True)]
            print(f"winners' times differ by {statistics.median(moved):.1%} in the median, {max(moved):.1%} at most")
    for notice in dict.fromkeys(notice for p in phases.values() for notice in p.notices):
        print(f"note     {notice}")


if __name__ == "__main__":
    end_well(main)
