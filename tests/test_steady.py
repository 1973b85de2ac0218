"""A GPU that was not itself while it measured: another process has it, somebody computes on it, its clocks move."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import test_measuring
import torch
from farm import GPU, KERNEL, events, play, write_experiment
from rigged import Pretended, measure_disturbed

from tunefarm.bench import steady
from tunefarm.bench.loaded import Loaded
from tunefarm.bench.meter import NUM_WARMUP, Question
from tunefarm.bench.sampling import alone, in_turn
from tunefarm.bench.steady import Watch, Yardstick, disturbance
from tunefarm.config import Config
from tunefarm.errors import InfrastructureError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.pack_reader import load_pack
from tunefarm.plan import Target
from tunefarm.problem import Problem
from tunefarm.search.crown import crown
from tunefarm.spec.workload import WorkloadRef
from tunefarm.trial import FINAL

command, own = test_measuring.command, test_measuring.own
CONTENDED = "contended: 1 other processes computed on the GPU"
THROTTLED = "throttled: sw_thermal at 1200 MHz, 87 degrees C"

# ---- one process a GPU ----

HOLDER = """\
import sys, time
from tunefarm.bench.steady import hold
lock = hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A GPU that nobody else has heard of."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return f"GPU-{uuid.uuid4()}"


@pytest.fixture
def holder(gpu: str) -> Iterator[subprocess.Popen[str]]:
    """Another measuring process that has it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, gpu], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_who_comes_second_gives_up_and_names_the_first(gpu: str, holder: subprocess.Popen[str]) -> None:
    """TF-054."""
    with pytest.raises(
        InfrastructureError, match=rf"{gpu} is measured on by another sweep \(process {holder.pid}\)"
    ) as e:
        steady.hold(gpu, wait_s=0.3)
    assert "CUDA_VISIBLE_DEVICES" in e.value.hint


def test_who_comes_second_waits_for_the_first_to_end(gpu: str, holder: subprocess.Popen[str]) -> None:
    """TF-054: however it ends; the next one finds the new holder's name."""
    threading.Timer(0.5, holder.kill).start()
    with steady.hold(gpu, wait_s=30.0):
        assert holder.wait() != 0
        assert Path(tempfile.gettempdir(), f"tunefarm-{gpu}.lock").read_text() != f"{holder.pid}\n"
        with steady.hold(f"{gpu}-other", wait_s=0.0):
            pass


def test_a_lock_file_of_another_user_is_opened_not_created(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `fs.protected_regular` asks in a sticky folder."""
    given = os.open
    Path(tempfile.gettempdir(), f"tunefarm-{gpu}.lock").touch()

    def protective(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied")
        return given(path, flags, *mode)

    monkeypatch.setattr(os, "open", protective)
    with steady.hold(gpu, wait_s=0.0):
        assert Path(tempfile.gettempdir(), f"tunefarm-{gpu}.lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(InfrastructureError, match=rf"tunefarm-{gpu}-new\.lock: the lock .*: Permission denied") as e:
        steady.hold(f"{gpu}-new", wait_s=0.0)
    assert "TMPDIR" in e.value.hint


def test_a_lock_that_cannot_be_taken_is_not_one_that_is_held(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once, by the file's name: nobody else has the GPU."""
    path = Path(tempfile.gettempdir(), f"tunefarm-{gpu}.lock")

    def lockless(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lockless)
        with pytest.raises(InfrastructureError, match=f"{path}: the lock .*: No locks available"):
            steady.hold(gpu, wait_s=60.0)
    path.unlink()
    path.mkdir()
    with pytest.raises(InfrastructureError, match=f"{path}: the lock .*: Is a directory"):
        steady.hold(gpu, wait_s=60.0)


# ---- what was seen ----


@pytest.mark.parametrize(
    ("seen", "drift", "said"),
    [
        ({}, 0.0, ""),
        ({"num_others": 0, "throttle": "power_cap"}, -0.05, ""),
        ({"num_others": 1}, 0.0, CONTENDED),
        ({"throttle": "power_cap sw_thermal", "sm_mhz": 1200, "temperature_c": 87}, 0.0, THROTTLED),
        ({}, 0.25, "drift: a fixed piece of work took 125% of its usual time"),
        ({"throttle": "power_cap"}, 0.45, ""),  # what products of large matrices do to an H200
        ({"throttle": "power_cap"}, 1.0, "drift: a fixed piece of work took 200% of its usual time"),
        ({}, -0.2, ""),
    ],
    ids=["nothing", "a power cap", "contended", "throttled", "slower", "slower at a power cap", "half a GPU", "faster"],
)
def test_what_makes_times_untrustworthy(seen: dict[str, Any], drift: float, said: str) -> None:
    """TF-052, TF-054: a power cap is part of what a kernel costs; all else passes."""
    assert disturbance(seen, drift) == said


@pytest.mark.parametrize(("reason", "times", "notices"), [
    (CONTENDED, 1, []), (CONTENDED, 1000, [f"measured twice and still {CONTENDED}"]),
    (THROTTLED, 1000, [f"measured twice and still {THROTTLED}"]),
], ids=["once", "contended", "throttled"])  # fmt: skip
def test_disturbed_times_are_taken_once_more_and_then_marked(
    tmp_path: Path, store: Path, reason: str, times: int, notices: list[str]
) -> None:
    """TF-052, TF-054."""
    exact = KERNEL.replace('    ranges=("n",),\n', "")  # how far its winner may be used is another matter
    experiment = write_experiment(tmp_path, exact, devices=["sm_90"])
    own = InlineFleet([GPU], num_builders=1)
    try:
        fleet = Pretended(own, partial(measure_disturbed, reason, times, tmp_path / "sittings"))
        played = play(experiment, fleet, store, targets=[Target(device=GPU, meter="gpu")])
    finally:
        own.close()
    (result,) = played.results
    assert result.winner is not None
    assert played.notices == notices
    assert result.disturbed == (reason if notices else "")
    marks = [e["measurement"]["telemetry"].get("disturbed", "") for e in events(played.ledger, "measured")]
    assert set(marks) == {result.disturbed}
    sittings = (tmp_path / "sittings").read_text().split()
    num_questions = len(set(sittings))
    # Exploration and finals have a process each, and here the first sitting of each is disturbed at least.
    assert len(sittings) == (2 * num_questions if notices else num_questions + 2)


@pytest.fixture
def answer(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Question], Any]:
    return partial(measure_disturbed, request.param, 1000, tmp_path / "sittings")


@pytest.mark.parametrize(("answer", "is_exported"), [(CONTENDED, False), (THROTTLED, True)], indirect=["answer"])
def test_a_contended_winner_is_not_exported(
    tmp_path: Path, command: test_measuring.Command, capsys: pytest.CaptureFixture[str], is_exported: bool
) -> None:
    """TF-054: it may have won by that; heat strikes all finalists alike, and is said."""
    write_experiment(tmp_path, devices=["sm_90"], export="fill.json")
    assert command(*test_measuring.SWEEP) == 0
    facts = json.loads(capsys.readouterr().out)
    (study,) = facts["studies"]
    assert study["status"] == "winner"
    assert (facts["pack"] == "fill.json") is Path("fill.json").exists() is is_exported
    left_out = f"fill sm_90 1000 fp32 is not exported ({CONTENDED}): sweep again on a quiet GPU"
    assert (left_out in facts["notices"]) is not is_exported
    if is_exported:
        assert load_pack("fill.json").num_rows == 1


# ---- clocks that move ----


class Warming:
    """A GPU whose clocks rise for 2 s and fall by 19 % after 5 s of work."""

    def __init__(self) -> None:
        self.now_s = 0.0

    @property
    def speed(self) -> float:
        ramp = min(1.0, 0.5 + 0.25 * self.now_s)
        return ramp if self.now_s < 5.0 else 0.81


class Running:
    """A kernel on it: the same work each time, and what a sample takes around it."""

    def __init__(self, gpu: Warming, work_ms: float) -> None:
        self._gpu, self._work_ms = gpu, work_ms
        self._taken: list[float] = []

    def sample(self, flush: Any = None) -> None:
        self._taken.append(self._work_ms / self._gpu.speed)
        self._gpu.now_s += 0.03

    def durations_ms(self) -> list[float]:
        taken, self._taken = self._taken, []
        return taken

    def renew(self) -> None:
        pass


QUESTION = Question(
    ref=WorkloadRef(call="", kernel="", object="", folder=""), device=GPU, problem=Problem(), variables=FrozenMap(),
    candidates=(), rung=FINAL, num_samples=60,
)  # fmt: skip
WORKS_MS = {128: 1.0, 256: 1.03, 64: 1.06}


def winner(blocks: list[int], taking: Callable[[dict[int, Loaded]], dict[int, list[float]]]) -> int:
    gpu = Warming()
    running = {number: cast(Loaded, Running(gpu, WORKS_MS[block])) for number, block in enumerate(blocks)}
    durations = taking(running)
    assert gpu.now_s > 5.0
    finalists = [
        (number, Config(params={"BLOCK": blocks[number]}), tuple(taken[NUM_WARMUP:]))
        for number, taken in durations.items()
    ]
    return int(str(crown(finalists, None, None, 0.01, seed=0).config.params["BLOCK"]))


def by_turns(running: dict[int, Loaded]) -> dict[int, list[float]]:
    return in_turn(running, QUESTION, cast(Any, None))


def one_by_one(running: dict[int, Loaded]) -> dict[int, list[float]]:
    return {number: alone(loaded, QUESTION, cast(Any, None)) for number, loaded in running.items()}


class Written(Running):
    """Writes down whose turn it was."""

    def __init__(self, number: int, turns: list[int]) -> None:
        super().__init__(Warming(), 1.0)
        self._number, self._turns = number, turns

    def sample(self, flush: Any) -> None:
        super().sample(flush)
        self._turns.append(self._number)


def turns_of(question: Question) -> list[int]:
    turns: list[int] = []
    in_turn({n: cast(Loaded, Written(n, turns)) for n in range(2)}, question, cast(Any, None))
    return turns


def test_the_same_question_has_the_same_order_unless_another_is_asked_for() -> None:
    first, again, other, mixed = (
        turns_of(dataclasses.replace(QUESTION, seed=seed, order_seed=order))
        for seed, order in ((1, 0), (1, 0), (1, 1), (0, 1))
    )
    assert first == again
    assert sorted(first) == sorted(other)
    assert first != other != mixed != first


def test_clocks_that_move_do_not_decide() -> None:
    """TF-052: one after the other the order would; by turns it does not."""
    forward, backward = list(WORKS_MS), list(reversed(WORKS_MS))
    assert winner(forward, one_by_one) != winner(backward, one_by_one)
    assert winner(forward, by_turns) == winner(backward, by_turns) == 128


# ---- the yardstick ----


class Contended(Warming):
    """A GPU that somebody else makes slower at times."""

    speed = 1.0


def test_a_bad_first_reading_of_the_yardstick_is_forgotten() -> None:
    """TF-052: the fastest one is the usual one, and only slower is drift."""
    gpu = Contended()
    yardstick = Yardstick(cast(list[Loaded], [Running(gpu, 0.2), Running(gpu, 0.3)]))
    drifts = []
    for gpu.speed in (0.5, 1.0, 1.0, 0.8, 1.0):
        drifts.append(yardstick.drift())
    assert drifts == pytest.approx([0.0, 0.0, 0.0, 0.25, 0.0])


FULL = "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 16 GiB of which 9 MiB is free"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError(FULL), f"other processes hold the GPU's memory: {FULL}"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), "other processes hold the GPU's memory: CUDA error"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "the GPU is broken: CUDA error: uncorr"),
        (RuntimeError("CUDA error: unspecified launch failure"), "the GPU fails at known work: CUDA error: unspec"),
    ],
    ids=["full", "full for cuBLAS", "broken", "unwell"],
)
def test_a_yardstick_that_finds_no_room_accuses_the_machine(error: Exception, said: str) -> None:
    """TF-054: what fails before any work of the user's is not the user's fault, and another GPU may be well."""

    def fire() -> None:
        raise error

    class Failing(Running):
        def sample(self, flush: Any = None) -> None:
            fire()

    with pytest.raises(InfrastructureError) as e:
        Yardstick([cast(Loaded, Failing(Warming(), 0.2))]).drift()
    assert str(e.value.args[0]).startswith(said)
    assert e.value.hint


def test_a_lost_process_tells_what_it_saw_without_the_yardstick() -> None:
    """Whose CUDA context is gone: reading the yardstick would raise."""
    assert "drift" not in Watch().end(lost=True)


def test_looking_amid_a_question_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that answers slowly is asked seldom; what it said last is told meanwhile."""
    asked: list[float] = []

    def slowly(**_: Any) -> FrozenMap[Any]:
        asked.append(time.monotonic())
        time.sleep(0.02)
        return FrozenMap(num_others=len(asked))

    monkeypatch.setattr(steady.telemetry, "sample", slowly)
    watch = Watch()
    while len(asked) < 2:
        seen = watch.look()
    assert asked[1] - asked[0] >= 0.02 / steady.MAX_LOOKING
    assert seen["disturbed"] == "contended: 2 other processes computed on the GPU"
    assert watch.look() == seen
