"""Recorded spaces as a search meets them: our landscapes, and those of other tools in plain JSON.

The plain form: {"kernel", "device": name or {"name", "capability", "sms", "smem_per_block_optin"}, "problems":
[{"problem": {...}, "configs": [{"config": {...}, "status", "ms": [samples], "compile_s", "n_regs", "n_spills",
"shared"}]}]}. Its first two samples of a config hold one-time costs and are left out.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tunefarm import landscape as landscapes
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.problem import Problem
from tunefarm.trial import Build, Failure, Outcome, Trial

NUM_ONE_TIME = 2
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


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
    name = file.name.removesuffix(".json.gz")
    try:
        data = json.loads(gzip.decompress(file.read_bytes()))
        if data.get("format") == landscapes.FORMAT:
            return list(_ours(name, landscapes.load(file)))
        return list(_plain(name, data))
    except (OSError, EOFError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise UserError(
            f"is no recording of a space: {type(e).__name__}: {e}" if file.exists() else "no such file",
            file=str(file),
            hint="make one with `tunefarm record`, or see the form at the top of recordings.py",
        ) from None


def _ours(name: str, recording: landscapes.Landscape) -> Iterator[Space]:
    for recorded in recording.problems:
        yield Space(
            file=name, problem=recorded.problem, device=recording.device,
            trials=tuple(
                Trial(number=number, config=e.config, build=e.build, outcome=e.outcome, failure=e.failure)
                for number, e in enumerate(recorded.entries)
            ),
            samples_ms=tuple(e.samples_ms for e in recorded.entries),
            build_s=tuple(e.build.build_s if e.build else 0.0 for e in recorded.entries),
        )  # fmt: skip


def _plain(name: str, data: Mapping[str, Any]) -> Iterator[Space]:
    device = _device(data["device"])
    # What a config costs to build is the most it took: the others found it in a cache.
    build_s: dict[Config, float] = {}
    listed = [(problem, [_config(entry["config"]) for entry in problem["configs"]]) for problem in data["problems"]]
    for problem, configs in listed:
        for config, entry in zip(configs, problem["configs"], strict=True):
            build_s[config] = max(build_s.get(config, 0.0), entry.get("compile_s") or 0.0)
    for problem, configs in listed:
        dims = {k: v for k, v in problem["problem"].items() if isinstance(v, int | str)}
        sizes = problem["problem"].get("problem_size", [])
        dims |= {f"size_{axis}": size for axis, size in zip("xyz", sizes, strict=False)}
        trials = tuple(
            _trial(number, config, entry, _grid(config.flat, dims))
            for number, (config, entry) in enumerate(zip(configs, problem["configs"], strict=True))
        )
        samples_ms = tuple(
            tuple((entry.get("ms") or [])[NUM_ONE_TIME:]) if entry["status"] == "ok" else ()
            for entry in problem["configs"]
        )
        for config, samples in zip(configs, samples_ms, strict=True):
            landscapes.check_durations(samples, str(config))
        yield Space(
            file=name, device=device, trials=trials, samples_ms=samples_ms,
            problem=Problem(dims=FrozenMap(dims), dtypes=FrozenMap({"x_ptr": data.get("dtype", "")})),
            build_s=tuple(build_s[config] for config in configs),
        )  # fmt: skip


def _device(said: Any) -> Device:
    if isinstance(said, str):
        # No more is known of it than that it is no GPU of ours.
        return replace(nominal("sm_80"), name=said)
    arch = "sm_{}{}".format(*said["capability"])
    return replace(nominal(arch), name=said["name"], num_sms=said["sms"], shared_bytes=said["smem_per_block_optin"])


def _config(flat: Mapping[str, Any]) -> Config:
    return Config(
        params={name: value for name, value in flat.items() if name not in OPTIONS},
        options={name: value for name, value in flat.items() if name in OPTIONS},
    )


def _grid(config: Mapping[str, Any], dims: Mapping[str, Any]) -> tuple[int, int, int]:
    """Programs of the recorded kernels: one a tile of M x N, a group of rows, or a block; 1 where nobody says."""
    sides = {"BLOCK_M": "M", "BLOCK_N": "N"} if "BLOCK_M" in config else {"ROWS": "M", "BLOCK": "n"}
    counts = [-(-dims[dim] // config[side]) for side, dim in sides.items() if side in config and dim in dims]
    return math.prod(counts), 1, 1


def _trial(number: int, config: Config, entry: Mapping[str, Any], grid: tuple[int, int, int]) -> Trial:
    status = entry["status"]
    if status in ("out_of_resources", "compile_error"):
        failure = Failure(stage="build", kind=status, message=status)
        return Trial(number=number, config=config, outcome=Outcome(status), failure=failure)
    resources = [entry.get(name, 0) for name in ("n_regs", "n_spills", "shared")]
    # Without machine code: what differs in num_stages alone and takes the same registers and memory has one loop.
    alike = sorted((name, value) for name, value in config.flat.items() if name != "num_stages")
    build = Build(
        binary=f"{alike} {resources}" if "n_regs" in entry else str(number), grid=grid,
        registers=resources[0], spills=resources[1], shared_bytes=resources[2],
    )  # fmt: skip
    return Trial(number=number, config=config, build=build)
