"""Clocks in words."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.frozen import FrozenMap
from tunefarm.record.clocks import clocks
from tunefarm.trial import Measurement


def taken(**telemetry: Any) -> Measurement:
    return Measurement(samples_ms=(1.0,), timer="cold", rung=0, source="measured", telemetry=FrozenMap(telemetry))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "unknown"),
        ([taken()], "unknown"),
        ([taken(temperature_c=40)], "unknown"),
        ([taken(sm_mhz=1980, throttle=""), taken(), taken(sm_mhz=1980)], "steady: 1980 MHz"),
        ([taken(sm_mhz=1980), taken(sm_mhz=1755)], "moving: 1755 to 1980 MHz"),
        ([taken(sm_mhz=1980), taken(sm_mhz=1980, throttle="power_cap")], "throttled: 1980 MHz"),
    ],
)
def test_clocks_are_steady_moving_throttled_or_unknown(told: list[Measurement], said: str) -> None:
    assert clocks(told) == said
