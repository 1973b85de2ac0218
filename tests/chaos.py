"""Chaos: real sweeps on a real Ray cluster of several nodes while a seeded schedule of faults strikes.

    python tests/chaos.py --seeds 20

Nothing is measured here: nodes are labelled as devices, whose recordings are replayed on CPUs. Everything else is real:
the command, its processes and the signals they get, Ray's nodes, the ledger, the MLflow server. Even seeds search
exhaustively, odd ones with the default sampler.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ordeal import Ordeal, Verdict, judge
from site_of_chaos import open_site


def table(rows: list[tuple[Ordeal, Verdict]]) -> str:
    """What people read."""
    lines = [
        "| seed | search | faults | trials | outcomes | drivers | winner off by | replay equal | s |",
        "|" + "---|" * 9,
    ]
    for ordeal, verdict in rows:
        struck = ", ".join(f"{kind} x{count}" for kind, count in sorted(Counter(ordeal.struck).items()))
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(verdict.outcomes.items()))
        lines.append(
            f"| {ordeal.seed} | {ordeal.sampler} | {struck} | {verdict.trials} | {outcomes} | {verdict.drivers} | "
            f"{100 * verdict.regret:.2f} % | {'yes' if verdict.is_replayed else 'NO'} | {ordeal.wall_s:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweeps through every fault, replayed on CPUs.")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0")
    parser.add_argument("--first", type=int, default=0, help="the first")
    asked = parser.parse_args()
    rows, broken = [], 0
    with tempfile.TemporaryDirectory() as folder:
        site = open_site(Path(folder))
        try:
            for seed in range(asked.first, asked.first + asked.seeds):
                ordeal = Ordeal(site=site, seed=seed)
                try:
                    ordeal.go_through()
                    rows.append((ordeal, judge(ordeal)))
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
                except AssertionError as e:
                    broken += 1
                    print(
                        f"seed {seed} ({ordeal.sampler}; {ordeal.kinds}) broke after {ordeal.struck}: {e}", flush=True
                    )
        finally:
            site.close()
    stops = [seconds for ordeal, _ in rows for seconds in ordeal.stop_s]
    print(f"REPLAYED on CPUs: nothing was timed here.\n\n{table(rows)}")
    print(f"drivers asked to end did so within {max(stops, default=0.0):.1f} s; {broken} of {asked.seeds} seeds broke")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
