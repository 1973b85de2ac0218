"""The card of a study: what its MLflow run shows to people. Pure data; nothing here knows MLflow.

Times are in microseconds here and nowhere else in tunefarm: this is where people read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.config import Config, counted
from tunefarm.document import canonical, digest
from tunefarm.record.clocks import clocks
from tunefarm.record.finalists import Finalist, finalists, finite, numbers, origins, rates, six_digits
from tunefarm.study import Status, Study, StudyResult
from tunefarm.trial import FAILURES, Outcome, Trial, describe

COSTS = ("build_s", "gpu_busy_s", "gpu_held_s")
"""Metrics that say what a study has cost, in seconds."""

SPENT = "spent_gpu_s"
"""Metric by step: GPU seconds of launching and timing until the best time was what it is at that step."""

MAX_TEXT = 5000
"""Characters of a tag or parameter: what every MLflow store since 2.0 takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One study as a run.

    Attributes:
        study: what is told of.
        winner: its winner's config, or None.
        name: run name that people can search for, such as `softmax sm_90 8192x4096 bf16`.
        status: MLflow's word for the end, `FINISHED` or `FAILED`.
        params: the problem's variables (`problem.n_cols`) and the winner's config, as numbers where it has numbers.
        metrics: finite numbers only.
        curve: metric by name, its value after the first, second, ... measured candidate.
        tags: what a run can be filtered by; `mlflow.note.content` is its description.
        table: every candidate, as the JSON text of a table that MLflow's UI can show and sort.
        finalists: the best candidates as runs of their own.
    """

    study: Study
    winner: Config | None = None
    name: str
    status: str
    params: dict[str, str]
    metrics: dict[str, float]
    curve: dict[str, tuple[float, ...]]
    tags: dict[str, str]
    table: str
    finalists: tuple[Finalist, ...] = ()

    @property
    def key(self) -> str:
        """The study's."""
        return self.study.key

    @property
    def digest(self) -> str:
        """Equal for cards that tell the same, whatever it cost: a sweep that goes on pays less for what it knows."""
        told = {name: value for name, value in self.metrics.items() if name not in COSTS}
        curve = {name: values for name, values in self.curve.items() if name != SPENT}
        few = [[finalist.name, finalist.metrics, finalist.tags] for finalist in self.finalists]
        return digest([self.key, self.name, self.status, self.params, told, curve, self.tags, self.table, few])


def card(result: StudyResult, best_ms: Sequence[float] = (), spent_s: Sequence[float] = ()) -> Card:
    """The card of a study that has ended.

    Args:
        result: how it ended.
        best_ms: best median known after the first, second, ... measured candidate.
        spent_s: GPU seconds spent until then.
    """
    won = result.winner is not None and result.status is Status.WINNER
    params = {f"problem.{name}": str(value) for name, value in result.study.variables.items()}
    curve: dict[str, tuple[float, ...]] = {}
    if result.winner is not None and won:
        params |= numbers(result.winner.config)
        curve["best_time_us"] = tuple(six_digits(ms * 1e3) for ms in best_ms if math.isfinite(ms))
        if result.source == "measured":  # A replay spends nothing.
            curve[SPENT] = tuple(six_digits(seconds) for seconds in spent_s if math.isfinite(seconds))
    return Card(
        study=result.study,
        winner=result.winner.config if result.winner is not None and won else None,
        # The experiment bears the workload's name; MLflow cuts names after a few letters, so they start with news.
        name=result.study.label.removeprefix(f"{result.study.workload} "),
        status="FAILED" if result.status is Status.NO_WINNER else "FINISHED",
        params={name: value[:MAX_TEXT] for name, value in params.items()},
        metrics=finite(_metrics(result)),
        curve=curve,
        tags={name: value[:MAX_TEXT] for name, value in _tags(result).items()},
        table=_table(result),
        finalists=finalists(result),
    )


def _metrics(result: StudyResult) -> dict[str, float | None]:
    """Metrics, the most telling first: MLflow shows them, and compares by them, in this order."""
    metrics: dict[str, float | None] = {}
    winner = result.winner
    if winner is not None and result.status is Status.WINNER:
        metrics = {
            "time_us": winner.median_ms * 1e3,
            "gain": winner.gain,
            **rates(result, winner.median_ms),
            "default_time_us": _us(winner.default_ms),
            "reference_time_us": _us(result.reference_ms),
            "margin": winner.margin,
        }
    metrics |= {
        "candidates": result.num_candidates,
        "buckets": result.num_buckets,
        "measured": result.num_measured,
        "failed": sum(count for outcome, count in result.outcomes.items() if outcome in FAILURES),
        "build_s": result.build_s,
    }
    if result.left is not None:
        metrics["left"] = result.left.num
    if result.left is not None and result.left.num:
        metrics |= {
            "left_expected_gain": result.left.expected_gain,
            "left_plausible_gain": result.left.plausible_gain,
        }
    if result.source == "measured" or (not result.source and result.held_s > 0):  # A replay holds no GPU.
        metrics |= {"gpu_busy_s": result.busy_s, "gpu_held_s": result.held_s}
    return metrics


def _us(ms: float | None) -> float | None:
    return None if ms is None else ms * 1e3


def _tags(result: StudyResult) -> dict[str, str]:
    study = result.study
    tags = {
        "tunefarm.kind": "study",
        "tunefarm.status": result.status.value,
        "tunefarm.problem": study.label.removeprefix(f"{study.workload} {study.place} "),
        "mlflow.note.content": describe_study(result),
    }
    if result.source:
        tags["tunefarm.clocks"] = clocks(m for trial in result.trials for m in trial.measurements)
    if result.winner is not None:
        tags |= {"tunefarm.winner": str(result.winner.config), "tunefarm.reason": result.winner.reason}
    return tags | origins(result)


def describe_study(result: StudyResult) -> str:
    """A study in one sentence, for people who have never seen the sweep."""
    study, winner = result.study, result.winner
    candidates = counted(result.num_candidates, "candidate")
    if winner is None or result.status is not Status.WINNER:
        ending = {
            Status.NOT_MEASURED: f"of {candidates} none was timed",
            Status.SKIPPED: "there was nothing to tune",
        }.get(result.status, f"none of {candidates} can be used, so nothing is exported")
        sentence = f"{study.label}: {ending}" + (f": {result.reason}" if result.reason else "")
    else:
        speeds = result.rate(winner.median_ms)
        parts = [f"{winner.config} takes {winner.median_ms * 1e3:.4g} us"]
        if winner.gain is not None and winner.default_ms is not None:
            parts.append(f"{winner.gain:.3g} times as fast as the default ({winner.default_ms * 1e3:.4g} us)")
        elif failure := result.default_failure:
            parts.append(f"not compared with the default {winner.default}, which fails ({describe(failure)})")
        parts += [f"{speeds['tbps']:.3g} TB/s"] if "tbps" in speeds else []
        parts += [f"{speeds['tflops']:.4g} TFLOP/s"] if "tflops" in speeds else []
        effort = f"{result.num_measured} of {candidates} measured"
        sentence = f"{study.label}: {', '.join(parts)}; {effort}; {winner.reason}"
    sources = {
        "replayed": f" Times are replayed from a landscape recorded on {study.device.name}"
        + (f" ({result.recording})." if result.recording else "."),
        "measured": f" Times were measured on {study.device.name}.",
    }
    return sentence.rstrip(".") + "." + sources.get(result.source, "")


def _table(result: StudyResult) -> str:
    names = list(dict.fromkeys(name for trial in result.trials for name in trial.config.flat))
    rows = [_row(trial, names) for trial in result.trials]
    columns = ["number", "outcome", "bucket", *names, *_COLUMNS]
    return canonical({"columns": columns, "data": rows})


_COLUMNS = ("median_us", "rung", "samples", "registers", "spills", "shared_bytes", "binary", "merged_into", "failure")


def _row(trial: Trial, names: list[str]) -> list[Any]:
    flat, build = trial.config.flat, trial.build
    tried = bool(trial.measurements) or trial.outcome is not Outcome.OK
    return [
        trial.number,
        trial.outcome.value if tried else "not tried",
        trial.bucket,
        *(flat.get(name) for name in names),
        None if trial.median_ms is None else round(trial.median_ms * 1e3, 3),
        None if trial.rung < 0 else trial.rung,
        sum(len(m.samples_ms) for m in trial.measurements),
        *((None,) * 4 if build is None else (build.registers, build.spills, build.shared_bytes, build.binary[:12])),
        trial.merged_into,
        None if trial.failure is None else describe(trial.failure),
    ]
