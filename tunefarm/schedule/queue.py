"""Jobs that wait, best first, in one lane per role and place."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from tunefarm.schedule.events import Job

Lane = tuple[str, str]
"""(role, where): who may do a job. A worker serves the lanes of its role for its device, its arch and any place."""

_Entry = tuple[int, float, int, str]
"""(-priority, -cost_s, order of arrival, id): the smallest is the best."""


class Queue:
    """Waiting jobs. `push`, `remove` and `take` are O(log n), amortised."""

    def __init__(self) -> None:
        self._heaps: dict[Lane, list[_Entry]] = {}
        self._waiting: dict[str, tuple[Lane, int]] = {}
        self._sizes: dict[Lane, int] = {}
        self._num_pushed = 0

    def push(self, job: Job) -> None:
        """Adds a job, behind those that equal it in priority and cost."""
        lane = job.lane
        self._num_pushed += 1
        self._waiting[job.id] = lane, self._num_pushed
        self._sizes[lane] = self._sizes.get(lane, 0) + 1
        heapq.heappush(self._heaps.setdefault(lane, []), (-job.priority, -job.cost_s, self._num_pushed, job.id))

    def remove(self, job_id: str) -> None:
        """Forgets a waiting job; its entry stays in the heap until it comes up."""
        lane, _ = self._waiting.pop(job_id)
        self._sizes[lane] -= 1

    def size(self, lane: Lane) -> int:
        """Jobs waiting in a lane."""
        return self._sizes.get(lane, 0)

    def waiting(self, lane: Lane) -> list[str]:
        """Ids of the jobs waiting in a lane, best first."""
        return [entry[-1] for entry in sorted(self._heaps.get(lane, ())) if self._is_waiting(entry)]

    def lanes(self, role: str) -> list[Lane]:
        """Lanes of a role in which jobs wait."""
        return [lane for lane, size in self._sizes.items() if size and lane[0] == role]

    def take(self, lanes: Iterable[Lane], refused: Callable[[str], bool]) -> str | None:
        """Removes and returns the best job of some lanes that is not refused, or None."""
        best: _Entry | None = None
        for lane in lanes:
            first = self._first(self._heaps[lane], refused) if self._sizes.get(lane) else None
            if first is not None and (best is None or first < best):
                best = first
        if best is None:
            return None
        self.remove(best[-1])
        return best[-1]

    def _first(self, heap: list[_Entry], refused: Callable[[str], bool]) -> _Entry | None:
        aside: list[_Entry] = []
        while heap:
            if not self._is_waiting(heap[0]):
                heapq.heappop(heap)
            elif refused(heap[0][-1]):
                aside.append(heapq.heappop(heap))
            else:
                break
        first = heap[0] if heap else None
        for entry in aside:
            heapq.heappush(heap, entry)
        return first

    def _is_waiting(self, entry: _Entry) -> bool:
        _, _, pushed, job_id = entry
        waiting = self._waiting.get(job_id)
        return waiting is not None and waiting[1] == pushed
