"""How the schedule stands at a moment, for people and their dashboards; it decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.device import Device
from tunefarm.schedule.queue import Lane
from tunefarm.schedule.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Workers and jobs, counted.

    Attributes:
        workers: by role, device (None for a CPU) and state: `idle`, `busy` or `quarantined`.
        jobs: by (role, device key or arch, empty for any) and state, `waiting` or `in_flight`; those that one worker
            alone may do count with the others of its device.
        num_attempts: started so far.
    """

    workers: Mapping[tuple[str, Device | None, str], int]
    jobs: Mapping[tuple[Lane, str], int]
    num_attempts: int


def stand(state: State) -> Standing:
    """How a schedule stands now."""
    workers: Counter[tuple[str, Device | None, str]] = Counter()
    for member in state.roster.members:
        how = "quarantined" if not member.active else "busy" if member.in_flight else "idle"
        workers[member.worker.role, member.worker.device, how] += 1
    jobs: Counter[tuple[Lane, str]] = Counter()
    for life in state.lives.values():
        jobs[(life.job.role, life.job.where), "in_flight" if life.attempt else "waiting"] += 1
    return Standing(workers=workers, jobs=jobs, num_attempts=state.num_attempts)
