"""A real cluster of several nodes: workers are tied to them, come and go with them, and stand for their devices."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_fleet import wait_until

from tunefarm.device import Device, nominal
from tunefarm.dispatch import Dispatch
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.fleet import cluster as door
from tunefarm.fleet.cluster import LABEL, label_of
from tunefarm.fleet.ray import RayFleet
from tunefarm.schedule.events import Job
from tunefarm.seams import Fleet, Worker

ray = pytest.importorskip("ray")

A100 = replace(nominal("sm_80"), name="NVIDIA A100-PCIE-40GB")
H200 = replace(nominal("sm_90"), name="NVIDIA H200")


@pytest.fixture
def nodes() -> Iterator[Callable[..., Any]]:
    """Adds nodes to a cluster that has a head with nothing on it; this process has joined it."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_AUTH_TOKEN"] = door._TOKEN
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0, "include_dashboard": False})

    def add(device: str = "", **more: Any) -> Any:
        labels = {LABEL: label_of(device)} if device else {}
        return cluster.add_node(labels=labels, **{"num_cpus": 0, "num_gpus": 0, **more})

    add.remove = cluster.remove_node  # type: ignore[attr-defined]
    yield add
    ray.shutdown()
    cluster.shutdown()


def by_role(fleet: Fleet, role: str) -> list[Worker]:
    return [worker for worker in fleet.workers if worker.role == role]


def test_workers_stand_for_the_device_of_their_node_and_follow_nodes(nodes: Any) -> None:
    first = nodes(A100.name, num_gpus=1)
    nodes(H200.name, num_gpus=2)
    nodes(num_cpus=2)
    nodes("NVIDIA L4", num_gpus=1)  # nobody asks for it
    fleet = RayFleet(replayed=[A100, H200])
    try:
        assert sorted(w.device.name for w in by_role(fleet, "measure") if w.device) == sorted(
            [A100.name, H200.name, H200.name]
        )
        assert len(by_role(fleet, "build")) == 2
        assert {w.node for w in fleet.workers} == {socket.gethostname()}
        a100 = next(w.name for w in fleet.workers if w.device == A100)
        assert fleet.submit(say_nothing, a100).result(60) is None
        assert fleet.submit(see_gpu, a100).result(60) == ""  # it replays, and sees none

        nodes.remove(first, allow_graceful=False)
        assert wait_until(lambda: a100 not in {w.name for w in fleet.workers}, 60)
        with pytest.raises(InfrastructureError):
            fleet.submit(say_nothing, a100).result(60)
        assert len(by_role(fleet, "measure")) == 2

        nodes(A100.name, num_gpus=1)
        assert wait_until(lambda: A100 in [w.device for w in fleet.workers], 60)
        again = next(w.name for w in fleet.workers if w.device == A100)
        assert again != a100
        assert fleet.submit(say_nothing, again).result(60) is None
    finally:
        fleet.close()


def test_gpus_that_come_after_cpus_are_waited_for_and_no_longer_than_said(nodes: Any) -> None:
    """TF-104."""
    nodes(num_cpus=1)
    probe = partial(nominal, "sm_90")
    with pytest.raises(SpecError, match="the cluster has no GPU"):
        RayFleet(probe=probe, startup_s=1.0)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(partial(RayFleet, probe=probe, startup_s=60.0))
        wait([opened], timeout=3.0)
        nodes(num_gpus=1)
        fleet = opened.result(90)
    try:
        assert [worker.device for worker in by_role(fleet, "measure")] == [nominal("sm_90")]
    finally:
        fleet.close()


def a_device_unless(broken: Path) -> Device:
    if broken.exists():
        raise InfrastructureError("the GPU has fallen off the bus")
    return H200


def test_a_node_that_comes_with_a_broken_gpu_may_still_build(
    nodes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes(num_cpus=1, num_gpus=1)
    fleet = RayFleet(probe=partial(a_device_unless, tmp_path / "broken"))
    try:
        (tmp_path / "broken").touch()
        nodes(num_cpus=1, num_gpus=1)
        assert wait_until(lambda: len(by_role(fleet, "build")) == 2, 60)
        assert [worker.device for worker in by_role(fleet, "measure")] == [H200]
        assert "left out: the GPU has fallen off the bus" in caplog.text
    finally:
        fleet.close()


def say_nothing() -> None:
    return None


def see_gpu() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_job_on_a_node_that_dies_is_lost_and_known_to_be(nodes: Any) -> None:
    doomed = nodes(A100.name, num_gpus=1)
    nodes(num_cpus=1)
    fleet = RayFleet(replayed=[A100])
    try:
        name = by_role(fleet, "measure")[0].name
        fleet.submit(say_nothing, name).result(60)
        future = fleet.submit(sleep_long, name)
        nodes.remove(doomed, allow_graceful=False)
        with pytest.raises(WorkerLost):
            future.result(90)
    finally:
        fleet.close()


def test_nothing_goes_on_where_the_node_s_own_process_was_killed(nodes: Any) -> None:
    """A job that went on would measure beside that of whoever is given the GPU next."""
    node = nodes(A100.name, num_gpus=1)
    nodes(num_cpus=1)
    fleet = RayFleet(replayed=[A100])
    try:
        name = by_role(fleet, "measure")[0].name
        both = fleet.submit(who, name).result(60)
        future = fleet.submit(sleep_long, name)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in both), 30)
        with pytest.raises(WorkerLost):
            future.result(90)
    finally:
        fleet.close()


def who() -> tuple[int, int]:
    """The actor and the process that does its jobs."""
    return os.getppid(), os.getpid()


def sleep_long() -> None:
    import time

    time.sleep(300)


def test_a_job_on_the_only_node_of_a_device_waits_for_it_to_come_back(nodes: Any, tmp_path: Path) -> None:
    """It goes three times: what was lost with it is done in the end, and not taken to be the job's fault."""
    nodes(num_cpus=1)
    node = nodes(A100.name, num_gpus=1)
    fleet = RayFleet(replayed=[A100])
    with ThreadPoolExecutor(1) as pool:
        try:
            dispatch = Dispatch(fleet)
            job = Job(id="long", role="measure", where=A100.key)
            dispatch.submit([(job, partial(wait_for, tmp_path / "began", tmp_path / "end"))])
            ended = pool.submit(dispatch.wait)
            for times in range(1, 4):
                assert wait_until(lambda: num_lines(tmp_path / "began") == times or ended.done(), 90)  # noqa: B023
                assert not ended.done(), ended.result()
                nodes.remove(node, allow_graceful=False)
                node = nodes(A100.name, num_gpus=1)
            (tmp_path / "end").touch()
            (done,) = ended.result(120)
            assert (done.value, done.condemned, done.given_up) == ("waited", "", "")
        finally:
            fleet.close()


def wait_for(began: Path, end: Path) -> str:
    import time

    with began.open("a") as file:
        file.write("began\n")
    while not end.exists():
        time.sleep(0.1)
    return "waited"


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_job_that_kills_two_workers_of_a_cluster_is_condemned(nodes: Any) -> None:
    for _ in range(3):
        nodes(A100.name, num_gpus=1)
    nodes(num_cpus=1)
    fleet = RayFleet(replayed=[A100])
    try:
        dispatch = Dispatch(fleet)
        jobs = [("bad", die), *((f"good {i}", say_nothing) for i in range(3))]
        dispatch.submit([(Job(id=name, role="measure", where=A100.key), call) for name, call in jobs])
        ends = {}
        while found := dispatch.wait():
            ends |= {done.job: done for done in found}
        assert ends.keys() == {name for name, _ in jobs}
        assert ends["bad"].condemned.count("died of SIGKILL while it held a job") == 2
        assert not any(ends[name].condemned or ends[name].given_up for name, _ in jobs[1:])
    finally:
        fleet.close()


def die() -> None:
    """As of a lack of memory."""
    os.kill(os.getpid(), 9)
