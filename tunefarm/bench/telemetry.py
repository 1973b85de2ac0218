"""What the GPU was and did while it was measured: identity, clocks, throttling, neighbours."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Collection
from typing import Any

from tunefarm.bench import cuda
from tunefarm.device import Device
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap

_THROTTLE = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake", 0x4: "power_cap"}
"""NVML clock event reasons that slow a kernel down."""


def live_device(index: int = 0) -> Device:
    """The GPU under an index. An NVIDIA driver is asked directly: no context is made, and PyTorch need not be able to.

    Raises:
        InfrastructureError: there is none.
    """
    if (told := cuda.properties(index)) is not None:
        return Device.of_driver(told, is_amd=False)
    import torch

    require_gpu()
    is_amd = getattr(torch.version, "hip", None) is not None
    return Device.of_driver(torch.cuda.get_device_properties(index), is_amd=is_amd)


def require_gpu() -> None:
    """Raises where torch sees no GPU.

    Raises:
        InfrastructureError: there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise InfrastructureError(
            f"no CUDA device is visible to this process of {platform.node()}",
            hint="see `tunefarm doctor` there; to replay needs none: --meter replay",
        )


def toolchain() -> FrozenMap[str]:
    """Versions that a measurement depends on; `none` where a part is absent."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "triton"):
        with contextlib.suppress(ImportError):
            versions[name] = str(__import__(name).__version__)
    if (nvml := _nvml()) is not None:
        driver = nvml.nvmlSystemGetDriverVersion()
        versions["driver"] = driver.decode() if isinstance(driver, bytes) else str(driver)
    return FrozenMap(versions)


def sample(index: int = 0, since_s: float | None = None) -> FrozenMap[Any]:
    """Clocks, temperature, power, throttle reasons and other processes on the GPU; empty where NVML is absent.

    Asks the driver alone, so that a process whose CUDA context is lost can still tell.

    Args:
        index: the GPU's, as torch sees it.
        since_s: a moment of `time.time`; the processes that computed since then are counted.
    """
    if (nvml := _nvml()) is None:
        return FrozenMap()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid(index).encode())
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        running = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return FrozenMap(
            sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            throttle=" ".join(word for bit, word in _THROTTLE.items() if reasons & bit),
            # In a container NVML may not see the others; then the count is of ours alone.
            num_processes=len(running),
            **_others(nvml, handle, running, since_s),
        )
    except nvml.NVMLError:
        return FrozenMap()


BUSY_PERCENT = 5
"""Share of a GPU's time from which another process counts as being at work there."""


def _others(nvml: Any, handle: Any, running: Collection[int], since_s: float | None) -> dict[str, int]:
    """How many processes other than this one computed since a moment, where the driver tells."""
    if since_s is None:
        return {}
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, int(since_s * 1e6))
    except nvml.NVMLError:  # also says so where nobody was at work
        return {}
    busy = {sample.pid for sample in samples if sample.smUtil >= BUSY_PERCENT}
    if os.getpid() in running:
        return {"num_others": len(busy - {os.getpid()})}
    # In a container our own process has another number outside: then one of them is taken to be us.
    return {"num_others": max(0, len(busy) - 1)}


@functools.cache
def uuid(index: int = 0) -> str:
    """The driver's name of the GPU that torch sees under an index."""
    import torch

    name = str(torch.cuda.get_device_properties(index).uuid)
    return name if name.startswith(("GPU-", "MIG-")) else f"GPU-{name}"


@functools.cache
def _nvml() -> Any:
    """NVML, open for as long as the process lives: opening it takes longer than asking it; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library or no driver: all mean that nothing can be read
        return None
    return pynvml
