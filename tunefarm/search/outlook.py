"""The outlook: what the times known so far promise of the candidates that are still open."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tunefarm.search.buckets import similarity
from tunefarm.search.features import Vectors
from tunefarm.search.surrogate import Surrogate, expected_improvement

CAP = 8.0
"""Times beyond this multiple of the incumbent count as that: how bad the bad ones are says nothing of the good."""

FAILED = 2.0
"""A failed candidate counts as this multiple of the slowest."""

NUM_NEIGHBOURS, NEIGHBOUR_EVERY = 12, 4
"""One choice in four goes to the most promising of the incumbent's twelve nearest candidates."""

NUM_KNOWN = 150
"""Times that the surrogate is given at most: the fastest."""


class Outlook:
    """The surrogate's view of a study at one moment.

    Args:
        points: features of all candidates, shape (num_candidates, num_features).
        times_ms: median of every candidate that was timed; at least one.
        failed: candidates that failed when they were tried.
        seed: of the surrogate.
    """

    def __init__(self, points: Vectors, times_ms: Mapping[int, float], failed: Collection[int], seed: int) -> None:
        self._points = points
        self._num_known = len(times_ms) + len(failed)
        self.incumbent = min(times_ms, key=lambda number: (times_ms[number], number))
        self.best_ms = times_ms[self.incumbent]
        self.best = math.log(self.best_ms)
        cap = self.best + math.log(CAP)
        values = {number: min(math.log(time_ms), cap) for number, time_ms in times_ms.items()}
        penalty = max(values.values()) + math.log(FAILED)
        values |= dict.fromkeys(failed, penalty)
        known = sorted(sorted(values, key=lambda number: (values[number], number))[:NUM_KNOWN])
        self._surrogate = Surrogate(points, known, np.array([values[number] for number in known]), seed)
        self.mean, self.std = self._surrogate.predict()

    def improvement(self) -> Vectors:
        """Expected improvement of every candidate over the incumbent, as a fraction of its time."""
        return expected_improvement(self.mean, self.std, self.best)

    def wary(self, sigmas: float) -> float:
        """So many standard deviations, or as many as one of the known times has turned out better than expected."""
        return max(sigmas, self._surrogate.surprise)

    def bound(self, sigmas: float, numbers: Sequence[int] | slice = slice(None)) -> Vectors:
        """Time of candidates over the incumbent's, when `sigmas` standard deviations better than expected.

        Args:
            sigmas: how many.
            numbers: the candidates; all if left out.
        """
        return np.asarray(np.exp(self.mean[numbers] - sigmas * self.std[numbers] - self.best))

    def choose(self, open_numbers: Sequence[int], num: int) -> list[int]:
        """Candidates to measure next.

        Args:
            open_numbers: candidates that may be chosen.
            num: how many at most.

        Returns:
            Distinct numbers, each chosen as if the ones before it had come out as expected.
        """
        left = np.zeros(len(self._points), dtype=bool)
        left[list(open_numbers)] = True
        near = np.argsort(-similarity(self._points, self.incumbent), kind="stable")[: NUM_NEIGHBOURS + 1]
        chosen: list[int] = []
        for turn in range(self._num_known, self._num_known + min(num, len(open_numbers))):
            mean, std = self._surrogate.predict()
            gains = np.where(left, expected_improvement(mean, std, self.best), -1.0)
            neighbours = near[left[near]]
            among = neighbours if turn % NEIGHBOUR_EVERY == 0 and len(neighbours) else np.arange(len(gains))
            number = int(among[gains[among].argmax()])
            chosen.append(number)
            left[number] = False
            self._surrogate.expect(number)
        return chosen
