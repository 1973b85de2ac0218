"""The finalists of a study as runs of their own: so few that parallel coordinates, scatter and contour read well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunefarm.config import Config, Value
from tunefarm.peaks import peak_tflops
from tunefarm.record.clocks import clocks
from tunefarm.study import StudyResult
from tunefarm.trial import FAILURES, FINAL, Trial, Winner

MAX_FINALISTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A candidate as a run.

    Attributes:
        name: its place and what of its config is not that of all: `1 BLOCK_N=128 num_warps=4`. MLflow cuts names.
        params: its config as numbers where it has numbers: a truth is 1 or 0, and what is not set is left out.
        metrics: finite numbers only.
        tags: what it can be found by.
    """

    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


def finalists(result: StudyResult) -> tuple[Finalist, ...]:
    """Who sat in the finals, winner and default among them, and then the next best, up to `MAX_FINALISTS` in all."""
    winner = result.winner
    first = [] if winner is None else [winner.config, *([] if winner.default is None else [winner.default])]
    timed = [trial for trial in result.trials if trial.measurements and trial.outcome not in FAILURES]
    ranked = sorted(timed, key=lambda trial: (trial.config not in first, *_rank(trial)))[:MAX_FINALISTS]
    ranked.sort(key=_rank)
    names = _telling([trial.config for trial in ranked])
    return tuple(_finalist(result, trial, place, names) for place, trial in enumerate(ranked, 1))


def _telling(configs: Sequence[Config]) -> list[str]:
    """Params by which configs differ; all of them where that tells nothing."""
    flat = [config.flat for config in configs]
    names = list(dict.fromkeys(name for values in flat for name in values))
    return [name for name in names if len({repr(values.get(name)) for values in flat}) > 1] or names


def _rank(trial: Trial) -> tuple[int, float, int]:
    return -trial.rung, trial.median_ms or math.inf, trial.number


def _said(config: Config, names: Sequence[str]) -> str:
    return " ".join(f"{name}={config.flat[name]}" for name in names if name in config.flat)


def _finalist(result: StudyResult, trial: Trial, place: int, names: Sequence[str]) -> Finalist:
    winner, build, ms = result.winner, trial.build, trial.median_ms
    assert ms is not None, "only who was timed can be a finalist"
    in_finals = trial.rung == FINAL
    default_ms = winner.default_ms if winner is not None and in_finals else None
    metrics: dict[str, float | None] = {
        "time_us": ms * 1e3,
        # Times of two sittings make no gain.
        "gain": default_ms / ms if default_ms is not None and ms > 0 else None,
        **rates(result, ms),
        "place": place,
        "samples": len(trial.measurements[-1].samples_ms),
    }
    if build is not None:
        metrics |= {"registers": build.registers, "spills": build.spills, "shared_bytes": build.shared_bytes}
    return Finalist(
        name=f"{place} {_said(trial.config, names)}",
        params=numbers(trial.config),
        metrics=finite(metrics),
        tags={
            "tunefarm.kind": "finalist",
            "tunefarm.role": _role(trial.config, winner),
            "tunefarm.rung": "finals" if in_finals else str(trial.rung),
            "tunefarm.config": str(trial.config),
            "tunefarm.clocks": clocks(trial.measurements[-1:]),
            **origins(result),
        },
    )


def origins(result: StudyResult) -> dict[str, str]:
    """Where times come from, as tags of a study and of its finalists."""
    tags = {"tunefarm.capability": result.study.device.arch, "tunefarm.device": result.study.device.name}
    if result.source:
        tags |= {"tunefarm.source": result.source, "tunefarm.timer": result.timer}
    if result.recording:
        tags["tunefarm.landscape"] = result.recording
    return tags | {f"tunefarm.toolchain.{name}": str(version) for name, version in result.toolchain.items()}


def _role(config: Config, winner: Winner | None) -> str:
    if winner is None:
        return "candidate"
    names = [n for n, is_it in (("winner", config == winner.config), ("default", config == winner.default)) if is_it]
    return " and ".join(names) or "candidate"


def rates(result: StudyResult, ms: float) -> dict[str, float]:
    """Bandwidth in TB/s, arithmetic rate in TFLOP/s, and their shares of the device's peaks, where they are known."""
    rate, study = result.rate(ms), result.study
    found = {"bandwidth_tbps": rate["tbps"]} if "tbps" in rate else {}
    if found and (peak_gbps := study.device.bandwidth_gbps) > 0:
        found["bandwidth_share"] = rate["tbps"] * 1e3 / peak_gbps
    if "tflops" in rate:
        found["tflops"] = rate["tflops"]
        if (peak := peak_tflops(study.device, study.problem.dtypes.values())) is not None:
            found["tflops_share"] = rate["tflops"] / peak
    return found


def numbers(config: Config) -> dict[str, str]:
    """A config's values as MLflow's charts can put them on an axis."""
    return {name: _number(value) for name, value in config.flat.items() if value is not None}


def _number(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def six_digits(value: float) -> float:
    """As many as a person reads, and more than any timer gives."""
    return float(f"{value:.6g}")


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """What is a number, in six digits."""
    return {name: six_digits(v) for name, v in metrics.items() if v is not None and math.isfinite(v)}
