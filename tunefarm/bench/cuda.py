"""The CUDA driver, asked what a GPU is: without PyTorch, which takes many seconds to load, and without a context.

A process that has only asked holds nothing of the GPU.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "shared_memory_per_block": 8,
    "warp_size": 10,
    "multi_processor_count": 16,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
    "L2_cache_size": 38,
    "major": 75,
    "minor": 76,
    "regs_per_multiprocessor": 82,
    "shared_memory_per_block_optin": 97,
}
"""`CUdevice_attribute` of the driver API, under the names of `torch.cuda.get_device_properties`."""

_NAME_BYTES = 256


def properties(index: int = 0) -> Any | None:
    """What the driver says of a GPU, under PyTorch's names; None where there is no CUDA driver, or no such GPU.

    Args:
        index: the GPU's, among those that this process may see.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index):
        return None
    if cuda.cuDeviceGetName(name, _NAME_BYTES, device) or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device):
        return None
    found: dict[str, Any] = {"name": name.value.decode(), "total_memory": size.value}
    for word, number in _ATTRIBUTES.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            return None
        found[word] = value.value
    return SimpleNamespace(**found)
