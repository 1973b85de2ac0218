"""Packages that know nothing of tunefarm, tuned and run with a pack on a GPU: one line for each at the end.

    python experiments/third_party/prove.py --tests FOLDER

Each experiment here whose package is installed is swept. In a fresh process its operator runs as it comes, where it
tunes itself, and then with the pack: eager, and inside torch.compile; launches that a row answered and benchmark calls
are counted, outputs compared. Then the package's own test of the operator runs with the pack, if FOLDER has it
(FOLDER/adasplash/test_triton_entmax.py, FOLDER/fla/test_l2norm.py; pytest is needed), by `python -m tunefarm.runtime`,
of which the test knows nothing. Takes some three minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUBJECTS = {
    "adasplash_entmax": ("adasplash.triton_entmax", ["adasplash/test_triton_entmax.py", "-k", "smoke"]),
    # Of its sizes two are in the pack, and one is not.
    "fla_l2norm": ("fla.modules.norm.l2norm", ["fla/test_l2norm.py", "-k", "D64 or D128 or D60"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("third_party"), help="folder for ledgers, packs and reports")
    parser.add_argument("--only", choices=SUBJECTS, help="one of them")
    parser.add_argument("--tests", type=Path, help="folder of the packages' own tests")
    parser.add_argument("--job", choices=SUBJECTS, help="only run this one's operator, with the pack made before")
    given = parser.parse_args()
    work = given.work.resolve()
    if given.job:
        print(json.dumps(run_operator(given.job, work)))
        return
    work.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in [given.only] if given.only else SUBJECTS:
        if importlib.util.find_spec(name.partition("_")[0]) is None:
            print(f"{name}: its package is not installed", file=sys.stderr)
            continue
        lines.append({"kernel": name, **sweep(name, work), **job(name, work)})
        lines[-1]["own tests"] = own_tests(name, work, given.tests.resolve()) if given.tests else "not asked for"
    for line in lines:
        print("\n" + "\n".join(f"{key:24s} {value}" for key, value in line.items()))


def python(work: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, in the work folder; what it says on stderr goes through."""
    inherited = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *inherited]), **variables}
    return subprocess.run(
        [sys.executable, *words], cwd=work, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )


def sweep(name: str, work: Path) -> dict[str, Any]:
    began = time.perf_counter()
    words = ("-m", "tunefarm.cli", "sweep", str(HERE / f"{name}.yaml"), "--fleet", "inline", "--meter", "gpu")
    done = python(work, *words, "--tracking", "none", "--fresh", "--quiet")
    print(done.stdout)
    return {"sweep": f"exit code {done.returncode}, {time.perf_counter() - began:.0f} s"}


def job(name: str, work: Path) -> dict[str, Any]:
    done = python(work, str(Path(__file__).resolve()), "--job", name, "--work", str(work))
    if done.returncode:
        return {"job": f"failed with exit code {done.returncode}"}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def own_tests(name: str, work: Path, folder: Path) -> str:
    test, *words = SUBJECTS[name][1]
    if not (folder / test).exists():
        return f"no {folder / test}"
    reports = work / "reports" / name
    variables = {"TUNEFARM_PACK": f"packs/{name}.json", "TUNEFARM_REPORT": str(reports)}
    for old in reports.glob("*.json"):
        old.unlink()
    (work / "pytest.ini").write_text("[pytest]\n")  # none of this project's settings
    words = [str(folder / test), *words, "-c", "pytest.ini", "-q", "-p", "no:cacheprovider"]
    done = python(work, "-m", "tunefarm.runtime", "-m", "pytest", *words, **variables)
    print(done.stdout)
    told = [json.loads(path.read_text()) for path in reports.glob("*.json")]
    hits, misses = (sum(entry["launches"] for one in told for entry in one[kind]) for kind in ("hits", "misses"))
    said = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{said[-1].strip('= ')}; {hits} launches with a row, {misses} without"


def run_operator(name: str, work: Path) -> dict[str, Any]:
    """The operator with its own tuning, then with the pack; in a process in which nothing was tuned before."""
    import torch
    from torch._inductor import config as inductor
    from triton.testing import do_bench

    import tunefarm
    from tunefarm.bench.tensors import make_inputs
    from tunefarm.cli.opening import open_experiment
    from tunefarm.device import Device
    from tunefarm.plan import Target, plan

    if hasattr(inductor, "_use_fp64_for_unbacked_floats"):
        # Newer Inductor passes a kernel's scalars in fp64, for which adasplash's has no code, pack or not.
        inductor._use_fp64_for_unbacked_floats = False
    timed = count_benchmarks()
    resolved = open_experiment(HERE / f"{name}.yaml")
    workload = resolved.workload
    here = Device.of_driver(torch.cuda.get_device_properties(0), is_amd=torch.version.hip is not None)
    studies = plan(resolved, [Target(device=here)])
    calls = [make_inputs(workload, study.study.variables, "cuda", 0) for study in studies]

    def outputs(function: Any) -> list[tuple[torch.Tensor, ...]]:
        made = [function(**inputs) for inputs in calls]
        torch.cuda.synchronize()
        return [one if isinstance(one, tuple) else (one,) for one in made]

    def microseconds() -> str:
        return ", ".join(f"{1e3 * do_bench(lambda inputs=one: workload.call(**inputs)):.1f}" for one in calls)

    began = time.perf_counter()
    expected = outputs(workload.call)
    stock_s, stock_calls, stock_us = time.perf_counter() - began, timed.total(), microseconds()
    timed.clear()

    installed = tunefarm.install(SUBJECTS[name][0])
    tunefarm.activate(work / "packs" / f"{name}.json")
    began = time.perf_counter()
    eager = outputs(workload.call)
    eager_s, compiled = time.perf_counter() - began, outputs(torch.compile(workload.call, dynamic=False))
    report = tunefarm.report()
    counts = dict(timed)
    return {
        "calls": ", ".join(study.study.label.partition(" ")[2] for study in studies),
        "installed": ", ".join(installed),
        "stock, first calls": f"{stock_calls} benchmark calls, {stock_s:.1f} s",
        "pack, first calls": f"{eager_s:.1f} s",
        "hits, eager": f"{sum(hit.launches for hit in report.hits)} of {len(calls)}",
        "hits, torch.compile": f"{sum(hit.graphs for hit in report.hits)} of {len(calls)}",
        "misses": report.num_misses,
        "benchmark calls": f"{sum(counts.get(kernel, 0) for kernel in installed)} of its kernels, {counts} in all",
        "worst difference, eager": worst(expected, eager),
        "worst difference, compile": worst(expected, compiled),
        "stock us a call": stock_us,
        "pack us a call": microseconds(),
    }


def worst(expected: list[tuple[Any, ...]], got: list[tuple[Any, ...]]) -> str:
    """The largest difference of an element, relative to the largest element of its tensor."""
    flat = (itertools.chain.from_iterable(tensors) for tensors in (expected, got))
    pairs = [(a.double(), b.double()) for a, b in zip(*flat, strict=True)]
    return f"{max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs):.1e}"


def count_benchmarks() -> Counter[str]:
    """Counts, by kernel, every config that Triton or Inductor times from now on."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.runtime.autotuner import Autotuner

    timed: Counter[str] = Counter()

    def watch(owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            timed[getattr(self, "base_fn", self.fn).__name__] += 1
            return original(self, *args, **kwargs)

        setattr(owner, method, counted)

    watch(Autotuner, "_bench")
    watch(CachingAutotuner, "bench")
    return timed


if __name__ == "__main__":
    main()
