"""Ledgers written by hand, as a driver writes them: for what no quick sweep shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefarm.device import Device
from tunefarm.record.ledger import open_ledger
from tunefarm.study import StudyResult
from tunefarm.trial import FINAL, Build, Failure, Measurement, Outcome, Winner, to_json

Event = tuple[str, Mapping[str, Any]]

GPU = Device(arch="sm_90", name="Test GPU", num_sms=132, shared_bytes=232448, bandwidth_gbps=4000.0)


def book(path: Path, *events: Event, conditions: str = "c", experiment: str = "fill") -> Path:
    """A ledger of these events, after those that are there; one driver more."""
    ledger = open_ledger(path, {"experiment": experiment, "conditions": conditions, "digest": "d"})
    ledger.extend(events)
    ledger.close()
    return path


def study(key: str = "fill gpu n=1", **more: Any) -> Event:
    said = {
        "study": key, "label": f"label of {key}", "candidates": 4, "points": 8, "removed": {"A < B": 4},
        "meter": "gpu", "eager": True, "incumbent": None, "kernel": "fill_kernel", "device": GPU.to_json(),
        "problem": {"dims": {"n": 1000}, "dtypes": {"y": "fp32"}, "facts": {}}, "num_bytes": 4e6, "flops": 0.0,
    }  # fmt: skip
    return "study", {**said, **more}


def timed(
    config: str,
    *samples_ms: float,
    key: str = "fill gpu n=1",
    rung: int = 0,
    source: str = "measured",
    **telemetry: Any,
) -> Event:
    measurement = _measurement(samples_ms, rung, source, telemetry)
    return "measured", {"study": key, "config": config, "rung": rung, "measurement": measurement}


def failed(
    config: str, message: str, *, key: str = "fill gpu n=1", kind: str = "PTXASError", rung: int = -1, detail: str = ""
) -> Event:
    failure = to_json(Failure(stage="build", kind=kind, message=message, detail=detail))
    told = {"outcome": Outcome.COMPILE_ERROR.value, "failure": failure}
    return "failed", {"study": key, "config": config, "rung": rung, **told}


def built(config: str, *, key: str = "fill gpu n=1", registers: int = 32, build_s: float = 0.5) -> Event:
    build = Build(binary="ab" * 32, registers=registers, spills=0, shared_bytes=1024, build_s=build_s)
    return "built", {"study": key, "config": config, "build": to_json(build)}


def decided(event: str, key: str = "fill gpu n=1", **data: Any) -> Event:
    return event, {"study": key, "reason": "so it was", **data}


def finals(
    times_ms: Mapping[str, Sequence[float]], key: str = "fill gpu n=1", source: str = "measured", event: str = "finals"
) -> Event:
    measurements = [{"measurement": _measurement(samples, FINAL, source, {})} for samples in times_ms.values()]
    memory = {"toolchain": {"torch": "9.9", "triton": "8.8"}, "reference_ms": 0.5, "notices": []}
    return event, {"study": key, "configs": list(times_ms), "measurements": measurements, **memory}


def won(winner: Winner, key: str = "fill gpu n=1", num_left: int = 0) -> Event:
    left = {"num": num_left, "expected_gain": 0.001, "plausible_gain": 0.02, "limit": ""}
    return "winner", {"study": key, "winner": to_json(winner), "left": left}


def of_result(result: StudyResult) -> list[Event]:
    """What a driver writes of a study that ended so, each candidate timed once."""
    key, device = result.study.key, result.study.device.to_json()
    timed_once = [(t.config.key, t.measurements[-1].samples_ms) for t in result.trials if t.measurements]
    opened = study(key, label=result.study.label, candidates=len(result.trials), points=len(result.trials), removed={},
                   device=device, problem=result.study.problem.to_json(), num_bytes=result.num_bytes)  # fmt: skip
    assert result.winner is not None
    sat = dict(timed_once[-2:])
    times = [timed(config, *samples_ms, key=key, source=result.source) for config, samples_ms in timed_once]
    return [opened, *times, finals(sat, key, result.source), won(result.winner, key)]


def _measurement(samples_ms: Sequence[float], rung: int, source: str, telemetry: Mapping[str, Any]) -> Any:
    busy_s = sum(samples_ms) / 1e3
    taken = Measurement(samples_ms=tuple(samples_ms), timer="cold", rung=rung, source=source, busy_s=busy_s)
    return {**to_json(taken), "telemetry": dict(telemetry)}
