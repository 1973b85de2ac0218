"""What only this machine's processes do; the contract that all fleets keep is in test_fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from test_fleet import H100, alive, cry_and_die, run, say, sleep_in_a_child, wait_for_pid, wait_until

from tunefarm.errors import InfrastructureError, WorkerLost
from tunefarm.fleet.inline import InlineFleet


def test_an_inline_worker_sees_its_gpu_only_by_the_name_the_driver_has_for_it() -> None:
    """TF-102: a UUID or a MIG id is as good as a number."""
    fleet = InlineFleet([H100, None, H100], visible=["MIG-aaaa", "GPU-cccc"], num_builders=0)
    try:
        seen = [run(fleet, partial(say, "CUDA_VISIBLE_DEVICES"), w.name) for w in fleet.workers]
        assert seen == ["MIG-aaaa", "", "GPU-cccc"]
        assert [w.device for w in fleet.workers] == [H100, None, H100]
    finally:
        fleet.close()


def test_a_dead_process_has_last_words_and_its_children_die_with_it() -> None:
    fleet = InlineFleet([], num_builders=1)
    try:
        with pytest.raises(WorkerLost, match=r"died of SIGSEGV.*\n.*out of cheese"):
            run(fleet, partial(cry_and_die, signal.SIGSEGV))
        pid = run(fleet, os.getpid)
        future = fleet.submit(partial(sleep_in_a_child, 300.0), "build-0")
        group: list[int] = []
        assert wait_until(lambda: bool(group.extend(children(pid)) or group))
        future.cancel()
        assert wait_until(lambda: not any(map(alive, [pid, *group])))
    finally:
        fleet.close()


def test_a_process_that_cannot_start_is_not_the_jobs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = InlineFleet([], num_builders=1)
    monkeypatch.setattr(sys, "path", [])
    try:
        with pytest.raises(InfrastructureError, match=r"build-0 .*before it was ready.*\n.*(?s:.*)No module") as caught:
            run(fleet, os.getpid)
        assert not isinstance(caught.value, WorkerLost)
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(InfrastructureError, match="build-0 cannot work: FileNotFoundError"):
            run(fleet, os.getpid)
    finally:
        fleet.close()


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_processes_start_with_their_first_job_and_none_is_left() -> None:
    before = set(children(os.getpid()))
    fleet = InlineFleet([None] * 4, num_builders=4)
    assert set(children(os.getpid())) == before
    pid = run(fleet, os.getpid)
    fleet.close()
    assert not Path(f"/proc/{pid}").exists()


DRIVER = """\
import sys, time
from functools import partial
from pathlib import Path
from test_fleet import touch_and_sleep
from tunefarm.fleet.inline import InlineFleet

fleet = InlineFleet([], num_builders=1)
fleet.submit(partial(touch_and_sleep, Path(sys.argv[1]), 300.0), "build-0")
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a busy process with its parent")
def test_a_busy_process_dies_with_its_driver_and_the_driver_needs_no_main_guard(tmp_path: Path) -> None:
    """TF-107: workers are fresh interpreters that never import the driver's script."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    driver = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pid")], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        pid = wait_for_pid(tmp_path / "pid")
        assert alive(pid)
    finally:
        driver.kill()
        driver.wait()
    assert wait_until(lambda: not alive(pid))
