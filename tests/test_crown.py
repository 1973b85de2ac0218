import itertools

import numpy as np
import pytest

from tunefarm.config import Config
from tunefarm.search.crown import crown, is_better, ratio_interval

RNG = np.random.default_rng(0)


def config(warps=4, stages=2, block=64):
    return Config(params={"BLOCK": block}, options={"num_warps": warps, "num_stages": stages})


def samples(median_ms, noise=0.01, num=20, seed=0):
    return tuple(median_ms * (1 + noise * np.random.default_rng(seed).standard_normal(num)))


FAST, SLOW, SIMPLE = config(warps=8), config(warps=4, block=128), config(warps=2)


def judge(finalists, default=None, incumbent=None, min_gain=0.01):
    return crown([(n, c, s) for n, (c, s) in enumerate(finalists)], default, incumbent, min_gain, seed=0)


def test_the_fastest_wins_with_its_evidence():
    won = judge([(FAST, samples(1.0, seed=1)), (SLOW, samples(1.2, seed=2))], default=SLOW)
    assert (won.config, won.reason) == (FAST, "faster")
    assert won.gain == pytest.approx(1.2, rel=0.02)
    assert won.gain_interval[0] < won.gain < won.gain_interval[1]
    assert won.gain_interval[0] > 1.15
    assert won.interval_ms[0] <= won.median_ms <= won.interval_ms[1]
    assert (won.default, won.runner_up) == (SLOW, SLOW)
    assert won.margin == pytest.approx(won.gain - 1)


def test_a_tie_keeps_the_default_then_the_incumbent_then_the_simpler():
    """TF-050: a stated rule, not whoever was lucky."""
    finalists = [(c, samples(1.0 + 0.001 * i, noise=0.03, seed=i)) for i, c in enumerate((FAST, SLOW, SIMPLE))]
    assert judge(finalists, default=SLOW, incumbent=FAST).config == SLOW
    assert judge(finalists, default=SLOW, incumbent=FAST).reason == "tie: default kept"
    assert judge(finalists, default=SLOW).gain == 1.0
    assert judge(finalists, incumbent=FAST).config == FAST
    assert judge(finalists, incumbent=FAST).reason == "tie: incumbent kept"
    assert judge([*finalists[:2], (SIMPLE, finalists[0][1])]).config == SIMPLE
    assert judge([*finalists[:2], (SIMPLE, finalists[0][1])]).reason == "tie: simpler kept"


def test_simpler_is_fewer_warps_then_fewer_stages_then_a_smaller_tile_then_the_key():
    same = samples(1.0)
    ladder = [config(2, 2, 64), config(2, 2, 128), config(2, 3, 32), config(4, 1, 16)]
    for first, second in itertools.pairwise(ladder):
        assert judge([(second, same), (first, same)]).config == first


def test_a_gain_that_is_sure_but_too_small_keeps_the_default():
    finalists = [(FAST, samples(1.0, noise=1e-5)), (SLOW, samples(1.02, noise=1e-5))]
    assert judge(finalists, default=SLOW, min_gain=0.05).config == SLOW
    assert judge(finalists, default=SLOW, min_gain=0.05).margin < 0
    assert judge(finalists, default=SLOW, min_gain=0.01).config == FAST


def test_the_simpler_one_is_not_bought_with_more_than_the_least_gain():
    """Loud noise makes a tie of what differs by 4 %; then the faster one is used nevertheless."""
    finalists = [(FAST, samples(1.0, noise=0.3, seed=1)), (SIMPLE, samples(1.2, noise=0.3, seed=2))]
    assert judge(finalists).config == FAST


def test_more_finalists_must_be_beaten_more_surely():
    """What 99 % would call better is a tie among seven: six comparisons share the one per cent."""
    fast, slow = samples(1.0, seed=110), samples(1.012, seed=111)
    assert is_better(fast, slow)
    assert judge([(FAST, fast), (SLOW, slow)], default=SLOW, min_gain=0.0).config == FAST
    others = [(config(block=2048 << n), samples(1.5, seed=n)) for n in range(5)]
    crowded = judge([(FAST, fast), (SLOW, slow), *others], default=SLOW, min_gain=0.0)
    assert (crowded.config, crowded.reason) == (SLOW, "tie: default kept")


def test_the_ends_of_a_narrow_tail_do_not_hang_on_the_seed_of_the_bootstrap():
    """Each is the tenth of its tail or so; of 2000 resamples it would be the last one or two."""
    fast, slow = samples(1.0, seed=1, num=100), samples(1.0, seed=2, num=100)
    lows, highs = np.array([ratio_interval(slow, fast, 1 - 0.01 / 7, seed) for seed in range(8)]).T
    assert max(np.ptp(lows), np.ptp(highs)) < 0.1 * (highs.mean() - lows.mean())


def test_pairing_by_round_sees_through_drift_that_all_share():
    drift = 1 + 0.3 * RNG.random(20)
    fast, slow = tuple(1.00 * drift), tuple(1.02 * drift)
    assert judge([(FAST, fast), (SIMPLE, slow)]).reason == "faster"
    shuffled = tuple(RNG.permutation(slow))
    assert judge([(FAST, fast), (SIMPLE, shuffled)], default=SIMPLE, min_gain=0.0).reason == "tie: default kept"


def test_a_default_that_cannot_run_is_named_without_a_gain():
    won = judge([(FAST, samples(1.0)), (SIMPLE, samples(2.0))], default=SLOW)
    assert (won.default, won.default_ms, won.gain, won.gain_interval) == (SLOW, None, None, None)


def test_one_finalist_is_the_only_candidate():
    won = judge([(FAST, (1.0,))])
    assert (won.config, won.reason, won.runner_up, won.margin) == (FAST, "only candidate", None, None)


def test_a_default_that_is_the_fastest_wins_on_its_merits():
    assert judge([(FAST, samples(1.0)), (SLOW, samples(2.0))], default=FAST).reason == "faster"


def test_unequal_numbers_of_samples_are_compared_over_the_rounds_that_all_have():
    assert judge([(FAST, samples(1.0, num=20)), (SLOW, samples(1.5, num=7))]).config == FAST


def test_order_of_the_finalists_does_not_matter():
    """TF-056: however the space was listed, the same config wins."""
    finalists = [(n, config(2**n, block=32 << n), samples(1.0 + 0.002 * (n % 3), noise=0.02, seed=n)) for n in range(4)]
    winners = {crown(order, None, None, 0.01, 0) for order in itertools.permutations(finalists)}
    assert len(winners) == 1
