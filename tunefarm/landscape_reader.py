"""Recorded search spaces of any tool, read as landscapes.

Ours           `tunefarm record` writes it, see `landscape`.
Plain          {"kernel", "dtype", "timer", "device": name or {"name", "capability", "sms", "smem_per_block_optin",
               "l2", versions}, "problems": [{"problem": {...}, "bytes", "flops", "ref_ms", "configs": [{"config",
               "status", "ms": [samples], "compile_s", "n_regs", "n_spills", "shared", "error"}]}]}. A list among a
               problem's values, such as `problem_size`, becomes one dim for each axis.
Kernel Tuner   its cache: {"device_name", "kernel_name", "problem_size", "tune_params_keys", "cache": {key: {param:
               value, "time" or the kind of its failure, "times": [samples], "compile_time"}}}.
T4             its results, and others': {"results": [{"configuration", "invalidity", "times": {"runtimes": [samples],
               "compilation"}, "measurements": [{"name", "value"}]}]}. They name neither kernel nor device.

The first two samples of a config hold one-time costs: those of other tools are kept apart as warm-up. What is recorded
once, as a mean, is one sample. Times are in ms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm import landscape as landscapes
from tunefarm.config import LAUNCH_OPTIONS, Config
from tunefarm.device import Device, recorded
from tunefarm.document import parse_json, read_text
from tunefarm.errors import LandscapeError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded, check_durations
from tunefarm.problem import Problem
from tunefarm.trial import Build, Failure, Outcome

NUM_ONE_TIME = 2
UNKNOWN_TIMER = "unknown"
"""The timer of a recording that does not say whether its cache was cold."""

NO_RECORDING = "is no recording of a space: "

OUTCOMES: Mapping[str, Outcome] = {
    **{outcome.value: outcome for outcome in Outcome},
    "runtime_error": Outcome.LAUNCH_ERROR,
    # Kernel Tuner's
    "InvalidConfig": Outcome.ILLEGAL,
    "CompilationFailedConfig": Outcome.COMPILE_ERROR,
    "RuntimeFailedConfig": Outcome.LAUNCH_ERROR,
    # T4's
    "correct": Outcome.OK,
    "constraints": Outcome.ILLEGAL,
    "compile": Outcome.COMPILE_ERROR,
    "runtime": Outcome.LAUNCH_ERROR,
    "correctness": Outcome.WRONG_RESULT,
}
"""What the tools call an ending, in our words."""

_BUILDING = (Outcome.ILLEGAL, Outcome.COMPILE_ERROR, Outcome.COMPILE_TIMEOUT, Outcome.OUT_OF_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A config of a problem, as a tool tells of it."""

    config: Config
    status: str
    samples_ms: Sequence[Any]
    build_s: float = 0.0
    resources: tuple[int, int, int] | None = None
    error: str = ""


def load(path: Path) -> Landscape:
    """Reads a recorded space of any tool. Where the file does not tell them, kernel and arch of the device are empty.

    Raises:
        LandscapeError: missing, damaged, or of no format known here.
    """
    text = read_text(path, error=LandscapeError)
    # Python's json writes what is no number as such, for what failed; times are checked one by one.
    data = parse_json(text, where=str(path), error=LandscapeError, infinities=True, nan=True)
    is_map = isinstance(data, dict)
    if is_map and data.get("format") == landscapes.FORMAT:
        return landscapes.read(data, str(path))
    read = next((read for mark, read in _READERS.items() if is_map and mark in data), None)
    if read is None:
        raise LandscapeError(
            f"{NO_RECORDING}it has none of the members format, problems, cache and results",
            file=str(path), hint="give a landscape of `tunefarm record`, or a cache or T4 file of Kernel Tuner",
        )  # fmt: skip
    try:
        landscape = read(data)
        landscapes.check_problems(landscape)
        return landscape
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, UserError) as e:
        raise LandscapeError(
            f"{NO_RECORDING}{type(e).__name__}: {e}", file=str(path),
            hint="see the formats in tunefarm/landscape_reader.py",
        ) from None  # fmt: skip


@functools.lru_cache(maxsize=64)
def load_cached(path: str) -> Landscape:
    """`load`, once a process for each path."""
    return load(Path(path))


# ---- the formats ----


def _plain(data: Mapping[str, Any]) -> Landscape:
    said = data["device"]
    device = _named(said) if isinstance(said, str) else _described(said)
    told = [(each, [_plain_line(entry) for entry in each["configs"]]) for each in data["problems"]]
    # What a config costs to build is the most it took: the others found it in a cache.
    build_s: dict[Config, float] = {}
    for line in (line for _, lines in told for line in lines):
        build_s[line.config] = max(build_s.get(line.config, 0.0), line.build_s)
    dtypes = FrozenMap({"x_ptr": data["dtype"]} if data.get("dtype") else {})
    return Landscape(
        kernel=data["kernel"], source_hash="", device=device, timer=data.get("timer", UNKNOWN_TIMER),
        toolchain=FrozenMap(
            {name: said[name] for name in ("torch", "triton", "python") if name in said}
            if isinstance(said, dict)
            else {}
        ),
        problems=tuple(
            Recorded(
                problem=Problem(dims=_dims(each["problem"]), dtypes=dtypes), reference_ms=each.get("ref_ms"),
                num_bytes=each.get("bytes") or 0.0, flops=each.get("flops") or 0.0,
                entries=_entries(
                    (replace(line, build_s=build_s[line.config]) for line in lines), _dims(each["problem"])
                ),
            )
            for each, lines in told
        ),
    )  # fmt: skip


def _plain_line(entry: Mapping[str, Any]) -> _Line:
    resources = None
    if "n_regs" in entry:
        resources = entry["n_regs"], entry.get("n_spills", 0), entry.get("shared", 0)
    return _Line(
        config=_config(entry["config"]), status=entry["status"], samples_ms=entry.get("ms") or (),
        build_s=entry.get("compile_s") or 0.0, resources=resources, error=entry.get("error") or "",
    )  # fmt: skip


def _kernel_tuner(data: Mapping[str, Any]) -> Landscape:
    names = data["tune_params_keys"]
    lines = []
    for each in data["cache"].values():
        time, samples = each.get("time"), each.get("times") or ()
        failed = time if isinstance(time, str) else ""
        lines.append(
            _Line(
                config=_config({name: each[name] for name in names}), status=failed or Outcome.OK.value,
                samples_ms=samples or (() if failed else (time,)), build_s=(each.get("compile_time") or 0.0) / 1000,
            )
        )  # fmt: skip
    size = data.get("problem_size", [])
    dims = _dims({"problem_size": size if isinstance(size, list) else [size]})
    return Landscape(
        kernel=data["kernel_name"], source_hash="", device=_named(data["device_name"]), timer=UNKNOWN_TIMER,
        problems=(Recorded(problem=Problem(dims=dims), entries=_entries(lines, dims)),),
    )  # fmt: skip


def _t4(data: Mapping[str, Any]) -> Landscape:
    lines = []
    for each in data["results"]:
        times = each.get("times", {})
        is_right = each["invalidity"] == "correct"
        measured = {m["name"]: m["value"] for m in each.get("measurements", ())}
        samples = times.get("runtimes") or ([measured["time"]] if is_right else ())
        lines.append(
            _Line(
                config=_config(each["configuration"]), status=each["invalidity"], samples_ms=samples,
                build_s=(times.get("compilation") or 0.0) / 1000,
            )
        )  # fmt: skip
    recorded_once = Recorded(problem=Problem(), entries=_entries(lines, FrozenMap()))
    return Landscape(kernel="", source_hash="", device=_named(""), timer=UNKNOWN_TIMER, problems=(recorded_once,))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Landscape]] = {
    "problems": _plain, "cache": _kernel_tuner, "results": _t4,
}  # fmt: skip
"""By the member that tells the format."""

# ---- what they share ----


def _named(name: str) -> Device:
    return recorded(name) or Device(vendor="", arch="", name=name, num_sms=0, shared_bytes=0)


def _described(said: Mapping[str, Any]) -> Device:
    return Device(
        arch="sm_{}{}".format(*said["capability"]), name=said["name"], num_sms=said["sms"],
        shared_bytes=said["smem_per_block_optin"], l2_bytes=said.get("l2", 0),
    )  # fmt: skip


def _dims(problem: Mapping[str, Any]) -> FrozenMap[Any]:
    """The scalars of a problem, and the axes of its lists."""
    dims: dict[str, Any] = {name: value for name, value in problem.items() if isinstance(value, int | float | str)}
    for name, value in problem.items():
        if isinstance(value, list):
            axes = zip("xyz", value, strict=False)
            dims |= {f"{name.removeprefix('problem_')}_{axis}": size for axis, size in axes}
    return FrozenMap(dims)


def _config(flat: Mapping[str, Any]) -> Config:
    return Config(
        params=FrozenMap((name, value) for name, value in flat.items() if name not in LAUNCH_OPTIONS),
        options=FrozenMap((name, value) for name, value in flat.items() if name in LAUNCH_OPTIONS),
    )


def _entries(lines: Iterable[_Line], dims: Mapping[str, Any]) -> tuple[Entry, ...]:
    entries: dict[Config, Entry] = {}
    for line in lines:
        if line.config in entries:
            raise ValueError(f"{line.config} is recorded twice")
        entries[line.config] = _entry(line, dims)
    return tuple(entries.values())


def _entry(line: _Line, dims: Mapping[str, Any]) -> Entry:
    outcome = OUTCOMES.get(line.status)
    if outcome is None:
        raise ValueError(f"{line.config} ended as {line.status!r}, which is none of {', '.join(OUTCOMES)}")
    samples = tuple(line.samples_ms)
    if outcome is not Outcome.OK:
        stage = "build" if outcome in _BUILDING else "launch"
        failure = Failure(stage=stage, kind=line.status, message=line.error[:400] or "recorded without a reason")
        return Entry(
            config=line.config,
            outcome=outcome,
            failure=failure,
            build=None if outcome in _BUILDING else _build(line, dims),
        )
    check_durations(samples, str(line.config))
    if not samples:
        raise ValueError(f"{line.config} is ok and has no times")
    num_one_time = NUM_ONE_TIME if len(samples) > NUM_ONE_TIME else 0
    return Entry(
        config=line.config, outcome=outcome, build=_build(line, dims), warmup_ms=samples[:num_one_time],
        samples_ms=samples[num_one_time:],
    )  # fmt: skip


def _build(line: _Line, dims: Mapping[str, Any]) -> Build:
    """What is known of a build without its machine code: no hash, but what tells it from others.

    What differs in num_stages alone and takes the same registers and memory has one loop; where those are not known,
    every config is taken for a build of its own.
    """
    flat = line.config.flat
    alike = sorted((name, value) for name, value in flat.items() if name != "num_stages")
    registers, spills, shared_bytes = line.resources or (0, 0, 0)
    return Build(
        binary=f"{alike} {line.resources}" if line.resources else line.config.key, grid=_grid(flat, dims),
        registers=registers, spills=spills, shared_bytes=shared_bytes, build_s=line.build_s,
    )  # fmt: skip


def _grid(flat: Mapping[str, Any], dims: Mapping[str, Any]) -> tuple[int, int, int]:
    """Programs, by the usual names: one a tile of M x N, a group of rows, or a block; 1 where nobody says."""
    sides = {"BLOCK_M": "M", "BLOCK_N": "N"} if "BLOCK_M" in flat else {"ROWS": "M", "BLOCK": "n"}
    counts = [-(-dims[dim] // flat[side]) for side, dim in sides.items() if side in flat and dim in dims]
    return math.prod(counts), 1, 1
