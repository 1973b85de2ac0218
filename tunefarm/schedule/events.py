"""The words of the schedule: jobs, what may happen to them, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.seams import Worker

OVERDUE = "was killed after"
"""In the reason of a job that outlived its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker does in one go; the schedule never looks inside.

    Attributes:
        id: unique among the jobs that have not ended.
        role: `build` or `measure`: which workers may do it.
        where: the device key or the arch the worker must have; empty for any worker of the role.
        on: name of the one worker that may do it, if it must be that one: without it the job is given up at once.
        cost_s: how long it is expected to take; of equal priority, the longest starts first.
        priority: the highest starts first.
        timeout_s: the longest an attempt may hold its worker, the start of a fresh process included.
        essential: may start though the budget is spent, as finals do.
    """

    id: str
    role: str
    where: str = ""
    on: str = ""
    cost_s: float = 0.0
    priority: int = 0
    timeout_s: float = 600.0
    essential: bool = False

    @property
    def lane(self) -> tuple[str, str]:
        """(role, place): where it waits."""
        return self.role, self.on or self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient the schedule is.

    Attributes:
        depth: jobs in flight on a measuring worker, so that it never waits for the driver. Build workers have one.
        deaths: a job that cost this many workers is condemned.
        attempts: a job lost this many times, whatever the cause, is given up.
        quarantine: a worker that lost this many different jobs in a row gets no more, unless it is the last of its
            kind.
        wait_s: how long jobs wait while there is no worker at all that could do them.
    """

    depth: int = 2
    deaths: int = 2
    attempts: int = 5
    quarantine: int = 5
    wait_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a sweep may cost; None for no limit.

    Attributes:
        wall_s: seconds since the first event.
        gpu_held_s: seconds summed over GPUs, each from its worker's first job until the worker leaves.
    """

    wall_s: float | None = None
    gpu_held_s: float | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it may end the measuring."""
        return self.wall_s is not None or self.gpu_held_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker is there. One that was there already under this name is taken to have left first."""

    worker: Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker is gone for good, with everything in flight on it."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Jobs to do. Those that come together are ordered before any of them starts."""

    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An attempt brought something back, be it a measurement or a candidate's failure."""

    job: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An attempt brought nothing back.

    Attributes:
        died: the worker's process died of it, rather than that some service failed.
        reason: for people.
        told: the job has left word of what it would die of: that is taken for what it brings back. One process is all
            that it costs, and nothing of it is held against the worker.
    """

    job: str
    attempt: int
    worker: str
    died: bool
    reason: str
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """What a worker brings back is not to be trusted. The last one of its kind stays: it is all there is.

    Attributes:
        worker: which.
        reason: for people: the evidence.
    """

    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Nobody wants this job any more."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; sent at `State.wake_s` at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Give the job to the worker, which does it after what it already has.

    Attributes:
        attempt: unique in the sweep; whoever holds it holds the job's lease.
        deadline_s: when the lease ends; earlier if what is ahead on the worker takes less than it may.
    """

    job: Job
    worker: str
    attempt: int
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Use what the attempt brought back. Once per job."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Drop what the attempt brought back: it no longer holds the job's lease."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End the attempt, by killing the worker's process if it is running there."""

    worker: str
    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    """The job costs workers and is never tried again."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The job was not done, through no fault of its own."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The worker loses whatever it is given, or spoils it, and gets no more."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """No measuring job starts any more, save the essential ones.

    Attributes:
        budget: `wall_s` or `gpu_held_s`.
    """

    budget: str


Event = WorkerJoined | WorkerLeft | Submitted | Finished | Lost | Accused | Withdrawn | Tick
Action = Start | Accept | Late | Kill | Condemn | GiveUp | Quarantine | BudgetSpent
