"""Sweeps that replay recorded spaces in the place of a kernel, in every format that is read."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from clusters import TOKEN, ray_head
from farm import tunefarm, write_experiment, write_landscape

from tunefarm.cli.opening import open_experiment, plan_targets
from tunefarm.device import RECORDED, recorded
from tunefarm.errors import LandscapeError, UserError
from tunefarm.landscape_reader import load
from tunefarm.record.ledger import read_events
from tunefarm.spec.experiment import load_experiment
from tunefarm.trial import Outcome

SHARED = Path(__file__).parents[2] / "shared" / "landscapes"
QUIET = ("--fleet", "inline", "--tracking", "none", "--json")

Point = Mapping[str, int]
SPACE: list[Point] = [{"tile": tile, "unroll": unroll} for tile in (8, 16, 32, 64, 128) for unroll in (1, 2, 4)]
BROKEN = {(128, 4): "compile_error", (64, 4): "runtime_error", (8, 1): "InvalidConfig"}
"""How some points end, in the words of other tools."""
A4000, A6000 = "NVIDIA RTX A4000", "NVIDIA RTX A6000"


def times(point: Point, best: int) -> list[float]:
    """The first two hold one-time costs, and would have another point win."""
    slow = 1 + abs(point["tile"].bit_length() - best.bit_length()) + 0.1 * abs(point["unroll"] - 2)
    return [0.5 / slow, 9.0, *(slow + 0.001 * n for n in range(8))]


def status(point: Point) -> str:
    return BROKEN.get((point["tile"], point["unroll"]), "ok")


def plain(folder: Path, name: str = "a4000", device: Any = A4000, best: int = 32, **more: Any) -> Path:
    """A recording in the plain form."""
    configs = [
        {"config": point, "status": told, "ms": times(point, best) if told == "ok" else None, "compile_s": 1.5}
        for point, told in ((point, status(point)) for point in SPACE)
    ]
    problems = [{"problem": {"radius": 3, "problem_size": [64, 32]}, "configs": configs}]
    return write(folder / f"{name}.json.gz", {"kernel": "blur", "device": device, "problems": problems, **more})


WORDS = {"compile_error": "CompilationFailedConfig", "runtime_error": "RuntimeFailedConfig"}


def cache(folder: Path) -> Path:
    """The same as one of Kernel Tuner's caches."""
    known = {}
    for point in SPACE:
        told = WORDS.get(status(point), status(point))
        samples = times(point, 32)
        time = {"time": sum(samples) / 10, "times": samples} if told == "ok" else {"time": told}
        known[",".join(map(str, point.values()))] = {**point, **time, "compile_time": 1500.0}
    return write(
        folder / "cache.json",
        {"device_name": A4000, "kernel_name": "blur", "problem_size": [64, 32], "tune_params_keys": ["tile", "unroll"],
         "tune_params": {}, "objective": "time", "cache": known},
    )  # fmt: skip


def t4(folder: Path) -> Path:
    """The same as a T4 results file, which names neither kernel nor device."""
    words = {"ok": "correct", "compile_error": "compile", "runtime_error": "runtime", "InvalidConfig": "constraints"}
    results = [
        {"configuration": point, "invalidity": words[status(point)], "correctness": 1, "objectives": ["time"],
         "times": {"compilation": 1500.0, "runtimes": times(point, 32) if status(point) == "ok" else []},
         "measurements": [{"name": "time", "value": sum(times(point, 32)) / 10, "unit": "ms"}]}
        for point in SPACE
    ]  # fmt: skip
    return write(folder / "results_T4.json.gz", {"schema_version": "1.0.0", "results": results})


def write(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def experiment(folder: Path, workload: Any = "landscape:*.json.gz", **sections: Any) -> Path:
    path = folder / "blur.yaml"
    lines = {"name": "blur", "workload": workload, **sections}
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items()))
    return path


def sweep(path: Path, *more: str) -> dict[str, Any]:
    # One thread for matrices: the processes of a sweep, and of other tests, would wait for each other's.
    done = tunefarm(
        "sweep", path.name, *(more or QUIET), folder=path.parent, store=path.parent / "store", timeout_s=300,
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# ---- reading ----


@pytest.mark.parametrize("make", [plain, cache, t4])
def test_every_format_tells_the_same(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    (told,) = load(make(tmp_path)).problems
    assert [entry.config.flat for entry in told.entries] == SPACE
    ended = {tuple(e.config.flat.values()): e for e in told.entries if e.outcome is not Outcome.OK}
    assert {point: entry.outcome for point, entry in ended.items()} == {
        (128, 4): Outcome.COMPILE_ERROR, (64, 4): Outcome.LAUNCH_ERROR, (8, 1): Outcome.ILLEGAL,
    }  # fmt: skip
    assert [ended[point].failure.stage for point in BROKEN if (ended[point].failure)] == ["build", "launch", "build"]
    first = told.entries[1]
    assert first.warmup_ms == tuple(times(SPACE[1], 32)[:2])
    assert first.samples_ms == tuple(times(SPACE[1], 32)[2:])
    assert first.build is not None
    assert first.build.build_s == 1.5


def test_names_and_problems_as_far_as_files_have_them(tmp_path: Path) -> None:
    known = [load(make(tmp_path)) for make in (plain, cache, t4)]
    assert [each.kernel for each in known] == ["blur", "blur", ""]
    assert [each.device.arch for each in known] == ["sm_86", "sm_86", ""]
    assert [dict(each.problems[0].problem.dims) for each in known] == [
        {"radius": 3, "size_x": 64, "size_y": 32}, {"size_x": 64, "size_y": 32}, {},
    ]  # fmt: skip


def test_a_recording_of_ours_is_read_as_ever(tmp_path: Path) -> None:
    from tunefarm import landscape

    path = write_landscape(write_experiment(tmp_path))
    assert load(path) == landscape.load(path)


def test_what_is_recorded_once_is_a_sample(tmp_path: Path) -> None:
    path = cache(tmp_path)
    data = json.loads(path.read_text())
    for each in data["cache"].values():
        each.pop("times", None)
    write(path, data)
    entry = load(path).problems[0].entries[1]
    assert (entry.warmup_ms, len(entry.samples_ms)) == ((), 1)


@pytest.mark.parametrize(
    ("name", "arch"), [("NVIDIA A100-PCIE-40GB", "sm_80"), (A4000, "sm_86"), ("MI250X", "gfx90a"),
                       ("AMD Instinct MI250X", "gfx90a"), ("NVIDIA RTX A4000 Ti", ""), ("A40", "")],
)  # fmt: skip
def test_devices_are_known_by_their_whole_name(name: str, arch: str) -> None:
    found = recorded(name)
    assert (found.arch if found else "") == arch
    assert found is None or found.name == name


def test_devices_that_are_only_replayed_cannot_be_compiled_for(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, devices=["gfx90a"])
    with pytest.raises(
        UserError, match=r"devices\[0\]: nothing can be compiled for gfx90a, .*\(builds can be made for"
    ):
        load_experiment(path)
    assert {"sm_86", "gfx90a"} <= {device.arch for device in RECORDED.values()}


# ---- sweeping ----


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two devices whose best points differ."""
    folder = tmp_path_factory.mktemp("two")
    plain(folder)
    plain(folder, "a6000", A6000, best=64)
    return folder


BEST = {A4000: {"tile": 32, "unroll": 2}, A6000: {"tile": 64, "unroll": 2}}


def winners(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {study["device"]: study["winner"]["config"]["params"] for study in found["studies"]}


def test_one_table_a_device_of_real_times_and_no_pack(two: Path) -> None:
    path = experiment(two, search={"sampler": "exhaustive"})
    found = sweep(path)
    assert winners(found) == BEST
    first = found["studies"][0]
    assert first["outcomes"]["compile_error"] == first["outcomes"]["launch_error"] == 1
    assert first["measured"] == 12
    assert (first["source"], Path(first["recording"]).name) == ("replayed", "a4000.json.gz")
    assert (first["built"], found["compiled"], found["pack"]) == (0, 0, "")
    assert first["winner"]["gain"] is None
    assert first["removed"] == {"illegal when it was recorded": 1}
    # Again, for people, and from the ledger: nothing is asked twice.
    kinds = ("measured", "failed", "finals")
    before = [event for event in read_events(two / found["ledger"]) if event["event"] in kinds]
    done = tunefarm("sweep", path.name, *QUIET[:-1], folder=two, store=two / "store", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert [event for event in read_events(two / found["ledger"]) if event["event"] in kinds] == before
    for name, file in ((A4000, "a4000"), (A6000, "a6000")):
        assert f"REPLAYED: {name}, from {file}.json.gz" in done.stdout
        assert re.search(rf"12 replayed.*REPLAYED: {name}, from {file}.json.gz", done.stderr)
    assert "compiled" not in done.stdout
    assert " built" not in done.stderr
    assert "none: a replayed landscape gives tables, never packs" in done.stdout
    assert not (two / "packs").exists()


def test_a_plan_needs_neither_compiler_nor_gpu(two: Path) -> None:
    done = tunefarm("plan", experiment(two).name, folder=two, store=two / "store")
    assert "blur RTX A4000 3x64x32: 14 candidates, " in done.stdout
    assert "times from: replay of a6000.json.gz" in done.stdout
    assert "default     none is named" in done.stdout


def test_a_sweep_on_ray_and_its_mirror_in_mlflow(two: Path) -> None:
    workload = {"landscape": ["a4000.json.gz", "a6000.json.gz"], "default": {"tile": 8, "unroll": 2}}
    path = experiment(two, workload, name="on-ray")
    found = sweep(path, "--tracking", "sqlite:///mlflow.db", "--json")
    assert winners(found) == BEST
    # A default that is named is what winners gain over.
    assert [study["winner"]["gain"] for study in found["studies"]] == pytest.approx([3.0, 4.0], rel=0.01)
    assert not [notice for notice in found["notices"] if "MLflow" in notice]
    with sqlite3.connect(two / "mlflow.db") as database:
        tags = database.execute("select value from tags where key = 'tunefarm.landscape'").fetchall()
    assert {Path(name).name for (name,) in tags} == {"a4000.json.gz", "a6000.json.gz"}


def test_the_experiment_narrows_what_was_recorded(two: Path) -> None:
    path = experiment(
        two, devices=["RTX A6000"], problems=[{"radius": 3, "weight": 2.0}], space={"unroll": [1, 2]},
        constraints=["tile * unroll <= cap"], vars={"cap": 64},
        workload={"landscape": ["a4000.json.gz", "a6000.json.gz"], "default": {"tile": 128, "unroll": 1}},
    )  # fmt: skip
    (study,) = plan_targets(open_experiment(path), [])
    assert (study.study.device.name, study.study.weight) == (A6000, 2.0)
    assert study.default is not None
    assert study.default.flat == {"tile": 128, "unroll": 1}
    assert study.candidates[0] == study.default
    left = {(tile, unroll) for tile in (8, 16, 32, 64) for unroll in (1, 2)} - {(8, 1), (64, 2)}
    assert {tuple(config.flat.values()) for config in study.candidates[1:]} == left
    assert dict(study.removed) == {
        "illegal when it was recorded": 1, "space.unroll": 5, "tile * unroll <= cap": 3,
    }  # fmt: skip
    assert study.num_points == 15


def test_what_a_t4_file_lacks_is_told_by_the_experiment(tmp_path: Path) -> None:
    t4(tmp_path)
    told = {"file": "results_T4.json.gz", "kernel": "blur", "device": "MI250X"}
    (study,) = plan_targets(open_experiment(experiment(tmp_path, {"landscape": told})), [])
    assert study.study.key.startswith("blur amd/gfx90a/MI250X/110")


def test_a_recording_of_ours_needs_no_kernel(tmp_path: Path) -> None:
    recording = write_landscape(write_experiment(tmp_path / "there"))
    path = experiment(tmp_path, f"landscape:there/{recording.name}")
    (study,) = plan_targets(open_experiment(path), [])
    assert (study.study.workload, len(study.candidates)) == ("fill_kernel", 18)
    assert study.study.variables["n"] == 1000


# ---- what people get wrong ----


def truncated(folder: Path) -> None:
    path = plain(folder)
    path.write_bytes(path.read_bytes()[:80])


def lacking(folder: Path) -> None:
    path = plain(folder)
    data = json.loads(gzip.decompress(path.read_bytes()))
    del data["problems"][0]["configs"][3]["config"]["unroll"]
    write(path, data)


MISTAKES: Sequence[tuple[str, Callable[[Path], object], dict[str, Any], str]] = [
    ("missing file", plain, {"workload": "landscape:b.json.gz"}, r"blur.yaml:2: workload: .*b.json.gz: no such file"),
    ("no match", plain, {"workload": "landscape:b*.gz"},
     r"blur.yaml:2: workload: no file matches b\*.gz \(the pattern starts at .*: mend it"),
    ("truncated", truncated, {}, r"blur.yaml:2: workload: .*a4000.json.gz: cannot be read: EOFError"),
    ("another format", lambda folder: write(folder / "x.json.gz", {"rows": []}), {},
     r"blur.yaml:2: workload: .*x.json.gz: is no recording of a space: .* \(give a landscape of"),
    ("two kernels", lambda folder: (plain(folder), plain(folder, "b", A6000, kernel="sharpen")), {},
     r"blur.yaml:2: workload: .*a4000.json.gz records kernel blur, .*b.json.gz sharpen \(one experiment is about one"),
    ("two files of a device", lambda folder: (plain(folder), plain(folder, "b")), {},
     r"blur.yaml:2: workload: .*a4000.json.gz and .*b.json.gz are both of NVIDIA RTX A4000 \(keep one"),
    ("a file twice", plain, {"workload": {"landscape": ["a4000.json.gz", "*.gz"]}},
     r"blur.yaml:2: workload.landscape\[1\]: .*a4000.json.gz is named twice \(keep one"),
    ("unknown device", lambda folder: plain(folder, device="GPU 9"), {},
     r"blur.yaml:2: workload: .*names device 'GPU 9', of which no more is known \(write \{file: ..., device"),
    ("no kernel", t4, {"workload": {"landscape": {"file": "results_T4.json.gz", "device": "MI250X"}}},
     r"blur.yaml:2: workload: .*_T4.json.gz: names no kernel \(write \{file"),
    ("param missing", lacking, {}, r"blur.yaml:2: workload: .*a4000.json.gz: some configs have unroll and some have"),
    ("problem key", plain, {"problems": [{"radios": 3}]},
     r"blur.yaml:3: problems: 'radios' is no variable of the recordings \(did you mean 'radius'"),
    ("problem", plain, {"problems": [{"radius": 4}]},
     r"blur.yaml:3: problems: no recording holds \{'radius': 4\} \(they hold \{'radius': 3"),
    ("space key", plain, {"space": {"tyle": [8]}}, r"blur.yaml:3: space.tyle: is no param .* \(did you mean 'tile'"),
    ("space value", plain, {"space": {"tile": [9]}}, r"blur.yaml:3: space.tile: 9 was not recorded \(recorded are 8,"),
    ("device", plain, {"devices": ["sm_80"]}, r"blur.yaml:3: devices\[0\]: no recording is of sm_80 \(they are of NV"),
    ("device landscape", plain, {"devices": [{"arch": "sm_80", "landscape": "a4000.json.gz"}]},
     r"blur.yaml:3: devices\[0\].landscape: the workload names the recordings \(write sm_80 alone"),
    ("default", plain, {"workload": {"landscape": "a4000.json.gz", "default": {"tile": 8}}},
     r"blur.yaml:2: workload.default: \{'tile': 8\} is no config of the recordings \(give a recorded value for tile"),
    ("no file", plain, {"workload": "landscape:"}, r"blur.yaml:2: workload: landscape: names no file \(write lands"),
    ("empty list", plain, {"workload": {"landscape": []}}, r"blur.yaml:2: workload.landscape: is empty"),
    ("nothing", plain, {"workload": {"landscape": None}}, r"blur.yaml:2: workload.landscape: a file, or a pattern"),
    ("timer", plain, {"timer": "hot"}, r"blur.yaml:3: timer: the recordings' timer is unknown, not hot \(leave it out"),
    ("export", plain, {"export": "packs/blur.json"}, r"blur.yaml:3: export: a replayed landscape gives tables, never"),
    ("checks", plain, {"checks": [{"radius": 1}]}, r"blur.yaml:3: checks: a replayed landscape gives tables, never"),
    ("bits", plain, {"accept": {"same_bits": "repeat"}}, r"blur.yaml:3: accept.same_bits: a replayed landscape gives"),
    ("constraint", plain, {"constraints": ["tyle < 4"]},
     r"blur.yaml:3: constraints\[0\]: .*unknown name 'tyle' \(did you mean 'tile'"),
]  # fmt: skip


@pytest.mark.parametrize(("arrange", "sections", "says"), [row[1:] for row in MISTAKES], ids=[r[0] for r in MISTAKES])
def test_bad_input(tmp_path: Path, arrange: Callable[[Path], object], sections: dict[str, Any], says: str) -> None:
    arrange(tmp_path)
    with pytest.raises(UserError) as caught:
        open_experiment(experiment(tmp_path, **sections))
    assert re.search(says, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [(("--out", "packs/blur.json"), "tables, never packs, and --out packs/blur.json names a pack (leave --out out"),
     (("--meter", "gpu"), "has no kernel that --meter gpu could launch (leave --meter gpu out")],
)  # fmt: skip
def test_flags_that_want_a_kernel_are_refused(two: Path, flags: tuple[str, ...], says: str) -> None:
    done = tunefarm("sweep", experiment(two).name, *QUIET, *flags, folder=two, store=two / "store")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (two / "packs").exists()


def test_verbs_that_need_a_kernel_say_so(two: Path) -> None:
    resolved = open_experiment(experiment(two))
    with pytest.raises(UserError, match=r"blur.yaml:2: workload: replays landscapes: there is no kernel to compile"):
        _ = resolved.workload


@pytest.mark.parametrize("time_ms", [0, -1.0, "1.0"])
def test_times_that_no_launch_has_are_refused(tmp_path: Path, time_ms: Any) -> None:
    path = plain(tmp_path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    data["problems"][0]["configs"][2]["ms"][5] = time_ms
    with pytest.raises(LandscapeError, match=r"a4000.json.gz: is no recording of a space: .*a time of tile=8 unroll=4"):
        load(write(path, data))


# ---- the public recordings ----


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public recordings are not in ../shared/landscapes")
def test_four_devices_are_swept_at_once(tmp_path: Path) -> None:
    files = sorted(SHARED.glob("kt_convolution_*.json.gz"))
    assert len(files) == 4
    path = experiment(tmp_path, f"landscape:{SHARED}/kt_convolution_*.json.gz", budget={"trials": 60})
    found = sweep(path)
    assert len({study["device"] for study in found["studies"]}) == len(found["studies"]) == 4
    for study, file in zip(found["studies"], files, strict=True):
        assert (study["recording"], study["candidates"]) == (str(file), 4362)
        assert 10 <= study["measured"] <= 60
        (problem,) = load(file).problems
        samples = {tuple(e.config.flat.items()): e.samples_ms for e in problem.entries if e.samples_ms}
        known = sorted(median(each) for each in samples.values())
        won = median(samples[tuple(study["winner"]["config"]["params"].items())])
        assert study["winner"]["median_ms"] == pytest.approx(won)
        assert won < known[len(known) // 20], "among the best twentieth"


def test_a_cluster_of_gpus_is_not_asked_for_any(tmp_path: Path) -> None:
    """Nothing can be measured: where GPUs are, by an address too, a recording is replayed as it is elsewhere."""
    plain(tmp_path)
    path = experiment(tmp_path)
    with ray_head("token") as (address, _):
        words = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        done = tunefarm(
            "sweep", path.name, "--address", address, "--tracking", "none", "--json", folder=tmp_path,
            store=tmp_path / "store", **words,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["studies"][0]["winner"]
