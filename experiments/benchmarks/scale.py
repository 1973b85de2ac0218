"""How many GPUs one driver keeps busy, and how many drivers a large fleet takes. No GPU.

    python experiments/benchmarks/scale.py
    python experiments/benchmarks/scale.py --real

The fleet is SIMULATED on a virtual clock; what the driver costs is real: from the moment a result is at its door until
it waits again, all that it does (turns, schedule, dispatch, packing questions, opening answers and, with --ledger,
writing each batch of answers to disk) is measured and charged to that clock, while which the fleet goes on. Not in it:
the search itself, unless --search-ms says what it takes, and what Ray takes, unless --transport-us does.

A trial takes 0.1 s, more or less. One in a hundred fails, which is an answer. One in a thousand kills its process: the
batch that it was in is lost and done again elsewhere, and the worker is back after 5 s. `--real` is another matter:
jobs that do nothing, over a real Ray cluster of this machine, through the same loop.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import crowd
from crowd import Crowd
from sitting import end_well, positive

from tunefarm.config import counted
from tunefarm.dispatch import Dispatch
from tunefarm.fleet.simulated import Habits, Hours, SimulatedFleet, Stay
from tunefarm.fleet.virtual import VirtualTime
from tunefarm.record.ledger import open_ledger
from tunefarm.seams import Ledger, NullLedger, Worker
from tunefarm.shards import allot

TRIAL_S = 0.1
FAILING, DEADLY, RESTART_S = 0.01, 0.001, 5.0
BUSY = 0.9
PER_STUDY = 250
PROBE = 400
"""Trials a GPU where only a first look is wanted."""
MARKS = (0.1, 0.5, 1.0)
"""Parts of a run after which memory is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Of a simulation.

    Attributes:
        batch: trials in a job.
        habits: of workers.
        has_ledger: whether answers are written to disk.
        search_s: charged for each trial.
        stopwatch: what measures the driver.
    """

    batch: int
    habits: Habits
    has_ledger: bool
    search_s: float
    stopwatch: Callable[[], float] = time.perf_counter

    def at_batch(self, batch: int) -> Terms:
        """The same with other batches: a job is as deadly as its trials together."""
        deaths = 1 - (1 - DEADLY) ** batch
        return replace(self, batch=batch, habits=replace(self.habits, deaths=deaths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a simulation gave.

    Attributes:
        num_trials: ended.
        hours: of the workers, until less was left to do than all of them hold at a time.
        whole: of the workers, until the last trial had ended.
        driver_s: charged for the driver.
        wall_s: virtual seconds.
        rss_mib: memory of this process after `MARKS` of the trials.
        ended: trials by how they ended.
    """

    num_trials: int
    hours: Hours
    whole: Hours
    driver_s: float
    wall_s: float
    rss_mib: tuple[float, ...]
    ended: dict[str, int]

    @property
    def busy(self) -> float:
        """Share of GPU time with jobs that brought something back, while there was work for all."""
        return self.hours.busy_s / self.hours.present_s

    @property
    def line(self) -> str:
        """For people."""
        h, whole = self.hours, self.whole
        parts = [f"{name} {value / h.present_s:.1%}" for name, value in
                 (("lost", h.lost_s), ("restarting", h.restart_s), ("idle", h.idle_s))]  # fmt: skip
        memory = " ".join(f"{mib:.0f}" for mib in self.rss_mib)
        return (
            f"busy {self.busy:.1%} ({', '.join(parts)}; with the tail {whole.busy_s / whole.present_s:.1%}); "
            f"driver {self.driver_s / self.num_trials * 1e6:.1f} us a trial, at work {self.driver_s / self.wall_s:.0%} "
            f"of {self.wall_s:.0f} virtual s; memory {memory} MiB"
        )


def resident_mib() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def a_ledger(wanted: bool) -> Iterator[Ledger]:
    """One in a file that is gone afterwards, or none."""
    if not wanted:
        yield NullLedger()
        return
    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger(Path(folder) / "ledger.jsonl", {"experiment": "scale"})
        yield ledger
        ledger.close()


def simulate(studies: Sequence[tuple[str, int]], num_gpus: int, terms: Terms) -> Figures:
    """Lets a crowd of studies compete on so many GPUs."""
    clock = VirtualTime(stopwatch=terms.stopwatch)
    workers = [Worker(name=f"measure-{n}", role="measure", device=crowd.DEVICE) for n in range(num_gpus)]
    fleet = SimulatedFleet(
        [Stay(worker=worker) for worker in workers], clock, habits=terms.habits,
        length_s=lambda job: TRIAL_S * len(job.args[-1].candidates),  # type: ignore[attr-defined]
    )  # fmt: skip
    num_trials = sum(num for _, num in studies)
    marks = [math.ceil(num_trials * mark) for mark in MARKS]
    rss: list[float] = []
    hours: Hours | None = None
    with a_ledger(terms.has_ledger) as ledger:
        dispatch = Dispatch(fleet, clock=clock, inbox=clock)
        contest = Crowd(dispatch=dispatch, ledger=ledger, batch=terms.batch, failing=FAILING)
        before = 0
        for num_ended in contest.compete(studies):
            with clock.paused():
                clock.charge(terms.search_s * (num_ended - before))
                before = num_ended
                if len(rss) < len(marks) and num_ended >= marks[len(rss)]:
                    rss.append(resident_mib())
                if hours is None and num_trials - num_ended <= num_gpus * terms.batch * dispatch.depth:
                    hours = fleet.hours
    whole = fleet.hours
    assert sum(contest.ended.values()) == num_trials, contest.ended
    return Figures(
        num_trials=num_trials, hours=hours or whole, whole=whole, driver_s=clock.driver_s, wall_s=clock.now(),
        rss_mib=tuple(rss), ended=dict(contest.ended),
    )  # fmt: skip


def studies_of(num_trials: int, num_gpus: int) -> list[tuple[str, int]]:
    """So many trials in studies of at most 250, and four studies a GPU at least."""
    num = max(math.ceil(num_trials / PER_STUDY), min(4 * num_gpus, num_trials))
    share, more = divmod(num_trials, num)
    return [(f"matmul {crowd.DEVICE.key} dims M={n}", share + (n < more)) for n in range(num)]


def one_driver(num_trials: int, num_gpus: int, terms: Terms) -> None:
    """A whole sweep on the fleet, then fleets twice as large until the driver cannot follow."""
    figures = simulate(studies_of(num_trials, num_gpus), num_gpus, terms)
    print(f"SIMULATED, 1 driver, {num_gpus} GPUs, {num_trials} trials: {figures.line}")
    print(f"  ended: {', '.join(f'{num} {how}' for how, num in sorted(figures.ended.items()))}", flush=True)
    most = 0
    while figures.busy >= BUSY:
        most, num_gpus = num_gpus, 2 * num_gpus
        some = min(num_trials, PROBE * num_gpus)
        figures = simulate(studies_of(some, num_gpus), num_gpus, terms)
        print(f"SIMULATED, 1 driver, {num_gpus} GPUs, {some} trials: {figures.line}", flush=True)
    print(f"  the most GPUs at {BUSY:.0%}, by doubling: {most or f'less than {num_gpus}'}", flush=True)


def many_drivers(num_trials: int, num_gpus: int, terms: Terms) -> None:
    """The fewest shards that keep a fleet busy. They share nothing, so they are simulated one after the other."""
    studies = studies_of(num_trials, num_gpus)
    for num in range(1, num_gpus + 1):
        most = math.ceil(num_gpus / num)
        if simulate(studies_of(min(num_trials // num, PROBE * most), most), most, terms).busy < BUSY:
            continue
        shares = allot({key: float(cost) for key, cost in studies}, num)
        found: list[Figures] = []
        for number in range(1, num + 1):
            mine = [study for study in studies if shares[study[0]] == number]
            found.append(simulate(mine, num_gpus // num + (number <= num_gpus % num), terms))
            print(f"SIMULATED, shard {number} of {num}, {num_gpus} GPUs in all: {found[-1].line}", flush=True)
            if found[-1].busy < BUSY:
                break
        else:
            break
    busy, present = (sum(getattr(f.hours, name) for f in found) for name in ("busy_s", "present_s"))
    cost_us = sum(f.driver_s for f in found) / num_trials * 1e6
    memory = max(max(f.rss_mib) for f in found)
    print(
        f"SIMULATED, {counted(num, 'shard')} one after the other, {num_gpus} GPUs, {num_trials} trials: "
        f"busy {busy / present:.1%}; driver {cost_us:.1f} us a trial; memory {memory:.0f} MiB a driver at most",
        flush=True,
    )


def real(num_jobs: int, batches: Sequence[int]) -> None:
    """Jobs that do nothing over a Ray cluster of this machine: what the loop, the fleet and Ray take together."""
    from tunefarm.fleet.cpus import available_cpus
    from tunefarm.fleet.ray import RayFleet

    num = available_cpus()
    fleet = RayFleet(num_measure=num, num_builders=0)
    try:
        for batch in batches:
            for jobs in (10 * num, num_jobs):  # At first, processes start and load.
                num_trials = jobs * batch
                contest = Crowd(dispatch=Dispatch(fleet), ledger=NullLedger(), batch=batch, landscape="none")
                began, cpu = time.perf_counter(), time.process_time()
                for _ in contest.compete(studies_of(num_trials, 4 * num)):
                    pass
                passed, cpu = time.perf_counter() - began, time.process_time() - cpu
            print(
                f"REAL Ray, {num} workers on {num} CPUs, {num_trials} trials that do nothing, {batch} in a job: "
                f"{num_trials / passed:.0f} trials/s, {jobs / passed:.0f} jobs/s; "
                f"{cpu / jobs * 1e6:.0f} us of CPU a job in the driver's process",
                flush=True,
            )
    finally:
        fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=positive, default=2_000_000)
    parser.add_argument("--gpus", type=positive, default=512, help="of one driver, before they are doubled")
    parser.add_argument("--fleet", type=positive, default=4096, help="GPUs that several drivers share")
    parser.add_argument("--batch", type=positive, nargs="+", default=[8, 1], help="trials in a job; sweeps take 8")
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of a job's way, and of its answer's")
    parser.add_argument("--spread", type=float, default=0.1, help="of lengths: standard deviation of their logarithm")
    parser.add_argument("--stragglers", type=float, default=0.001, help="share of jobs that take ten times as long")
    parser.add_argument("--transport-us", type=float, default=0.0, help="charged for each job in place of Ray's work")
    parser.add_argument("--search-ms", type=float, default=0.0, help="charged for each trial, in place of the search")
    parser.add_argument("--ledger", action="store_true", help="write answers to disk, where temporary files go")
    parser.add_argument(
        "--cpu-time", action="store_true", help="charge the driver's CPU time, for machines that others use meanwhile"
    )
    parser.add_argument("--part", choices=["one", "many", "both"], default="both", help="one driver, several, or both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="real Ray with jobs that do nothing, and nothing simulated")
    parser.add_argument("--jobs", type=positive, default=5000, help="of --real")
    options = parser.parse_args()
    if options.real:
        real(options.jobs, options.batch)
        return
    habits = Habits(
        latency_s=options.latency_ms / 1e3, spread=options.spread, stragglers=options.stragglers,
        restart_s=RESTART_S, transport_s=options.transport_us / 1e6, seed=options.seed,
    )  # fmt: skip
    for batch in options.batch:
        terms = Terms(
            batch=batch, habits=habits, has_ledger=options.ledger, search_s=options.search_ms / 1e3,
            stopwatch=time.thread_time if options.cpu_time else time.perf_counter,
        )  # fmt: skip
        what = "CPU time" if options.cpu_time else "wall time"
        print(f"{batch} in a job, {'with' if options.ledger else 'without'} the ledger; {what} is charged:", flush=True)
        if options.part != "many":
            one_driver(options.trials, options.gpus, terms.at_batch(batch))
        if options.part != "one":
            many_drivers(options.trials, options.fleet, terms.at_batch(batch))


if __name__ == "__main__":
    end_well(main)
