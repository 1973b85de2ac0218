"""Buckets: candidates more alike than a threshold, and the representatives that are measured for them first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunefarm.search.features import Vectors
from tunefarm.trial import Build

THRESHOLD = 0.8
"""Default similarity from which two candidates share a bucket."""

NUM_REPRESENTATIVES = 3
"""Fewer, or spilling ones, throw away buckets that hold the best config."""

NUM_FIRST, MOST_FIRST = 8, 16
"""Representatives measured before the surrogate takes over, the default among them: in a small space, and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Candidates alike.

    Attributes:
        number: position among the study's buckets, 0 holds the most promising candidate.
        members: numbers of the candidates, most promising first; the first one is the leader.
        representatives: the members measured first, most promising first.
    """

    number: int
    members: tuple[int, ...]
    representatives: tuple[int, ...]


def similarity(points: Vectors, index: int) -> Vectors:
    """Similarity of every point to one of them, in (0, 1]: exp(-d / 3), d the root mean square difference of features.

    Features are standardised, so what is three standard deviations apart is 1/e alike.

    Args:
        points: shape (num_points, num_features), standardised.
        index: row of the one.

    Returns:
        Shape (num_points,); 1 for itself.
    """
    if points.shape[1] == 0:
        return np.ones(len(points))
    return np.asarray(np.exp(-np.sqrt(((points - points[index]) ** 2).mean(axis=1)) / 3.0))


def group(
    points: Vectors, order: Sequence[int], threshold: float, builds: Sequence[Build | None] | None = None
) -> tuple[Bucket, ...]:
    """Groups candidates: the most promising one left leads a bucket of all that are similar enough to it.

    Args:
        points: features of the candidates, shape (num_candidates, num_features).
        order: the candidates to group, most promising first.
        threshold: similarity above which a candidate joins its leader, in [0, 1].
        builds: one entry per candidate, None where it is not built; spill-free ones represent first.

    Returns:
        Buckets that hold every candidate of `order` exactly once.
    """
    left = list(order)
    buckets: list[Bucket] = []
    while left:
        alike = similarity(points, left[0])
        members = tuple(i for i in left if alike[i] > threshold or i == left[0])
        taken = set(members)
        left = [i for i in left if i not in taken]
        first = sorted(members, key=lambda i: _spills(builds, i))[:NUM_REPRESENTATIVES]
        buckets.append(Bucket(number=len(buckets), members=members, representatives=tuple(first)))
    return tuple(buckets)


def num_first(num_candidates: int) -> int:
    """Representatives to measure before the surrogate takes over: more in a space of thousands, where eight see little.

    A quarter of the square root of the candidates, from `NUM_FIRST` to `MOST_FIRST`.
    """
    return min(MOST_FIRST, max(NUM_FIRST, round(math.sqrt(num_candidates) / 4)))


def cover(points: Vectors, buckets: Sequence[Bucket], num: int) -> list[int]:
    """Representatives that stand for all candidates best: each adds the most similarity to what is not yet like one.

    Args:
        points: features of the candidates, shape (num_candidates, num_features).
        buckets: their buckets, most promising first.
        num: how many to choose at most.

    Returns:
        Candidates, at most one a bucket, the first bucket's first.
    """
    leaders = [bucket.representatives[0] for bucket in buckets]
    members = [number for bucket in buckets for number in bucket.members]
    alike = np.array([similarity(points, leader)[members] for leader in leaders])
    chosen: list[int] = []
    covered = np.zeros(len(members))
    while len(chosen) < min(num, len(leaders)):
        gains = np.maximum(alike - covered, 0.0).sum(axis=1)
        gains[chosen] = -1.0
        best = int(gains.argmax()) if chosen else 0
        chosen.append(best)
        covered = np.maximum(covered, alike[best])
    return [leaders[index] for index in chosen]


def _spills(builds: Sequence[Build | None] | None, index: int) -> bool:
    build = builds[index] if builds is not None else None
    return build is not None and build.spills > 0
