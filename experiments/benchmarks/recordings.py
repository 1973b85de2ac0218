"""Recorded spaces as a search meets them, of any format that tunefarm reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.errors import LandscapeError, UserError
from tunefarm.landscape import Recorded
from tunefarm.landscape_reader import NO_RECORDING, load
from tunefarm.problem import Problem
from tunefarm.trial import Outcome, Trial


@dataclass(frozen=True, kw_only=True)
class Space:
    """Every config of one problem, measured.

    Attributes:
        file: it was read from, without endings.
        problem: what was launched.
        device: where.
        trials: the candidates as a search knows them once all is compiled, by number.
        samples_ms: of each; empty for one that cannot run.
        build_s: of each.
    """

    file: str
    problem: Problem
    device: Device
    trials: tuple[Trial, ...]
    samples_ms: tuple[tuple[float, ...], ...]
    build_s: tuple[float, ...]

    @property
    def label(self) -> str:
        """For people: `h200_matmul 4096x4096x4096`."""
        return f"{self.file} {self.problem.label}"

    @cached_property
    def configs(self) -> list[Config]:
        """The candidates."""
        return [trial.config for trial in self.trials]

    @cached_property
    def times_ms(self) -> list[float | None]:
        """What counts as the time of each: the median of all samples of its binary. None for one that cannot run."""
        pooled: dict[Any, list[float]] = {}
        for trial, samples in zip(self.trials, self.samples_ms, strict=True):
            pooled.setdefault(binary(trial), []).extend(samples)
        medians = {each: statistics.median(samples) if samples else None for each, samples in pooled.items()}
        return [medians[binary(trial)] if trial.outcome is Outcome.OK else None for trial in self.trials]

    @cached_property
    def best_ms(self) -> float:
        """The least time."""
        return min(time for time in self.times_ms if time is not None)

    @cached_property
    def num_distinct(self) -> int:
        """Candidates that run, equal binaries counted once."""
        return len({binary(t) for t, time in zip(self.trials, self.times_ms, strict=True) if time is not None})


def binary(trial: Trial) -> Any:
    """Equal for candidates that the GPU cannot tell apart."""
    return trial.build.identity if trial.build else trial.number


def load_spaces(paths: Sequence[Path]) -> list[Space]:
    """All problems of all recordings in files and folders.

    Raises:
        UserError: one cannot be read, or is no recording.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.json.gz")) if path.is_dir() else [path])]
    return [space for file in files for space in _read(file)]


def _read(file: Path) -> list[Space]:
    try:
        recording = load(file)
    except LandscapeError as e:
        why = str(e.args[0]).removeprefix(NO_RECORDING)
        raise UserError(
            f"{NO_RECORDING}{why}" if file.exists() else "no such file", file=str(file),
            hint="make one with `tunefarm record`, or see the formats in tunefarm/landscape_reader.py",
        ) from None  # fmt: skip
    # Of some devices no more is known than that they are no GPU of ours.
    device = recording.device if recording.device.arch else replace(nominal("sm_80"), name=recording.device.name)
    name = file.name.removesuffix(".json.gz")
    return [_space(name, device, recorded) for recorded in recording.problems]


def _space(name: str, device: Device, recorded: Recorded) -> Space:
    failures = (e.failure if e.failure is not None and e.failure.stage == "build" else None for e in recorded.entries)
    return Space(
        file=name, problem=recorded.problem, device=device,
        trials=tuple(
            Trial(number=number, config=e.config, build=e.build, outcome=e.outcome if failure else Outcome.OK,
                  failure=failure)
            for number, (e, failure) in enumerate(zip(recorded.entries, failures, strict=True))
        ),
        samples_ms=tuple(e.samples_ms if e.outcome is Outcome.OK else () for e in recorded.entries),
        build_s=tuple(e.build.build_s if e.build else 0.0 for e in recorded.entries),
    )  # fmt: skip
