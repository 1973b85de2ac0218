import itertools

import numpy as np
import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.problem import Problem
from tunefarm.search.buckets import NUM_REPRESENTATIVES, THRESHOLD, cover, group, num_first, similarity
from tunefarm.search.features import features
from tunefarm.search.prior import order
from tunefarm.trial import Build

SOFTMAX = [
    Config(params={"ROWS": rows, "BLOCK_N": block}, options={"num_warps": warps, "num_stages": stages})
    for rows, block, warps, stages in itertools.product(
        (1, 2, 4, 8), (2**i for i in range(8, 16)), (1, 2, 4, 8, 16, 32), (1, 2, 3)
    )
    if 2 <= rows * block / (32 * warps) <= 1024 and rows * block <= 65536
]
POINTS = features(SOFTMAX)
ORDER = order(SOFTMAX, Problem(), nominal("sm_90"))


def test_buckets_hold_every_candidate_once_most_promising_first():
    buckets = group(POINTS, ORDER, THRESHOLD)
    assert sorted(n for b in buckets for n in b.members) == list(range(len(SOFTMAX)))
    rank = {number: i for i, number in enumerate(ORDER)}
    assert [b.number for b in buckets] == list(range(len(buckets)))
    assert [rank[b.members[0]] for b in buckets] == sorted(rank[b.members[0]] for b in buckets)
    assert all([rank[n] for n in b.members] == sorted(rank[n] for n in b.members) for b in buckets)


def test_members_are_more_similar_to_their_leader_than_the_threshold():
    for bucket in group(POINTS, ORDER, 0.85):
        assert similarity(POINTS, bucket.members[0])[list(bucket.members)].min() > 0.85


def test_default_threshold_makes_buckets_of_about_ten():
    assert 8 <= len(SOFTMAX) / len(group(POINTS, ORDER, THRESHOLD)) <= 12


def test_threshold_of_zero_makes_one_bucket_and_of_one_as_many_as_candidates():
    assert len(group(POINTS, ORDER, 0.0)) == 1
    assert len(group(POINTS, ORDER, 1.0)) == len(SOFTMAX)


def test_similarity_is_one_for_itself_and_positive_for_all():
    alike = similarity(POINTS, 7)
    assert alike[7] == 1.0
    assert alike.min() > 0.0
    assert alike.max() <= 1.0


def test_representatives_are_few_and_free_of_spills_where_possible():
    builds = [Build(binary=str(i), registers=64, spills=9 * (i % 2), shared_bytes=0) for i in range(len(SOFTMAX))]
    for bucket in group(POINTS, ORDER, THRESHOLD, builds):
        clean = [n for n in bucket.members if not builds[n].spills]
        assert len(bucket.representatives) == min(NUM_REPRESENTATIVES, len(bucket.members))
        assert list(bucket.representatives[: len(clean)]) == clean[: len(bucket.representatives)]


def test_candidates_that_differ_in_nothing_known_share_a_bucket():
    assert len(group(np.zeros((3, 0)), [2, 0, 1], THRESHOLD)) == 1


def test_cover_starts_with_the_most_promising_and_spreads_over_the_space():
    buckets = group(POINTS, ORDER, THRESHOLD)
    chosen = cover(POINTS, buckets, 8)
    assert chosen[0] == ORDER[0]
    assert len({b.number for b in buckets for n in chosen if n in b.members}) == 8

    def covered(numbers):
        return np.max([similarity(POINTS, n) for n in numbers], axis=0).mean()

    assert covered(chosen) > covered(ORDER[:8])
    assert len(cover(POINTS, buckets, 10_000)) == len(buckets)


@pytest.mark.parametrize(("num_candidates", "num"), [(1, 8), (500, 8), (2000, 11), (4362, 16), (1_000_000, 16)])
def test_large_spaces_have_more_representatives_but_never_many(num_candidates, num):
    assert num_first(num_candidates) == num


def test_cover_of_nothing():
    assert cover(np.zeros((0, 0)), (), 8) == []


@pytest.mark.parametrize("name", ["number", "members", "representatives"])
def test_buckets_are_frozen(name):
    with pytest.raises(AttributeError):
        setattr(group(POINTS, ORDER, THRESHOLD)[0], name, 0)
