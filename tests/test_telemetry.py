"""What the GPU was and did: on a machine without one, nothing, and no error."""

from __future__ import annotations

import os
import platform
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from tunefarm.bench import telemetry
from tunefarm.errors import InfrastructureError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: see tests/gpu")


def test_versions_that_a_measurement_depends_on():
    versions = telemetry.toolchain()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert versions["triton"] == triton.__version__
    assert "driver" not in versions


def test_no_gpu_tells_nothing():
    assert dict(telemetry.sample()) == {}
    with pytest.raises(InfrastructureError, match="no CUDA device is visible") as caught:
        telemetry.live_device()
    assert platform.node() in str(caught.value)  # of a cluster's many
    assert "doctor" in caught.value.hint


OURS = os.getpid()
FOREIGN, OTHER = OURS + 1, OURS + 2


class Driver:
    """What NVML says of who was at work, in percent of the GPU's time."""

    class NVMLError(Exception):
        pass

    def __init__(self, busy: dict[int, int]) -> None:
        self._busy = busy

    def nvmlDeviceGetProcessUtilization(self, handle: Any, since_us: int) -> list[Any]:
        if not self._busy:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in self._busy.items()]


@pytest.mark.parametrize(
    ("running", "busy", "num_others"),
    [
        ([OURS], {OURS: 60}, 0),
        ([OURS, FOREIGN], {OURS: 60, FOREIGN: 90}, 1),
        ([OURS, FOREIGN], {OURS: 1, FOREIGN: 90}, 1),
        ([OURS, FOREIGN], {FOREIGN: 90}, 1),
        ([OURS, FOREIGN], {OURS: 60, FOREIGN: 2}, 0),
        ([FOREIGN], {FOREIGN: 60}, 0),
        ([], {FOREIGN: 60}, 0),
        ([FOREIGN, OTHER], {FOREIGN: 60, OTHER: 90}, 1),
    ],
    ids=["alone", "two", "idle ourselves", "not seen ourselves", "an idle one", "in a container", "in a closed one",
         "two, in a container"],
)  # fmt: skip
def test_others_at_work_are_counted(running: list[int], busy: dict[int, int], num_others: int) -> None:
    """TF-054: only where NVML does not know us by our number is one of the busy taken to be us."""
    assert telemetry._others(Driver(busy), None, running, 0.0) == {"num_others": num_others}


def test_where_nobody_was_at_work_nobody_is_counted() -> None:
    assert telemetry._others(Driver({}), None, [OURS], 0.0) == {}
    assert telemetry._others(Driver({FOREIGN: 90}), None, [OURS], None) == {}
