"""What the recorded landscapes say: default, best of the whole space and torch eager, under one timer in one sitting.

    python experiments/benchmarks/recorded.py [NAME ...]

Nothing is timed: the times are those that `tunefarm record` took, of the device and the day that each landscape names.
The best is the lowest median of hundreds, so it is flattered a little by the noise.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from sitting import end_well

from tunefarm.cli.opening import open_experiment
from tunefarm.landscape import load
from tunefarm.plan import Target, plan
from tunefarm.spec.experiment import load_experiment

FOLDER = Path(__file__).parents[1]


def rows(path: Path) -> Iterator[str]:
    """A line for each problem of an experiment that has a landscape."""
    files = [device.landscape for device in load_experiment(path).devices if device.landscape is not None]
    for file in files:
        recording = load(file)
        target = Target(device=recording.device, meter="replay", landscape=str(file))
        for study in plan(open_experiment(path), [target]):
            recorded = recording.get(study.study.problem, str(file))
            medians = {e.config: statistics.median(e.samples_ms) for e in recorded.entries if e.samples_ms}
            best_ms, default_ms = min(medians.values()), medians.get(study.default) if study.default else None
            shown = "n/a" if default_ms is None else f"{1e3 * default_ms:.1f}"
            eager = "n/a" if recorded.reference_ms is None else f"{1e3 * recorded.reference_ms:.1f}"
            times = "n/a" if recorded.reference_ms is None else f"{recorded.reference_ms / best_ms:.2f}x"
            rate = recorded.num_bytes / best_ms / 1e9
            label = study.study.label.replace(f" {recording.device.arch}", "")
            yield f"| {label} | {shown} | {1e3 * best_ms:.1f} | {eager} | {times} | {rate:.2f} |"


def main() -> None:
    wanted = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.yaml"))
    print("| problem | default us | best us | torch eager us | eager / best | TB/s |\n|---|--:|--:|--:|--:|--:|")
    for name in wanted:
        for row in rows(FOLDER / f"{name}.yaml"):
            print(row)


if __name__ == "__main__":
    end_well(main)
