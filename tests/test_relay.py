"""The spare process: loaded by the time it is needed, and never in the way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_fleet import alive, retire, wait_until

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.fleet.parcel import open_reply, pack
from tunefarm.fleet.process import LocalProcess
from tunefarm.fleet.relay import Relay
from tunefarm.seams import Retire

loaded: list[int] = []
worn: list[int] = []


def load(folder: Path) -> None:
    loaded.append(os.getpid())
    (folder / str(os.getpid())).touch()


def tell() -> tuple[int, list[int]]:
    return os.getpid(), loaded


def tell_afresh() -> Retire | tuple[int, list[int]]:
    if worn:
        return Retire(again=True)
    worn.append(0)
    return tell()


class Counted:
    """Starts processes and remembers them."""

    def __init__(self, limit: int = 100) -> None:
        self.processes: list[LocalProcess] = []
        self._limit = limit

    def __call__(self) -> LocalProcess:
        if len(self.processes) == self._limit:
            raise OSError("no memory")
        self.processes.append(LocalProcess(f"number {len(self.processes)}", {}))
        return self.processes[-1]

    @property
    def pids(self) -> list[int]:
        return [process._child.pid for process in self.processes]


@pytest.fixture
def open_relay(tmp_path: Path) -> Iterator[Callable[..., tuple[Relay, Counted]]]:
    relays = []
    load_there = partial(load, tmp_path)

    def open_one(warm: Callable[[], Any] | None = load_there, limit: int = 100) -> tuple[Relay, Counted]:
        start = Counted(limit)
        relay = Relay(start, None if warm is None else pack(warm))
        relays.append(relay)
        return relay, start

    yield open_one
    for relay in relays:
        relay.kill()
        relay.bury()


def do(relay: Relay, job: Callable[[], Any]) -> Any:
    value, error = open_reply(relay.exchange(pack(job)))
    assert error is None
    return value


def test_the_spare_has_loaded_before_it_takes_over_and_no_other_follows_it(open_relay, tmp_path):
    relay, start = open_relay()
    first, spare = start.pids
    assert do(relay, tell_afresh) == (first, [])
    assert wait_until((tmp_path / str(spare)).exists)
    assert do(relay, tell_afresh) == (spare, [spare])
    assert not alive(first)
    assert do(relay, tell) == (spare, [spare])
    third, loaded_there = do(relay, tell_afresh)
    assert (start.pids, loaded_there) == ([first, spare, third], [])


def test_a_spare_takes_over_from_a_process_that_is_not_trusted_any_more_and_the_next_one_loads(open_relay, tmp_path):
    relay, start = open_relay()
    reply = relay.exchange(pack(partial(retire, 7)))
    first, second = start.pids
    assert open_reply(reply) == ((7, first), None)
    assert not reply.retire  # The post has nothing left to do.
    assert not alive(first)
    assert do(relay, tell) == (second, [second])
    assert wait_until(lambda: len(start.pids) == 3 and (tmp_path / str(start.pids[2])).exists())


def test_an_answer_does_not_wait_for_a_spare_that_loads(open_relay):
    relay, start = open_relay(warm=wait_long)
    assert open_reply(relay.exchange(pack(partial(retire, 7)))) == ((7, start.pids[0]), None)


def test_a_spare_that_hangs_as_it_loads_is_given_up(open_relay, monkeypatch):
    monkeypatch.setattr("tunefarm.fleet.relay.LOAD_S", 1.0)
    relay, start = open_relay(warm=wait_long)
    do(relay, tell_afresh)
    pid, _ = do(relay, tell_afresh)
    assert pid not in start.pids[:2]
    assert not any(map(alive, start.pids[:2]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_spare_that_dies_while_it_waits_costs_no_job_a_life(open_relay, tmp_path, number):
    relay, start = open_relay()
    do(relay, tell_afresh)
    assert wait_until((tmp_path / str(start.pids[1])).exists)
    os.kill(start.pids[1], number)
    assert wait_until(lambda: not alive(start.pids[1]))
    pid, _ = do(relay, tell_afresh)
    assert start.pids[2:] == [pid]


def test_a_relay_that_was_killed_starts_no_more_spares(open_relay):
    relay, start = open_relay()
    relay.exchange(pack(partial(retire, 7)))
    relay.kill()
    with pytest.raises(WorkerLost):
        do(relay, tell)
    assert len(start.pids) == 2


def test_without_a_spare_the_post_replaces_who_retires(open_relay):
    relay, start = open_relay(warm=None)
    assert relay.exchange(pack(partial(retire, 7))).retire
    assert len(start.pids) == 1


@pytest.mark.parametrize("warm", [partial(os._exit, 3), os.abort])
def test_a_spare_that_dies_while_it_loads_is_not_used(open_relay, warm):
    relay, start = open_relay(warm=warm)
    first, spare = start.pids
    do(relay, tell_afresh)
    pid, _ = do(relay, tell_afresh)
    assert start.pids == [first, spare, pid]
    assert not alive(spare)


def test_a_spare_that_could_not_load_is_as_good_as_one_that_was_not_asked_to(open_relay):
    relay, start = open_relay(warm=partial(int, "no number"))
    do(relay, tell_afresh)
    assert do(relay, tell_afresh) == (start.pids[1], [])


def test_no_memory_for_a_spare_is_no_harm_until_it_is_needed(open_relay):
    relay, start = open_relay(limit=1)
    assert do(relay, tell_afresh) == (start.pids[0], [])
    with pytest.raises(OSError, match="no memory"):
        do(relay, tell_afresh)


def test_killing_ends_both_and_whoever_waits_for_a_spare(open_relay):
    relay, start = open_relay(warm=wait_long)
    do(relay, tell_afresh)
    failures = []

    def go_on() -> None:
        try:
            do(relay, tell_afresh)
        except InfrastructureError as error:
            failures.append(type(error))

    waiting = threading.Thread(target=go_on)
    waiting.start()
    assert wait_until(lambda: not alive(start.pids[0]))
    relay.kill()
    waiting.join(timeout=30)
    relay.bury()
    assert failures == [WorkerLost]
    assert not any(map(alive, start.pids))


def wait_long() -> None:
    threading.Event().wait(300)


def test_only_measuring_workers_have_a_spare_and_all_load_before_their_first_job(tmp_path):
    warm = dict.fromkeys(("measure", "build"), partial(load, tmp_path))
    fleet = InlineFleet([None], num_builders=1, warm=warm)
    try:
        told = [fleet.submit(tell, worker.name).result(timeout=60) for worker in fleet.workers]
        assert all(pids == [pid] for pid, pids in told)
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
    finally:
        fleet.close()
    assert not any(alive(int(path.name)) for path in tmp_path.iterdir())
