"""What the schedule knows: open jobs, workers, leases, time and money. The rules are in `machine`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tunefarm.schedule.events import Budget, Job, Limits, Start
from tunefarm.schedule.queue import Lane, Queue
from tunefarm.schedule.roster import Member, Roster


@dataclass(frozen=True, slots=True)
class Loss:
    """One lost attempt: where, whether the worker died of it, and why."""

    worker: str
    died: bool
    reason: str


@dataclass(slots=True)
class Life:
    """A job that has not ended.

    Attributes:
        job: what is to be done.
        attempt: the one that holds the lease; 0 while the job waits.
        worker: who has that attempt.
        losses: attempts that brought nothing back.
        withdrawn: nobody wants it, but a worker is still busy with it.
    """

    job: Job
    attempt: int = 0
    worker: str = ""
    losses: tuple[Loss, ...] = ()
    withdrawn: bool = False

    @property
    def lane(self) -> Lane:
        """Where it waits."""
        return self.job.lane


@dataclass(slots=True)
class State:
    """Everything the schedule knows. It belongs to `machine.step`, which changes it in place.

    Attributes:
        limits: how patient it is.
        budget: what the sweep may cost.
        now_s: time of the last event.
        started_s: time of the first event.
        gpu_held_s: seconds that GPUs were held until `now_s`.
        spent: the budget that ended the measuring, or empty.
        lives: jobs that have not ended, by id.
        queue: those of them that wait.
        roster: the workers.
        leases: attempt -> (job id, deadline), for all attempts in flight.
        deadlines: heap of (deadline, attempt) for the attempts that workers are busy with; entries may be stale.
        stranded: lanes with jobs and without workers, and since when.
        num_attempts: started so far; the last attempt's number.
    """

    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    now_s: float = 0.0
    started_s: float | None = None
    gpu_held_s: float = 0.0
    spent: str = ""
    lives: dict[str, Life] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    roster: Roster = field(default_factory=Roster)
    leases: dict[int, tuple[str, float]] = field(default_factory=dict)
    deadlines: list[tuple[float, int]] = field(default_factory=list)
    stranded: dict[Lane, float] = field(default_factory=dict)
    num_attempts: int = 0

    @property
    def num_open(self) -> int:
        """Jobs that have not ended; a withdrawn one counts while a worker is still busy with it."""
        return len(self.lives)

    @property
    def wake_s(self) -> float | None:
        """When the next `Tick` is due, or None while nothing can happen by itself."""
        moments = [since_s + self.limits.wait_s for since_s in self.stranded.values()]
        lease = self.first_deadline()
        if lease is not None:
            moments.append(lease[0])
        if not self.spent and self.started_s is not None and self.budget.wall_s is not None:
            moments.append(self.started_s + self.budget.wall_s)
        if not self.spent and self.budget.gpu_held_s is not None and self.roster.num_holding:
            moments.append(self.now_s + (self.budget.gpu_held_s - self.gpu_held_s) / self.roster.num_holding)
        return min(moments, default=None)

    def pass_time(self, now_s: float) -> None:
        """Moves to `now_s`, unless that is earlier, and counts what it costs."""
        if self.started_s is None:
            self.started_s = self.now_s = now_s
        passed_s = max(0.0, now_s - self.now_s)
        self.gpu_held_s += passed_s * self.roster.num_holding
        self.now_s += passed_s

    def is_unaffordable(self, job: Job) -> bool:
        """Whether the budget no longer allows a job to start."""
        return bool(self.spent) and job.role == "measure" and not job.essential

    def is_orphaned(self, job: Job) -> bool:
        """Whether the one worker that may do a job is not there, or gets no more."""
        return bool(job.on) and not self.roster.size(job.lane)

    def wait(self, job: Job) -> None:
        """Lets an open job wait for a worker."""
        lane = job.lane
        if not self.queue.size(lane) and not self.roster.size(lane):
            self.stranded[lane] = self.now_s
        self.queue.push(job)

    def lease(self, member: Member) -> Start | None:
        """Gives the best job there is for a member with room a new attempt there; None if there is no such job."""
        name = member.worker.name
        job_id = self.queue.take(member.lanes, lambda other: self._avoids(other, name))
        if job_id is None:
            return None
        life = self.lives[job_id]
        self.num_attempts += 1
        life.attempt, life.worker = self.num_attempts, name
        begin_s = self.leases[member.in_flight[-1]][1] if member.in_flight else self.now_s
        deadline_s = begin_s + life.job.timeout_s
        self.roster.load(member, life.attempt)
        self.leases[life.attempt] = job_id, deadline_s
        if member.in_flight[0] == life.attempt:
            heapq.heappush(self.deadlines, (deadline_s, life.attempt))
        return Start(job=life.job, worker=name, attempt=life.attempt, deadline_s=deadline_s)

    def release(self, life: Life) -> Member:
        """Ends a job's lease; the lease of what comes next on the worker begins."""
        member = self.member(life)
        self.roster.unload(member, life.attempt)
        del self.leases[life.attempt]
        life.attempt, life.worker = 0, ""
        if member.in_flight:
            head = member.in_flight[0]
            job_id, deadline_s = self.leases[head]
            deadline_s = min(deadline_s, self.now_s + self.lives[job_id].job.timeout_s)
            self.leases[head] = job_id, deadline_s
            heapq.heappush(self.deadlines, (deadline_s, head))
        return member

    def holder(self, job_id: str, attempt: int, worker: str) -> Life | None:
        """The open job whose lease this attempt holds, if it does."""
        life = self.lives.get(job_id)
        if life is None or (life.attempt, life.worker) != (attempt, worker):
            return None
        return life

    def member(self, life: Life) -> Member:
        """The worker that has a job in flight."""
        member = self.roster.get(life.worker)
        assert member is not None, "an attempt in flight is on a member"
        return member

    def first_deadline(self) -> tuple[float, int] | None:
        """(deadline, attempt) of the lease that ends first, of those that workers are busy with."""
        while self.deadlines:
            deadline_s, attempt = self.deadlines[0]
            lease = self.leases.get(attempt)
            if lease is not None and lease[1] == deadline_s:
                return deadline_s, attempt
            heapq.heappop(self.deadlines)
        return None

    def _avoids(self, job_id: str, name: str) -> bool:
        """Whether a job was lost on this worker and there is another for it."""
        life = self.lives[job_id]
        if not life.losses:
            return False
        lost_on = {loss.worker for loss in life.losses}
        if name not in lost_on:
            return False
        return self.roster.size(life.lane) > sum(self.roster.serves(other, life.lane) for other in lost_on)
