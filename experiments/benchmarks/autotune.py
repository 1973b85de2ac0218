"""Wall and GPU-held seconds of `tunefarm sweep` and of `triton.autotune` over the same configs, both cold.

    python experiments/benchmarks/autotune.py experiments/softmax.yaml [--problems N]

`triton.autotune` compiles and benchmarks inside the process that holds the GPU, so its GPU-held time is its wall time;
ours runs from a measuring process's first job to its last, its start-up shown apart (the short process that asks the
GPU what it is, before anything is compiled, is not counted). Each side starts with empty
caches, one after the other, on this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import yaml
from sitting import end_well, live_arch, run, sweep, variant


def stock(experiment: Path) -> None:
    """Runs in a process of its own: tunes every problem with triton.autotune over all candidates."""
    began = time.monotonic()
    import torch
    import triton

    from tunefarm.bench.build import launch_options, triton_version
    from tunefarm.bench.telemetry import live_device
    from tunefarm.bench.tensors import make_inputs
    from tunefarm.plan import Target, plan
    from tunefarm.spec.experiment import load_experiment, resolve

    resolved = resolve(load_experiment(experiment), launch_options(), triton_version())
    workload = resolved.workload
    studies = plan(resolved, [Target(device=live_device(), meter="gpu")])
    torch.zeros(1, device="cuda")
    startup_s = time.monotonic() - began
    # The production call finds the kernel under a global name: there it finds Triton's own autotuner instead.
    names = workload.call.__globals__
    name = next(n for n, value in names.items() if value is workload.kernel)
    found = []
    for study in studies:
        configs = [triton.Config(dict(c.params), **dict(c.options)) for c in study.candidates]
        tuner = names[name] = triton.autotune(configs=configs, key=list(workload.key or ()))(workload.jitted)
        inputs = make_inputs(workload, study.study.variables, "cuda")
        started = time.monotonic()
        workload.call(**inputs)
        torch.cuda.synchronize()
        seconds = round(time.monotonic() - started, 2)
        found.append([study.study.label, len(configs), len(tuner.configs_timings), seconds, str(tuner.best_config)])
    print(json.dumps({"startup_s": startup_s, "held_s": time.monotonic() - began, "studies": found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--problems", type=int, help="only the first N problems")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PARAM=VALUE", help="restrict a param of the space"
    )
    parser.add_argument("--fleet", default="ray")
    parser.add_argument("--stock", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stock:
        stock(arguments.experiment)
        return
    with tempfile.TemporaryDirectory() as folder:
        content = yaml.safe_load(arguments.experiment.read_text())
        content["problems"] = content["problems"][: arguments.problems]
        content["devices"] = [live_arch()]
        for name, value in (only.split("=") for only in arguments.only):
            content["space"][name] = [int(value)]
        sections = {name: content[name] for name in ("problems", "devices", "space")}
        with variant(arguments.experiment, **sections, export=f"{folder}/pack.json") as experiment:
            caches = {"TUNEFARM_CACHE": f"{folder}/cache", "TRITON_CACHE_DIR": f"{folder}/triton-ours"}
            ours_s, a = sweep(experiment, Path(folder, "sweeps"), arguments.fleet, caches)
            theirs_s, theirs = run(
                [sys.executable, __file__, str(experiment), "--stock"], {"TRITON_CACHE_DIR": f"{folder}/triton-stock"}
            )
    b = json.loads(theirs.splitlines()[-1])
    num_configs = sum(study["candidates"] for study in a["studies"])
    print(f"{len(a['studies'])} problems of {arguments.experiment}, {num_configs} configs in all")
    print(f"{'':18s} {'wall s':>8s} {'GPU-held s':>11s} {'start-up s':>11s}")
    print(f"{'triton.autotune':18s} {theirs_s:8.1f} {b['held_s'] - b['startup_s']:11.1f} {b['startup_s']:11.1f}")
    print(f"{'tunefarm sweep':18s} {ours_s:8.1f} {a['gpu_held_s']:11.1f} {a['gpu_startup_s']:11.1f}")
    print(f"ratio: wall {theirs_s / ours_s:.1f}x, GPU-held {(b['held_s'] - b['startup_s']) / a['gpu_held_s']:.1f}x")
    print(
        f"kernels compiled by our measuring process: {a['compiled_by_measuring']}; by our CPU workers: {a['compiled']}"
    )


if __name__ == "__main__":
    end_well(main)
