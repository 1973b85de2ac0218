"""The values everything is said in: configs, problems, devices, trials, studies, documents, landscapes."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import pickle
import random
import stat
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from tunefarm import landscape
from tunefarm.config import Config
from tunefarm.device import NOMINAL, Device, nominal
from tunefarm.document import canonical, compress, digest, one_row_a_line, parse_json, read_text, write_atomic
from tunefarm.errors import DocumentError, LandscapeError, SpecError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.problem import Problem
from tunefarm.study import Status, Study, StudyResult
from tunefarm.trial import (
    Build,
    Failure,
    Measurement,
    Outcome,
    Trial,
    build_from_json,
    describe,
    failure_from_json,
    measurement_from_json,
    median_interval,
    to_json,
)

CONFIG = Config(params={"BLOCK": 64, "EVEN": True, "ALPHA": 0.5}, options={"num_warps": 4, "maxnreg": None})  # type: ignore[arg-type]
PROBLEM = Problem(
    dims=FrozenMap(n_rows=8192, n_cols=4096), dtypes=FrozenMap(y="bf16", x="bf16"), facts=FrozenMap(x="div16")
)
BUILD = Build(
    binary="ab" * 32, registers=32, spills=0, shared_bytes=1024, grid=(8, 2, 1), launch=FrozenMap(num_warps=4)
)
FAILURE = Failure(stage="build", kind="OutOfResources", message="shared memory", detail="needs 300000 bytes")


# --- frozen maps


def test_maps_of_equal_pairs_are_equal_and_hash_alike() -> None:
    one, other = FrozenMap(a=1, b=2), FrozenMap([("b", 2), ("a", 1)])
    assert one == other
    assert hash(one) == hash(other)
    assert list(other) == ["b", "a"], "tables print columns as the user wrote them"
    assert one != FrozenMap(a=1)
    assert pickle.loads(pickle.dumps(one)) == one
    assert not hasattr(one, "__setitem__")


# --- configs


def test_equal_configs_have_one_key_whatever_the_order() -> None:
    turned = Config(params=dict(reversed([*CONFIG.params.items()])), options=dict(reversed([*CONFIG.options.items()])))  # type: ignore[arg-type]
    assert turned == CONFIG
    assert turned.key == CONFIG.key == "ALPHA=0.5 BLOCK=64 EVEN=True maxnreg=None num_warps=4"
    assert hash(turned) == hash(CONFIG)


def test_a_config_comes_back_from_json_with_its_types() -> None:
    back = Config.from_json(json.loads(json.dumps(CONFIG.to_json())))
    assert back == CONFIG
    assert [type(v) for v in back.flat.values()] == [type(v) for v in CONFIG.flat.values()]


@pytest.mark.parametrize(
    ("params", "options", "said"),
    [
        ({"num_warps": 1}, {"num_warps": 4}, "num_warps both as a parameter and as a launch option"),
        ({"B": [1]}, {}, r"B=\[1\] is not a number"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(params: Any, options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Config(params=params, options=options)


def test_values_cannot_be_changed() -> None:
    for value, name in ((CONFIG, "params"), (PROBLEM, "dims"), (BUILD, "registers"), (nominal("sm_90"), "arch")):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(value, name, None)
        assert not hasattr(value, "__dict__")


# --- problems, devices


def test_a_problem_has_one_key_and_comes_back_from_json() -> None:
    turned = replace(PROBLEM, dims=FrozenMap(n_cols=4096, n_rows=8192))
    assert turned.key == PROBLEM.key == "dims n_cols=4096 n_rows=8192; dtypes x=bf16 y=bf16; facts x=div16"
    assert PROBLEM.label == "8192x4096 bf16"
    assert Problem.from_json(json.loads(json.dumps(PROBLEM.to_json()))) == PROBLEM
    assert replace(PROBLEM, facts=FrozenMap()).key != PROBLEM.key, "what the compiler specialises on is part of it"


def test_a_slice_of_a_gpu_is_another_device_than_the_gpu() -> None:
    whole = nominal("sm_90")
    part = replace(whole, mig="1g.10gb")
    assert part.key == whole.key + "/1g.10gb"
    assert replace(whole, live=True, memory_bytes=1).key == whole.key


@pytest.mark.parametrize(
    ("arch", "capability", "target"),
    [
        ("sm_80", (8, 0), 80),
        ("sm_90", (9, 0), 90),
        ("sm_90a", (9, 0), 90),
        ("sm_120", (12, 0), 120),
        ("gfx942", (0, 0), 0),
    ],
)
def test_an_arch_is_read(arch: str, capability: tuple[int, int], target: int) -> None:
    device = replace(nominal("sm_90"), arch=arch)
    assert (device.capability, device.target) == (capability, target)


def test_a_device_comes_back_from_json_and_ignores_newer_fields() -> None:
    for device in NOMINAL.values():
        assert Device.from_json(json.loads(json.dumps(device.to_json())) | {"colour": "green"}) == device


def test_an_unknown_arch_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"unknown device arch 'sm_12'.*sm_80, sm_90"):
        nominal("sm_12")


# --- trials


def measurement(*samples_ms: float, rung: int = 0) -> Measurement:
    return Measurement(
        samples_ms=samples_ms, timer="cold", rung=rung, source="measured", telemetry=FrozenMap(sm_mhz=1980)
    )


def test_builds_measurements_and_failures_come_back_from_json() -> None:
    for value, read in (
        (BUILD, build_from_json),
        (measurement(1.0, 2.0), measurement_from_json),
        (FAILURE, failure_from_json),
    ):
        assert read(json.loads(canonical(to_json(value)))) == value
    assert failure_from_json(None) is None
    assert describe(FAILURE) == "build: OutOfResources: shared memory"


def test_a_later_rung_replaces_an_earlier_one_as_the_label() -> None:
    trial = Trial(number=3, config=CONFIG)
    assert (trial.median_ms, trial.rung) == (None, -1)
    trial = replace(trial, measurements=(measurement(3.0, 1.0, 2.0), measurement(5.0, 4.0, rung=2)))
    assert (trial.median_ms, trial.rung) == (4.5, 2)


def test_equal_binaries_launched_differently_are_different_builds() -> None:
    assert replace(BUILD, build_s=9.0).identity == BUILD.identity
    assert replace(BUILD, grid=(4, 2, 1)).identity != BUILD.identity
    assert replace(BUILD, launch=FrozenMap(num_warps=8)).identity != BUILD.identity


def test_the_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    draw = random.Random(0)
    for num in (10, 25, 100):
        hits = 0
        for _ in range(400):
            low, high = median_interval([draw.lognormvariate(0, 1) for _ in range(num)])
            hits += low <= 1.0 <= high
        assert hits / 400 > 0.92, f"{num} samples"
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0)


# --- studies


def result(*trials: Trial, **more: Any) -> StudyResult:
    study = Study(
        workload="softmax",
        device=nominal("sm_90"),
        problem=PROBLEM,
        variables=FrozenMap[Any]({"n": 1, "dtype": "bf16"}),
    )
    return StudyResult(study=study, status=Status.WINNER, trials=trials, **more)


def test_a_study_is_labelled_for_people_and_keyed_for_machines() -> None:
    study = result().study
    assert study.label == "softmax sm_90 1 bf16"
    assert replace(study, variables=FrozenMap()).label == "softmax sm_90 bf16"
    assert study.key == f"softmax {study.device.key} {PROBLEM.key}"
    assert replace(study, weight=2.0, variables=FrozenMap()).key == study.key


def test_a_study_counts_what_became_of_its_candidates() -> None:
    """TF-012: failures are grouped by what they say, the commonest first."""
    failed = Trial(number=2, config=CONFIG, outcome=Outcome.COMPILE_ERROR, failure=FAILURE)
    odd = replace(failed, number=4, outcome=Outcome.CRASHED, failure=replace(FAILURE, stage="launch", message="died"))
    counted = result(
        Trial(number=0, config=CONFIG, build=BUILD, measurements=(measurement(1.0),)),
        Trial(number=1, config=CONFIG),
        failed,
        replace(failed, number=3, failure=replace(FAILURE, detail="needs 400000 bytes")),
        odd,
    )
    assert (counted.num_candidates, counted.num_measured, counted.num_built) == (5, 1, 3)
    assert counted.outcomes == {Outcome.OK: 1, Outcome.COMPILE_ERROR: 2, Outcome.CRASHED: 1}
    assert counted.failures == [(FAILURE, 2), (odd.failure, 1)]


def test_rates_are_given_where_they_are_known() -> None:
    assert result(num_bytes=4e9, flops=1e12).rate(2.0) == pytest.approx({"tbps": 2.0, "tflops": 500.0})
    assert result().rate(2.0) == {}


# --- documents


def test_canonical_json_has_one_spelling_and_no_nan() -> None:
    assert canonical({"b": 1, "a": [1.5, "Ω"]}) == '{"a":[1.5,"Ω"],"b":1}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON compliant"):
            canonical(value)


def test_writing_replaces_in_one_step_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_writing_that_fails_keeps_the_old_file(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, b"old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr({"fsync": "os.fsync", "replace": "pathlib.Path.replace"}[step], full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left behind"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", r"is not UTF-8 text \(byte 0\)"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"x" * 101, "holds more than"),
    ],
)
def test_text_that_is_none_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=said) as caught:
        read_text(path, max_bytes=100)
    assert str(path) in str(caught.value)


def test_missing_files_and_folders_are_refused_by_name(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.json", "no such file"), (tmp_path, r"is a folder \(name a file")):
        with pytest.raises(DocumentError, match=said):
            read_text(path)


def test_archives_that_are_damaged_or_swell_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    bombs = {"bomb": compress(b"0" * 10_000), "cut": compress(b"0" * 10_000)[:-9], "none": b"{}", "flip": b""}
    whole = bytearray(gzip.compress(os.urandom(500)))
    whole[60] ^= 0xFF
    bombs["flip"] = bytes(whole)
    for content in bombs.values():
        path.write_bytes(content)
        with pytest.raises(DocumentError):
            read_text(path, max_bytes=1000)


def test_equal_data_compresses_to_equal_bytes() -> None:
    assert compress(b"data") == compress(b"data")
    assert gzip.decompress(compress(b"data")) == b"data"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("[1, 2", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[" * 100_000, "nested deeper than 32 levels"),
        ('{"a":' * 33 + "1" + "}" * 33, "nested deeper than 32 levels"),
    ],
)
def test_json_with_a_trap_in_it_is_refused(text: str, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        parse_json(text, where="file.json")


def test_depth_is_counted_outside_strings_only() -> None:
    text = json.dumps({"a": "[" * 100 + '\\"{'})
    assert parse_json(text, where="file.json") == json.loads(text)


def test_large_tables_have_one_row_a_line() -> None:
    rows = [{"b": i, "a": "x"} for i in range(3)]
    text = one_row_a_line({"version": 1, "name": "t"}, rows, "rows")
    assert json.loads(text) == {"name": "t", "version": 1, "rows": rows}
    assert text.splitlines()[-4:-1] == ['{"a":"x","b":0},', '{"a":"x","b":1},', '{"a":"x","b":2}']
    assert json.loads(one_row_a_line({"version": 1}, [], "rows"))["rows"] == []


# --- landscapes


def recorded() -> Landscape:
    entries = (
        Entry(config=CONFIG, outcome=Outcome.OK, build=BUILD, warmup_ms=(0.5,), samples_ms=(0.04041, 0.0405)),
        Entry(config=Config(params=FrozenMap(BLOCK=128)), outcome=Outcome.OUT_OF_RESOURCES, failure=FAILURE),
    )
    problem = Recorded(problem=PROBLEM, entries=entries, reference_ms=0.08, num_bytes=1.3e8, flops=1.0)
    return Landscape(
        kernel="softmax_kernel", source_hash="c" * 64, device=replace(nominal("sm_90"), name="NVIDIA H200", live=True),
        toolchain=FrozenMap(triton="3.6.0"), date="2026-11-29", problems=(problem,),
    )  # fmt: skip


def test_a_landscape_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "softmax.json.gz"
    landscape.save(recorded(), path)
    back = landscape.load(path)
    assert back == recorded()
    assert landscape.dumps(back) == path.read_bytes(), "equal landscapes are equal files"
    assert back.find(PROBLEM) == recorded().problems[0]
    assert back.find(replace(PROBLEM, facts=FrozenMap())) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "is not a tunefarm landscape"),
        ({"version": 2}, "has version 2, this release reads 1"),
        ({"problems": [{}]}, "is malformed: KeyError"),
        ({"device": None}, "is malformed"),
    ],
)
def test_a_landscape_that_cannot_be_read_is_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "l.json.gz"
    data = json.loads(gzip.decompress(landscape.dumps(recorded())))
    path.write_bytes(compress(json.dumps(data | change).encode()))
    with pytest.raises(LandscapeError, match=said) as caught:
        landscape.load(path)
    assert str(path) in str(caught.value)
