"""How far a pack's winners are from the exhaustive best: both re-timed interleaved on this machine's GPU.

    python experiments/benchmarks/regret.py experiments/softmax.yaml packs/softmax.json LANDSCAPE.json.gz

The exhaustive best of a problem is the config with the least median in the landscape, which recorded every config.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path

from tunefarm import landscape as landscapes
from tunefarm.bench.build import launch_options, triton_version
from tunefarm.bench.meter import Answers, Candidate, Question
from tunefarm.bench.worker import BuildRequest, build, measure
from tunefarm.cli.opening import FleetKind, live_devices, open_fleet
from tunefarm.config import Config
from tunefarm.pack import load_pack
from tunefarm.plan import PlannedStudy, choose_targets, plan
from tunefarm.spec.experiment import load_experiment, resolve
from tunefarm.trial import FINAL

NUM_SAMPLES = 60


def retime(study: PlannedStudy, ref: object, configs: list[Config], fleet: object) -> list[tuple[float, ...]]:
    """Samples in ms of each config, taken interleaved."""
    request = BuildRequest(
        ref=ref, variables=study.study.variables, configs=tuple(configs), target=study.study.device.target
    )
    builder = next(w.name for w in fleet.workers if w.role == "build")
    meter = next(w.name for w in fleet.workers if w.role == "measure")
    builts = fleet.submit(partial(build, request), builder).result()
    candidates = tuple(
        Candidate(number=n, config=b.config, build=b.build, artifact=b.artifact) for n, b in enumerate(builts)
    )
    question = Question(
        ref=ref,
        device=study.study.device,
        problem=study.study.problem,
        variables=study.study.variables,
        candidates=candidates,
        rung=FINAL,
        num_samples=NUM_SAMPLES,
        interleaved=True,
    )
    answers = fleet.submit(partial(measure, question), meter).result()
    assert isinstance(answers, Answers), answers
    return [a.measurement.samples_ms for a in sorted(answers.answers, key=lambda a: a.number)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("landscape", type=Path)
    arguments = parser.parse_args()
    resolved = resolve(load_experiment(arguments.experiment), launch_options(), triton_version())
    recorded, pack = landscapes.load(arguments.landscape), load_pack(arguments.pack)
    fleet = open_fleet(FleetKind.INLINE, None, use_gpu=True, builders=1)
    try:
        live = live_devices(fleet)
        targets = [t for t in choose_targets(resolved.experiment, live, "gpu") if t.meter]
        print(f"{live[0].name}, interleaved, {NUM_SAMPLES} samples each, cold L2")
        print(f"{'study':34s} {'winner':>10s} {'exhaustive':>10s} {'ratio':>7s}  winner's config / exhaustive best")
        worst = 0.0
        for study in plan(resolved, targets[:1]):
            row = next(
                r
                for t in pack.tables
                for r in t.rows
                if r.measured_at == study.study.problem.dims and t.device.key == live[0].key
            )
            entries = [e for e in recorded.find(study.study.problem).entries if e.samples_ms]
            best = min(entries, key=lambda e: statistics.median(e.samples_ms)).config
            winner_ms, best_ms = (
                statistics.median(s) for s in retime(study, resolved.experiment.ref, [row.config, best], fleet)
            )
            worst = max(worst, winner_ms / best_ms)
            print(
                f"{study.study.label:34s} {winner_ms * 1000:8.1f}us {best_ms * 1000:8.1f}us "
                f"{winner_ms / best_ms:7.3f}  {row.config} / {best}"
            )
        print(f"worst ratio {worst:.3f}")
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
