"""The benchmark of search: recordings as searches meet them, replays, and what they are judged by."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from farm import write_experiment, write_landscape

from tunefarm.errors import UserError
from tunefarm.trial import Outcome

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments" / "benchmarks"))

import curves  # noqa: E402
import recordings  # noqa: E402
import replays  # noqa: E402
import search  # noqa: E402


def entry(block: int, warps: int, stages: int, time_ms: float, **more: Any) -> dict[str, Any]:
    """A config as other tools record it: the first two samples hold one-time costs."""
    return {
        "config": {"BLOCK": block, "num_warps": warps, "num_stages": stages}, "status": "ok", "compile_s": 0.5,
        "n_regs": block // warps, "n_spills": 0, "shared": 0, "ms": [9.0, 8.0, *[time_ms] * 5], **more,
    }  # fmt: skip


def write(folder: Path, entries: list[dict[str, Any]], name: str = "made_up") -> Path:
    content = {
        "kernel": "fill", "dtype": "float32", "problems": [{"problem": {"n": 4096}, "configs": entries}],
        "device": {"name": "Test GPU", "capability": [9, 0], "sms": 100, "smem_per_block_optin": 1000},
    }  # fmt: skip
    path = folder / f"{name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def bowl(folder: Path) -> recordings.Space:
    """64 configs, every one with a time of its own; the least is 1 ms, of BLOCK=256 num_warps=4 num_stages=3."""
    entries = [
        entry(block, warps, stages, 1 + 0.3 * abs(b - 4) + 0.2 * abs(w - 2) + 0.1 * (3 - stages), shared=stages)
        for b, block in enumerate((16, 32, 64, 128, 256, 512, 1024, 2048))
        for w, warps in enumerate((1, 2, 4, 8))
        for stages in (2, 3)
    ]
    (space,) = recordings.load_spaces([write(folder, entries)])
    return space


def test_equal_binaries_share_one_pooled_time(tmp_path: Path) -> None:
    entries = [entry(64, 4, 1, 2.0), entry(64, 4, 2, 2.2), entry(128, 4, 1, 3.0), entry(128, 4, 2, 1.0, shared=64)]
    (space,) = recordings.load_spaces([write(tmp_path, entries)])
    assert space.num_distinct == 3
    assert space.times_ms == [2.1, 2.1, 3.0, 1.0]
    assert space.best_ms == 1.0
    assert space.label == "made_up 4096 float32"
    assert (space.device.name, space.device.num_sms, space.device.arch) == ("Test GPU", 100, "sm_90")
    assert [trial.build.grid for trial in space.trials if trial.build] == [(64, 1, 1)] * 2 + [(32, 1, 1)] * 2


def test_what_cannot_be_built_is_known_and_what_fails_on_the_gpu_is_not(tmp_path: Path) -> None:
    entries = [
        entry(64, 4, 1, 2.0),
        entry(128, 4, 1, 0.1, status="out_of_resources", ms=[]),
        entry(256, 4, 1, 0.1, status="wrong_result"),
    ]
    (space,) = recordings.load_spaces([write(tmp_path, entries)])
    assert [trial.outcome for trial in space.trials] == [Outcome.OK, Outcome.OUT_OF_RESOURCES, Outcome.OK]
    assert space.times_ms == [2.0, None, None]
    run = replays.ours(space, 0, 60)
    assert sorted(run.tried) == [0, 2]


def test_a_config_costs_to_build_what_it_cost_when_it_was_in_no_cache(tmp_path: Path) -> None:
    path = write(tmp_path, [entry(64, 4, 1, 2.0, compile_s=0.7)])
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["problems"].append({"problem": {"n": 8}, "configs": [entry(64, 4, 1, 1.0, compile_s=0.001)]})
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert [space.build_s for space in recordings.load_spaces([tmp_path])] == [(0.7,), (0.7,)]


def test_our_landscapes_are_read(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path)
    write_landscape(experiment)
    (space,) = recordings.load_spaces([tmp_path / "recording.json.gz"])
    assert len(space.trials) == space.num_distinct == 18
    assert space.best_ms == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"no JSON", mtime=0), gzip.compress(b"[]", mtime=0), gzip.compress(b"{}", mtime=0)],
)
def test_what_is_no_recording_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.json.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"odd\.json\.gz: is no recording of a space"):
        recordings.load_spaces([tmp_path])
    with pytest.raises(UserError, match="no such file"):
        recordings.load_spaces([tmp_path / "nowhere.json.gz"])


@pytest.mark.parametrize("time_ms", [0, -1.0, math.nan, math.inf, "1.0"])
def test_times_that_no_launch_has_are_refused_with_file_and_config(tmp_path: Path, time_ms: Any) -> None:
    entries = [entry(64, 4, 1, 2.0), entry(128, 4, 1, 2.0, ms=[2.0, 2.0, 2.0, time_ms])]
    with pytest.raises(
        UserError, match=r"made_up\.json\.gz: .*Error: a time of BLOCK=128 num_warps=4 num_stages=1 is "
    ):
        recordings.load_spaces([write(tmp_path, entries)])


def test_our_search_finds_the_best_and_says_what_it_cost(tmp_path: Path) -> None:
    space = bowl(tmp_path)
    best = space.times_ms.index(1.0)
    whole = replays.ours(space, 1, 30, batch=1)
    assert best in whole.tried
    assert len(set(whole.tried)) == len(whole.tried) <= 30
    assert (whole.num_built, whole.lost) == (64, False)
    assert replays.ours(space, 1, 30, batch=1).tried == whole.tried
    some = replays.ours(space, 1, 30, batch=8, on_demand=True)
    assert best in some.tried
    assert len(some.tried) <= some.num_built < 64


def test_a_search_that_knows_another_one_of_the_same_space_begins_with_the_best(tmp_path: Path) -> None:
    space = bowl(tmp_path)
    best = space.times_ms.index(1.0)
    warm = replays.learning(space, 1, 30, mates=[space])
    assert best in warm.tried[:4]
    misled = replays.learning(space, 1, 30, mates=[space], is_misled=True)
    assert best in misled.tried
    assert best not in misled.tried[:4]


@pytest.mark.parametrize("name", ["random", "optuna-tpe"])
def test_others_try_what_can_be_launched_once(tmp_path: Path, name: str) -> None:
    entries = [entry(64, warps, stages, 1.0 + warps) for warps in (1, 2, 4, 8) for stages in (1, 2)]
    entries.append(entry(128, 4, 1, 0.1, status="compile_error", ms=[]))
    (space,) = recordings.load_spaces([write(tmp_path, entries)])
    run = search.STRATEGIES[name](space, 0, 60)
    assert sorted(space.configs[number].options["num_warps"] for number in run.tried) == [1, 2, 4, 8]


def test_a_seed_that_never_gets_there_counts_as_twice_the_budget(tmp_path: Path) -> None:
    entries = [entry(64, warps, 1, time_ms) for warps, time_ms in ((1, 1.0), (2, 1.015), (4, 1.04), (8, 2.0))]
    (space,) = recordings.load_spaces([write(tmp_path, entries)])
    runs = [replays.Run(tried=tried, num_built=4) for tried in ((3, 2, 1), (3, 1, 0), (3, 2, 1))]
    found = search.score("made up", space, runs, 20)
    assert found.evaluations == {5: 2.0, 2: 3.0, 1: 40.0}
    assert found.reached == {5: 1.0, 2: 1.0, 1: pytest.approx(1 / 3)}
    assert found.optimum == {10: pytest.approx((1 / 1.015 + 1 + 1 / 1.015) / 3), 20: pytest.approx(0.99, abs=0.01)}
    assert (found.tried, found.built, found.build_s, found.lost) == (3.0, 4.0, 2.0, 0.0)


def run_command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "experiments/benchmarks/search.py", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_prints_keeps_and_draws(tmp_path: Path) -> None:
    bowl(tmp_path)
    words = ["--only", "tunefarm-8,random", "--seeds", 2, "--least", 10, "--jobs", 1, "--each"]
    words += ["--json", tmp_path / "found.json", "--svg", tmp_path / "found.svg"]
    done = run_command(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "tunefarm-8", "random", "tunefarm-8: made_up 4096 float32", "random: made_up 4096 float32",
    ]  # fmt: skip
    assert [s["strategy"] for s in json.loads((tmp_path / "found.json").read_text())] == ["tunefarm-8", "random"]
    texts = {node.text for node in ElementTree.parse(tmp_path / "found.svg").iter()}
    assert {"tunefarm-8", "random"} <= texts


def test_every_contender_has_a_line_of_its_own_in_the_picture() -> None:
    names = [f"contender-{number}" for number in range(25)]
    drawn = curves.picture({name: {10: 0.5, 20: 0.9} for name in names}, (10, 20, 30))
    root = ElementTree.fromstring(drawn)
    height = float(root.attrib["height"])
    lines = [node for node in root.iter() if node.tag.endswith("polyline")]
    assert len({(node.attrib["stroke"], node.attrib.get("stroke-dasharray")) for node in lines}) == len(names)
    shown = {node.text: float(node.attrib["y"]) for node in root.iter() if node.tag.endswith("text")}
    assert set(names) <= set(shown)
    assert max(shown.values()) < height
    assert "30" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such file"),
        (["experiments/landscapes", "--least", "9999"], "holds no problem of 9999 candidates or more"),
        (["experiments/landscapes", "--only", "best"], "best: no such search; tunefarm, "),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], said: str) -> None:
    done = run_command(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_terms_reach_the_search(tmp_path: Path) -> None:
    space = bowl(tmp_path)
    alone = partial(replays.ours, threshold=1.0)(space, 0, 30)
    assert alone.num_buckets == 64 > replays.ours(space, 0, 30).num_buckets > 1
