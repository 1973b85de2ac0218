"""Numbers in a landscape that nothing was ever measured to be; what else is said of landscapes stands in test_words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from farm import write_experiment, write_landscape

from tunefarm import landscape
from tunefarm.document import compress
from tunefarm.errors import LandscapeError


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
