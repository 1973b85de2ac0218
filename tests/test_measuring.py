"""`sweep`, `record` and `aa` where there is a GPU: one that is made up, with everything around it real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm import GPU, KERNEL, events, measured, write_experiment, write_landscape
from rigged import DEADLY, Pretended, answer_smoothly

from tunefarm import landscape
from tunefarm.bench.meter import Answer, Answers, Question
from tunefarm.cli import opening
from tunefarm.cli.__main__ import main
from tunefarm.device import nominal
from tunefarm.fleet.inline import InlineFleet
from tunefarm.pack_reader import load_pack
from tunefarm.trial import Failure, Outcome

Command = Callable[..., int]


@pytest.fixture(scope="module")
def own() -> Iterator[InlineFleet]:
    made = InlineFleet([GPU], num_builders=2)
    yield made
    made.close()


@pytest.fixture
def answer() -> Callable[[Question], Any]:
    """What the GPU that is made up says."""
    return answer_smoothly


@pytest.fixture
def command(
    tmp_path: Path, store: Path, own: InlineFleet, answer: Callable[[Question], Any], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`tunefarm` in this process, in a folder of its own; returns the exit code."""
    started = []

    class Kept(Pretended):
        def close(self) -> None:
            started.append(self)

    monkeypatch.chdir(tmp_path)
    landscape.load_cached.cache_clear()  # A process does not change its folder but here.
    monkeypatch.setenv("TUNEFARM_CACHE", str(store))
    monkeypatch.setattr(opening, "has_gpu", lambda: True)
    monkeypatch.setattr(opening, "open_fleet", lambda *_, **__: Kept(own, answer))
    # The fleet is older than the experiments, so it has no supply of their files; its workers see them where they lie.
    monkeypatch.setattr(opening, "bundled", lambda experiment: experiment)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tunefarm", *arguments])
        try:
            main()
        except SystemExit as e:
            return int(e.code or 0)
        return 0

    return run


SWEEP = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--json")


def test_a_gpu_measures_whatever_its_recording_says(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stale recording is no hindrance where it is not needed; and nothing says replayed."""
    write_landscape(write_experiment(tmp_path, KERNEL.replace("MARK, mask", "MARK + 1, mask")))
    write_experiment(tmp_path, export="fill.json")
    assert command(*SWEEP) == 0
    facts = json.loads(capsys.readouterr().out)
    (study,) = facts["studies"]
    assert (study["status"], study["source"], study["device"]) == ("winner", "measured", "Test GPU")
    assert study["winner"]["config"]["params"] == {"BLOCK": 128, "MARK": 0}
    assert facts["notices"] == ["no check"]
    assert facts["gpu_held_s"] > 0
    assert load_pack("fill.json").sources == ("measured",)
    before = measured(Path(facts["ledger"]))
    assert command(*SWEEP) == 0
    assert measured(Path(facts["ledger"])) == before


def test_a_replay_does_not_go_into_a_pack_that_was_measured(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the work, and the other way round as well."""
    write_landscape(write_experiment(tmp_path, export="fill.json"))
    assert command(*SWEEP) == 0
    pack = Path("fill.json").read_bytes()
    capsys.readouterr()
    assert command(*SWEEP, "--meter", "replay") == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "error: fill.json: holds measured rows, and those of this sweep would be replayed "
        "(export to another file, or remove this one)\n"
    )
    assert Path("fill.json").read_bytes() == pack
    Path("fill.json").unlink()
    assert command(*SWEEP, "--meter", "replay") == 0
    assert command(*SWEEP) == 2
    assert "holds replayed rows, and those of this sweep would be measured" in capsys.readouterr().err


def test_what_was_measured_here_is_exported_without_what_was_replayed(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pack holds times of one kind."""
    experiment = write_experiment(
        tmp_path, devices=["sm_90", {"arch": "sm_80", "landscape": "recording.json.gz"}], export="fill.json"
    )
    write_landscape(experiment, device=nominal("sm_80"))
    assert command(*SWEEP) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [study["source"] for study in facts["studies"]] == ["measured", "replayed"]
    (table,) = load_pack("fill.json").tables
    assert table.device.arch == "sm_90"
    assert "replayed winners of NVIDIA A100-SXM4-80GB are not exported with measured ones" in facts["notices"]


def test_record(tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """The landscape of an experiment that names it, though there is none yet."""
    write_experiment(tmp_path, devices=["sm_80", {"arch": "sm_90", "landscape": "made/recording.json.gz"}])
    record = ("record", "experiment.yaml", "-o", "made/recording.json.gz", "--fleet", "inline", "--samples", "5")
    assert command(*record, "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("made/recording.json.gz: 1 problem, 18 configs on Test GPU, ")
    assert captured.err == ""
    made = landscape.load(Path("made/recording.json.gz"))
    (recorded,) = made.problems
    assert made.device == GPU
    assert {e.config for e in recorded.entries if not e.samples_ms} >= {DEADLY}
    assert command("plan", "experiment.yaml") == 0
    assert "times from: replay" in capsys.readouterr().out


def test_record_on_another_gpu(tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path, devices=["sm_80"])
    assert command("record", "experiment.yaml", "-o", "x.json.gz", "--fleet", "inline", "--quiet") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: experiment.yaml:1: devices: none of them is here, but Test GPU (sm_90) (name the arch of a GPU here)"
    )
    assert not Path("x.json.gz").exists()


def answer_but_for_4096(question: Question) -> Any:
    if question.variables["n"] != 4096:
        return answer_smoothly(question)
    failure = Failure(stage="verify", kind="mismatch", message="all of it differs")
    return Answers(answers=(Answer(number=0, outcome=Outcome.WRONG_RESULT, failure=failure),))


@pytest.mark.parametrize("answer", [answer_but_for_4096])
def test_aa_shows_what_it_has_beside_what_it_could_not_have(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment(tmp_path, problems=[{"n": [1000, 4096], "dtype": "fp32"}], devices=["sm_90"])
    error = "the default config of fill sm_90 4096 fp32 cannot be measured: all of it differs"
    aa = ("aa", "experiment.yaml", "--num", "2", "--quiet")
    assert command(*aa) == 1
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("fill sm_90 1000")]
    assert row.split()[4:7] == ["2", "0", "2"]  # comparisons, called better, slowdown found
    assert "x1.03 found" in out
    assert "samples multiplied by 1.03" in " ".join(out.split())
    assert f"error: {error}" in " ".join(out.split())
    assert "note: no check" in out
    assert command(*aa, "--json") == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert (good["study"], good["claimed"], good["found"]) == ("fill sm_90 1000 fp32", 0, 2)
    assert bad == {"study": "fill sm_90 4096 fp32", "device": "Test GPU", "error": error}


def test_aa_drops_no_address(tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path)
    assert command("aa", "experiment.yaml", "--address", "ray://farm:10001") == 2
    assert "ray://farm:10001 is the address of a Ray cluster" in capsys.readouterr().err


def test_times_of_another_timer_are_not_gone_on_with(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """TF-048: neither in the ledger, nor in the pack, nor in a replay; each time says how it was taken."""
    write_experiment(tmp_path, export="fill.json")
    assert command(*SWEEP) == 0
    ledger = Path(json.loads(capsys.readouterr().out)["ledger"])
    cold = measured(ledger)
    write_landscape(write_experiment(tmp_path, export="fill.json", timer="graph"))
    assert command(*SWEEP) == 0
    assert measured(ledger)[len(cold) :] == cold
    timers = [event["measurement"]["timer"] for event in events(ledger, "measured")]
    assert timers == ["cold"] * len(cold) + ["graph"] * len(cold)
    assert [table.provenance.timer for table in load_pack("fill.json").tables] == ["graph"]
    capsys.readouterr()
    Path("fill.json").unlink()
    assert command(*SWEEP, "--meter", "replay") == 2
    assert "was recorded with the cold timer, the experiment asks for graph" in capsys.readouterr().err
