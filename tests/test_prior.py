import random

import numpy as np
import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.problem import Problem
from tunefarm.search.features import features, tile_params, work_per_thread
from tunefarm.search.prior import blocks_per_sm, order
from tunefarm.trial import Build

H100 = nominal("sm_90")
PROBLEM = Problem(dims={"M": 4096, "N": 1000}, dtypes={"x": "bf16"})
SPACE = [
    Config(params={"ROWS": rows, "BLOCK_N": block}, options={"num_warps": warps})
    for rows in (1, 4)
    for block in (256, 1024, 4096)
    for warps in (1, 4, 16)
]


def build(*, registers=32, spills=0, shared_bytes=0, grid=(4096, 1, 1)):
    return Build(binary="b", registers=registers, spills=spills, shared_bytes=shared_bytes, grid=grid)


def test_order_names_every_config_once_and_does_not_depend_on_the_listing():
    straight = [SPACE[i].key for i in order(SPACE, PROBLEM, H100)]
    shuffled = random.Random(1).sample(SPACE, len(SPACE))
    assert [shuffled[i].key for i in order(shuffled, PROBLEM, H100)] == straight
    assert sorted(straight) == sorted(c.key for c in SPACE)


def test_default_and_incumbent_come_first():
    worst, second_worst = order(SPACE, PROBLEM, H100)[-1:-3:-1]
    assert order(SPACE, PROBLEM, H100, first=[worst, second_worst])[:2] == [worst, second_worst]


def test_work_per_thread_near_the_middle_comes_before_the_extremes():
    ranked = [SPACE[i] for i in order(SPACE, PROBLEM, H100)]
    extreme = Config(params={"ROWS": 4, "BLOCK_N": 4096}, options={"num_warps": 1})
    middling = Config(params={"ROWS": 1, "BLOCK_N": 1024}, options={"num_warps": 4})
    assert ranked.index(middling) < 4
    assert ranked.index(extreme) > 12


def test_padding_counts_where_a_param_is_named_after_its_dim():
    # 2 * 500 covers 1000 with 1024 elements, and 4096 covers 1000 with four times what is needed.
    pair = [Config(params={"BLOCK_N": block}, options={"num_warps": warps}) for block, warps in ((4096, 8), (1024, 2))]
    padded = Problem(dims={"N": 1000})
    assert order(pair, padded, H100)[0] == 1
    assert order(pair, Problem(dims={"N": 4096}), H100)[0] == 0


def test_spills_go_to_the_end_but_nothing_is_dropped():
    pair = [Config(params={"B": 64}, options={"num_warps": 4}), Config(params={"B": 8192}, options={"num_warps": 1})]
    builds = [build(spills=40), build(spills=0)]
    assert order(pair, PROBLEM, H100, builds) == [1, 0]


def test_occupancy_and_the_last_wave_count_once_built():
    pair = [Config(params={"B": 64}, options={"num_warps": 4, "maxnreg": n}) for n in (64, 128)]
    crowded = [build(shared_bytes=200 * 1024), build(shared_bytes=1024)]
    assert order(pair, PROBLEM, H100, crowded) == [1, 0]
    one_wave_and_a_bit = [
        build(grid=(133, 1, 1), shared_bytes=200 * 1024),
        build(grid=(264, 1, 1), shared_bytes=200 * 1024),
    ]
    assert order(pair, PROBLEM, H100, one_wave_and_a_bit) == [1, 0]


def test_blocks_per_sm_follows_the_scarcest_resource():
    assert blocks_per_sm(build(registers=255), 4, H100) == 2
    assert blocks_per_sm(build(shared_bytes=100 * 1024), 4, H100) == 2
    assert blocks_per_sm(build(registers=16), 1, H100) == 32
    assert blocks_per_sm(build(registers=255), 32, H100) == 1


def test_features_are_standardised_and_leave_out_what_does_not_vary():
    matrix = features([Config(params=c.params, options={**c.options, "num_ctas": 1}) for c in SPACE])
    assert matrix.shape == (len(SPACE), 5)  # ROWS, BLOCK_N, num_warps, tile volume, work per thread
    assert matrix.mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert matrix.std(axis=0) == pytest.approx(1.0)


def test_features_take_every_kind_of_value():
    configs = [
        Config(params={"B": b, "FLAG": flag, "MODE": mode, "LEAST": least}, options={"maxnreg": None if b > 32 else 64})
        for b, flag, mode, least in ((16, True, "a", 0), (32, False, "b", 1), (64, True, "c", 2))
    ]
    matrix = features(configs)
    assert np.isfinite(matrix).all()
    assert tile_params(configs) == ["B"]
    assert list(work_per_thread(configs)) == [16 / 128, 32 / 128, 64 / 128]


def test_features_tell_which_sides_of_the_tile_span_a_size():
    problem = Problem(dims={"rows": 10**6, "cols": 3000, "eps": 0.5, "flag": True})
    configs = [Config(params={"BLOCK": block, "KIND": "a"}) for block in (1024, 2048, 4096, 8192)]
    spans = features(configs, problem=problem)[:, features(configs).shape[1] :]
    assert [list(column) for column in spans.T] == [[-1, -1, 1, 1]]  # no side spans the rows
    assert features(configs, problem=Problem()).shape == features(configs).shape


def test_features_tell_which_powers_of_two_are_in_sizes_that_are_none():
    widths = (96, 112, 128, 160)
    configs = [Config(params={"WIDTH": width}, options={"num_warps": 4, "num_stages": 3}) for width in widths]
    columns = features(configs).T
    assert any(np.corrcoef(column, [5, 4, 7, 5])[0, 1] == pytest.approx(1) for column in columns)
    assert np.linalg.norm(columns[:, 2] - columns[:, 1]) > np.linalg.norm(columns[:, 0] - columns[:, 3])
    # Powers of two say it already: by width, volume and work per thread. A number of stages is no size.
    powers = [Config(params={"WIDTH": width}, options={"num_stages": 2}) for width in (64, 128, 256)]
    stages = [Config(params={"WIDTH": 64}, options={"num_stages": num}) for num in (2, 3, 5)]
    assert [features(powers).shape[1], features(stages).shape[1]] == [3, 1]


def test_features_of_builds_count_a_failed_one_as_average():
    builds = [build(registers=2**i, shared_bytes=1024 * i) if i else None for i in range(len(SPACE))]
    with_builds, without = features(SPACE, builds), features(SPACE)
    assert with_builds.shape[1] == without.shape[1] + 2
    assert with_builds[0, -2:] == pytest.approx(0.0)


def test_features_of_nothing_and_of_one():
    assert features([]).shape == (0, 0)
    assert features(SPACE[:1]).shape == (1, 0)
    assert order([], PROBLEM, H100) == []
