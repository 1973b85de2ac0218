"""Wall and GPU-held seconds of `tunefarm sweep` and of `triton.autotune` over the same configs, both cold.

    python experiments/benchmarks/autotune.py experiments/matmul.yaml --problems 3 --space num_stages=2,3,4,5

`triton.autotune` compiles and benchmarks inside the process that holds the GPU, so its GPU-held time is its wall time;
ours runs from a measuring process's first job to its last, its start-up shown apart (the short process that asks the
GPU what it is, before anything is compiled, is not counted). Each side starts with empty caches, one after the other,
on this machine. At the end our winners are timed interleaved with the fastest of those that `triton.autotune`
benchmarked, which are all configs there are.

What is done is kept below `--folder`: after `--limit-s`, or an interruption, the same command goes on. Triton is given
its configs in portions for that; one that was cut short begins anew and finds in Triton's cache what it had compiled,
to Triton's advantage. A sweep that was cut short begins anew from nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from sitting import end_well, live_arch, positive, retime, row_of, run, sweep, variant

from tunefarm.config import Config, counted
from tunefarm.document import canonical, write_atomic
from tunefarm.errors import UserError
from tunefarm.spec.experiment import load_experiment

BORN_S = time.monotonic()
PORTION = 20
NUM_RETIMED, NUM_SAMPLES = 5, 60


def stock(experiment: Path, kept: Path, deadline: float) -> None:
    """Runs in a process of its own: tunes every problem with triton.autotune over all candidates, portion by portion.

    Appends a line to `kept` after the start of the process, after each portion, and at the end; `wall_s` in it is the
    age of the process.
    """
    import torch
    import triton

    from tunefarm.bench.build import launch_options, triton_version
    from tunefarm.bench.telemetry import live_device
    from tunefarm.bench.tensors import make_inputs
    from tunefarm.plan import Target, plan
    from tunefarm.spec.experiment import resolve

    resolved = resolve(load_experiment(experiment), launch_options(), triton_version())
    workload = resolved.workload
    studies = plan(resolved, [Target(device=live_device(), meter="gpu")])
    torch.zeros(1, device="cuda")
    done = {(line["study"], line["portion"]) for line in lines(kept) if "study" in line}
    append(kept, {"startup_s": time.monotonic() - BORN_S, "wall_s": time.monotonic() - BORN_S})
    # The production call finds the kernel under a global name: there it finds Triton's own autotuner instead.
    names = workload.call.__globals__
    kernel = workload.kernel
    name = next(n for n, value in names.items() if value is kernel)
    inner = kernel.fn if isinstance(kernel, triton.runtime.Autotuner) else kernel  # its heuristics stay
    for study in studies:
        inputs: dict[str, Any] | None = None
        num_portions = math.ceil(len(study.candidates) / PORTION)
        for portion in range(num_portions):
            if (study.study.label, portion) in done:
                continue
            if time.monotonic() > deadline:
                return
            inputs = inputs or make_inputs(workload, study.study.variables, "cuda")
            mine = study.candidates[portion::num_portions]
            configs = [triton.Config(dict(c.params), **dict(c.options)) for c in mine]
            tuner = names[name] = triton.autotune(configs=configs, key=list(workload.key or ()))(inner)
            torch.cuda.synchronize()
            started = time.monotonic()
            workload.call(**inputs)
            torch.cuda.synchronize()
            seconds = time.monotonic() - started
            # Triton does not benchmark a config that is the only one.
            timings = (getattr(tuner, "configs_timings", {}).get(config) for config in configs)
            medians = [each[0] if isinstance(each, Sequence) else each for each in timings]
            found = [
                [config.to_json(), ms if ms is not None and math.isfinite(ms) else None]
                for config, ms in zip(mine, medians, strict=True)
            ]
            line = {"study": study.study.label, "portion": portion, "seconds": seconds, "configs": found}
            append(kept, {**line, "wall_s": time.monotonic() - BORN_S})
    append(kept, {"done": True, "wall_s": time.monotonic() - BORN_S})


def lines(kept: Path) -> list[dict[str, Any]]:
    """What was kept so far."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.exists() else []


def append(kept: Path, line: Mapping[str, Any]) -> None:
    """Keeps a line more; an interruption leaves the file with it or without it."""
    write_atomic(kept, "".join(json.dumps(each) + "\n" for each in [*lines(kept), line]).encode())


def wall_s(kept: Sequence[Mapping[str, Any]]) -> float:
    """How long the processes have run that kept these lines, as if one had done it all.

    Starts beyond the first are the price of interruptions, not Triton's.
    """
    starts = [number for number, line in enumerate(kept) if "startup_s" in line]
    ages_s = [kept[end - 1]["wall_s"] for end in [*starts[1:], len(kept)]]
    return float(sum(ages_s) - sum(kept[number]["startup_s"] for number in starts[1:]))


def space_of(text: str) -> tuple[str, list[int]]:
    """`NAME=VALUE,...`: the values a param is to have."""
    name, _, values = text.partition("=")
    try:
        return name, [int(value) for value in values.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE,VALUE with whole numbers") from None


def compare(experiment: Path, folder: Path, fleet: str, deadline: float) -> bool:
    """Does what is left to do, ours first; whether all of it is done."""
    ours, theirs = folder / "ours.json", folder / "stock.jsonl"
    if not ours.exists():
        for name in ("cache", "triton-ours", "sweeps", "pack.json"):
            if (folder / name).exists():
                (folder / name).rename(folder / f"{name}-{time.time_ns()}")  # of a sweep that was cut short
        caches = {"TUNEFARM_CACHE": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton-ours")}
        seconds, said = sweep(experiment, folder / "sweeps", fleet, caches)
        write_atomic(ours, json.dumps({"wall_s": seconds, "said": said}).encode())
    if not (lines(theirs) and lines(theirs)[-1].get("done")):
        cache = {"TRITON_CACHE_DIR": str(folder / "triton-stock")}
        left_s = max(0.0, deadline - time.monotonic())
        words = [str(experiment), "--stock", str(theirs), "--limit-s", str(left_s)]
        run([sys.executable, __file__, *words], cache)
    return bool(lines(theirs)[-1].get("done"))


def report(experiment: Path, folder: Path, name: str) -> None:
    """Prints both sides' seconds and how far our winners are from the best there is."""
    kept, ours = lines(folder / "stock.jsonl"), json.loads((folder / "ours.json").read_text("utf-8"))
    said, ours_s, stock_s = ours["said"], ours["wall_s"], wall_s(kept)
    held_s = sum(line.get("seconds", 0.0) for line in kept)
    startup_s = next(line["startup_s"] for line in kept if "startup_s" in line)
    num_configs = sum(study["candidates"] for study in said["studies"])
    problems, configs = counted(len(said["studies"]), "problem"), counted(num_configs, "config")
    print(f"{problems} of {name}, {configs} in all, {counted(os.cpu_count() or 1, 'CPU')}")
    print(f"{'':18s} {'wall s':>8s} {'GPU-held s':>11s} {'start-up s':>11s}")
    print(f"{'triton.autotune':18s} {stock_s:8.1f} {held_s:11.1f} {startup_s:11.1f}")
    print(f"{'tunefarm sweep':18s} {ours_s:8.1f} {said['gpu_held_s']:11.1f} {said['gpu_startup_s']:11.1f}")
    print(f"ratio: wall {stock_s / ours_s:.1f}x, GPU-held {held_s / said['gpu_held_s']:.1f}x")
    print(f"kernels compiled by our measuring process: {said['compiled_by_measuring']}; by CPUs: {said['compiled']}")
    retime_winners(experiment, folder / "pack.json", kept)


def retime_winners(experiment: Path, pack_path: Path, kept: Sequence[Mapping[str, Any]]) -> None:
    """Prints our winners' times over the least among the fastest that triton.autotune found, interleaved."""
    from tunefarm.bench.build import launch_options, triton_version
    from tunefarm.cli.opening import FleetKind, gpu_fleet, plan_live
    from tunefarm.pack_reader import load_pack
    from tunefarm.spec.experiment import resolve

    resolved = resolve(load_experiment(experiment), launch_options(), triton_version())
    pack = load_pack(pack_path)
    with gpu_fleet(FleetKind.INLINE, None, builders=1, refs=[resolved.experiment.ref]) as fleet:
        for study in plan_live(resolved, fleet):
            row = row_of(pack, resolved.workload.signature.kernel, study.study)
            if row is None:
                print(f"{study.study.label:34s} is not in the pack")
                continue
            timed = [
                (ms, Config.from_json(config))
                for line in kept
                if line.get("study") == study.study.label
                for config, ms in line["configs"]
                if ms is not None
            ]
            fastest = [config for _, config in sorted(timed, key=lambda each: each[0])[:NUM_RETIMED]]
            rivals = [row.config, *(config for config in fastest if config != row.config)]
            samples = retime(study.study, resolved.experiment.ref, rivals, fleet, NUM_SAMPLES)
            times_ms = [statistics.median(each) for each in samples]
            best = min(range(len(rivals)), key=times_ms.__getitem__)
            print(
                f"{study.study.label:34s} winner {1000 * times_ms[0]:.1f} us, best {1000 * times_ms[best]:.1f} us, "
                f"ratio {times_ms[0] / times_ms[best]:.3f}: {rivals[0]} / {rivals[best]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("sweeps/autotune"), help="default: %(default)s")
    parser.add_argument("--problems", type=positive, metavar="N", help="only the first N problems")
    parser.add_argument(
        "--space", action="append", default=[], type=space_of, metavar="NAME=VALUE,...", help="values of a param"
    )
    parser.add_argument("--fleet", default="ray")
    parser.add_argument("--limit-s", type=float, default=math.inf, metavar="S", help="stop after about so many seconds")
    parser.add_argument("--stock", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.limit_s
    if arguments.stock:
        stock(arguments.experiment, arguments.stock, deadline)
        return
    load_experiment(arguments.experiment)  # says what is wrong with it
    content = yaml.safe_load(arguments.experiment.read_text("utf-8"))
    space = content.get("space", {})
    if unknown := sorted({name for name, _ in arguments.space} - space.keys()):
        raise UserError(f"--space: {', '.join(unknown)} is no param of the space", file=str(arguments.experiment))
    folder = arguments.folder.resolve() / arguments.experiment.stem
    folder.mkdir(parents=True, exist_ok=True)
    sections = {
        "problems": content["problems"][: arguments.problems],
        "devices": [live_arch()],
        "export": str(folder / "pack.json"),
        **({"space": space | dict(arguments.space)} if space else {}),
    }
    asked = canonical(content | sections)
    kept = folder / "asked.json"
    if kept.exists() and kept.read_text("utf-8") != asked:
        raise UserError("holds another comparison", file=str(folder), hint="remove it, or name another --folder")
    write_atomic(kept, asked.encode())
    with variant(arguments.experiment, **sections) as experiment:
        if compare(experiment, folder, arguments.fleet, deadline):
            report(experiment, folder, str(arguments.experiment))
        else:
            print("not done yet: the same command goes on")


if __name__ == "__main__":
    end_well(main)
