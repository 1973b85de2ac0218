"""A small Gaussian process over the candidate list: what it expects of every config, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tunefarm.search.features import Vectors

NUM_FIT = 48
"""Points that the hyperparameters are fitted on, the fastest ones; the posterior uses all of them."""

NUM_DRAWS, NUM_ROUNDS = 24, 3
"""Hyperparameters tried in each round of the likelihood search, and rounds. Replays find the best no sooner with twice
as many, or with the mean of several posteriors."""


def _matern(squared: Vectors) -> Vectors:
    """Matern-5/2 correlation of squared scaled distances."""
    # In place: a space of ten thousand makes arrays that take longer to allocate than to fill.
    r = np.maximum(squared, 0.0)
    r *= 5.0
    np.sqrt(r, out=r)
    factor = r / 3.0
    factor += 1.0
    factor *= r
    factor += 1.0
    np.negative(r, out=r)
    np.exp(r, out=r)
    factor *= r
    return factor


def _squared(a: Vectors, b: Vectors, scales: Vectors) -> Vectors:
    """Squared distances between rows of a (n, d) and b (m, d), each feature divided by its length scale. (n, m)."""
    a, b = a / scales, b / scales
    return np.asarray((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T)


class Surrogate:
    """Posterior over a fixed list of candidates, given values at some of them.

    Matern-5/2 kernel with one length scale per feature, constant mean, noise; hyperparameters by a seeded random
    search for the largest posterior density (marginal likelihood with a weak prior on the scales). The same data
    and seed give the same posterior.

    Args:
        points: features of all candidates, shape (num_candidates, num_features), standardised.
        known: indices of candidates with a value; at least one.
        values: their values (log ms), shape (len(known),).
        seed: of the hyperparameter search.
        num_fit: points that the hyperparameters are fitted on.
    """

    def __init__(
        self, points: Vectors, known: Sequence[int], values: Vectors, seed: int, num_fit: int = NUM_FIT
    ) -> None:
        self._points = points
        self._offset = float(np.mean(values))
        self._unit = float(np.std(values)) or 1.0
        targets = (values - self._offset) / self._unit
        best = np.argsort(targets, kind="stable")[:num_fit]
        self._scales, self._noise = _likeliest(points[list(known)][best], targets[best], seed)
        train = points[list(known)]
        covariance = _matern(_squared(train, train, self._scales)) + self._noise * np.eye(len(train))
        # One inverse and a product: solving for every candidate takes several times as long. The noise keeps it sound.
        unmix = np.linalg.inv(np.linalg.cholesky(covariance))
        # Rows of `whitened` are what the data, and of `expected` what each pending point, explain of every candidate.
        self._whitened = unmix @ _matern(_squared(train, points, self._scales))
        self._expected: list[Vectors] = []
        self._explained = np.einsum("ij,ij->j", self._whitened, self._whitened)
        self._mean = (unmix @ targets) @ self._whitened
        self._unmix, self._targets = unmix, targets

    @cached_property
    def surprise(self) -> float:
        """By how many standard deviations one of the known values, left out, is below what the others promise of it.

        The greatest such number, or 0. Where a space has needles it is far more than a normal distribution would have.
        Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning", 2006, eq. 5.12.
        """
        inverse = self._unmix.T @ self._unmix
        return float(np.maximum(-(inverse @ self._targets) / np.sqrt(np.diagonal(inverse)), 0.0).max())

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, in the unit of the values."""
        return float(math.sqrt(self._noise) * self._unit)

    def predict(self) -> tuple[Vectors, Vectors]:
        """Mean and standard deviation of the noise-free value of every candidate, each of shape (num_candidates,)."""
        variance = np.maximum(1.0 - self._explained, 1e-12)
        return self._offset + self._unit * self._mean, self._unit * np.sqrt(variance)

    def expect(self, index: int) -> None:
        """Counts a candidate as measured at its mean: the rest of a batch then looks elsewhere."""
        row = _matern(_squared(self._points[[index]], self._points, self._scales))[0]
        row -= self._whitened[:, index] @ self._whitened
        for earlier in self._expected:
            row -= earlier[index] * earlier
        row /= math.sqrt(max(float(row[index]), 1e-12) + self._noise)
        self._expected.append(row)
        self._explained += row * row


def _likeliest(points: Vectors, targets: Vectors, seed: int) -> tuple[Vectors, float]:
    """Length scales (num_features,) and noise variance with the largest posterior density among those tried."""
    n, d = points.shape
    rng = np.random.default_rng(seed)
    middle = np.array([math.log(math.sqrt(max(d, 1)))] * d + [math.log(1e-2)])
    width = np.array([1.0] * d + [1.5])
    squared = ((points[:, None, :] - points[None, :, :]) ** 2).reshape(n * n, d)
    best, best_density, step = middle, -math.inf, 1.0
    for _ in range(NUM_ROUNDS):
        draws = best + step * width * rng.standard_normal((NUM_DRAWS, d + 1))
        draws[0] = best
        draws[:, d] = np.clip(draws[:, d], math.log(1e-5), math.log(0.5))
        kernels = _matern((squared @ np.exp(-2.0 * draws[:, :d].T)).T.reshape(NUM_DRAWS, n, n))
        lower = np.linalg.cholesky(kernels + np.exp(draws[:, d])[:, None, None] * np.eye(n))
        white = np.linalg.solve(lower, np.broadcast_to(targets[:, None], (NUM_DRAWS, n, 1)))[..., 0]
        density = -0.5 * (white**2).sum(1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
        density -= 0.5 * (((draws - middle) / width) ** 2).sum(1)
        if density.max() > best_density:
            best, best_density = draws[int(density.argmax())], float(density.max())
        step *= 0.5
    return np.exp(best[:d]), float(np.exp(best[d]))


def expected_improvement(mean: Vectors, std: Vectors, best: float) -> Vectors:
    """Expected amount by which each candidate falls below `best`, in the unit of the values (log ms: a ratio).

    Source: Jones, Schonlau, Welch, "Efficient Global Optimization", 1998, eq. 15.
    """
    z = (best - mean) / std
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * _erfc(-z / math.sqrt(2.0))
    return np.asarray(np.maximum((best - mean) * below + std * density, 0.0))


_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip


def _erfc(x: Vectors) -> Vectors:
    """Complementary error function of every element, to 1.2e-7 of its value; `math.erfc` takes one at a time.

    Source: Press et al., Numerical Recipes in C, 2nd ed., 6.2 (erfcc).
    """
    t = 1.0 / (1.0 + 0.5 * np.abs(x))
    tail = t * np.exp(-x * x + np.polynomial.polynomial.polyval(t, _ERFC))
    return np.asarray(np.where(x >= 0.0, tail, 2.0 - tail))
