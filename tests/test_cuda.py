"""What the CUDA driver's answers become. No driver is here: its library is played by one with the same functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tunefarm.bench import cuda
from tunefarm.device import Device

ANSWERS = {
    1: 1024,
    8: 49152,
    10: 32,
    16: 132,
    36: 3_201_000,
    37: 6016,
    38: 62914560,
    75: 9,
    76: 0,
    82: 65536,
    97: 232448,
}


class Library:
    """libcuda as far as it is asked; `fails` names the function, or the attribute, that gives an error."""

    def __init__(self, fails: str | int = "") -> None:
        self._fails = fails

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            if name == self._fails or (name == "cuDeviceGetAttribute" and args[1] == self._fails):
                return 100
            if name == "cuDeviceGetAttribute":
                args[0]._obj.value = ANSWERS[args[1]]
            elif name == "cuDeviceGetName":
                args[0].value = b"NVIDIA H200"
            elif name == "cuDeviceTotalMem_v2":
                args[0]._obj.value = 150109880320
            return 0

        return call


def test_the_driver_s_answers_are_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    device = Device.of_driver(cuda.properties(0), is_amd=False)
    assert device == Device(
        arch="sm_90", name="NVIDIA H200", num_sms=132, shared_bytes=232448, l2_bytes=62914560,
        memory_bytes=150109880320, bandwidth_gbps=4814.3, live=True,
    )  # fmt: skip


@pytest.mark.parametrize("fails", ["cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2", *ANSWERS])
def test_a_driver_that_cannot_tell_all_tells_nothing(monkeypatch: pytest.MonkeyPatch, fails: str | int) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(fails))
    assert cuda.properties(0) is None


def test_without_a_driver_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda.properties(0) is None
