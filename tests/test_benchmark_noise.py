"""The benchmark of how often the verdict errs, as far as it needs no GPU."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from farm import GPU, write_experiment

from tunefarm.bench.worker import build
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "benchmarks"))

import noise
import sitting


def test_it_orders_the_default_config_of_the_first_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(tmp_path, problems=[{"n": [0, 1000, 4096], "dtype": "fp32"}])
    ((_, study, request),) = noise.order([path], "sm_90")
    assert study.label == "fill sm_90 1000 fp32"
    (built,) = build(request)
    assert built.config == Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4})
    assert built.artifact is not None
    assert noise.order([path], "sm_80") == []
    assert "not for sm_80: left out" in capsys.readouterr().out
    empty = write_experiment(tmp_path, problems=[{"n": 0, "dtype": "fp32"}])
    with pytest.raises(UserError, match="only empty problems"):
        noise.order([empty], "sm_90")


class Turns:
    """In the place of what is launched: notes its turns, and takes times from a list, over and over."""

    def __init__(self, name: str, turns: list[str], times_ms: Sequence[float]) -> None:
        self.name, self.turns, self.times_ms, self.taken = name, turns, itertools.cycle(times_ms), 0

    def sample(self, flush: object) -> None:
        self.turns.append(self.name)
        self.taken += 1

    def durations_ms(self) -> list[float]:
        taken, self.taken = self.taken, 0
        return list(itertools.islice(self.times_ms, taken))

    def renew(self) -> None:
        pass


def test_it_takes_its_samples_as_finals_do(tmp_path: Path) -> None:
    """In another order each time, and until the medians are known: 20 to 100 rounds."""
    resolved = open_experiment(write_experiment(tmp_path))
    (study,) = sitting.studies(resolved, GPU)
    subject = noise.Subject(resolved=resolved, study=study, built=None, apart=False)
    turns: list[list[str]] = []
    for seed in range(2):
        turns.append([])
        a, b = noise.alternate([Turns(name, turns[-1], [2.0]) for name in "ab"], None, subject.question(seed))
        assert a == b == [2.0] * 20
    assert sorted(turns[0]) == sorted(turns[1])
    assert turns[0] != turns[1]
    a, b = noise.alternate([Turns(name, [], [1.0, 2.0]) for name in "ab"], None, subject.question(0))
    assert len(a) == len(b) == 100


def test_it_sums_up() -> None:
    tallies = [
        noise.Tally(label="one", time_us=50.0, num_equal=34, num_false=1, num_planted=7, num_found=6, slowdown=0.0301),
        noise.Tally(label="short", time_us=5.0, num_equal=34),
        noise.Tally(label="broken", error="build: CompilationError: no"),
    ]
    lines = noise.table(tallies).splitlines()
    assert lines[1].split() == ["one", "50.0", "34", "1", "7", "6", "3.0%"]
    assert lines[2].endswith("under 20 us")
    assert lines[3].endswith("build: CompilationError: no")
    assert lines[4] == "A/A at 99% confidence: 1 of 68 comparisons call one of two equals better"
    assert lines[5].startswith("planted 3%: found in 6 of 7 comparisons (86%)")
    assert "planted" not in noise.table(tallies[1:]).splitlines()[-1]
