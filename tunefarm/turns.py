"""Turns: which study's questions are measured next, where several wait for the same workers.

The schedule gives a worker its next job the moment one ends, before the study that this was for can say what it wants
next: of two studies each would get every other turn, whatever their claims. So questions wait here, and the schedule is
handed only what may start. In what order studies are measured changes no decision of theirs; where a budget ends, it
has been spent where most was expected.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.dispatch import Dispatch
from tunefarm.schedule.events import Job

NEAR = 0.5
"""Under a budget, the next questions are put behind those on a worker only if their claim is at least this share of
theirs. Otherwise the worker rather waits, some milliseconds, for the study that it measures to go on."""

Errand: TypeAlias = tuple[Job, Callable[[], object]]


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn:
    """What one study wants measured at a time, all of it in one place.

    Attributes:
        errands: the jobs.
        claim: how much is expected of it, see `wants.Want.claim`.
        left: ids of the jobs that have not ended.
    """

    errands: Sequence[Errand]
    claim: float
    left: set[str]

    @property
    def where(self) -> str:
        return self.errands[0][0].lane[1]


_Entry: TypeAlias = tuple[float, int, _Turn]
"""(-claim, order of arrival, turn): the smallest is the next."""


class Turns:
    """Hands questions to the dispatch as workers come free for them, those with the greatest claim first.

    Args:
        dispatch: who works.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._num_turns = 0
        # By place: thousands of studies may wait for hundreds of workers.
        self._waiting: dict[str, list[_Entry]] = {}
        self._begun: dict[str, dict[_Turn, None]] = {}
        self._by_job: dict[str, _Turn] = {}

    def wait(self, errands: Sequence[Errand], claim: float) -> None:
        """Puts the questions of a study behind those of equal claim; `serve` begins them."""
        turn = _Turn(errands=errands, claim=claim, left={job.id for job, _ in errands})
        self._num_turns += 1
        heapq.heappush(self._waiting.setdefault(turn.where, []), (-claim, self._num_turns, turn))

    def serve(self) -> None:
        """Begins what may begin. Once a budget is spent that is everything: the schedule gives it up."""
        # Where the next may not begin, none behind it may.
        places = {where for where, waiting in self._waiting.items() if waiting}
        while places:
            where = min(places, key=lambda place: self._waiting[place][0])
            waiting = self._waiting[where]
            turn = waiting[0][-1]
            if self._dispatch.spent or self._may_begin(turn):
                heapq.heappop(waiting)
                self._begin(turn)
                if waiting:
                    continue
            places.discard(where)

    def end(self, job_id: str) -> None:
        """Takes note that a job has ended."""
        turn = self._by_job.pop(job_id, None)
        if turn is not None:
            turn.left.discard(job_id)
            if not turn.left:
                del self._begun[turn.where][turn]

    def _begin(self, turn: _Turn) -> None:
        self._begun.setdefault(turn.where, {})[turn] = None
        self._by_job.update(dict.fromkeys(turn.left, turn))
        self._dispatch.submit(turn.errands)

    def _may_begin(self, turn: _Turn) -> bool:
        ahead = self._begun.get(turn.where, {})
        # Without any worker the schedule is to know what waits for one, and to lose patience.
        num_workers = max(1, self._dispatch.num_measuring(turn.where))
        if len(ahead) < num_workers:
            return True
        if len(ahead) >= num_workers * self._dispatch.depth:
            return False
        return not self._dispatch.is_limited or turn.claim >= NEAR * max(other.claim for other in ahead)
