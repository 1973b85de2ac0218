"""Wills: what a job has said outlives its process, on this machine and on a Ray cluster alike."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import test_fleet
from test_fleet import fail, make_a_lambda, run, sleep_in_a_child

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.parcel import open_will
from tunefarm.seams import Fleet
from tunefarm.will import leave

ray_cluster, fleet = test_fleet.ray_cluster, test_fleet.fleet


@dataclass(frozen=True)
class Notes:
    """A will that says what it was told, and how it came to be read."""

    done: tuple[int, ...]
    sure: bool = True

    def execute(self, lost: WorkerLost) -> tuple[tuple[int, ...], str]:
        return self.done, lost.death


def count_to(number: int, then: Callable[[], Any], patience_s: float = 60.0) -> str:
    """Leaves a will at every step, then does something."""
    for step in range(number):
        leave(Notes(tuple(range(step + 1))), patience_s)
    then()
    return "done"


def die_of(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    time.sleep(60)


def abort_loudly() -> None:
    print("LLVM ERROR: out of cheese", file=sys.stderr, flush=True)
    os.abort()


def hang_with_the_lock() -> None:
    """As native code may: no thread of this interpreter runs any more."""
    ctypes.PyDLL(None).sleep(60)


def a_void_will() -> None:
    leave(make_a_lambda(), 60.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("then", "patience_s", "death", "words"),
    [
        (partial(os._exit, 3), 60.0, "exit code 3", ""),
        (partial(die_of, signal.SIGSEGV), 60.0, "SIGSEGV", "in die_of"),
        (abort_loudly, 60.0, "SIGABRT", "LLVM ERROR: out of cheese"),
        (hang_with_the_lock, 1.0, "hung", "in hang_with_the_lock"),
    ],
    ids=["exit", "segfault", "abort", "hang"],
)
def test_what_a_job_has_said_outlives_its_process(
    fleet: Fleet, then: Callable[[], Any], patience_s: float, death: str, words: str
) -> None:
    """TF-003: with what its process died of, and its last words, wherever it ran."""
    with pytest.raises(WorkerLost, match=r"^build-0 .* while it held a job") as caught:
        run(fleet, partial(count_to, 3, then, patience_s))
    will = open_will(caught.value)
    assert will is not None
    assert will.execute(caught.value) == ((0, 1, 2), death)
    assert words in caught.value.words
    assert "Extension modules" not in caught.value.words
    assert run(fleet, partial(count_to, 1, os.getpid)) == "done"


def test_a_process_killed_from_outside_has_no_death_of_its_own(fleet: Fleet) -> None:
    for then in (partial(die_of, signal.SIGKILL), partial(die_of, signal.SIGTERM)):
        with pytest.raises(WorkerLost) as caught:
            run(fleet, partial(count_to, 2, then))
        assert caught.value.death == ""
        assert caught.value.will
        assert open_will(caught.value) is None


def test_a_will_is_of_one_job_and_patience_too(fleet: Fleet) -> None:
    assert run(fleet, partial(count_to, 2, os.getpid, 0.1)) == "done"
    assert run(fleet, partial(sleep_in_a_child, 0.5)) > 0
    with pytest.raises(WorkerLost) as caught:
        run(fleet, partial(os._exit, 1))
    assert caught.value.will == b""


def test_a_will_that_cannot_travel_is_the_jobs_failure(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="pickle"):
        run(fleet, a_void_will)


def test_nobody_keeps_wills_here() -> None:
    assert count_to(2, os.getpid) == "done"


def test_after_a_fault_of_the_machine_the_next_process_is_a_fresh_one(fleet: Fleet) -> None:
    """It may be this process alone that cannot see its GPU, or has lost it."""
    pid = run(fleet, os.getpid)
    with pytest.raises(InfrastructureError, match="no GPU"):
        run(fleet, partial(fail, InfrastructureError("no GPU")))
    assert run(fleet, os.getpid) != pid
