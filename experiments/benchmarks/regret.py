"""How far a pack's winners are from the exhaustive best: both re-timed interleaved on this machine's GPU.

    python experiments/benchmarks/regret.py experiments/softmax.yaml packs/softmax.json LANDSCAPE.json.gz

The exhaustive best of a problem is the config with the least median in the landscape, which recorded every config.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from sitting import end_well, retime, row_of

from tunefarm import landscape as landscapes
from tunefarm.bench.build import launch_options, triton_version
from tunefarm.cli.opening import FleetKind, gpu_fleet, plan_live
from tunefarm.pack_reader import load_pack
from tunefarm.spec.experiment import load_experiment, resolve

NUM_SAMPLES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("landscape", type=Path)
    arguments = parser.parse_args()
    resolved = resolve(load_experiment(arguments.experiment), launch_options(), triton_version())
    recorded, pack = landscapes.load(arguments.landscape), load_pack(arguments.pack)
    with gpu_fleet(FleetKind.INLINE, None, builders=1, refs=[resolved.experiment.ref]) as fleet:
        studies = plan_live(resolved, fleet)
        print(f"{studies[0].study.device.name}, interleaved, {NUM_SAMPLES} samples each, cold L2")
        print(f"{'study':34s} {'winner':>10s} {'exhaustive':>10s} {'ratio':>7s}  winner's config / exhaustive best")
        worst = 0.0
        for study in studies:
            row = row_of(pack, resolved.workload.signature.kernel, study.study)
            if row is None:
                print(f"{study.study.label:34s} is not in the pack")
                continue
            entries = [e for e in recorded.find(study.study.problem).entries if e.samples_ms]
            best = min(entries, key=lambda e: statistics.median(e.samples_ms)).config
            winner_ms, best_ms = (
                statistics.median(samples)
                for samples in retime(study.study, resolved.experiment.ref, [row.config, best], fleet, NUM_SAMPLES)
            )
            worst = max(worst, winner_ms / best_ms)
            print(
                f"{study.study.label:34s} {winner_ms * 1000:8.1f}us {best_ms * 1000:8.1f}us "
                f"{winner_ms / best_ms:7.3f}  {row.config} / {best}"
            )
        print(f"worst ratio {worst:.3f}")


if __name__ == "__main__":
    end_well(main)
