"""One contract, all fleets: this machine's processes, a Ray cluster's actors, and workers that are simulated."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tunefarm.device import nominal
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.fleet.parcel import Reply, open_reply, perform
from tunefarm.fleet.post import Post
from tunefarm.fleet.simulated import SimulatedFleet, Stay
from tunefarm.fleet.virtual import VirtualTime
from tunefarm.seams import Fleet, Retire, Worker

H100 = nominal("sm_90")
warm: list[int] = []


class Fussy(Exception):
    """Can be pickled but not read back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


# ---- jobs ----


def remember(number: int) -> tuple[int, ...]:
    warm.append(number)
    return tuple(warm)


def say(name: str) -> str | None:
    return os.environ.get(name)


def retire(value: int) -> Retire:
    return Retire((value, os.getpid()))


def remember_afresh(path: Path, seconds: float = 0.0) -> Retire | tuple[int, int]:
    """Wants a process that has remembered nothing yet."""
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if warm:
        return Retire(again=True)
    warm.append(0)
    time.sleep(seconds)
    return os.getpid(), len(warm)


def fail(error: Exception) -> None:
    raise error


def fail_fussily() -> None:
    raise Fussy(1, 2)


def fail_unpicklably() -> None:
    error = ValueError("has a lock")
    error.lock = lambda: None  # type: ignore[attr-defined]
    raise error


def make_a_lambda() -> Callable[[], None]:
    return lambda: None


def sleep_in_a_child(seconds: float) -> int:
    child = subprocess.Popen(["sleep", str(seconds)])
    child.wait()
    return child.pid


def cry_and_die(signal_number: int) -> None:
    print("out of cheese", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal_number)


def touch_and_sleep(path: Path, seconds: float) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(seconds)


# ---- what is left of a process ----


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie that somebody else must collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def wait_for_pid(path: Path) -> int:
    assert wait_until(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


# ---- the tenants ----


def open_inline() -> Fleet:
    return InlineFleet([None], num_builders=1)


def open_ray() -> Fleet:
    from tunefarm.fleet.ray import RayFleet

    return RayFleet(num_builders=1)


def open_simulated() -> Fleet:
    workers = [Worker(name=f"{role}-0", role=role) for role in ("measure", "build")]
    return SimulatedFleet([Stay(worker=worker) for worker in workers], VirtualTime(), length_s=lambda job: 1.0)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A cluster that believes it has two GPUs; fleets join it because this process has."""
    ray = pytest.importorskip("ray")
    from tunefarm.fleet import cluster

    os.environ["RAY_AUTH_TOKEN"] = cluster._TOKEN
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def opened(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    if request.param is open_ray:
        request.getfixturevalue("ray_cluster")
    fleet: Fleet = request.param()
    yield fleet
    fleet.close()


@pytest.fixture(scope="module", params=[open_inline, open_ray])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    yield from opened(request)


@pytest.fixture(scope="module", params=[open_inline, open_ray, open_simulated])
def any_fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Also one without processes of its own: what is a process's business is not asked of it."""
    yield from opened(request)


def run(fleet: Fleet, job: Callable[[], Any], where: str = "build-0") -> Any:
    return fleet.submit(job, where).result(timeout=60)


# ---- the contract ----


def test_workers_have_roles_and_distinct_names(any_fleet: Fleet) -> None:
    assert [(w.name, w.role, w.device) for w in any_fleet.workers] == [
        ("measure-0", "measure", None),
        ("build-0", "build", None),
    ]


def test_one_process_does_the_jobs_of_a_worker_in_order_and_stays_warm(fleet: Fleet) -> None:
    futures = [fleet.submit(partial(remember, n), "build-0") for n in range(20)]
    answers = [f.result(timeout=60) for f in futures]
    assert answers[-1][-20:] == tuple(range(20))
    assert [len(a) for a in answers] == list(range(len(answers[0]), len(answers[0]) + 20))
    assert run(fleet, os.getpid) == run(fleet, os.getpid) != os.getpid()
    assert run(fleet, os.getpid, "measure-0") != run(fleet, os.getpid)


def test_the_jobs_of_a_worker_end_in_order(any_fleet: Fleet) -> None:
    ended: list[int] = []
    futures = [any_fleet.submit(partial(abs, -n), "build-0") for n in range(20)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: ended.append(number))
    assert [future.result(timeout=60) for future in futures] == list(range(20))
    assert wait_until(lambda: len(ended) == 20)
    assert ended == list(range(20))


def test_a_job_that_waits_can_be_cancelled(any_fleet: Fleet) -> None:
    ahead = any_fleet.submit(partial(time.sleep, 0.5), "build-0")
    waiting, behind = (any_fleet.submit(partial(abs, -n), "build-0") for n in (1, 2))
    assert waiting.cancel()
    assert (ahead.result(timeout=60), behind.result(timeout=60)) == (None, 2)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(timeout=60)
    assert not behind.cancel()


def test_neither_builders_nor_replaying_workers_can_see_a_gpu(fleet: Fleet) -> None:
    """TF-100: not a matter of how Ray treats actors that ask for no GPU."""
    assert [run(fleet, partial(say, "CUDA_VISIBLE_DEVICES"), w.name) for w in fleet.workers] == ["", ""]


def test_exceptions_come_back_as_what_they_are_and_the_process_lives_on(any_fleet: Fleet) -> None:
    pid = run(any_fleet, os.getpid)
    with pytest.raises(SpecError, match=r"softmax\.yaml: space: empty") as caught:
        run(any_fleet, partial(fail, SpecError("empty", file="softmax.yaml", key="space")))
    assert (caught.value.file, caught.value.key) == ("softmax.yaml", "space")
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(KeyError):
        run(any_fleet, partial(fail, KeyError("x")))
    assert run(any_fleet, os.getpid) == pid


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (fail_fussily, "Fussy: 1 and 2"),
        (fail_unpicklably, "ValueError: has a lock"),
        (make_a_lambda, "cannot be sent back"),
    ],
)
def test_an_answer_that_cannot_travel_becomes_an_infrastructure_error(
    any_fleet: Fleet, job: Callable[[], Any], text: str
) -> None:
    with pytest.raises(InfrastructureError, match=text) as caught:
        run(any_fleet, job)
    assert type(caught.value) is InfrastructureError


def test_a_job_that_cannot_travel_is_refused_at_once(any_fleet: Fleet) -> None:
    """TF-095."""
    with pytest.raises(InfrastructureError, match=r"cannot be sent to a worker.*module's function"):
        any_fleet.submit(make_a_lambda(), "build-0")


def test_retire_delivers_the_value_and_replaces_the_process(fleet: Fleet) -> None:
    """TF-003: a process that saw a sticky error does no other job."""
    run(fleet, partial(remember, 1))
    value, pid = run(fleet, partial(retire, 7))
    assert value == 7
    assert run(fleet, partial(remember, 2)) == (2,)
    assert run(fleet, os.getpid) != pid
    assert wait_until(lambda: not alive(pid))


def test_a_job_that_asks_for_it_is_done_again_in_a_fresh_process(fleet: Fleet, tmp_path: Path) -> None:
    """As finals do: the worker keeps the new process, and the job runs twice only where the first was not fresh."""
    run(fleet, partial(remember, 1))
    old = run(fleet, os.getpid)
    new, count = run(fleet, partial(remember_afresh, tmp_path / "pids"))
    assert [int(pid) for pid in (tmp_path / "pids").read_text().split()] == [old, new]
    assert count == 1
    assert new != old
    assert wait_until(lambda: not alive(old))
    assert run(fleet, partial(remember, 2)) == (0, 2)
    assert run(fleet, os.getpid) == new


def test_a_job_that_is_done_again_can_be_cancelled(fleet: Fleet, tmp_path: Path) -> None:
    run(fleet, partial(remember, 1))
    future = fleet.submit(partial(remember_afresh, tmp_path / "pids", 300.0), "build-0")
    behind = fleet.submit(os.getpid, "build-0")
    assert wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().count("\n") == 2, 60.0)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert future.cancel()
    assert behind.result(timeout=60) not in pids
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_job_that_kills_its_process_is_lost_and_those_behind_it_are_not(fleet: Fleet) -> None:
    lost = fleet.submit(partial(os._exit, 1), "build-0")
    behind = [fleet.submit(partial(remember, n), "build-0") for n in range(3)]
    with pytest.raises(WorkerLost, match="build-0"):
        lost.result(timeout=60)
    assert [f.result(timeout=60) for f in behind] == [(0,), (0, 1), (0, 1, 2)]


def test_cancelling_a_running_job_kills_it_and_a_waiting_one_costs_nothing(fleet: Fleet, tmp_path: Path) -> None:
    running = fleet.submit(partial(touch_and_sleep, tmp_path / "pid", 300.0), "build-0")
    unwanted = fleet.submit(partial(touch_and_sleep, tmp_path / "never", 300.0), "build-0")
    behind = fleet.submit(os.getpid, "build-0")
    pid = wait_for_pid(tmp_path / "pid")
    assert unwanted.cancel()
    assert running.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result(timeout=10)
    replacement = behind.result(timeout=60)
    assert replacement != pid
    assert wait_until(lambda: not alive(pid))
    assert not (tmp_path / "never").exists()
    assert concurrent.futures.wait([running, unwanted], timeout=10).not_done == set()
    done = fleet.submit(os.getpid, "build-0")
    assert done.result(timeout=60) == replacement
    assert not done.cancel()


@pytest.mark.parametrize("tenant", [open_inline, open_ray, open_simulated])
def test_a_closed_fleet_has_lost_what_ran_and_takes_nothing(
    tenant: Callable[[], Fleet], request: pytest.FixtureRequest
) -> None:
    if tenant is open_ray:
        request.getfixturevalue("ray_cluster")
    fleet = tenant()
    running, waiting = (fleet.submit(partial(time.sleep, 300.0), "build-0") for _ in range(2))
    fleet.close()
    fleet.close()
    for future in (running, waiting):
        with pytest.raises(InfrastructureError):  # of a process that was not up yet nobody knows that it was killed
            future.result(timeout=10)
    with pytest.raises(InfrastructureError, match="closed"):
        fleet.submit(os.getpid, "build-0")


@pytest.mark.parametrize("tenant", [open_inline, open_ray])
def test_close_loses_what_runs_and_waits_leaves_no_process_and_may_be_called_twice(
    tenant: Callable[[], Fleet], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if tenant is open_ray:
        request.getfixturevalue("ray_cluster")
    fleet = tenant()
    running = fleet.submit(partial(touch_and_sleep, tmp_path / "pid", 300.0), "build-0")
    waiting = fleet.submit(os.getpid, "build-0")
    pid = wait_for_pid(tmp_path / "pid")
    fleet.close()
    fleet.close()
    for future in (running, waiting):
        with pytest.raises(InfrastructureError):  # of a process that was not up yet nobody knows that it was killed
            future.result(timeout=10)
    with pytest.raises(InfrastructureError, match="closed"):
        fleet.submit(os.getpid, "build-0")
    assert wait_until(lambda: not alive(pid))


@dataclass
class Untimely:
    """A process whose job is cancelled at the very moment it ends: the kill may hit only what comes next."""

    log: list[str]
    future: concurrent.futures.Future[Any] | None = None

    def exchange(self, payload: bytes) -> Reply:
        assert wait_until(lambda: self.future is not None)
        assert self.future is not None
        self.future.cancel()
        return perform(payload)

    def kill(self) -> None:
        self.log.append("kill")

    def bury(self) -> None:
        self.log.append("bury")


def test_a_process_whose_job_was_cancelled_as_it_ended_is_not_used_again() -> None:
    log: list[str] = []
    processes = [Untimely(log), Untimely(log)]
    remaining = iter(processes)
    post = Post("build-0", lambda: next(remaining))
    processes[0].future = post.submit(os.getpid)
    assert wait_until(lambda: log == ["kill", "kill", "bury"])
    processes[1].future = post.submit(os.getpid)
    assert wait_until(lambda: log == ["kill", "kill", "bury"] * 2)
    post.stop()
    post.join()


def test_a_job_that_cannot_be_loaded_is_an_answer() -> None:
    """TF-096: a worker without the module says which one."""
    payload = pickle.dumps(make_a_lambda).replace(b"test_fleet", b"test_fleex")
    value, error = open_reply(perform(payload))
    assert value is None
    assert isinstance(error, InfrastructureError)
    assert "No module named 'test_fleex'" in str(error)
