"""The torture: a sweep whose space holds one of each fault ends as if only the good configs were there."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import events, play

from tunefarm.fleet.inline import InlineFleet
from tunefarm.study import Status

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("triton", reason="needs Triton")

HERE = Path(__file__).parent
NUM_GOOD = 6
FAULTS = {
    "illegal": ("illegal_access", "launch", "illegal memory access"),
    "loop": ("timeout", "launch", "no answer within"),
    "wrong": ("wrong_result", "verify", "max abs 0.5"),
    "nan": ("wrong_result", "verify", "NaN or never written"),
    "compile": ("compile_error", "build", "has no attribute 'expp'"),
    "shared": ("out_of_resources", "build", "shared memory: required 262144 bytes"),
    "oom": ("device_oom", "launch", "Tried to allocate"),
    "raise": ("user_error", "launch", "the call does not like this config"),
    "exit": ("user_error", "launch", "the call has had enough"),
    "abort": ("crashed", "launch", "torture.py"),
    "grid": ("out_of_resources", "build", "grid y: 65536 programs, limit 65535"),
}
STICKY = ("illegal", "loop", "abort")


def written(folder: Path, arch: str = "sm_90", *, only_good: bool = False) -> Path:
    """The experiment in a folder of its own."""
    folder.mkdir()
    (folder / "torture.py").write_text((HERE / "torture.py").read_text())
    lines = (HERE / "torture.yaml").read_text().replace("sm_90", arch).splitlines()
    if only_good:
        lines = ["  FAULT: [none]" if line.startswith("  FAULT:") else line for line in lines]
    (folder / "torture.yaml").write_text("\n".join(lines))
    return folder / "torture.yaml"


def test_without_a_gpu_the_builds_are_tortured(tmp_path: Path, store: Path) -> None:
    """TF-001, TF-043: what a CPU can find out; the rest is compiled and waits for a GPU."""
    own = InlineFleet([], num_builders=1)
    try:
        (result,) = play(written(tmp_path / "all"), own, store).results
    finally:
        own.close()
    assert result.status is Status.NOT_MEASURED
    failed = {trial.config.params["FAULT"]: trial for trial in result.trials if trial.failure is not None}
    assert failed.keys() == {"compile", "shared", "grid"}
    for fault, trial in failed.items():
        outcome, stage, words = FAULTS[fault]
        assert (trial.outcome, trial.failure.stage) == (outcome, stage)
        assert words in trial.failure.message
    assert len(result.trials) == NUM_GOOD + len(FAULTS)
    assert not any(trial.merged_into is not None for trial in result.trials), "a fault would not be met"


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep by command: what it printed, what its ledger says, and how long it took."""

    code: int
    study: dict[str, Any]
    ledger: Path
    seconds: float

    @property
    def medians_ms(self) -> dict[str, float]:
        """By good config, of its last rung before the finals."""
        return {e["config"]: statistics.median(e["measurement"]["samples_ms"]) for e in events(self.ledger, "measured")}

    @property
    def processes(self) -> set[str]:
        return {e["measurement"]["worker"] for e in events(self.ledger, "measured")}


def sweep(experiment: Path, store: Path) -> Swept:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    began = time.monotonic()
    done = farm.tunefarm(
        "sweep", "torture.yaml", "--fleet=inline", "--json", "--tracking=none", folder=experiment.parent, store=store,
        CUDA_VISIBLE_DEVICES=visible,
    )  # fmt: skip
    assert done.stdout, done.stderr
    (study,) = json.loads(done.stdout)["studies"]
    ledger = experiment.parent / "sweeps" / "torture" / "ledger.jsonl"
    return Swept(code=done.returncode, study=study, ledger=ledger, seconds=time.monotonic() - began)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_torture_on_a_gpu(tmp_path: Path, store: Path) -> None:
    """TF-003, TF-013, TF-043: every fault has its outcome, every good config its time, and the sweep its winner."""
    major, minor = torch.cuda.get_device_capability(0)
    arch = f"sm_{major}{minor}"
    calm = sweep(written(tmp_path / "good", arch, only_good=True), store)
    tortured = sweep(written(tmp_path / "all", arch), store)
    assert (calm.code, tortured.code) == (0, 0)
    assert tortured.study["status"] == "winner"

    failed = {e["config"].split("FAULT=")[1].split()[0]: e for e in events(tortured.ledger, "failed")}
    assert failed.keys() == FAULTS.keys()
    for fault, (outcome, stage, words) in FAULTS.items():
        event = failed[fault]
        assert (event["outcome"], event["failure"]["stage"]) == (outcome, stage), event
        assert event["failure"]["kind"]
        assert words in event["failure"]["message"], event

    assert calm.medians_ms.keys() == tortured.medians_ms.keys()
    assert len(calm.medians_ms) == NUM_GOOD
    for config, median_ms in calm.medians_ms.items():
        assert tortured.medians_ms[config] == pytest.approx(median_ms, rel=0.15), config
    # Finals sit in a process of their own.
    assert len(tortured.processes) <= len(calm.processes) + len(STICKY)
    assert tortured.seconds < 90
