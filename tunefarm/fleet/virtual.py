"""Virtual time: an agenda of what happens in a simulated world, and a clock on which the driver's thinking is real.

The driver under test runs as it always does. What it takes to think is measured and charged to the virtual clock, so
the world goes on meanwhile and results queue up at its door; while it waits, the clock jumps to what happens next.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tunefarm.errors import InfrastructureError


class VirtualTime:
    """A clock and an inbox for one driver, in one thread; see `tunefarm.seams.Clock` and `Inbox`.

    Args:
        decision_s: charged each time that the driver asks for news, in place of what it took; None to measure that.
        stopwatch: what measures it, in seconds; `time.thread_time` leaves out what other processes take of a CPU, and
            with it all waiting for disks.
    """

    def __init__(
        self, *, decision_s: float | None = None, stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:  # fmt: skip
        self._decision_s, self._stopwatch = decision_s, stopwatch
        self._now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()
        self._items: deque[Any] = deque()
        self._since: float | None = stopwatch()
        self.driver_s = 0.0
        """Seconds charged for the driver so far."""

    def now(self) -> float:
        """Seconds since the beginning, what the driver has thought since it last waited included."""
        if self._since is not None:
            self.pause()
            self.resume()
        return self._now_s

    # ---- what the driver costs ----

    def charge(self, seconds: float) -> None:
        """Lets the driver be busy for so long."""
        self._now_s += seconds
        self.driver_s += seconds

    def pause(self) -> None:
        """Charges what the driver has done since `resume`; what follows is the simulation's own work."""
        if self._since is not None and self._decision_s is None:
            self.charge(self._stopwatch() - self._since)
        self._since = None

    def resume(self) -> None:
        """From here on it is the driver that works."""
        self._since = self._stopwatch()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What the driver does not pay for, within; it goes on afterwards if it was at work before."""
        was_at_work = self._since is not None
        self.pause()
        try:
            yield
        finally:
            if was_at_work:
                self.resume()

    # ---- the inbox ----

    def put(self, item: Any) -> None:
        """See `tunefarm.seams.Inbox`."""
        self._items.append(item)

    def get(self, *, timeout: float | None) -> Any:
        """See `tunefarm.seams.Inbox`; the waiting takes no real time.

        Raises:
            queue.Empty: nothing came in that time.
            InfrastructureError: nothing will ever come.
        """
        self.pause()
        if self._decision_s is not None:
            self.charge(self._decision_s)
        self.go_on(lambda: bool(self._items), math.inf if timeout is None else self._now_s + timeout)
        self.resume()
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """See `tunefarm.seams.Inbox`."""
        self.catch_up()
        return not self._items

    # ---- the world ----

    def at(self, when_s: float, act: Callable[[float], None]) -> None:
        """Puts something on the agenda; `act` is told the moment, which may lie before `now` if the driver thinks."""
        heapq.heappush(self._agenda, (when_s, next(self._number), act))

    def go_on(self, enough: Callable[[], bool], until_s: float) -> None:
        """Lets things happen until it is enough, or until a moment.

        Raises:
            InfrastructureError: there is no such moment, and nothing is left to happen.
        """
        while not enough():
            if not self._agenda or self._agenda[0][0] > until_s:
                if math.isinf(until_s):
                    raise InfrastructureError("the driver waits, and nothing happens any more in the simulated world")
                self._now_s = max(self._now_s, until_s)
                return
            self._happen()

    def catch_up(self) -> None:
        """Lets happen what is due by now."""
        with self.paused():
            while self._agenda and self._agenda[0][0] <= self._now_s:
                self._happen()

    def _happen(self) -> None:
        when_s, _, act = heapq.heappop(self._agenda)
        self._now_s = max(self._now_s, when_s)
        act(when_s)
