"""Devices by the names that people give them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.device import NOMINAL, Device, named, nominal
from tunefarm.errors import UserError

NAMES = ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H20-3e", "NVIDIA H20", "NVIDIA H2000")
SHORT = ("H200", "H200 NVL", "GH200", "H20-3e", "H20", "H2000")


def make(name: str, num_sms: int = 132) -> Device:
    return replace(nominal("sm_90"), name=name, num_sms=num_sms)


def test_tf_064_each_device_is_found_under_its_own_name_only() -> None:
    known = [make(name) for name in NAMES]
    assert tuple(device.short_name for device in known) == SHORT
    for name, short, device in zip(NAMES, SHORT, known, strict=True):
        for text in (name, short, short.lower(), name.replace(" ", "_").replace("-", "_"), device.key):
            assert named(text, known) is device
        with pytest.raises(UserError, match="is not known"):
            named(short, [other for other in known if other is not device])


def test_an_arch_stands_for_its_nominal_device_and_live_facts_count_more() -> None:
    assert named("sm_90") is NOMINAL["sm_90"]
    assert named("H100") is NOMINAL["sm_90"]
    assert named("A100") is NOMINAL["sm_80"]
    live = replace(nominal("sm_90"), bandwidth_gbps=3350.0, live=True)
    assert named("H100", [live]) is live
    assert named("sm_90", [live]) is live


def test_a_name_of_two_devices_is_asked_back() -> None:
    whole, slice_ = make("NVIDIA H200"), make("NVIDIA H200", 16)
    with pytest.raises(UserError, match=r"more than one.*H200/132.*H200/16"):
        named("H200", [whole, slice_])
    assert named(slice_.key, [whole, slice_]) is slice_
    with pytest.raises(UserError, match=r"'B200' is not known .*NVIDIA H200.*sm_80"):
        named("B200", [whole])
