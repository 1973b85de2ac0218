"""The schedule: `step(state, event, now_s)` says what to do. No clock, no threads, no I/O, no chance.

    Submitted -> waiting -> Start -> Accept (also of what a lost job has left word of)
                    ^          |
                    +-- lost --+--> Condemn (cost too many workers) or GiveUp (lost too often)

Whoever holds a job's lease is the attempt that was started last; the lease ends with the attempt, when its worker
leaves, or at its deadline. Every job ends exactly once: accepted, condemned, given up or withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable

from tunefarm.schedule.events import (
    OVERDUE,
    Accept,
    Accused,
    Action,
    BudgetSpent,
    Condemn,
    Event,
    Finished,
    GiveUp,
    Job,
    Kill,
    Late,
    Lost,
    Quarantine,
    Submitted,
    Tick,
    Withdrawn,
    WorkerJoined,
    WorkerLeft,
)
from tunefarm.schedule.queue import Lane
from tunefarm.schedule.roster import Member
from tunefarm.schedule.state import Life, Loss, State
from tunefarm.seams import Worker


def step(state: State, event: Event, now_s: float) -> list[Action]:
    """Takes in one event and says what to do, in order.

    Args:
        state: changed in place; O(log n) in the jobs that wait.
        event: what happened.
        now_s: when, in seconds of any clock; an earlier time than before counts as the time before.

    Raises:
        ValueError: a job was submitted under the id of one that has not ended.
    """
    actions: list[Action] = []
    state.pass_time(now_s)
    _spend(state, actions)
    match event:
        case WorkerJoined(worker=worker):
            _leave(state, worker.name, actions)
            _join(state, worker, actions)
        case WorkerLeft(worker=name):
            _leave(state, name, actions)
        case Submitted(jobs=jobs):
            _submit(state, jobs, actions)
        case Finished():
            _finish(state, event, actions)
        case Lost():
            _lost(state, event, actions)
        case Accused(worker=name, reason=reason):
            _accuse(state, name, reason, actions)
        case Withdrawn(job=job_id):
            _withdraw(state, job_id, actions)
        case Tick():
            pass
    # After the event: what has come in, however late, is worth more than a rule about it.
    _expire(state, actions)
    return actions


# ---- workers ----


def _join(state: State, worker: Worker, actions: list[Action]) -> None:
    member = Member(worker=worker, depth=state.limits.depth if worker.role == "measure" else 1)
    state.roster.join(member)
    for lane in member.lanes:
        state.stranded.pop(lane, None)
    _fill(state, member, actions)


def _leave(state: State, name: str, actions: list[Action]) -> None:
    member = state.roster.leave(name)
    if member is None:
        return
    for attempt in member.in_flight:
        job_id, _ = state.leases.pop(attempt)
        _retry(state, state.lives[job_id], Loss(name, False, f"{name} left"), actions)
    _do_without(state, member, actions)


def _accuse(state: State, name: str, reason: str, actions: list[Action]) -> None:
    member = state.roster.get(name)
    if member is not None and _is_dispensable(state, member):
        _quarantine(state, member, reason, actions)


def _is_dispensable(state: State, member: Member) -> bool:
    """Whether there are others for all that it does. The last one goes on: without any worker all jobs are lost."""
    return member.active and all(state.roster.size(lane) > 1 for lane in member.lanes if lane != member.own_lane)


def _quarantine(state: State, member: Member, reason: str, actions: list[Action]) -> None:
    state.roster.suspend(member)
    actions.append(Quarantine(worker=member.worker.name, reason=reason))
    _do_without(state, member, actions)


def _do_without(state: State, member: Member, actions: list[Action]) -> None:
    """One worker fewer: jobs may have nowhere to go, and those that avoided other workers may have no choice now."""
    _give_up(state, state.queue.waiting(member.own_lane), _orphaned(member.worker.name), actions)
    for lane in member.lanes:
        if state.queue.size(lane) and not state.roster.size(lane):
            state.stranded.setdefault(lane, state.now_s)
    for other in state.roster.open():
        _fill(state, other, actions)


def _place(state: State, lane: Lane, actions: list[Action]) -> None:
    """Starts jobs of a lane that has new ones on members that had nothing to do, the idlest first."""
    without: set[str] = set()
    while state.queue.size(lane):
        member = state.roster.idlest(lane, without)
        if member is None:
            return
        start = state.lease(member)
        if start is None:
            without.add(member.worker.name)
        else:
            actions.append(start)


def _fill(state: State, member: Member, actions: list[Action]) -> None:
    while member.has_room:
        start = state.lease(member)
        if start is None:
            return
        actions.append(start)


# ---- jobs ----


def _submit(state: State, jobs: Iterable[Job], actions: list[Action]) -> None:
    lanes: dict[Lane, None] = {}
    for job in jobs:
        if job.id in state.lives:
            raise ValueError(f"job {job.id} has not ended and was submitted again")
        if state.is_unaffordable(job):
            actions.append(GiveUp(job=job.id, reason=f"budget {state.spent} is spent"))
            continue
        if state.is_orphaned(job):
            actions.append(GiveUp(job=job.id, reason=_orphaned(job.on)))
            continue
        life = state.lives[job.id] = Life(job)
        state.wait(job)
        lanes[life.lane] = None
    for lane in lanes:
        _place(state, lane, actions)


def _finish(state: State, event: Finished, actions: list[Action]) -> None:
    life = state.holder(event.job, event.attempt, event.worker)
    if life is None:
        actions.append(Late(job=event.job, attempt=event.attempt))
        return
    answer = Late if life.withdrawn else Accept
    actions.append(answer(job=event.job, attempt=event.attempt))
    member = state.release(life)
    member.lost.clear()
    del state.lives[event.job]
    _fill(state, member, actions)


def _lost(state: State, event: Lost, actions: list[Action]) -> None:
    life = state.holder(event.job, event.attempt, event.worker)
    if life is None:
        actions.append(Late(job=event.job, attempt=event.attempt))
        return
    _lose(state, life, Loss(event.worker, event.died, event.reason), actions, told=event.told)


def _lose(state: State, life: Life, loss: Loss, actions: list[Action], *, told: bool = False) -> None:
    """Takes a job off its worker, and sees that both go on."""
    attempt = life.attempt
    member = state.release(life)
    if told:  # The job says that it was not the worker's fault.
        answer = Late if life.withdrawn else Accept
        actions.append(answer(job=life.job.id, attempt=attempt))
        del state.lives[life.job.id]
    else:
        member.lost.add(life.job.id)
        _retry(state, life, loss, actions)
    if len(member.lost) >= state.limits.quarantine and _is_dispensable(state, member):
        _quarantine(state, member, f"lost {len(member.lost)} different jobs in a row", actions)
    _place(state, life.lane, actions)
    _fill(state, member, actions)


def _retry(state: State, life: Life, loss: Loss, actions: list[Action]) -> None:
    """Lets a job wait again after a loss, or ends it. Nothing starts before the worker has been judged too."""
    job = life.job
    life.attempt, life.worker = 0, ""
    life.losses += (loss,)
    deaths = [past for past in life.losses if past.died]
    if life.withdrawn:
        pass
    elif len(deaths) >= state.limits.deaths:
        actions.append(Condemn(job=job.id, reason="; ".join(past.reason for past in deaths)))
        _exonerate(state, job, {past.worker for past in deaths})
    elif len(life.losses) >= state.limits.attempts:
        reasons = "; ".join(past.reason for past in life.losses)
        actions.append(GiveUp(job=job.id, reason=f"lost {len(life.losses)} times: {reasons}"))
    elif state.is_unaffordable(job):
        actions.append(GiveUp(job=job.id, reason=f"budget {state.spent} is spent"))
    elif state.is_orphaned(job):
        actions.append(GiveUp(job=job.id, reason=_orphaned(job.on)))
    else:
        state.wait(job)
        return
    del state.lives[job.id]


def _exonerate(state: State, job: Job, workers: set[str]) -> None:
    """A job that died on several workers was not their fault; on one alone, it may have been."""
    if len(workers) > 1:
        for name in workers:
            member = state.roster.get(name)
            if member is not None:
                member.lost.discard(job.id)


def _withdraw(state: State, job_id: str, actions: list[Action]) -> None:
    life = state.lives.get(job_id)
    if life is None or life.withdrawn:
        return
    if not life.attempt:
        state.queue.remove(job_id)
        del state.lives[job_id]
        return
    if state.member(life).in_flight[0] == life.attempt:
        # A fresh process costs more than the rest of most jobs: it may finish, and what it brings is late.
        life.withdrawn = True
        return
    actions.append(Kill(worker=life.worker, job=job_id, attempt=life.attempt))
    member = state.release(life)
    del state.lives[job_id]
    _fill(state, member, actions)


# ---- time and money ----


def _expire(state: State, actions: list[Action]) -> None:
    """Ends leases past their deadline, and the wait for workers that do not come."""
    while (first := state.first_deadline()) is not None and first[0] <= state.now_s:
        _, attempt = first
        life = state.lives[state.leases[attempt][0]]
        actions.append(Kill(worker=life.worker, job=life.job.id, attempt=attempt))
        reason = f"{life.worker} {OVERDUE} {life.job.timeout_s:g} s"
        _lose(state, life, Loss(life.worker, True, reason), actions)
    for lane, since_s in tuple(state.stranded.items()):
        if state.now_s >= since_s + state.limits.wait_s:
            role, where = lane
            what = f"no {role} worker{f' on {where}' if where else ''} for {state.limits.wait_s:g} s"
            _give_up(state, state.queue.waiting(lane), what, actions)
            del state.stranded[lane]


def _spend(state: State, actions: list[Action]) -> None:
    """Ends the measuring when a budget is used up."""
    if state.spent or state.started_s is None or not state.budget.is_limited:
        return
    used = {"wall_s": state.now_s - state.started_s, "gpu_held_s": state.gpu_held_s}
    limits = {"wall_s": state.budget.wall_s, "gpu_held_s": state.budget.gpu_held_s}
    # A microsecond of grace: a tick sent at `wake_s` must find the budget spent, however sums of floats round.
    state.spent = next((name for name, limit in limits.items() if limit is not None and used[name] >= limit - 1e-6), "")
    if state.spent:
        actions.append(BudgetSpent(budget=state.spent))
        for lane in state.queue.lanes("measure"):
            unaffordable = (i for i in state.queue.waiting(lane) if not state.lives[i].job.essential)
            _give_up(state, unaffordable, f"budget {state.spent} is spent", actions)


def _orphaned(name: str) -> str:
    return f"{name} takes no more jobs, and no other was to do this one"


def _give_up(state: State, job_ids: Iterable[str], reason: str, actions: list[Action]) -> None:
    for job_id in job_ids:
        state.queue.remove(job_id)
        del state.lives[job_id]
        actions.append(GiveUp(job=job_id, reason=reason))
