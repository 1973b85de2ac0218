"""Taking samples: how many, in which order, and when they are enough."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tunefarm.bench.loaded import Loaded
from tunefarm.bench.meter import NUM_WARMUP, Question
from tunefarm.trial import median_interval

if TYPE_CHECKING:
    import torch

CHUNK = 10
"""Samples taken at a time beyond the least, before it is asked again whether they are enough."""


class Faulted(Exception):
    """A sample by turns failed.

    Attributes:
        number: of the candidate whose turn it was.
        error: what it raised.
    """

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(number, error)
        self.number, self.error = number, error


def alone(loaded: Loaded, question: Question, flush: torch.Tensor) -> list[float]:
    """Durations in ms of one candidate, the warm-up's first; what was reset is left reset.

    Takes the question's least number of samples, then more until their median is known as precisely as it asks.
    """
    durations: list[float] = []
    left = NUM_WARMUP + question.num_samples
    while left > 0:
        for _ in range(left):
            loaded.sample(flush)
        durations += loaded.durations_ms()
        left = _more(question, [durations])
    loaded.renew()
    return durations


def in_turn(running: Mapping[int, Loaded], question: Question, flush: torch.Tensor) -> dict[int, list[float]]:
    """Durations of several candidates, one sample of each in turn in an order drawn anew each round.

    Drift hits all alike, and so does what disturbs a round: the i-th samples belong together.

    Raises:
        Faulted: one of them failed; the others are not to blame, and must be asked again without it.
    """
    durations: dict[int, list[float]] = {number: [] for number in sorted(running)}
    order = list(durations)
    shuffle = random.Random(f"{question.seed}:{question.order_seed}").shuffle
    left = NUM_WARMUP + question.num_samples if order else 0
    while left > 0:
        for _ in range(left):
            shuffle(order)
            for number in order:
                with _blaming(number):
                    running[number].sample(flush)
        for number, taken in durations.items():
            with _blaming(number):
                taken += running[number].durations_ms()
        left = _more(question, list(durations.values()))
    for loaded in running.values():
        loaded.renew()
    return durations


@contextlib.contextmanager
def _blaming(number: int) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise Faulted(number, e) from None


def is_precise(samples_ms: list[float], precision: float) -> bool:
    """Whether half of the 95 % interval of the median is at most this share of it."""
    low, high = median_interval(samples_ms)
    return high - low <= precision * (high + low)


def _more(question: Question, durations: list[list[float]]) -> int:
    """How many samples more of each are wanted."""
    taken = len(durations[0]) - NUM_WARMUP
    if taken >= question.max_samples or all(is_precise(d[NUM_WARMUP:], question.precision) for d in durations):
        return 0
    return min(CHUNK, question.max_samples - taken)
