"""Whether two searches agree: the winners of two sweeps with different seeds, timed again side by side.

    python experiments/benchmarks/agreement.py experiments/*.yaml --packs packs/seed-1 packs/seed-2 --tune

Each folder holds one pack an experiment, named after its file. With `--tune` both are made first, by sweeps on this
machine's GPU that differ in `search.seed` alone. Winners with equal configs agree without being timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sitting import end_well, live_arch, retime, row_of, studies, tune

from tunefarm.cli.opening import FleetKind, live_devices, open_experiment, open_fleet
from tunefarm.document import write_atomic
from tunefarm.errors import UserError
from tunefarm.pack_reader import load_pack
from tunefarm.seams import Fleet
from tunefarm.spec.experiment import load_experiment

NEAR, ENOUGH = 0.01, 0.95
"""How far two winners may be apart, and in which share of the studies they must not be farther."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two winners of one study.

    Attributes:
        label: of the study.
        configs: of the winners, for people.
        times_us: their medians, taken interleaved; none where the configs are equal.
    """

    label: str
    configs: tuple[str, str]
    times_us: tuple[float, float] | None = None

    @property
    def apart(self) -> float:
        """The slower one's time over the faster one's, minus 1."""
        return max(self.times_us) / min(self.times_us) - 1 if self.times_us else 0.0


def table(pairs: Sequence[Pair]) -> str:
    """The pairs that differ, farthest apart first, and what they come to."""
    lines = [
        f"{pair.label:44s} {pair.times_us[0]:9.1f} us {pair.times_us[1]:9.1f} us {pair.apart:6.1%}  "
        f"{pair.configs[0]} / {pair.configs[1]}"
        for pair in sorted(pairs, key=lambda pair: -pair.apart)
        if pair.times_us
    ]
    if not pairs:
        return "no study has a winner in both folders"
    near = sum(pair.apart <= NEAR for pair in pairs)
    apart = sorted(pair.apart for pair in pairs)
    lines.append(
        f"{len(pairs)} studies: {len(pairs) - len(lines)} with equal winners; {near} ({near / len(pairs):.0%}) within "
        f"{NEAR:.0%}; median {statistics.median(apart):.2%}, worst {apart[-1]:.1%} apart"
    )
    verdict = "yes" if near >= ENOUGH * len(pairs) else "no"
    lines.append(f"within {NEAR:.0%} in {ENOUGH:.0%} of the studies: {verdict}")
    return "\n".join(lines)


def pack_of(experiment: Path, folder: Path) -> Path:
    """Where a folder has the pack of an experiment."""
    return folder / f"{experiment.stem}.json"


def pairs_of(path: Path, packs: Sequence[Path], fleet: Fleet, num_samples: int) -> list[Pair]:
    """The pairs of one experiment, those with different configs timed."""
    resolved = open_experiment(path)
    ref = resolved.experiment.ref
    loaded = [load_pack(pack_of(path, folder)) for folder in packs]
    (device, *_) = live_devices(fleet)
    pairs = []
    for study in studies(resolved, device):
        rows = [row_of(pack, resolved.workload.signature.kernel, study) for pack in loaded]
        configs = [row.config for row in rows if row is not None]
        if len(configs) < 2:
            if configs:
                print(f"{study.label}: only one of the packs has a winner", flush=True)
            continue
        pair = Pair(label=study.label, configs=(str(configs[0]), str(configs[1])))
        if configs[0] != configs[1]:
            a, b = (1000 * statistics.median(ms) for ms in retime(study, ref, configs, fleet, num_samples))
            pair = dataclasses.replace(pair, times_us=(a, b))
        pairs.append(pair)
        print(f"{pair.label}: {pair.apart:.1%}" + ("" if pair.times_us else ", equal"), flush=True)
    return pairs


def run(arguments: argparse.Namespace) -> list[Pair]:
    """Tunes where that is wanted, then times the winners of all experiments with one fleet."""
    arch = live_arch()
    paths = [p for p in arguments.experiments if arch in [d.arch for d in load_experiment(p).devices]]
    if arguments.tune:
        for path in paths:
            for seed, folder in enumerate(arguments.packs, 1):
                tune(path, folder, arch, problems=arguments.problems, fleet=arguments.fleet, seed=seed)
    whole = [path for path in paths if all(pack_of(path, folder).exists() for folder in arguments.packs)]
    for path in paths:
        if path not in whole:
            print(f"{path.stem}: not in both folders: left out", flush=True)
    if not whole:
        raise UserError("no experiment has a pack in both folders", hint="make them with --tune")
    fleet = open_fleet(FleetKind.INLINE, None, use_gpu=True, builders=1)
    pairs: list[Pair] = []
    try:
        for path in whole:
            pairs += pairs_of(path, arguments.packs, fleet, arguments.samples)
    finally:
        fleet.close()
    return pairs


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("experiments", type=Path, nargs="+")
    add("--packs", type=Path, nargs=2, required=True, metavar="FOLDER", help="the packs of the two searches")
    add("--tune", action="store_true", help="make them first, with the seeds 1 and 2")
    add("--problems", type=int, metavar="N", help="tune only the first N problems of each")
    add("--fleet", default="inline", help="where tuning runs, as for `tunefarm sweep`; default: inline")
    add("--samples", type=int, default=40, metavar="N", help="of each winner; default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="the pairs for machines")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    pairs = run(arguments)
    if arguments.json is not None:
        rows = [{**dataclasses.asdict(pair), "apart": pair.apart} for pair in pairs]
        write_atomic(arguments.json, json.dumps(rows, indent=1).encode())
    print(table(pairs))


if __name__ == "__main__":
    end_well(main)
