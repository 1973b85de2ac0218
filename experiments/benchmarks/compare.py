"""Tunes, and compares in the same sitting: default, tuned, PyTorch eager, compiled and max-autotuned, and the ceiling.

    python experiments/benchmarks/compare.py --only softmax,rms_norm [--problems N] [--peers default,tuned,eager]
    python experiments/benchmarks/compare.py --packs packs            # packs of earlier sweeps, nothing is tuned
    python experiments/benchmarks/compare.py --draw --readme experiments/benchmarks/README.md  # from records; no GPU

Each experiment is swept on this machine's GPU; then, in a fresh process, all contenders of a problem are timed
interleaved. `results.jsonl` in the folder given by `--out` keeps every sample; later calls add to it, or replace what
they compare again. `compare.md` and `compare.svg` show all of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import results
from sitting import live_arch, studies, tune

from tunefarm.document import write_atomic
from tunefarm.errors import TunefarmError, UserError
from tunefarm.spec.experiment import load_experiment

HERE = Path(__file__).parent


def choose(folder: Path, only: Sequence[str]) -> list[Path]:
    """The experiments to compare: all of a folder's, or those named, in that order.

    Raises:
        UserError: there is none of that name.
    """
    there = {path.stem: path for path in sorted(folder.glob("*.yaml")) if not path.name.startswith(".")}
    for name in only:
        if name not in there:
            raise UserError(f"there is no experiment {name!r}", file=str(folder), hint=f"one of {', '.join(there)}")
    return [there[name] for name in only] if only else list(there.values())


def choose_pack(experiment: Path, pack: Path | None, packs: Path | None) -> Path | None:
    """The pack that was made before, or None if the experiment is to be tuned now.

    A folder may lack the packs of experiments that gave no winner: theirs are files that do not exist.

    Raises:
        UserError: the file, or the folder, is not there.
    """
    if given := pack or packs:
        if not given.exists():
            raise UserError("there is no such pack", file=str(given), hint="leave it out to tune now")
        return pack or given / f"{experiment.stem}.json"
    return None


def measure(
    order: Mapping[str, Any], command: Sequence[str], on_record: Callable[[dict[str, Any]], None], silence_s: float
) -> None:
    """Has the problems compared by a measuring process, and by another one for the rest if it dies.

    Args:
        order: what it reads from its input; we add what is done, and who is ruled out because a process died of it.
        command: starts it.
        on_record: told each problem's record.
        silence_s: after which it is taken for dead.

    Raises:
        UserError: it failed outside of any problem.
    """
    done: list[str] = []
    ruled_out: dict[str, dict[str, str]] = {}
    while True:
        at: tuple[str, str] | None = None
        ours, theirs = os.pipe()
        with open(ours, encoding="utf-8") as lines:
            child = subprocess.Popen([*command, str(theirs)], stdin=subprocess.PIPE, text=True, pass_fds=[theirs])
            os.close(theirs)
            with child:
                for said in _heard(child, lines, {**order, "done": done, "ruled_out": ruled_out}, silence_s):
                    if "record" in said:
                        at = None
                        done.append(said["key"])
                        on_record(said["record"])
                    else:
                        at = said["key"], said["contender"]
        if child.returncode == 0:
            return
        if at is None:
            raise UserError("the measuring process failed outside of any problem", hint="its error stands above")
        key, contender = at
        reason = f"the measuring process died of it (exit status {child.returncode})"
        accused = [contender] if contender else order["peers"]
        ruled_out[key] = {**dict.fromkeys(accused, reason), **ruled_out.get(key, {})}


def _heard(
    child: subprocess.Popen[str], lines: IO[str], order: Mapping[str, Any], silence_s: float
) -> Iterator[dict[str, Any]]:
    """What a measuring process says, once it has its order; it is killed when it says nothing for too long.

    It says so through a pipe of its own: compilers print, and their processes hold standard output open.
    """
    assert child.stdin is not None
    with child.stdin as stdin:
        stdin.write(json.dumps(order))
    while True:
        watchdog = threading.Timer(silence_s, child.kill)
        watchdog.start()
        line = lines.readline()
        watchdog.cancel()
        if not line.endswith("\n"):  # the end, or what it was saying when it died
            return
        yield json.loads(line)


def answer(order: Mapping[str, Any], pipe: IO[str]) -> None:
    """Runs in the measuring process: compares every problem that is not done, and says so through the pipe."""
    import torch
    from contenders import Comparison, copy_tbps

    from tunefarm.bench.gpu import FLUSH_BYTES
    from tunefarm.bench.steady import hold
    from tunefarm.bench.telemetry import live_device, uuid
    from tunefarm.cli.opening import open_experiment
    from tunefarm.pack_reader import load_pack

    def say(**message: Any) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    told: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text in told:
            return False
        told.add(text)
        return True

    # Packs come and go with every sample, and each time they say what they have to say.
    logging.getLogger("tunefarm.runtime").addFilter(is_new)

    device, lock = live_device(), hold(uuid())
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    copied_tbps = copy_tbps(flush)
    for job in order["jobs"]:
        try:
            resolved = open_experiment(Path(job["experiment"]))
            pack = load_pack(job["pack"]) if job["pack"] else None
            found = studies(resolved, device, order["problems"])
        except TunefarmError as e:
            print(f"{job['experiment']} is left out: {e}", file=sys.stderr, flush=True)
            continue
        for study in found:
            key = f"{resolved.experiment.name} {study.key}"
            if key in order["done"]:
                continue
            ruled_out = order["ruled_out"].get(key, {})
            comparison = Comparison(
                resolved=resolved, study=study, pack=pack, limit_s=order["limit_s"], rounds_s=order["rounds_s"],
                flush=flush, announce=lambda contender, key=key: say(key=key, contender=contender),
            )  # fmt: skip
            record = comparison.record([name for name in order["peers"] if name not in ruled_out], copied_tbps)
            record["contenders"] |= {name: {"error": reason} for name, reason in ruled_out.items()}
            say(key=key, record=record)
    lock.close()


def show(out: Path, records: Sequence[results.Record], readme: Path | None) -> None:
    """Writes table and picture beside the records, and into a README where wanted."""
    write_atomic(out / "compare.md", results.table(records).encode())
    write_atomic(out / "compare.svg", results.picture(records).encode())
    if readme is not None:
        shown = Path(os.path.relpath(out / "compare.svg", readme.absolute().parent)).as_posix()
        block = f"![Share of the ceiling that each contender reaches]({shown})\n\n{results.table(records)}"
        write_atomic(readme, results.insert(readme.read_text("utf-8"), block, file=str(readme)).encode())


def compare(arguments: argparse.Namespace) -> None:
    """Tunes what has no pack, has everything compared, and writes each record as it comes."""
    experiments = choose(arguments.experiments, arguments.only)
    given = {path: choose_pack(path, arguments.pack, arguments.packs) for path in experiments}
    arch, jobs = live_arch(), []
    for path, pack in given.items():
        archs = [device.arch for device in load_experiment(path).devices]
        if arch not in archs:
            print(f"{path.stem}: for {', '.join(archs)}, not for {arch}: left out", flush=True)
            continue
        if pack is None:
            print(f"{path.stem}: tuning", flush=True)
            pack = tune(path, arguments.out / "packs", arch, problems=arguments.problems, fleet=arguments.fleet)
        if not pack.exists():
            print(f"{path.stem}: no winners: {pack} is not there", flush=True)
        jobs.append({"experiment": str(path), "pack": str(pack) if pack.exists() else ""})
    if arguments.tune_only:
        return
    file = arguments.out / "results.jsonl"

    def keep(record: dict[str, Any]) -> None:
        # Read again: a call in between may have written.
        results.save(file, results.merge(results.load(file), record))
        times = ((name, results.median_us(record, name)) for name in arguments.peers)
        said = "  ".join(f"{name} {time:.1f}" if time else f"{name} failed" for name, time in times)
        print(f"{record['workload']} {record['problem']}: {said}", flush=True)

    order = {"jobs": jobs, **{n: getattr(arguments, n) for n in ("problems", "peers", "limit_s", "rounds_s")}}
    measure(order, [sys.executable, __file__, "--answer"], keep, 60 + 2 * arguments.limit_s)


def names(text: str) -> list[str]:
    """A list of names, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def peers(text: str) -> list[str]:
    """Names of contenders, in our order."""
    chosen = names(text)
    if wrong := sorted(set(chosen) - set(results.CONTENDERS)):
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: no such contender; {', '.join(results.CONTENDERS)} are")
    return [name for name in results.CONTENDERS if name in chosen]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--experiments", type=Path, default=HERE.parent, metavar="FOLDER", help="default: experiments")
    add("--only", type=names, default=[], metavar="NAME,...", help="default: all experiments")
    add("--problems", type=int, metavar="N", help="only the first N problems of each")
    add("--peers", type=peers, default=list(results.CONTENDERS), metavar="NAME,...", help="default: all")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--pack", type=Path, metavar="FILE", help="the winners, in place of tuning")
    given.add_argument("--packs", type=Path, metavar="FOLDER", help="the same, one pack an experiment")
    add("--tune-only", action="store_true", help="compare another time, with --packs OUT/packs")
    add("--out", type=Path, default=HERE / "results", metavar="FOLDER", help="default: %(default)s")
    add("--fleet", default="inline", help="where tuning runs, as for `tunefarm sweep`; default: inline")
    add("--limit-s", type=float, default=60.0, help="for a contender to compile; default: %(default)s")
    add("--rounds-s", type=float, default=2.0, help="for timing a problem, about; default: %(default)s")
    add("--draw", action="store_true", help="only write table and picture anew")
    add("--readme", type=Path, metavar="FILE", help="write them into this file, too, between their markers")
    add("--answer", type=int, metavar="PIPE", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    if arguments.answer is not None:
        answer(json.load(sys.stdin), os.fdopen(arguments.answer, "w"))
        return
    try:
        if not arguments.draw:
            compare(arguments)
        if records := results.load(arguments.out / "results.jsonl"):
            show(arguments.out, records, arguments.readme)
            print(results.table(records))
    except TunefarmError as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
