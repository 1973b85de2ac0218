"""Peaks that vendors publish, and problems of which nobody can say which one is theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.device import NOMINAL, nominal
from tunefarm.peaks import PEAK_TFLOPS, peak_tflops

H100, A100 = nominal("sm_90"), nominal("sm_80")


@pytest.mark.parametrize(
    ("dtypes", "on_h100", "on_a100"),
    [
        (("bf16", "bf16", "bf16"), 989.5, 312.0),
        (("fp16", "fp32", "i64"), 989.5, 312.0),  # accumulates in fp32, is told where to look
        (("fp8e4nv", "fp8e4nv", "bf16"), 1979.0, None),  # A100 has no FP8
        (("fp32", "fp32"), None, None),  # rounded to TF32 or not
        (("bf16", "i8"), None, None),  # products of either
        ((), None, None),
    ],
)
def test_the_peak_is_that_of_what_is_multiplied(
    dtypes: tuple[str, ...], on_h100: float | None, on_a100: float | None
) -> None:
    assert (peak_tflops(H100, dtypes), peak_tflops(A100, dtypes)) == (on_h100, on_a100)


def test_of_other_devices_and_of_slices_nothing_is_made_up() -> None:
    for device in (replace(H100, mig="1g.10gb"), replace(H100, name="NVIDIA H100 NVL"), replace(H100, name="H20")):
        assert peak_tflops(device, ["bf16"]) is None
    assert peak_tflops(replace(H100, name="NVIDIA H200"), ["bf16"]) == 989.5
    assert {device.name for device in NOMINAL.values()} <= PEAK_TFLOPS.keys()
