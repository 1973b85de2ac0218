"""Numbers in a landscape that nothing was ever measured to be; what else is said of landscapes stands in test_words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from farm import write_experiment, write_landscape

from tunefarm import landscape
from tunefarm.cli.opening import open_experiment
from tunefarm.document import compress
from tunefarm.errors import LandscapeError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Recorded
from tunefarm.plan import choose_targets, plan
from tunefarm.problem import Problem

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write_landscape(write_experiment(tmp_path))


def edited(path: Path, value: str, *, of: str, entry: int | None = None) -> str:
    """What is said of a recording in which a number is replaced by other text."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    problem: dict[str, Any] = data["problems"][0]
    if entry is None:
        problem[of] = "HERE"
    else:
        problem["entries"][entry][of] = [0.04, "HERE"]
    path.write_bytes(compress(json.dumps(data).replace('"HERE"', value).encode()))
    with pytest.raises(LandscapeError) as caught:
        landscape.load(path)
    return str(caught.value)


@pytest.mark.parametrize("name", ["samples_ms", "warmup_ms"])
@pytest.mark.parametrize("time_ms", ["0", "0.0", "-0.04", "1e999", '"0.04"', "true"])
def test_a_time_that_no_launch_has_is_refused_with_its_config(recording: Path, name: str, time_ms: str) -> None:
    """One of 0 ms would win every study, and has no logarithm."""
    third = landscape.load(recording).problems[0].entries[2].config
    said = edited(recording, time_ms, of=name, entry=2)
    assert said.startswith(f"{recording}: is malformed: ")
    assert f"Error: a time of {third} for 1000 fp32 is " in said
    assert said.endswith("(record it again with `tunefarm record`)")


def test_nan_is_no_number_of_a_landscape(recording: Path) -> None:
    assert edited(recording, "NaN", of="samples_ms", entry=0) == (
        f"{recording}: is not valid JSON: NaN is not a JSON number"
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("reference_ms", "0", "ValueError: a time of the reference of 1000 fp32 is 0 ms"),
        ("bytes", "-1", "ValueError: bytes of 1000 fp32 is -1"),
        ("flops", "1e999", "ValueError: flops of 1000 fp32 is inf"),
        ("flops", '"1e9"', "TypeError: "),
    ],
)
def test_costs_that_no_call_has_are_refused(recording: Path, name: str, value: str, says: str) -> None:
    assert edited(recording, value, of=name).startswith(f"{recording}: is malformed: {says}")


def test_a_problem_is_recorded_once(recording: Path) -> None:
    """Of two recordings nobody could say which is right."""
    data = json.loads(gzip.decompress(recording.read_bytes()))
    data["problems"].append(data["problems"][0])
    recording.write_bytes(compress(json.dumps(data).encode()))
    with pytest.raises(
        LandscapeError, match=r"is malformed: ValueError: 1000 fp32 is recorded twice \(record it again"
    ):
        landscape.load(recording)


@pytest.mark.parametrize(
    ("variables", "num_bytes", "says"),
    [({"n": 64, "rows": 3}, 0.0, ""),
     ({"n": 64, "rows": 4}, 0.0, "with rows=3, not 4"),
     ({"n": 64, "columns": 4}, 1000.0, ""),  # of names that only one has nothing follows
     ({"n": 64}, 8000.0, "with 1,000 bytes a call, not 8,000")],
)  # fmt: skip
def test_a_recording_is_of_calls_of_one_size(variables: dict[str, Any], num_bytes: float, says: str) -> None:
    recorded = Recorded(problem=Problem(), entries=(), num_bytes=1000.0, variables=FrozenMap({"n": 64, "rows": 3}))
    assert recorded.differs(variables, num_bytes, 0.0) == says


def test_a_size_that_the_kernel_s_key_leaves_out_is_not_replayed_for_another(tmp_path: Path) -> None:
    """Eight times the rows would otherwise take the same time: more than the device's bandwidth."""
    text = (EXPERIMENTS / "swiglu.yaml").read_text()
    text = text.replace("n_rows: 4096, n_cols: 28672", "n_rows: 32768, n_cols: 28672")
    for folder in ("kernels", "landscapes"):
        text = text.replace(f": {folder}/", f": {EXPERIMENTS / folder}/")
    resolved = open_experiment(tmp_path / "swiglu.yaml", text)
    says = r"as it was recorded with 704,\d+,\d+ bytes a call, not 5,\d+,\d+,\d+ \(the"
    with pytest.raises(LandscapeError, match=says):
        plan(resolved, choose_targets(resolved.experiment, []))
