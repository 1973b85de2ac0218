import math

import numpy as np
import pytest

from tunefarm.search.outlook import CAP, FAILED, Outlook
from tunefarm.search.surrogate import Surrogate, _erfc, _matern, _squared, expected_improvement

GRID = np.random.default_rng(0).standard_normal((400, 5))
TRUTH = np.sin(GRID[:, 0]) + 0.3 * GRID[:, 1] ** 2 + 2.0
KNOWN = list(range(60))


def test_mean_follows_the_data_and_std_grows_away_from_it():
    surrogate = Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=0)
    mean, std = surrogate.predict()
    assert np.abs(mean[:60] - TRUTH[:60]).mean() < 0.1
    assert np.corrcoef(mean[60:], TRUTH[60:])[0, 1] > 0.8
    assert std[60:].mean() > 2 * std[:60].mean()


def test_truth_lies_within_the_stated_uncertainty():
    mean, std = Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=0).predict()
    assert np.mean(np.abs(mean - TRUTH)[60:] < 2 * std[60:]) > 0.85


def test_noise_is_recognised():
    plane = GRID[:, :2]
    noisy = TRUTH + 0.2 * np.random.default_rng(1).standard_normal(len(TRUTH))
    assert 0.1 < Surrogate(plane, KNOWN, noisy[KNOWN], seed=0).noise < 0.4
    assert Surrogate(plane, KNOWN, TRUTH[KNOWN], seed=0).noise < 0.05


def test_same_data_same_posterior():
    first, second = (Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=3).predict() for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("num_known", [1, 2, 3])
def test_a_point_or_equal_values_are_enough(num_known):
    mean, std = Surrogate(GRID, KNOWN[:num_known], np.full(num_known, 1.5), seed=0).predict()
    assert mean == pytest.approx(1.5)
    assert (std > 0).all()


def test_features_may_be_absent():
    mean, _ = Surrogate(np.zeros((3, 0)), [0, 1], np.array([1.0, 2.0]), seed=0).predict()
    assert mean == pytest.approx(1.5, abs=0.5)


def test_expecting_a_point_makes_it_sure_and_leaves_the_mean():
    surrogate = Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=0)
    mean, std = surrogate.predict()
    far = int(std.argmax())
    surrogate.expect(far)
    mean_after, std_after = surrogate.predict()
    assert np.array_equal(mean, mean_after)
    assert std_after[far] < 0.5 * std[far]
    assert (std_after <= std + 1e-12).all()


def test_expecting_equals_fitting_with_that_point():
    surrogate = Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=0)
    scales, noise = surrogate._scales, surrogate._noise
    surrogate.expect(200)
    train = GRID[[*KNOWN, 200]] / scales

    def kernel(a, b):
        r = math.sqrt(5) * np.linalg.norm(a[:, None] - b[None], axis=2)
        return (1 + r + r * r / 3) * np.exp(-r)

    cross = kernel(train, GRID / scales)
    variance = 1 - (cross * np.linalg.solve(kernel(train, train) + noise * np.eye(61), cross)).sum(0)
    assert surrogate.predict()[1] == pytest.approx(surrogate._unit * np.sqrt(np.maximum(variance, 1e-12)), abs=1e-5)


def test_expected_improvement_against_sampling():
    mean, std = np.array([0.0, 0.5, -0.2]), np.array([1.0, 0.1, 0.3])
    draws = mean + std * np.random.default_rng(0).standard_normal((400_000, 3))
    assert expected_improvement(mean, std, 0.1) == pytest.approx(np.maximum(0.1 - draws, 0).mean(0), abs=3e-3)


def outlook(times_ms, failed=(), seed=0):
    return Outlook(GRID, times_ms, failed, seed)


def test_outlook_chooses_distinct_open_candidates_that_turn_out_fast():
    view = outlook({n: math.exp(TRUTH[n]) for n in KNOWN})
    chosen = view.choose(range(60, 400), 8)
    assert len(set(chosen)) == 8
    assert min(chosen) >= 60
    assert TRUTH[chosen].mean() < np.quantile(TRUTH, 0.25)


def test_outlook_keeps_a_batch_apart():
    twins = np.repeat(GRID[:100], 2, axis=0)
    view = Outlook(twins, {2 * n: math.exp(TRUTH[n]) for n in range(20)}, (), seed=0)
    chosen = view.choose(range(40, 200), 6)
    assert len({n // 2 for n in chosen}) == 6


def test_outlook_gives_fewer_when_fewer_are_open():
    assert sorted(outlook({0: 1.0, 1: 2.0}).choose([5, 9], 4)) == [5, 9]
    assert outlook({0: 1.0}).choose([], 4) == []


def test_failures_push_their_surroundings_back():
    near = int(np.argsort(((GRID - GRID[0]) ** 2).sum(1))[1])
    times_ms = {n: math.exp(TRUTH[n]) for n in KNOWN if n not in (0, near)}
    assert outlook(times_ms, failed=[0]).mean[near] > outlook(times_ms).mean[near]


def test_slow_times_are_capped_so_that_they_do_not_drown_the_fast_ones():
    view = outlook({0: 1.0, 1: 1.1, 2: 1e6}, failed=[3])
    assert view.incumbent == 0
    assert view.mean.max() < math.log(CAP * FAILED) + 1.0


def test_bound_and_improvement_tell_the_hopeful_from_the_hopeless():
    view = outlook({n: math.exp(TRUTH[n]) for n in KNOWN})
    fast, slow = int(view.mean.argmin()), int(view.mean.argmax())
    assert view.improvement()[fast] > view.improvement()[slow] >= 0.0
    assert view.bound(2.0)[fast] < 1.1
    assert view.bound(2.0)[slow] > 1.5


def test_a_needle_among_the_known_is_a_surprise_and_makes_wary():
    values = TRUTH[KNOWN].copy()
    plain = Surrogate(GRID, KNOWN, values, seed=0)
    values[7] -= 5.0
    needle = Surrogate(GRID, KNOWN, values, seed=0)
    assert 0 < plain.surprise < 4 < needle.surprise
    times_ms = {number: math.exp(value) for number, value in zip(KNOWN, values, strict=True)}
    outlook = Outlook(GRID, times_ms, failed=(), seed=0)
    assert outlook.wary(3.0) > 4
    assert outlook.wary(99.0) == 99.0


def test_surprise_is_what_leaving_one_out_gives():
    surrogate = Surrogate(GRID, KNOWN, TRUTH[KNOWN], seed=0)
    scales, noise, offset, unit = surrogate._scales, surrogate._noise, surrogate._offset, surrogate._unit
    targets = (TRUTH[KNOWN] - offset) / unit
    surprises = []
    for out in KNOWN:
        rest = [number for number in KNOWN if number != out]
        covariance = _matern(_squared(GRID[rest], GRID[rest], scales)) + noise * np.eye(len(rest))
        towards = _matern(_squared(GRID[rest], GRID[[out]], scales))[:, 0]
        mean = towards @ np.linalg.solve(covariance, targets[rest])
        variance = 1 + noise - towards @ np.linalg.solve(covariance, towards)
        surprises.append((mean - targets[out]) / math.sqrt(variance))
    assert surrogate.surprise == pytest.approx(max(surprises))


def test_the_error_function_of_many_is_that_of_each():
    x = np.linspace(-8.0, 8.0, 2001)
    np.testing.assert_allclose(_erfc(x), [math.erfc(value) for value in x], rtol=2e-7)
