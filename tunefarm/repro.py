"""Repro: one trial of a sweep as a standalone script, for a bug report or a closer look.

The script needs torch, Triton and the user's workload file. It makes the same inputs from the same seed, puts the
config where the sweep put it, and compiles, launches, compares and times; without a GPU it cross-compiles only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.bench.tensors import torch_dtype
from tunefarm.config import Config
from tunefarm.errors import UserError
from tunefarm.plan import PlannedStudy
from tunefarm.repro_script import SCRIPT
from tunefarm.spec.experiment import Resolved
from tunefarm.spec.inputs import ScalarSpec
from tunefarm.spec.workload import Workload

NUM_SHOWN = 10
"""Names that an error lists of what there is."""

MARK = "# Trial "
"""How a script begins, by its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a ledger says of one study.

    Attributes:
        label: of the study, for people.
        device: on which it was held, as files hold it.
        outcomes: by config, the latest that became of it.
        winner: the winner's config, or empty.
    """

    label: str
    device: Mapping[str, Any]
    outcomes: Mapping[str, str]
    winner: str = ""


def tell(events: Iterable[Mapping[str, Any]]) -> dict[str, Told]:
    """What a ledger says of its studies, by key."""
    studies: dict[str, Mapping[str, Any]] = {}
    outcomes: dict[str, dict[str, str]] = {}
    winners: dict[str, str] = {}
    for event in events:
        data, kind = event["data"], event["event"]
        key = data.get("study", "")
        if kind == "study":
            studies[key] = data
        elif kind == "failed":
            failure = data.get("failure") or {}
            words = ": ".join(str(failure[part]) for part in ("stage", "kind", "message") if failure.get(part))
            outcomes.setdefault(key, {})[data["config"]] = f"{data.get('outcome', 'failed')}: {words}"
        elif kind == "measured":
            samples = sorted(data["measurement"]["samples_ms"])
            median = samples[len(samples) // 2]
            outcomes.setdefault(key, {})[data["config"]] = f"ok: {median:.5f} ms, {data['measurement']['source']}"
        elif kind in ("pruned", "merged"):
            outcomes.setdefault(key, {})[data["config"]] = f"{kind}: {data['reason']}"
        elif kind == "built":
            outcomes.setdefault(key, {}).setdefault(data["config"], "built, not measured")
        elif kind == "winner":
            winners[key] = Config.from_json(data["winner"]["config"]).key
    return {
        key: Told(
            label=data["label"], device=data["device"], outcomes=outcomes.get(key, {}), winner=winners.get(key, "")
        )
        for key, data in studies.items()
    }


def choose_study(told: Mapping[str, Told], label: str, file: str) -> str:
    """The key of the study with a label; of the only one if the label is empty.

    Raises:
        UserError: there is none, or several.
    """
    if not told:
        raise UserError("tells of no study", file=file, hint="name the folder of a sweep, such as sweeps/softmax")
    found = [key for key, study in told.items() if not label or label in (study.label, key)]
    if len(found) == 1:
        return found[0]
    labels = ", ".join(repr(study.label) for study in list(told.values())[:NUM_SHOWN]) or "none"
    what = f"has no study {label!r}" if label and not found else f"has {len(found)} studies that may be meant"
    raise UserError(what, file=file, hint=f"name one with --study: {labels}")


def trials(study: PlannedStudy) -> list[Config]:
    """The configs of a study by the numbers that its search gives them."""
    return sorted(study.candidates, key=lambda config: config.key)


def choose_trial(study: PlannedStudy, told: Told, name: str, file: str) -> int:
    """The number of a trial that is named by its number, by its config's text, or as `winner`.

    Raises:
        UserError: there is no such trial.
    """
    configs = trials(study)
    if name == "winner":
        if told.winner in (keys := [config.key for config in configs]):
            return keys.index(told.winner)
        raise UserError(f"{told.label} has no winner", file=file, hint=f"name a trial: 0 to {len(configs) - 1}")
    if name.isdecimal() and int(name) < len(configs):
        return int(name)
    wanted = set(name.replace(",", " ").split())
    found = [number for number, config in enumerate(configs) if wanted == set(config.key.split())]
    if found:
        return found[0]
    some = "; ".join(f"{number}: {config.key}" for number, config in enumerate(configs[:NUM_SHOWN]))
    more = f" and {len(configs) - NUM_SHOWN} more" if len(configs) > NUM_SHOWN else ""
    raise UserError(f"{told.label} has no trial {name!r}", file=file, hint=f"there are: {some}{more}; and `winner`")


def script(resolved: Resolved, study: PlannedStudy, number: int, header: Iterable[str]) -> str:
    """The script that reproduces a trial.

    Args:
        resolved: the experiment.
        study: of which study.
        number: of the trial.
        header: comment lines: from which sweep it is, and what became of it there.
    """
    workload, spec, ref = resolved.workload, resolved.experiment, study.ref
    parts = {"workload": ref.object} if ref.object else {
        word: getattr(ref, word) for word in ("call", "kernel", "reference") if getattr(ref, word)
    }  # fmt: skip
    config = trials(study)[number]
    tolerance = [
        next((value for value in values if value is not None), None)
        for values in ((spec.accept.atol, workload.atol), (spec.accept.rtol, workload.rtol))
    ]
    facts = {
        "PARTS": {word: _place(str(object_), ref.folder) for word, object_ in parts.items()},
        "FOLDER": str(Path(ref.folder).resolve()),
        "PARAMS": dict(config.params), "OPTIONS": dict(config.options), "VARIABLES": dict(study.study.variables),
        "SEED": spec.search.seed, "ARCH": study.study.device.target, "ZERO": workload.zero,
        "RESTORE": workload.restore, "ATOL": tolerance[0], "RTOL": tolerance[1],
        "INPUTS": None if callable(workload.inputs) else _inputs(workload, study),
    }  # fmt: skip
    lines = [f"# {line}" for line in header] + [""]
    body = SCRIPT.replace("FACTS\n", "".join(f"{name} = {value!r}\n" for name, value in facts.items()), 1)
    return "\n".join(lines) + body


def _place(reference: str, folder: str) -> tuple[str, str]:
    source, _, name = reference.rpartition(":")
    is_file = source.endswith(".py") or "/" in source
    return (str(Path(folder, source).resolve()) if is_file else source), name


def _inputs(workload: Workload, study: PlannedStudy) -> dict[str, Any]:
    made: dict[str, Any] = {}
    assert not callable(workload.inputs)
    for name, spec in workload.inputs.items():
        variables = study.study.variables
        if isinstance(spec, ScalarSpec):
            made[name] = spec.scalar(variables)
            continue
        more = {f: getattr(spec, f) for f in ("init", "low", "high", "special")}
        made[name] = {
            "shape": spec.sizes(variables), "dtype": str(torch_dtype(spec.dtype_for(variables))).removeprefix("torch."),
            "layout": spec.layout(variables), **more
        }  # fmt: skip
    return made
