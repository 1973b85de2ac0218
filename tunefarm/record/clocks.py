"""A GPU's clocks while it was timed, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunefarm.record.figures import short
from tunefarm.trial import Measurement


def spread(telemetry: Iterable[Mapping[str, Any]], name: str, unit: str) -> str:
    """The lowest and the highest of a reading, or the only one; empty where nobody took it."""
    found = [t[name] for t in telemetry if isinstance(t.get(name), int | float)]
    if not found:
        return ""
    low, high = short(min(found)), short(max(found))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def clocks(measurements: Iterable[Measurement]) -> str:
    """Whether clocks stood still: `steady: 1980 MHz`, `moving: 1755 to 1980 MHz`, `throttled: ...`, or `unknown`.

    No driver tells whether they are locked: locked ones, and free ones that nothing moved, are steady.

    Args:
        measurements: of a study, or of one candidate.
    """
    told = [m.telemetry for m in measurements if m.telemetry]
    speed = spread(told, "sm_mhz", "MHz")
    if not speed:
        return "unknown"
    state = "throttled" if any(t.get("throttle") for t in told) else "moving" if " to " in speed else "steady"
    return f"{state}: {speed}"
