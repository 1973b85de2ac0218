"""A farm for tests: a kernel that compiles in milliseconds, an experiment of it, and landscapes made up for that."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm import landscape as landscapes
from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config, Value
from tunefarm.device import Device, nominal
from tunefarm.dispatch import Dispatch
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.plan import PlannedStudy, Target, choose_targets, plan
from tunefarm.ranges import Gap
from tunefarm.record.ledger import open_ledger, read_events
from tunefarm.record.tracking import NullTracker
from tunefarm.schedule.events import Budget
from tunefarm.seams import Clock, Fleet, Inbox
from tunefarm.source import source_hash
from tunefarm.spec.experiment import Resolved
from tunefarm.study import StudyResult
from tunefarm.sweep import Sweep, Watcher, run_through
from tunefarm.trial import FINAL, Failure, Outcome

GPU = replace(nominal("sm_90"), name="Test GPU", live=True)
TOOLCHAIN = FrozenMap(torch="9.9", triton="8.8")

KERNEL = """\
import sys

import triton
import triton.language as tl

import tunefarm


@triton.jit
def fill_kernel(y_ptr, n, BLOCK: tl.constexpr, MARK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, MARK, mask=i < n)


def fill(y, n):
    fill_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n)
    return y


workload = tunefarm.Workload(
    call=fill,
    kernel=fill_kernel,
    name="fill",
    inputs={"y": ["n"], "n": {"value": "n"}},
    key=("n",),
    ranges=("n",),
    num_bytes=lambda n, dtype: 4 * n,
    default=tunefarm.Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4}),
)
"""

AS_DEFAULT = KERNEL.replace('    name="fill",', '    name="fill",\n    reference="default",')

EXPERIMENT: dict[str, Any] = {
    "name": "fill",
    "workload": "kernels.py:workload",
    "problems": [{"n": 1000, "dtype": "fp32"}],
    "space": {"BLOCK": [64, 128, 256], "MARK": [0, 1], "num_warps": [1, 2, 4]},
    "devices": [{"arch": "sm_90", "landscape": "recording.json.gz"}],
}

BOTH = [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"]
THREE = [{"n": [1000, 4096, 5000], "dtype": "fp32"}]
LARGE = {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]}

Time = Callable[[Config, Mapping[str, Value]], "float | Outcome"]
"""The true time of a config in ms for a problem, or how it fails."""


def smooth(config: Config, variables: Mapping[str, Value]) -> float:
    """A bowl: the best block grows with n, two warps are best, and marks cost a little."""
    block, mark, warps = (int(config.flat[name] or 0) for name in ("BLOCK", "MARK", "num_warps"))
    best = 8 if int(variables["n"] or 0) > 2000 else 7
    return 0.02 * (1 + 0.4 * abs(block.bit_length() - 1 - best) + 0.3 * abs(warps.bit_length() - 2) + 0.02 * mark)


def write_experiment(folder: Path, kernel: str = KERNEL, **sections: Any) -> Path:
    """An experiment file and its kernel; a section given as None is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.py").write_text(kernel)
    path = folder / "experiment.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({k: v for k, v in {**EXPERIMENT, **sections}.items() if v is not None}))
    return path


def write_landscape(
    experiment: Path,
    time_ms: Time = smooth,
    name: str = "recording.json.gz",
    device: Device = GPU,
    num_samples: int = 20,
) -> Path:
    """A recording of every candidate of an experiment, with made-up times."""
    resolved = open_experiment(experiment)
    problems = []
    for study in plan(resolved, [Target(device=device)]):
        if not study.skipped:
            entries = tuple(
                _entry(config, time_ms(config, study.study.variables), num_samples) for config in study.candidates
            )
            problems.append(Recorded(problem=study.study.problem, entries=entries, reference_ms=0.05))
    made = Landscape(
        kernel=resolved.workload.signature.kernel, source_hash=source_hash(resolved.workload.kernel), device=device,
        toolchain=TOOLCHAIN, date="2026-01-01", problems=tuple(problems),
    )  # fmt: skip
    path = experiment.parent / name
    landscapes.save(made, path)
    return path


def _entry(config: Config, time_ms: float | Outcome, num_samples: int) -> Entry:
    if isinstance(time_ms, Outcome):
        failure = Failure(stage="launch", kind=time_ms.value, message=f"{time_ms.value} on purpose")
        return Entry(config=config, outcome=time_ms, failure=failure)
    noise = random.Random(config.key)
    samples = tuple(time_ms * (1 + 0.002 * noise.random()) for _ in range(num_samples))
    return Entry(config=config, outcome=Outcome.OK, warmup_ms=(time_ms * 2,), samples_ms=samples)


# ---- the command, as people run it ----


def environment(store: Path, **more: str) -> dict[str, str]:
    """Of the command: no GPU, nothing of the machine's own settings."""
    alien = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "COLUMNS", "XDG_CACHE_HOME")
    mine = {name: value for name, value in os.environ.items() if name not in alien}
    return {**mine, "TUNEFARM_CACHE": str(store), "CUDA_VISIBLE_DEVICES": "", **more}


def command(*arguments: str | Path) -> list[str]:
    """The command line of `tunefarm` with these arguments."""
    return [sys.executable, "-m", "tunefarm.cli", *map(str, arguments)]


def tunefarm(
    *arguments: str | Path, folder: Path, store: Path, timeout_s: float = 120.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs `tunefarm` in a folder until it ends."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(store, **more), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


_WARM = """\
import json, os, sys, traceback
import optuna, torch, triton
from tunefarm.cli.__main__ import main
import tunefarm.cli.app, tunefarm.plan

for line in sys.stdin:
    arguments, folder, environment, out, err = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(environment)
        for path, handle in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), handle)
        sys.argv = ["tunefarm", *arguments]
        code = 0
        try:
            main()
        except SystemExit as e:
            code = e.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Warm:
    """Runs `tunefarm` in processes forked off one that has done the imports: for commands that end before the work."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WARM], env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def __call__(
        self, *arguments: str | Path, folder: Path, store: Path, **more: str
    ) -> subprocess.CompletedProcess[str]:
        out, err = self._folder / "out", self._folder / "err"
        for path in (out, err):
            path.unlink(missing_ok=True)
        order = [[*map(str, arguments)], str(folder), environment(store, **more), str(out), str(err)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(order[0], code, out.read_text(), err.read_text())

    def close(self) -> None:
        self._process.communicate(timeout=30)


@contextmanager
def running(*arguments: str | Path, folder: Path, store: Path) -> Iterator[subprocess.Popen[str]]:
    """`tunefarm` at work; killed at the end if it still is."""
    process = subprocess.Popen(
        command(*arguments), cwd=folder, env=environment(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
    finally:
        assert process.returncode is not None


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


# ---- what a ledger says ----


def events(ledger: Path, event: str = "") -> list[dict[str, Any]]:
    """Data of the events of a ledger, of one kind if it is named; each with the number of its epoch."""
    if not ledger.exists():
        return []
    return [{**e["data"], "epoch": e["epoch"]} for e in read_events(ledger) if event in ("", e["event"])]


def measured(ledger: Path) -> list[tuple[str, str, int]]:
    """(study, config, rung) of every measurement, in order."""
    return [(e["study"], e["config"], e["rung"]) for e in events(ledger, "measured")]


# ---- a sweep in this process ----


@dataclass
class Silent:
    """A watcher that shows nothing and may act when something moves."""

    act: Callable[[], None] = lambda: None

    def began(self, contests: Sequence[Any], num_builds: int) -> None:
        self.num_builds = num_builds

    def moved(self, board: BuildBoard, contests: Sequence[Any]) -> None:
        self.act()

    def ended(self, result: StudyResult, experiment: str) -> None:
        pass


@dataclass(kw_only=True)
class Played:
    """What a sweep in this process gave."""

    results: list[StudyResult]
    ledger: Path
    board: BuildBoard
    dispatch: Dispatch
    planned: list[PlannedStudy]
    notices: list[str]
    cuts: dict[str, dict[Gap, int]]


def play(
    experiment: Path, fleet: Fleet, store: Path, *, ledger: Path | None = None, act: Callable[[], None] = lambda: None,
    budget: Budget | None = None, incumbents: dict[str, Config] | None = None, targets: Sequence[Target] = (),
    clock: Clock | None = None, inbox: Inbox | None = None, resolved: Resolved | None = None,
    watcher: Watcher | None = None,
) -> Played:  # fmt: skip
    """Sweeps an experiment on a fleet that is there already; export and tracking apart, as the command does."""
    resolved = resolved or open_experiment(experiment)
    planned = plan(resolved, targets or choose_targets(resolved.experiment, []))
    written = open_ledger(ledger or experiment.with_name("ledger.jsonl"), {"experiment": resolved.experiment.name})
    board = BuildBoard(resolved, BuildStore(store / "builds"))
    dispatch = Dispatch(fleet, budget=budget, clock=clock, inbox=inbox)
    try:
        watcher = watcher or Silent(act)
        sweep = Sweep(
            resolved, planned, ledger=written, memo=written.memo(), tracker=NullTracker(), watcher=watcher,
            incumbents=incumbents,
        )  # fmt: skip
        run_through([sweep], dispatch=dispatch, board=board, watcher=watcher, num_builders=2)
        if sweep.error is not None:
            raise sweep.error
    finally:
        written.close()
    return Played(
        results=sweep.results, ledger=written.path, board=board, dispatch=dispatch, planned=planned,
        notices=[*dispatch.notices, *sweep.notices], cuts=sweep.cuts,
    )  # fmt: skip


def regret(result: StudyResult, recording: Path) -> float:
    """How much slower the winner is than the recording's best, as a fraction."""
    recorded = landscapes.load(recording).find(result.study.problem)
    assert recorded is not None
    assert result.winner is not None
    medians = {e.config: sorted(e.samples_ms)[len(e.samples_ms) // 2] for e in recorded.entries if e.samples_ms}
    return medians[result.winner.config] / min(medians.values()) - 1


def check_ledger(played: Played) -> None:
    """Everything the results say stands in the ledger, and nothing twice."""
    found = measured(played.ledger)
    assert len(found) == len(set(found))
    for result in played.results:
        mine = [(config, rung) for study, config, rung in found if study == result.study.key]
        known = [(t.config.key, m.rung) for t in result.trials for m in t.measurements if m.rung != FINAL]
        assert sorted(mine) == sorted(known)
        for event, outcome in (("pruned", Outcome.PRUNED), ("merged", Outcome.MERGED)):
            # A driver that goes on says again what it decides.
            said = {e["config"] for e in events(played.ledger, event) if e["study"] == result.study.key}
            assert said == {t.config.key for t in result.trials if t.outcome is outcome}
        if result.winner is not None:
            (finals,) = [e for e in events(played.ledger, "finals") if e["study"] == result.study.key]
            winner = [e for e in events(played.ledger, "winner") if e["study"] == result.study.key][-1]
            assert winner["winner"]["config"] == result.winner.config.to_json()
            assert result.winner.config.key in finals["configs"]
            assert played.planned[0].default is None or played.planned[0].default.key in finals["configs"]
