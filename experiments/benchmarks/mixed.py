"""One sweep over a mixed fleet: a Ray cluster of several nodes, each of which replays the device that its label names.

    python experiments/benchmarks/mixed.py --landscapes FOLDER [--seeds 10] [--trials 250]

FOLDER holds recordings of one kernel on several devices (`kt_convolution_*.json.gz` of the public benchmark hub of the
AutoTuningAssociation, for instance). The cluster is real and of this machine: a head without CPUs, a node with a GPU
that it believes it has for each device and for the H200 of softmax's own recording, and one without that only builds.
For each seed one command sweeps the recordings, at most so many trials a device, and experiments/softmax.yaml, whose
configs the last node compiles. Printed is how far each winner is from the best of its recording. REPLAYED: no time in
it was taken here; what is real are the cluster, the search and the compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sitting import end_well, positive, variant

from tunefarm import landscape_reader
from tunefarm.fleet.cluster import LABEL, label_of
from tunefarm.spec.experiment import load_experiment

SOFTMAX = Path(__file__).resolve().parents[1] / "softmax.yaml"
NEAR, HALFWAY = 0.02, 0.03


@contextlib.contextmanager
def cluster(devices: list[str], num_cpus: int) -> Iterator[str]:
    """The address of a cluster with a node a device, and one with CPUs."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for name in devices:
            made.add_node(num_cpus=0, num_gpus=1, labels={LABEL: label_of(name)})
        made.add_node(num_cpus=num_cpus, num_gpus=0)
        yield made.address
    finally:
        made.shutdown()


def swept(address: str, own: Path, pattern: str, seed: int, trials: int, folder: Path) -> tuple[dict[str, Any], float]:
    """The document of one command, and its seconds."""
    experiment = folder / f"recorded-{seed}.yaml"
    sections = {
        "name": f"recorded-{seed}", "workload": f"landscape:{pattern}", "search": {"seed": seed},
        "budget": {"trials": trials},
    }  # fmt: skip
    experiment.write_text(json.dumps(sections))
    words = [sys.executable, "-m", "tunefarm.cli", "sweep", str(experiment), *([str(own)] if seed == 0 else [])]
    where = ["--address", address, "--meter", "replay", "--tracking", "none", "--sweeps", str(folder / "sweeps")]
    began = time.perf_counter()
    done = subprocess.run([*words, *where, "--json"], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"seed {seed}: the sweep ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found, time.perf_counter() - began


def main() -> None:
    """Sweeps and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=Path, required=True, metavar="FOLDER", help="of the recordings")
    parser.add_argument("--match", default="kt_convolution_*.json.gz", help="which of its files")
    parser.add_argument("--seeds", type=positive, default=10, help="how many")
    parser.add_argument("--trials", type=positive, default=250, help="measured at most, a device")
    options = parser.parse_args()
    pattern = str(options.landscapes.resolve() / options.match)
    best, devices = {}, []
    for file in sorted(options.landscapes.glob(options.match)):
        recording = landscape_reader.load(file)
        devices.append(recording.device.name)
        medians = [statistics.median(e.samples_ms) for e in recording.problems[0].entries if e.samples_ms]
        best[recording.device.name] = min(medians)
    if not devices:
        sys.exit(f"{pattern}: no such file")
    (recorded,) = [device for device in load_experiment(SOFTMAX).devices if device.landscape]
    assert recorded.landscape is not None
    own = landscape_reader.load(recorded.landscape).device.name
    off: dict[str, list[float]] = {name: [] for name in devices}
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        landscape = os.path.relpath(recorded.landscape, SOFTMAX.parent)
        softmax = stack.enter_context(variant(SOFTMAX, devices=[{"arch": recorded.arch, "landscape": landscape}]))
        address = stack.enter_context(cluster([*devices, own], num_cpus=len(os.sched_getaffinity(0))))
        for seed in range(options.seeds):
            document, took_s = swept(address, softmax, pattern, seed, options.trials, work)
            line = []
            for study in document["studies"]:
                if study["device"] in off and study["recording"]:
                    off[study["device"]].append(study["winner"]["median_ms"] / best[study["device"]] - 1)
                    line.append(f"{study['device']} {off[study['device']][-1]:.2%} after {study['measured']}")
            own_studies = [s for s in document["studies"] if s["device"] == own and not s["recording"] and s["winner"]]
            if seed == 0:
                print(f"softmax: {len(own_studies)} studies, {document['compiled']} configs compiled", flush=True)
            print(f"seed {seed}, {took_s:.0f} s: {'; '.join(line)}", flush=True)
    print("\n| device | median | within 2 % | worst |\n|---|---|---|---|")
    for name, shares in [*off.items(), ("all", [share for each in off.values() for share in each])]:
        near = sum(share <= NEAR for share in shares) / len(shares)
        print(f"| {name} | {statistics.median(shares):.2%} | {near:.0%} | {max(shares):.2%} |")
    print(f"\nREPLAYED, {options.seeds} seeds, at most {options.trials} trials a device")


if __name__ == "__main__":
    end_well(main)
