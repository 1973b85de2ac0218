"""Compiles the whole spaces of experiments for all their archs, on all CPUs of this machine. No GPU.

    python experiments/benchmarks/compile_all.py [--only NAME ...] [--builders N]

Nothing comes from, or goes to, the store that sweeps share: what is counted was compiled now.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.device import nominal
from tunefarm.dispatch import Dispatch
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target, plan
from tunefarm.stocking import Stock, fill

FOLDER = Path(__file__).parents[1]
PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def compile_space(path: Path, arch: str, dispatch: Dispatch) -> Stock:
    """What became of the candidates of an experiment on one arch."""
    resolved = open_experiment(path)
    studies = plan(resolved, [Target(device=nominal(arch))])
    with tempfile.TemporaryDirectory() as folder:
        return fill(studies, BuildBoard(resolved, BuildStore(Path(folder))), dispatch, checks=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PATHS, default=list(PATHS), metavar="NAME")
    parser.add_argument("--builders", type=int, help="processes; one a CPU if left out")
    arguments = parser.parse_args()
    fleet = InlineFleet(num_builders=arguments.builders)
    dispatch = Dispatch(fleet)
    print(f"{'experiment':24} {'arch':6} {'candidates':>10} {'compiled':>8} {'failed':>6} {'seconds':>8}  failures")
    try:
        for name in arguments.only:
            for device in open_experiment(PATHS[name]).experiment.devices:
                began = time.monotonic()
                stock = compile_space(PATHS[name], device.arch, dispatch)
                print(
                    f"{name:24} {device.arch:6} {stock.num_candidates:10} {stock.num_compiled:8} "
                    f"{sum(stock.failures.values()):6} {time.monotonic() - began:8.1f}  "
                    f"{', '.join(f'{n} x {k}' for k, n in stock.failures.items())}",
                    flush=True,
                )
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
