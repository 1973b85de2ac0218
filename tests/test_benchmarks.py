"""The benchmark scripts, as far as they need no GPU: what they choose, keep, print and draw; and a measuring process
that dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from farm import GPU, write_experiment

import tunefarm
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.errors import DocumentError, UserError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.spec.experiment import load_experiment
from tunefarm.study import Study

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments" / "benchmarks"))

import agreement  # noqa: E402
import compare  # noqa: E402
import contenders  # noqa: E402
import results  # noqa: E402
import sitting  # noqa: E402


def record(problem: str = "8192x4096 bf16", **changes: Any) -> dict[str, Any]:
    """Made up: 134 MB at 4 TB/s are 33.5 us."""
    times = {"default": 80.0, "tuned": 40.0, "eager": 67.0, "compile": 44.0}
    return {
        "workload": "softmax", "problem": problem, "device": "Test GPU", "arch": "sm_90",
        "toolchain": {"torch": "9.9", "triton": "8.8"}, "date": "2026-01-02", "num_bytes": 134e6, "flops": 0.0,
        "copy_tbps": 4.0, "matmul_tflops": 0.0, "config": "BLOCK=1",
        "contenders": {name: {"samples_us": [us - 0.1, us, us + 0.1] * 4} for name, us in times.items()}, **changes,
    }  # fmt: skip


def test_later_records_replace_those_of_the_same_problem_and_are_added_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert results.load(file) == []
    for fresh in (record("a"), record("b"), record("a", date="2026-01-03"), record("a", device="Other GPU")):
        results.save(file, results.merge(results.load(file), fresh))
    found = [(r["problem"], r["device"], r["date"]) for r in results.load(file)]
    assert found == [("a", "Test GPU", "2026-01-03"), ("b", "Test GPU", "2026-01-02"), ("a", "Other GPU", "2026-01-02")]


@pytest.mark.parametrize("line", ["{", "[]", '{"workload": "softmax"}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps(record()) + "\n" + line + "\n")
    with pytest.raises(DocumentError, match="line 2"):
        results.load(file)


def test_gain_comes_with_the_interval_of_the_rounds_ratios() -> None:
    value, (low, high) = results.gain(record()) or pytest.fail("no gain")
    assert value == pytest.approx(2.0)
    assert low <= value <= high
    # What slows a round down slows both: the ratio does not see it.
    shaken = [40.0 * (1 + 0.5 * (i % 2)) for i in range(12)]
    pair = {"default": {"samples_us": [2 * us for us in shaken]}, "tuned": {"samples_us": shaken}}
    assert results.gain(record(contenders=pair)) == (2.0, (2.0, 2.0))
    assert results.gain(record(contenders={**pair, "default": {"error": "no"}})) is None


def test_the_ceiling_is_whatever_takes_longer() -> None:
    assert results.ceiling_us(record()) == (pytest.approx(33.5), "memory")
    assert results.share(record(), "tuned") == pytest.approx(33.5 / 40)
    both = record(flops=30e9, matmul_tflops=800.0)
    assert results.ceiling_us(both) == (pytest.approx(37.5), "compute")
    assert results.ceiling_us({**both, "num_bytes": 0}) == (pytest.approx(37.5), "compute")
    assert results.ceiling_us(record(num_bytes=0)) is None


def test_no_contender_beats_the_best_rate_seen() -> None:
    seen = record(flops=40e9, matmul_tflops=500.0)
    assert results.ceiling_us(seen) == (pytest.approx(40.0), "compute")
    assert results.share(seen, "tuned") == pytest.approx(1.0)


def test_the_table_says_everything_once() -> None:
    broken = record("x")
    broken["contenders"] |= {"max-autotune": {"error": "OutOfTime: not ready within 120 s"}}
    broken["contenders"]["eager"]["with_host"] = True
    tie = record("y", flops=40e9, matmul_tflops=1000.0)
    tie["contenders"]["default"] = tie["contenders"]["tuned"]
    lines = results.table([broken, tie, record("z", device="Other GPU", date="2026-02-01")]).splitlines()
    assert lines[0].startswith(
        "Test GPU (sm_90), torch 9.9, triton 8.8; 2026-01-02. Microseconds: medians of 12 samples"
    )
    assert "| problem | default | tuned | eager | compile | max-autotune | gain | rate | of ceiling |" in lines
    assert "| softmax x | 80.0 | 40.0 | 67.0* | 44.0 | failed | 2.00x | 3.35 TB/s | 84 % |" in lines
    assert "| softmax y | 40.0 | 40.0 | 67.0 | 44.0 |  | 1.00x (tie) | 1000 TFLOP/s | 100 % |" in lines
    assert "- softmax x, max-autotune: OutOfTime: not ready within 120 s" in lines
    assert any(line.startswith("- softmax x, eager: the call waits for the GPU") for line in lines)
    assert any(line.startswith("Other GPU (sm_90)") and "2026-02-01" in line for line in lines)
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {10, 9}  # the other GPU's has no column of max-autotune


def test_the_picture_is_sound_and_shows_who_took_part() -> None:
    odd = record("1 < 2 & 3", num_bytes=200e6)
    odd["contenders"]["eager"] = {"error": "no"}
    tree = ElementTree.fromstring(results.picture([record(), odd, record("no ceiling", num_bytes=0)]))
    classes = [node.get("class") for node in tree.iter()]
    counted = {name: classes.count(name) for name in results.CONTENDERS}
    # One each in the legend, which names only those that took part.
    assert counted == {"default": 3, "tuned": 3, "eager": 2, "compile": 3, "max-autotune": 0}
    text = " ".join(tree.itertext())
    assert "1 < 2 & 3" in text
    assert "no ceiling" not in text
    assert "125 %" in text
    bars = [float(node.get("width", 0)) for node in tree.iter() if node.get("class") == "reach"]
    assert bars[0] / bars[1] == pytest.approx(134 / 200, abs=0.01)
    assert all(float(node.get("x", 0)) + float(node.get("width", 0)) <= results.WIDTH for node in tree.iter())


def test_a_readme_gets_the_block_between_its_markers(tmp_path: Path) -> None:
    readme, out = tmp_path / "README.md", tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    readme.write_text(f"# Before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    for _ in range(2):
        compare.show(out, [record()], readme)
    text = readme.read_text()
    assert text.count("| softmax 8192x4096 bf16 |") == 1
    assert "](deep/out/compare.svg)" in text
    assert "old" not in text
    assert text.startswith("# Before\n")
    assert text.endswith(f"{results.END}\nafter\n")
    assert (out / "compare.md").read_text() == results.table([record()])
    readme.write_text("# No place\n")
    with pytest.raises(DocumentError, match="0 places"):
        compare.show(out, [record()], readme)


def test_our_readme_has_a_place_for_the_results() -> None:
    text = (ROOT / "experiments/benchmarks/README.md").read_text("utf-8")
    assert "| softmax 8192x4096 bf16 |" in results.insert(text, results.table([record()]), file="README.md")


def test_experiments_are_chosen_by_name(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", ".a-17.yaml", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in compare.choose(tmp_path, [])] == ["a.yaml", "b.yaml"]
    assert [path.name for path in compare.choose(tmp_path, ["b"])] == ["b.yaml"]
    with pytest.raises(UserError, match=r"no experiment 'c'.*one of a, b"):
        compare.choose(tmp_path, ["c"])


def test_a_pack_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    """One of a folder may be missing: its sweep gave no winner, which must not cost the others their comparison."""
    experiment, file = tmp_path / "a.yaml", tmp_path / "a.json"
    assert compare.choose_pack(experiment, None, None) is None
    assert compare.choose_pack(experiment, None, tmp_path) == file
    for pack, packs in ((file, None), (None, tmp_path / "nowhere")):
        with pytest.raises(UserError, match="there is no such pack"):
            compare.choose_pack(experiment, pack, packs)
    file.touch()
    assert compare.choose_pack(experiment, file, None) == file


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = compare.parse(["--only", "softmax, rope", "--peers", "eager,default", "--problems", "2"])
    assert (parsed.only, parsed.peers, parsed.problems) == (["softmax", "rope"], ["default", "eager"], 2)
    assert compare.parse([]).peers == list(results.CONTENDERS)
    with pytest.raises(SystemExit):
        compare.parse(["--peers", "default,jax"])
    assert "jax: no such contender" in capsys.readouterr().err


CHILD = """\
import json, os, sys, time
order = json.load(sys.stdin)
pipe = os.fdopen(int(sys.argv[-1]), "w")
def say(**message): print(json.dumps(message), file=pipe, flush=True)
print("a library says something")
for key in ("one", "two", "three"):
    if key in order["done"]: continue
    ruled_out = order["ruled_out"].get(key, {})
    for name in order["peers"]:
        if name in ruled_out: continue
        say(key=key, contender=name)
        if (key, name) == ("two", "compile"): os._exit(11)
        if (key, name) == ("three", "eager"): time.sleep(60)
    say(key=key, record={"key": key, "ruled_out": sorted(ruled_out)})
"""


def test_a_contender_that_kills_or_hangs_the_process_costs_only_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    compare.measure({"peers": ["eager", "compile"]}, [sys.executable, str(script)], found.append, silence_s=3.0)
    assert time.monotonic() - began < 30
    assert found == [
        {"key": "one", "ruled_out": []}, {"key": "two", "ruled_out": ["compile"]},
        {"key": "three", "ruled_out": ["eager"]},
    ]  # fmt: skip
    assert "a library says something" in capfd.readouterr().out


@pytest.mark.parametrize("said", ["", '{"key": "one", "record": {}}\n', '{"key": "one", "cont'])
def test_a_measuring_process_that_fails_between_problems_is_an_error(said: str) -> None:
    code = f"import os, sys; sys.stdin.read(); os.write(int(sys.argv[-1]), {said.encode()!r}); sys.exit(1)"
    command = [sys.executable, "-c", code]
    with pytest.raises(UserError, match="outside of any problem"):
        compare.measure({"peers": ["eager"]}, command, lambda record: None, silence_s=10.0)


def test_a_contender_has_a_time_limit_that_is_not_swallowed() -> None:
    def swallowing() -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # what compilers do
                continue

    with pytest.raises(contenders.OutOfTime, match="not ready within 0 s"), contenders.limited(0.2):
        swallowing()
    with contenders.limited(0.2):
        pass
    time.sleep(0.3)  # no alarm is left behind


def test_an_error_is_told_in_one_line() -> None:
    assert contenders.first_line(ValueError("\n  first\nsecond")) == "ValueError: first"
    assert contenders.first_line(KeyError()) == "KeyError"


def test_a_variant_lies_beside_the_experiment_and_goes_again(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    with sitting.variant(path, devices=["sm_80"], export="else.json") as changed:
        assert changed.parent == path.parent
        experiment = load_experiment(changed)
        assert ([d.arch for d in experiment.devices], experiment.export) == (["sm_80"], "else.json")
        assert experiment.name == load_experiment(path).name
    assert not changed.exists()


def test_studies_need_no_space_and_skip_empty_problems(tmp_path: Path) -> None:
    problems = [{"n": [0, 1000, 4096], "dtype": "fp32"}]
    resolved = open_experiment(write_experiment(tmp_path, problems=problems))
    found = sitting.studies(resolved, GPU)
    assert [study.label for study in found] == ["fill sm_90 1000 fp32", "fill sm_90 4096 fp32"]
    assert [dict(study.problem.dims) for study in found] == [{"n": 1000}, {"n": 4096}]
    assert len(sitting.studies(resolved, GPU, 2)) == 1


def pack_for(study: Study, config: Config) -> Pack:
    facts = FrozenMap({k: v for k, v in study.problem.facts.items() if k in ("n", "y_ptr")})
    row = Row(
        match=Match(dims=FrozenMap(n=(0, 2000)), dtypes=study.problem.dtypes, facts=facts),
        measured_at=study.problem.dims, config=config, median_ms=1.0, interval_ms=(1.0, 1.0),
    )  # fmt: skip
    provenance = Provenance(
        sweep="fill", experiment="", toolchain=FrozenMap(), timer="cold", source="measured", tunefarm="0", created=""
    )
    table = Table(
        kernel="fill_kernel", source_hash="", device=GPU, key_parts=FrozenMap(), provenance=provenance, rows=(row,)
    )
    return seal(Pack(tables=(table,)))


TWO = [{"n": [1000, 4096], "dtype": "fp32"}]


def test_a_study_finds_its_row_and_no_other(tmp_path: Path) -> None:
    first, second = sitting.studies(open_experiment(write_experiment(tmp_path, problems=TWO)), GPU)
    pack = pack_for(first, Config(params={"BLOCK": 64}))
    assert sitting.row_of(pack, "fill_kernel", first) == pack.tables[0].rows[0]
    assert sitting.row_of(pack, "fill_kernel", second) is None
    assert sitting.row_of(pack, "other_kernel", first) is None


def test_equal_winners_agree_without_a_gpu(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, problems=TWO)
    first, _ = sitting.studies(open_experiment(path), GPU)
    config = Config(params={"BLOCK": 64})
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        agreement.pack_of(path, tmp_path / folder).write_text(dumps(pack_for(first, config)))
    fleet = InlineFleet([GPU], num_builders=1)
    try:
        pairs = agreement.pairs_of(path, [tmp_path / "one", tmp_path / "two"], fleet, 10)
    finally:
        fleet.close()
    # The second problem has no winner in either.
    assert pairs == [agreement.Pair(label="fill sm_90 1000 fp32", configs=(str(config), str(config)))]


def test_agreement_is_judged_over_all_studies() -> None:
    equal = agreement.Pair(label="equal", configs=("A", "A"))
    near = agreement.Pair(label="near", configs=("A", "B"), times_us=(100.0, 100.9))
    far = agreement.Pair(label="far", configs=("A", "B"), times_us=(104.0, 100.0))
    assert [pair.apart for pair in (equal, near, far)] == [0.0, pytest.approx(0.009), pytest.approx(0.04)]
    lines = agreement.table([near, *[equal] * 17, far, near]).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["far", "near", "near"]
    assert lines[3] == "20 studies: 17 with equal winners; 19 (95%) within 1%; median 0.00%, worst 4.0% apart"
    assert lines[4].endswith("yes")
    assert agreement.table([far, *[equal] * 18]).splitlines()[-1].endswith("no")
    assert agreement.table([]) == "no study has a winner in both folders"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("words", ["compare.py", "noise.py softmax.yaml", "agreement.py softmax.yaml --packs a b"])
def test_without_a_gpu_each_script_says_so(words: str) -> None:
    script, *rest = words.replace("softmax.yaml", "experiments/softmax.yaml").split()
    command = [sys.executable, f"experiments/benchmarks/{script}", *rest]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "no CUDA device is visible (see `tunefarm doctor`)\n")


class Host:
    """In the place of what is launched: a host that needs some time to queue it, seen from a GPU that sleeps."""

    def __init__(self, needs_us: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needs_us, self.asleep_us, self.samples, self.tries = needs_us, 0.0, [], 0
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep, raising=False)

    def sleep(self, cycles: int) -> None:
        self.asleep_us = cycles / contenders.CYCLES_PER_US

    def sample(self, flush: object) -> None:
        self.tries += 1
        self.samples.append((self, None))

    def query(self) -> bool:
        """Of the event before the launch: whether the GPU has come by."""
        return self.asleep_us < self.needs_us


def test_a_sample_that_holds_work_of_the_host_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(350.0, monkeypatch)
    contender = contenders.Contender(loaded=host)
    for _ in range(3):
        contender.sample(None)
    assert (len(host.samples), host.tries) == (3, 5)
    assert (contender.sleep_us, contender.with_host) == (400, 0)


def test_a_call_that_waits_for_the_gpu_is_timed_with_its_host_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(float("inf"), monkeypatch)
    contender = contenders.Contender(loaded=host)
    contender.sample(None)
    tries = host.tries
    contender.sample(None)
    assert (len(host.samples), contender.with_host) == (2, 2)
    assert host.tries == tries + 1  # no sleep is tried a second time


def test_packs_are_in_use_one_at_a_time(tmp_path: Path) -> None:
    first, _ = sitting.studies(open_experiment(write_experiment(tmp_path, problems=TWO)), GPU)
    packs = [pack_for(first, Config(params={"BLOCK": size})) for size in (64, 128)]
    for pack in (*packs, packs[1], None):
        contenders.use(pack)
        assert tunefarm.report().packs == (() if pack is None else (f"pack {pack.digest[:12]}",))
