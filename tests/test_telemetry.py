"""What the GPU was and did: on a machine without one, nothing, and no error."""

from __future__ import annotations

import platform

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
    assert "doctor" in caught.value.hint
