"""What the GPU was and did while it was measured: identity, clocks, throttling, neighbours."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from typing import Any

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap

_THROTTLE = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake", 0x4: "power_cap"}
"""NVML clock event reasons that slow a kernel down."""


def live_device(index: int = 0) -> Device:
    """The GPU that torch sees under an index.

    Raises:
        InfrastructureError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise InfrastructureError("no CUDA device is visible to this process", hint="see `tunefarm doctor`")
    is_amd = getattr(torch.version, "hip", None) is not None
    return Device.of_driver(torch.cuda.get_device_properties(index), is_amd=is_amd)


def toolchain() -> FrozenMap[str]:
    """Versions that a measurement depends on; `none` where a part is absent."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "triton"):
        with contextlib.suppress(ImportError):
            versions[name] = str(__import__(name).__version__)
    with _nvml() as nvml:
        if nvml is not None:
            driver = nvml.nvmlSystemGetDriverVersion()
            versions["driver"] = driver.decode() if isinstance(driver, bytes) else str(driver)
    return FrozenMap(versions)


def sample(index: int = 0) -> FrozenMap[Any]:
    """Clocks, temperature, power, throttle reasons and other processes on the GPU; empty where NVML is absent."""
    with _nvml() as nvml:
        if nvml is None:
            return FrozenMap()
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(_uuid(index).encode())
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            return FrozenMap(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                power_w=round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
                throttle=" ".join(word for bit, word in _THROTTLE.items() if reasons & bit),
                # In a container NVML may not see the others; then the count is of ours alone.
                num_processes=len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            )
        except nvml.NVMLError:
            return FrozenMap()


def _uuid(index: int) -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library or no driver: all mean that nothing can be read
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
