"""Peak arithmetic rates of devices, as their vendor publishes them: the ceiling that a rate is held against."""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.device import Device

_16_BIT = frozenset({"fp16", "bf16"})
_8_BIT = frozenset({"fp8e4nv", "fp8e5"})
_QUANTISED = frozenset({"i8", "u8"})

_HOPPER, _AMPERE = {16: 989.5, 8: 1979.0}, {16: 312.0}

PEAK_TFLOPS: dict[str, dict[int, float]] = {
    # NVIDIA's A100 data sheet: 312 TFLOPS of FP16 and BF16 in every form; it has no FP8.
    "NVIDIA A100-SXM4-40GB": _AMPERE,
    "NVIDIA A100-SXM4-80GB": _AMPERE,
    "NVIDIA A100-PCIE-40GB": _AMPERE,
    "NVIDIA A100 80GB PCIe": _AMPERE,
    "A100-PCIE-40GB": _AMPERE,
    # NVIDIA's H100 and H200 data sheets, which tell of twice as much, "with sparsity".
    "NVIDIA H100 80GB HBM3": _HOPPER,
    "NVIDIA H100 PCIe": {16: 756.5, 8: 1513.0},
    "NVIDIA H200": _HOPPER,
}
"""Dense TFLOP/s of tensor cores by the driver's name of a device and bits of an operand."""


def peak_tflops(device: Device, dtypes: Iterable[str]) -> float | None:
    """The device's peak for a problem in TFLOP/s; None where nobody can say which one it is.

    That of fp32 is not told: whether its products are rounded to TF32 is the kernel's choice. Nor that of integers
    beside floats, whose products may be of either. With FP8 among the tensors it is FP8's, though a kernel may widen
    them.

    Args:
        device: a whole GPU; of a slice no peak is published.
        dtypes: of the problem's tensors, in Triton's spelling.
    """
    known, found = PEAK_TFLOPS.get(device.name, {}), set(dtypes)
    if device.mig or found & _QUANTISED:
        return None
    return known.get(8 if found & _8_BIT else 16 if found & _16_BIT else 0)
