"""The live view of sweeps that really go on, with replayed times."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from farm import LARGE, THREE, command, environment, play, smooth, write_experiment, write_landscape
from rich.console import Console

from tunefarm.builds import BuildBoard
from tunefarm.cli import terminal
from tunefarm.cli.bars import Bars
from tunefarm.cli.live import View
from tunefarm.cli.terminal import Progress
from tunefarm.config import Config, Value
from tunefarm.contest import Contest
from tunefarm.device import nominal
from tunefarm.frozen import FrozenMap
from tunefarm.schedule.standing import Standing
from tunefarm.seams import Fleet
from tunefarm.study import StudyResult
from tunefarm.trial import Outcome


class Ticking:
    """A clock that goes on by a second each time somebody asks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


class Paced:
    """A watcher for which ten seconds pass whenever something moves."""

    def __init__(self, **options: bool) -> None:
        self.now_s = 0.0
        self.progress = Progress(view=View(clock=lambda: self.now_s), **options)

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        self.progress.began(contests, num_builds)

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        self.now_s += 10.0
        self.progress.moved(board, contests)

    def ended(self, result: StudyResult, experiment: str) -> None:
        self.progress.ended(result, experiment)


class Looking:
    """A watcher that keeps what a view shows whenever something moves."""

    def __init__(self) -> None:
        self.view, self.seen = View(clock=Ticking()), []

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        self.view.began(contests)

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        self.view.is_due()
        self.seen.append(self.view.lines(5))

    def ended(self, result: StudyResult, experiment: str) -> None:
        self.view.ended(result)

    seen: list[list[str]]


def failing(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    return Outcome.TIMEOUT if config.params["MARK"] == 1 else smooth(config, variables)


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory, fleet: Fleet, store: Path) -> Looking:
    experiment = write_experiment(tmp_path_factory.mktemp("live"), problems=THREE, space=LARGE)
    write_landscape(experiment, failing)
    watcher = Looking()
    play(experiment, fleet, store, watcher=watcher)
    return watcher


def test_it_tells_studies_candidates_and_failures(looking: Looking) -> None:
    summaries = [lines[0] for lines in looking.seen]
    assert summaries[0].startswith("0 of 3 studies, ")
    # Where builds are in the store already, something is measured before anything else moves.
    counts = [int(re.search(r"(\d+) candidates? replayed", line)[1]) for line in summaries]  # type: ignore[index]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    last = looking.view.lines(5)
    assert last[0].startswith("3 of 3 studies, ")
    assert "failed (" in last[0]
    assert "timeout" in last[0]
    assert "left" not in last[0]
    assert last[1:] == []


def test_it_shows_what_is_being_measured(looking: Looking) -> None:
    lines = [line for seen in looking.seen for line in seen[1:]]
    studies = [line.split() for line in lines if line.startswith("  fill sm_90 ")]
    assert {line[4] for line in studies} & {"rung", "finals"}
    assert all("best" in line and "us" in line and "replayed" in line for line in studies)
    assert any("failed" in line for line in studies)


def test_it_never_takes_more_lines_than_it_has(looking: Looking) -> None:
    assert max(map(len, looking.seen)) <= 5
    assert any("for builds or a turn" in line for seen in looking.seen for line in seen)


def test_what_is_left_is_estimated_once_something_is_known(looking: Looking) -> None:
    told = [" left" in seen[0] for seen in looking.seen]
    assert not told[0]
    assert any(told)


def test_gpus_are_counted_where_gpus_measure(looking: Looking) -> None:
    standing = Standing(
        workers={
            ("measure", nominal("sm_90"), "busy"): 3, ("measure", nominal("sm_90"), "quarantined"): 1,
            ("build", None, "busy"): 2,
        },
        jobs=FrozenMap(), num_attempts=0,
    )  # fmt: skip
    looking.view.follow(lambda: standing)
    assert "GPU" not in looking.view.summary()  # nothing is measured there: it replays
    contests = looking.view._contests
    contests[0].tally.holds_gpu = True
    assert "3 of 4 GPUs busy (1 in quarantine)" in looking.view.summary()
    contests[0].tally.holds_gpu = False


def test_a_dear_view_is_looked_at_less_often() -> None:
    clock = Ticking()
    view = View(clock=clock)
    assert view.is_due()
    view.lines(5)  # takes a second by this clock: fifty pass until the next
    began_s = clock.now_s
    while not view.is_due():
        assert clock.now_s < began_s + 200
    view.lines(5)
    again_s = clock.now_s
    while not view.is_due():
        assert clock.now_s < again_s + 200
    assert clock.now_s - again_s >= 45


def test_elsewhere_than_on_a_terminal_it_is_a_line_a_minute(
    tmp_path: Path, fleet: Fleet, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE)
    write_landscape(experiment)
    watcher = Paced()
    with watcher.progress:
        play(experiment, fleet, store, watcher=watcher)
    said = [line for line in capsys.readouterr().err.splitlines() if " of 3 studies, " in line]
    assert all("replayed" in line for line in said)
    assert 0 < len(said) == int(watcher.now_s - 10) // 60


def test_on_a_terminal_it_stands_below_the_bars(
    tmp_path: Path, fleet: Fleet, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.StringIO()
    screen = Console(file=buffer, force_terminal=True, width=40, height=24, highlight=False)
    monkeypatch.setattr(terminal, "console", lambda **_: screen)
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE)
    write_landscape(experiment)
    watcher = Paced()
    with watcher.progress:
        play(experiment, fleet, store, watcher=watcher)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())
    assert "3 of 3 studies, " in plain
    assert "  fill sm_90 " in plain


def test_in_a_narrow_terminal_lines_are_wrapped_and_not_cut() -> None:
    buffer = io.StringIO()
    # As the command's own console is made, which leaves wrapping to the terminal otherwise.
    screen = Console(file=buffer, force_terminal=True, width=40, height=24, highlight=False, soft_wrap=True)
    with Bars(console=screen, auto_refresh=False) as bars:
        bars.below = ("  fill sm_90 1000 fp32  rung 1     12 of 48 replayed  best 21.3 us  2 failed",)
        bars.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue())
    assert "12 of 48 replayed best 21.3 us 2 failed" in " ".join(plain.split())
    assert max(map(len, plain.splitlines())) <= 40


def test_a_pressed_key_ends_it_and_says_how_to_go_on(tmp_path: Path, store: Path) -> None:
    """In a real terminal, once the ledger is there."""
    experiment = write_experiment(tmp_path, problems=THREE, space=LARGE)
    write_landscape(experiment)
    words = command("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none")
    ledger = tmp_path / "sweeps" / "fill" / "ledger.jsonl"
    leader, follower = pty.openpty()
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(store, TERM="xterm"), stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(follower)
        said, pressed, end_s = b"", False, time.monotonic() + 120
        while time.monotonic() < end_s:
            if select.select([leader], [], [], 0.05)[0]:
                try:
                    said += os.read(leader, 65536)
                except OSError:  # the terminal is gone with its last process
                    break
            if not pressed and ledger.exists():
                process.send_signal(signal.SIGINT)
                pressed = True
        code = process.wait(timeout=60)
    os.close(leader)
    assert pressed
    assert code == 130
    assert b"the same command goes on from there" in said
    assert b"Traceback" not in said
