"""What only a Ray cluster can do to a fleet; the contract that all fleets keep is in test_fleet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import test_fleet
from test_fleet import retire, run, say, wait_until

from tunefarm.device import Device, nominal
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.fleet.ray import RayFleet

ray = pytest.importorskip("ray")
ray_cluster = test_fleet.ray_cluster
H100 = nominal("sm_90")


def a_device() -> Device:
    return H100


def join_ray(address: str) -> None:
    RayFleet(address)


@pytest.mark.usefixtures("ray_cluster")
def test_each_gpu_of_a_ray_cluster_has_a_measuring_worker_that_says_what_it_is() -> None:
    """TF-100: measuring workers see exactly one GPU each."""
    fleet = RayFleet(probe=a_device, num_builders=0)
    try:
        assert [(w.name, w.role, w.device) for w in fleet.workers] == [
            ("measure-0", "measure", H100),
            ("measure-1", "measure", H100),
        ]
        assert all(w.node for w in fleet.workers)
        seen = {run(fleet, partial(say, "CUDA_VISIBLE_DEVICES"), w.name) for w in fleet.workers}
        assert seen == {"0", "1"}
        _, pid = run(fleet, partial(retire, 0), "measure-0")
        assert run(fleet, os.getpid, "measure-0") != pid
    finally:
        fleet.close()


def mark() -> None:
    os.environ["WARMED_UP"] = "yes"


@pytest.mark.usefixtures("ray_cluster")
def test_build_workers_of_a_ray_cluster_load_before_their_first_job_and_a_gpu_of_others_is_not_held_for_that() -> None:
    fleet = RayFleet(probe=a_device, warm={"build": mark, "measure": mark}, num_measure=1)
    try:
        assert wait_until(lambda: ray.available_resources().get("GPU") == 2)
        warmed = {w.name: run(fleet, partial(say, "WARMED_UP"), w.name) for w in fleet.workers}
        assert warmed == {"measure-0": None} | {w.name: "yes" for w in fleet.workers if w.role == "build"}
        assert len(warmed) > 1
        run(fleet, partial(retire, 0), "measure-0")
        assert run(fleet, partial(say, "WARMED_UP"), "measure-0") == "yes"  # It had a spare from its first job on.
    finally:
        fleet.close()


def a_device_unless_it_is(broken: str) -> Device:
    if os.environ["CUDA_VISIBLE_DEVICES"] in broken.split():
        raise InfrastructureError("the GPU has fallen off the bus")
    return H100


@pytest.mark.usefixtures("ray_cluster")
def test_a_gpu_that_cannot_say_what_it_is_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    fleet = RayFleet(probe=partial(a_device_unless_it_is, "1"), num_builders=0)
    try:
        (worker,) = fleet.workers
        assert run(fleet, partial(say, "CUDA_VISIBLE_DEVICES"), worker.name) == "0"
        assert "left out: the GPU has fallen off the bus" in caplog.text
        assert worker.node in caplog.text
    finally:
        fleet.close()
    for broken, wanted in (("1", 2), ("0 1", None)):
        with pytest.raises(InfrastructureError, match="fallen off the bus"):
            RayFleet(probe=partial(a_device_unless_it_is, broken), num_builders=0, num_measure=wanted)


@pytest.mark.usefixtures("ray_cluster")
def test_more_than_a_ray_cluster_has_is_refused_at_once() -> None:
    """TF-104."""
    with pytest.raises(SpecError, match="8 workers with one GPU each were asked for, and the cluster has 2"):
        RayFleet(probe=a_device, num_measure=8)
    with pytest.raises(SpecError, match="3 workers with one CPU each"):
        RayFleet(num_builders=3)


@pytest.mark.usefixtures("ray_cluster")
def test_a_ray_cluster_that_is_full_is_waited_for_only_so_long() -> None:
    """TF-104: and the message says what was wanted and what is free."""
    first = RayFleet(probe=a_device, num_builders=0)
    for worker in first.workers:
        first.submit(os.getpid, worker.name).result()  # A GPU is held from a worker's first job on.
    try:
        with pytest.raises(
            InfrastructureError, match=r"measure-0 did not start within 2 s: it needs gpus=1; free.*GPU=0"
        ):
            RayFleet(probe=a_device, num_builders=0, startup_s=2.0)
    finally:
        first.close()


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    """TF-104: Ray would try for many minutes. The process must not have joined a cluster yet, so it is a fresh one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        fleet = InlineFleet([], num_builders=1)
        try:
            with pytest.raises(InfrastructureError, match=f"no Ray cluster at {address}: .*is it up"):
                run(fleet, partial(join_ray, address))
        finally:
            fleet.close()


LOCAL = """\
import os
from functools import partial
from tunefarm.errors import SpecError, WorkerLost
from tunefarm.fleet.ray import RayFleet

try:
    RayFleet(probe=dict)
    raise AssertionError("there is no GPU here")
except SpecError as error:
    print(error)
fleet = RayFleet()
assert fleet.workers[0].node
try:
    fleet.submit(partial(os._exit, 1), "build-0").result()
except WorkerLost as error:
    print(error)
fleet.close()
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="is about a machine without a GPU")
def test_a_local_ray_cluster_needs_no_home_says_nothing_and_ends(tmp_path: Path) -> None:
    """TF-104: no GPU at all is refused too. Ray's token goes to no file, its warnings to no terminal."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"HOME": str(home / "missing"), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    refusal, death = done.stdout.splitlines()
    assert "the cluster has no GPU" in refusal
    assert death == "build-0 ended with exit code 1 while it held a job"
    assert done.stderr == ""
    assert list(home.iterdir()) == []
