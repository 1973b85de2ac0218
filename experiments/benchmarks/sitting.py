"""What the benchmarks have in common: an experiment changed a little, a sweep of it, and times taken side by side."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tunefarm.bench.launch import learn
from tunefarm.bench.meter import Answers, Question
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, build, measure
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, TunefarmError
from tunefarm.pack import Pack, Row
from tunefarm.seams import Fleet
from tunefarm.spec.experiment import Resolved, load_experiment
from tunefarm.spec.workload import WorkloadRef
from tunefarm.study import Study
from tunefarm.trial import FINAL, describe


@contextlib.contextmanager
def variant(path: Path, **sections: Any) -> Iterator[Path]:
    """An experiment with some sections replaced, in a file beside it: what it reads lies relative to it."""
    content = {**yaml.safe_load(path.read_text("utf-8")), **sections}
    written = path.with_name(f".{path.stem}-{os.getpid()}.yaml")
    written.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    try:
        yield written
    finally:
        written.unlink()


def positive(text: str) -> int:
    """A whole number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def end_well(main: Callable[[], None]) -> None:
    """Runs a benchmark; what cannot be done is said in a line."""
    try:
        main()
    except TunefarmError as e:
        sys.exit(str(e))


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[float, str]:
    """(wall seconds, standard output) of a command; its errors are shown as they come.

    Raises:
        CalledProcessError: it failed.
    """
    began = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.monotonic() - began, done.stdout


def live_arch() -> str:
    """The arch of this machine's GPU, such as `sm_90`, asked in a process that ends at once.

    Raises:
        InfrastructureError: there is no GPU.
    """
    code = "import torch; print('sm_%d%d' % torch.cuda.get_device_capability() if torch.cuda.is_available() else '')"
    _, arch = run([sys.executable, "-c", code])
    if not arch.strip():
        raise InfrastructureError("no CUDA device is visible", hint="see `tunefarm doctor`")
    return arch.strip()


def sweep(
    experiment: Path, sweeps: Path, fleet: str, environment: Mapping[str, str] | None = None
) -> tuple[float, dict[str, Any]]:
    """(wall seconds, what `tunefarm sweep --json` says), every time measured on this machine's GPU.

    Raises:
        CalledProcessError: it failed, or a study has no winner.
    """
    words = ["sweep", str(experiment), "--meter", "gpu", "--json", "--tracking", "none"]
    words += ["--sweeps", str(sweeps), "--fleet", fleet]
    wall_s, said = run([sys.executable, "-m", "tunefarm.cli", *words], environment)
    return wall_s, json.loads(said)


def tune(
    experiment: Path, folder: Path, arch: str, *, problems: int | None, fleet: str, seed: int | None = None
) -> Path:
    """Sweeps an experiment for one arch into `folder`: its pack, and below `sweeps` its ledger, from which it goes on.

    Args:
        experiment: the file.
        folder: for the pack, named after the file.
        arch: such as `sm_90`; landscapes are left aside.
        problems: only so many of its problems, the first ones; None for all.
        fleet: where jobs run, as for `tunefarm sweep`.
        seed: of the search; None for the experiment's own.

    Returns:
        The pack, which holds the winners there are.
    """
    spec = load_experiment(experiment)
    pack = folder / f"{experiment.stem}.json"
    sections: dict[str, Any] = {"devices": [arch], "export": str(pack.resolve())}
    sections["problems"] = [{**p.variables, "weight": p.weight} for p in spec.problems[:problems]]
    if seed is not None:
        sections["search"] = {**dataclasses.asdict(spec.search), "seed": seed}
    with variant(experiment, **sections) as changed, contextlib.suppress(subprocess.CalledProcessError):
        sweep(changed, folder / "sweeps", fleet)
    return pack


def studies(resolved: Resolved, device: Device, problems: int | None = None) -> list[Study]:
    """The studies of an experiment on a device. Its space, whose planning can take long, is not looked at."""
    workload, found = resolved.workload, []
    for spec in resolved.experiment.problems[:problems]:
        inputs = make_inputs(workload, spec.variables, "meta")
        if any(0 in getattr(value, "shape", ()) for value in inputs.values()):
            continue
        problem = learn(workload, inputs, workload.default, device.target).problem(workload.key)
        found.append(Study(workload=workload.name, device=device, problem=problem, variables=spec.variables))
    return found


def row_of(pack: Pack, kernel: str, study: Study) -> Row | None:
    """The row that was measured for a study."""
    for table in pack.tables:
        for row in table.rows if table.kernel == kernel and table.device.key == study.device.key else ():
            same = (row.measured_at, row.match.dtypes) == (study.problem.dims, study.problem.dtypes)
            if same and row.match.facts.items() <= study.problem.facts.items():
                return row
    return None


def retime(
    study: Study, ref: WorkloadRef, configs: Sequence[Config], fleet: Fleet, num_samples: int
) -> list[tuple[float, ...]]:
    """Samples in ms of each config, taken interleaved as finals are; built on a CPU worker, launched on a GPU's.

    Raises:
        InfrastructureError: a config could not be measured.
    """
    request = BuildRequest(ref=ref, variables=study.variables, configs=tuple(configs), target=study.device.target)
    builder = next(w.name for w in fleet.workers if w.role == "build")
    meter = next(w.name for w in fleet.workers if w.role == "measure")
    builts = fleet.submit(partial(build, request), builder).result()
    candidates = tuple(built.candidate(number) for number, built in enumerate(builts))
    question = Question(
        ref=ref, device=study.device, problem=study.problem, variables=study.variables, candidates=candidates,
        rung=FINAL, num_samples=num_samples, interleaved=True,
    )  # fmt: skip
    answers = fleet.submit(partial(measure, question), meter).result()
    assert isinstance(answers, Answers), answers
    for answer in answers.answers:
        if answer.measurement is None:
            raise InfrastructureError(f"{study.label}: {configs[answer.number]} failed: {describe(answer.why)}")
    return [a.measurement.samples_ms for a in sorted(answers.answers, key=lambda a: a.number)]
