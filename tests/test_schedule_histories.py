"""The schedule under random histories: whatever happens, every job ends exactly once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from test_schedule import A100, H100

from tunefarm.schedule.events import (
    Accept,
    Action,
    Budget,
    BudgetSpent,
    Condemn,
    Event,
    Finished,
    GiveUp,
    Job,
    Kill,
    Late,
    Limits,
    Lost,
    Quarantine,
    Start,
    Submitted,
    Tick,
    Withdrawn,
    WorkerJoined,
    WorkerLeft,
)
from tunefarm.schedule.machine import step
from tunefarm.schedule.state import State
from tunefarm.seams import Worker


@dataclass
class World:
    """Plays fleet and user at random, and checks every action against what may happen."""

    random: random.Random
    state: State
    now: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    in_flight: dict[int, Start] = field(default_factory=dict)
    gone: list[Start] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    num_seen: Counter[type] = field(default_factory=Counter)

    def send(self, event: Event) -> None:
        for action in step(self.state, event, self.now):
            self.num_seen[type(action)] += 1
            self.check(action)

    def check(self, action: Action) -> None:
        match action:
            case Start(job=job, worker=name, attempt=attempt):
                worker = self.workers[name]
                assert self.endings[job.id] == 0
                assert attempt not in self.in_flight
                assert job.role == worker.role
                device = worker.device
                assert job.on in ("", name)
                assert job.where in ("", *((device.arch, device.key) if device else ()))
                self.in_flight[attempt] = action
                assert sum(s.worker == name for s in self.in_flight.values()) <= (2 if worker.role == "measure" else 1)
                assert sum(s.job.id == job.id for s in self.in_flight.values()) == 1
            case Accept(job=job_id, attempt=attempt):
                assert self.in_flight.pop(attempt).job.id == job_id
                self.endings[job_id] += 1
            case Kill(attempt=attempt):
                self.gone.append(self.in_flight.pop(attempt))
            case Condemn(job=job_id) | GiveUp(job=job_id):
                assert all(s.job.id != job_id for s in self.in_flight.values())
                self.endings[job_id] += 1
            case Late(attempt=attempt):
                self.in_flight.pop(attempt, None)
            case Quarantine() | BudgetSpent():
                pass

    def act(self) -> None:
        self.now += self.random.expovariate(1.0)
        deed = self.random.choices(
            [self.join, self.leave, self.submit, self.finish, self.lose, self.withdraw, self.be_late, self.tick],
            [2, 1, 5, 20, 5, 1, 1, 3],
        )[0]
        deed()

    def join(self) -> None:
        role = self.random.choice(["measure", "build"])
        device = self.random.choice([H100, A100, None]) if role == "measure" else None
        name = f"w{self.random.randrange(8)}"
        self.forget(name)
        self.workers[name] = Worker(name=name, role=role, device=device)
        self.send(WorkerJoined(worker=self.workers[name]))

    def leave(self) -> None:
        name = f"w{self.random.randrange(8)}"
        self.forget(name)
        self.send(WorkerLeft(worker=name))

    def forget(self, name: str) -> None:
        for attempt, start in list(self.in_flight.items()):
            if start.worker == name:
                self.gone.append(self.in_flight.pop(attempt))

    def submit(self) -> None:
        new = []
        for _ in range(self.random.randrange(1, 8)):
            role = self.random.choice(["measure", "build"])
            where = self.random.choice(["", "sm_90", A100.key]) if role == "measure" else ""
            pinned = f"w{self.random.randrange(8)}" if self.random.random() < 0.1 else ""
            timeout_s = self.random.choice([3.0, 30.0])
            essential = self.random.random() < 0.1
            job = Job(
                id=f"j{len(self.jobs)}",
                role=role,
                where="" if pinned else where,
                on=pinned,
                cost_s=self.random.random(),
                timeout_s=timeout_s,
                essential=essential,
            )
            self.jobs[job.id] = job
            new.append(job)
        self.send(Submitted(jobs=tuple(new)))

    def some(self) -> Start | None:
        heads = {start.worker: start for start in reversed(self.in_flight.values())}
        return self.random.choice(list(heads.values())) if heads else None

    def finish(self) -> None:
        if start := self.some():
            self.send(Finished(job=start.job.id, attempt=start.attempt, worker=start.worker))

    def lose(self) -> None:
        if start := self.some():
            died = self.random.random() < 0.5
            told = died and self.random.random() < 0.3
            if not told:  # What it has left word of is still to be accepted, or too late.
                del self.in_flight[start.attempt]
            self.send(
                Lost(
                    job=start.job.id, attempt=start.attempt, worker=start.worker, died=died, reason="lost", told=told
                )
            )  # fmt: skip

    def withdraw(self) -> None:
        if self.jobs:
            job_id = self.random.choice(list(self.jobs))
            self.endings[job_id] += not self.endings[job_id]
            self.send(Withdrawn(job=job_id))

    def be_late(self) -> None:
        if self.gone:
            start = self.random.choice(self.gone)
            event = Finished(job=start.job.id, attempt=start.attempt, worker=start.worker)
            assert step(self.state, event, self.state.now_s)[0] == Late(job=start.job.id, attempt=start.attempt)

    def tick(self) -> None:
        self.send(Tick())

    def drain(self) -> None:
        """Nothing more is submitted: time alone must end everything."""
        for _ in range(100_000):
            if not self.state.num_open:
                return
            if self.random.random() < 0.5 and self.in_flight:
                self.finish()
            else:
                wake = self.state.wake_s
                assert wake is not None, "jobs are open and nothing will ever happen"
                self.now = max(self.now, wake)
                self.tick()
        raise AssertionError("does not end")


@pytest.mark.parametrize("seed", range(60))
def test_every_job_ends_exactly_once_whatever_happens(seed: int) -> None:
    limits = Limits(quarantine=3, wait_s=20.0)
    budget = Budget(wall_s=300.0) if seed % 3 == 0 else Budget(gpu_held_s=200.0) if seed % 3 == 1 else Budget()
    world = World(random.Random(seed), State(limits=limits, budget=budget))
    for _ in range(400):
        world.act()
    world.drain()
    assert {job_id: world.endings[job_id] for job_id in world.jobs} == dict.fromkeys(world.jobs, 1)
    assert world.state.num_open == 0
    assert world.state.leases == {}
    assert world.num_seen[Start] >= world.num_seen[Accept] > 0


def test_the_same_events_give_the_same_actions() -> None:
    def story() -> list[int]:
        world = World(random.Random(7), State(limits=Limits(quarantine=3, wait_s=20.0)))
        for _ in range(300):
            world.act()
        return [*world.num_seen.values(), *world.in_flight]

    assert story() == story()
