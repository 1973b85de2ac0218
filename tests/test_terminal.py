"""What people see: a line a study, the closing table, bars on a terminal and none elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import farm
import pytest
from farm import play, smooth, write_experiment, write_landscape
from rich.console import Console

from tunefarm.cli import terminal
from tunefarm.cli.tables import time_text
from tunefarm.cli.terminal import WIDE, Progress, closing_table, console, left_line, study_line
from tunefarm.config import Config, Value, counted
from tunefarm.seams import Fleet
from tunefarm.search.stopping import exhausted
from tunefarm.study import Left, StudyResult
from tunefarm.trial import Outcome


@pytest.fixture
def played(tmp_path: Path, fleet: Fleet, store: Path) -> farm.Played:
    """A winner, a problem of which all fail in two ways, an empty one; and the same for a device without times."""

    def time_ms(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
        if variables["n"] == 4096:
            return Outcome.LAUNCH_ERROR if config.params["MARK"] else Outcome.OUT_OF_RESOURCES
        return smooth(config, variables)

    devices = [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"]
    experiment = write_experiment(tmp_path, problems=[{"n": [1000, 4096, 0], "dtype": "fp32"}], devices=devices)
    write_landscape(experiment, time_ms)
    return play(experiment, fleet, store)


def shown(results: list[StudyResult], width: int) -> list[str]:
    buffer = io.StringIO()
    Console(file=buffer, width=width).print(closing_table(results, width))
    return buffer.getvalue().splitlines()


def test_a_study_is_a_line(played: farm.Played) -> None:
    won, lost, empty, unmeasured, *_ = map(study_line, played.results)
    assert won.startswith("fill sm_90 1000 fp32: 18 candidates, ")
    assert f"{played.results[0].num_measured} replayed; best BLOCK=128 MARK=0 num_warps=2" in won
    assert "  20.0 us  " in won
    assert "x default" in won
    assert "TB/s" in won
    assert "\n" not in won
    assert lost.startswith("fill sm_90 4096 fp32: 18 candidates, ")
    # A histogram: what is most frequent first.
    head, *failures = lost.splitlines()
    assert "NO WINNER" in head
    assert sorted(failures) == [
        "    9x launch: launch_error: launch_error on purpose",
        "    9x launch: out_of_resources: out_of_resources on purpose",
    ]
    assert empty == "fill sm_90 0 fp32: empty problem: input y has shape [0]"
    assert unmeasured.startswith("fill sm_80 1000 fp32: nothing was measured: no sm_80 GPU and no landscape; 18 of 18 ")


def test_a_failure_that_is_the_reason_is_said_once(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-012."""
    experiment = write_experiment(tmp_path)
    write_landscape(experiment, lambda config, variables: Outcome.LAUNCH_ERROR)
    (line,) = map(study_line, play(experiment, fleet, store).results)
    assert line.count("launch_error on purpose") == 1
    assert "10/10" in line


def test_what_a_limit_left_on_the_table_is_said_where_it_matters(played: farm.Played) -> None:
    won, lost, *others = played.results
    assert won.left is not None
    assert "left unmeasured" not in study_line(won)
    assert left_line(played.results) == ""
    poor = replace(won, left=Left(num=12, expected_gain=0.0234, plausible_gain=0.31, limit="wall_s"))
    text = "12 left unmeasured by the budget of wall_s, the best of which is expected to save 2.3% and may save 31%"
    assert f" replayed, {text}; best BLOCK=128" in study_line(poor)
    calm = replace(won, left=Left(num=12, expected_gain=0.0001, plausible_gain=0.009, limit="trials"))
    assert "left unmeasured" not in study_line(calm)
    assert left_line([calm, poor, *others]) == f"left     fill sm_90 1000 fp32: {text}"
    unknown = replace(lost, left=Left(num=18, limit="gpu_held_s"))
    assert ", 18 left unmeasured by the budget of gpu_held_s; NO WINNER" in study_line(unknown)
    line = left_line([poor, unknown])
    assert line == (
        "left     fill sm_90 4096 fp32: 18 left unmeasured by the budget of gpu_held_s "
        "(2 studies; of this one most is plausible)"
    )


@pytest.mark.parametrize("width", [80, 200])
def test_the_closing_table_fits(played: farm.Played, width: int) -> None:
    lines = shown(played.results, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "sm_90 1000 fp32" in text
    assert "NO WINNER" in text
    assert "sm_80" not in text  # Nothing was timed there; the closing words say so.
    assert ("reference" in text) == (width >= WIDE)
    if width >= WIDE:
        assert "BLOCK=128 MARK=0 num_warps=2" in text
        assert "50.0 us" in text


@pytest.mark.parametrize(("ms", "text"), [(0.0404, "40.4 us"), (0.99, "990.0 us"), (1.5, "1.500 ms")])
def test_durations(ms: float, text: str) -> None:
    assert time_text(ms) == text


def narrate(progress: Progress, played: farm.Played) -> None:
    with progress:
        progress.say("starting [the] fleet")
        progress.began([], 3)
        progress.moved(played.board, [])
        for result in played.results:
            progress.ended(result, "fill")


def test_one_of_something_is_no_several(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, space={"BLOCK": [64], "MARK": [0], "num_warps": [4]})
    write_landscape(experiment)
    (result,) = play(experiment, fleet, store).results
    assert study_line(result).startswith("fill sm_90 1000 fp32: 1 candidate, 1 bucket, 1 built, 1 replayed; best ")
    assert exhausted(1, 0) == "space exhausted: the only candidate tried"
    assert exhausted(3, 1) == "nothing is left open: 3 candidates measured, 1 bucket closed"
    assert [counted(n, "study", "studies") for n in (0, 1, 2)] == ["0 studies", "1 study", "2 studies"]
    assert [counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_elsewhere_than_on_a_terminal_there_are_lines_and_no_bars(
    played: farm.Played, capsys: pytest.CaptureFixture[str]
) -> None:
    narrate(Progress(), played)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[:2] == [
        "starting [the] fleet",
        "0 candidates in 0 studies; compiling all of them first",
    ]
    assert "\x1b" not in captured.err
    assert all(line in captured.err for result in played.results for line in study_line(result).splitlines())


def test_quiet_means_quiet(played: farm.Played, capsys: pytest.CaptureFixture[str]) -> None:
    narrate(Progress(quiet=True), played)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_bars(played: farm.Played, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.StringIO()
    monkeypatch.setattr(
        terminal, "console", lambda **_: Console(file=buffer, force_terminal=True, width=100, highlight=False)
    )
    narrate(Progress(), played)
    with Progress() as progress:
        progress.begin(2, 5)
        progress.advance("built", 1)
        progress.advance("measured", 5)
    text = buffer.getvalue()
    assert "compiled" in text
    assert "studies" in text
    assert "5/5" in text
    assert "[the]" in text


def test_a_console_adds_no_colours_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("40.4 us  'text' 0x1f", markup=False)
    assert capsys.readouterr().out == "40.4 us  'text' 0x1f\n"
