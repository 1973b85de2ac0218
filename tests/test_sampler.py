import itertools
import math

import numpy as np
import optuna
import pytest
import torch

from tunefarm.config import Config
from tunefarm.errors import SpecError
from tunefarm.search.features import features
from tunefarm.search.hints import HINTED
from tunefarm.search.rungs import LAST
from tunefarm.search.sampler import SAMPLERS, StudySampler
from tunefarm.trial import Failure, Measurement, Outcome, Trial

CONFIGS = [
    Config(params={"BLOCK": block, "MODE": mode}, options={"num_warps": warps, "maxnreg": limit})
    for block, mode, warps, limit in itertools.product((32, 64, 128, 256), ("a", "b"), (1, 2, 4, 8), (None, 64))
]
FAILURE = Failure(stage="launch", kind="OutOfResources", message="shared memory")
State = optuna.trial.TrialState
SEEDS = {"tpe": 5, "gp": 2, "cmaes": 5}
"""A Gaussian process takes a tenth of a second to propose."""


def time_ms(config):
    block, warps = config.params["BLOCK"], config.options["num_warps"]
    return 1.0 + abs(math.log2(block / 128)) + abs(math.log2(warps / 4)) + (config.params["MODE"] == "a")


def sampler(name="default", seed=0, first=(5, 9, 40), configs=CONFIGS):
    return StudySampler(
        name=name,
        configs=configs,
        points=features(configs),
        order=range(len(configs)),
        first=[n for n in first if n < len(configs)],
        seed=seed,
    )


def measured(number, value_ms, rung=0):
    measurement = Measurement(samples_ms=(value_ms,) * 3, timer="cold", rung=rung, source="measured")
    return Trial(number=number, config=CONFIGS[number], measurements=(measurement,))


def sweep(it, num, batch=4):
    asked = []
    while len(asked) < num and (numbers := it.ask(batch)):
        for number in numbers:
            it.tell(measured(number, time_ms(CONFIGS[number]), rung=LAST))
        for number in numbers:
            it.judge(number)
        asked += numbers
    return asked


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_candidate_is_asked_once_and_then_none(name):
    """TF-114: never the same point twice; it ends when the space is exhausted."""
    it = sampler(name)
    asked = sweep(it, 10_000)
    assert sorted(asked) == list(range(len(CONFIGS)))
    assert it.ask(4) == []
    assert it.open_numbers == []


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_candidates(name):
    assert sweep(sampler(name, seed=7), 32) == sweep(sampler(name, seed=7), 32)


@pytest.mark.parametrize("name", SAMPLERS)
def test_first_candidates_come_first(name):
    assert sampler(name).ask(3) == [5, 9, 40]


def test_exhaustive_follows_the_order_and_random_does_not():
    assert sweep(sampler("exhaustive", first=()), 20) == list(range(20))
    one, other = (sweep(sampler("random", seed=seed, first=()), 20) for seed in (1, 2))
    assert one != other != list(range(20))


def test_the_default_sampler_finds_the_best_in_a_third_of_the_space():
    for seed in range(5):
        assert 1.0 in [time_ms(CONFIGS[n]) for n in sweep(sampler(seed=seed), 20)]


@pytest.mark.parametrize("name", HINTED)
def test_optuna_s_own_samplers_learn_what_is_fast(name):
    def mean_ms(seed):
        return np.mean([time_ms(CONFIGS[n]) for n in sweep(sampler(name, seed=seed), 28)[12:]])

    # CMA-ES has had three generations by then.
    assert np.mean([mean_ms(seed) for seed in range(SEEDS[name])]) < 0.85 * np.mean([time_ms(c) for c in CONFIGS])


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_optuna_study_holds_the_real_configs(name):
    it = sampler(name)
    asked = sweep(it, 16)
    shown = {t.user_attrs["candidate"]: t for t in it.study.trials if "candidate" in t.user_attrs}
    assert sorted(shown) == sorted(asked)
    assert all(trial.params == CONFIGS[number].flat for number, trial in shown.items())
    assert all(trial.intermediate_values == {LAST: time_ms(CONFIGS[n])} for n, trial in shown.items())


@pytest.mark.parametrize("name", HINTED)
def test_what_optuna_proposes_in_vain_is_marked_and_snapped_to_the_nearest(name):
    it = sampler(name)
    asked = sweep(it, 40)
    trials = it.hints.study.trials
    vain = [t for t in trials if "snapped_to" in t.user_attrs]
    assert vain
    assert {t.user_attrs["snapped_to"] for t in vain} < set(asked)
    assert all(t.state == State.FAIL for t in vain)
    told = [t for t in trials if t.state == State.COMPLETE]
    assert [t.value for t in told] == pytest.approx([math.log(time_ms(CONFIGS[n])) for n in asked])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tpe", {"BLOCK": "C", "MODE": "C", "maxnreg": "C", "num_warps": "C"}),
        ("gp", {"BLOCK": "I", "MODE": "C", "maxnreg": "C", "num_warps": "I"}),
        ("cmaes", {"BLOCK": "I", "MODE": "I", "maxnreg": "I", "num_warps": "I"}),
    ],
)
def test_each_sampler_gets_the_distributions_that_it_wants(name, kinds):
    it = sampler(name, first=())
    it.ask(1)
    given = it.hints.study.trials[0].distributions
    assert {n: type(d).__name__[0] for n, d in given.items()} == kinds
    assert all((d.low, d.high) in ((0, 3), (0, 1)) for n, d in given.items() if kinds[n] == "I")


@pytest.mark.parametrize("name", HINTED)
def test_failures_are_told_as_slower_than_all_others_and_equals_as_their_equal(name):
    it = sampler(name, first=(0, 1, 2, 3, 4))
    it.ask(5)
    it.tell(Trial(number=4, config=CONFIGS[4], outcome=Outcome.CRASHED, failure=FAILURE))
    for number, value_ms in ((0, 3.0), (1, 2.0)):
        it.tell(measured(number, value_ms, rung=LAST))
        it.judge(number)
    it.tell(Trial(number=2, config=CONFIGS[2], outcome=Outcome.OUT_OF_RESOURCES, failure=FAILURE))
    it.tell(Trial(number=3, config=CONFIGS[3], outcome=Outcome.MERGED, merged_into=1))
    told = it.hints.study.trials
    # The first to fail did so before anything was known that it could be said to be slower than.
    assert [t.state for t in told] == [State.COMPLETE] * 4 + [State.FAIL]
    assert [t.value for t in told[:4]] == pytest.approx([math.log(ms) for ms in (3.0, 2.0, 6.0, 2.0)])


@pytest.mark.parametrize("name", HINTED)
def test_where_half_fails_little_is_asked_there(name):
    """A sampler that does not hear of failures keeps going where they are."""

    def num_failed(seed):
        it, failed, asked = sampler(name, seed=seed, first=()), 0, 0
        while asked < 32:
            for number in it.ask(4):
                asked += 1
                if bad := CONFIGS[number].params["BLOCK"] >= 128:
                    it.tell(Trial(number=number, config=CONFIGS[number], outcome=Outcome.CRASHED, failure=FAILURE))
                else:
                    it.tell(measured(number, time_ms(CONFIGS[number]), rung=LAST))
                    it.judge(number)
                failed += bad
        return failed

    # Without a preference it would be half of the 32; the fast ones lie right beside those that fail.
    assert np.mean([num_failed(seed) for seed in range(SEEDS[name])]) < 13


@pytest.mark.parametrize("name", HINTED)
def test_a_pruned_trial_is_told_with_the_time_it_had(name):
    it = sampler(name, first=(0, 1))
    it.ask(2)
    for number, value_ms in ((0, 1.0), (1, 2.0)):
        it.tell(measured(number, value_ms))
    assert [it.judge(0), it.judge(1)] == [False, True]
    assert [t.state for t in it.hints.study.trials] == [State.RUNNING, State.COMPLETE]
    assert it.hints.study.trials[1].value == pytest.approx(math.log(2.0))


def test_a_gaussian_process_leaves_torch_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        it = sampler("gp")
        sweep(it, 16)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_trial_is_judged_pruned_or_carried_to_the_last_rung():
    it = sampler("exhaustive", first=())
    it.ask(2)
    for number, value_ms in ((0, 1.0), (1, 2.0)):
        it.tell(measured(number, value_ms))
    assert [it.judge(0), it.judge(1)] == [False, True]
    it.tell(measured(0, 1.1, rung=1))
    assert not it.judge(0)
    assert [t.state for t in it.study.trials] == [State.COMPLETE, State.PRUNED]
    assert it.study.best_value == 1.1


def test_failures_are_told_as_failures_and_known_to_the_surrogate():
    it = sampler(first=(0, 1, 2))
    it.ask(3)
    it.tell(measured(0, 1.0))
    it.tell(measured(1, 1.1))
    it.tell(Trial(number=2, config=CONFIGS[2], outcome=Outcome.OUT_OF_RESOURCES, failure=FAILURE))
    assert it.study.trials[2].state == State.FAIL
    assert it.study.trials[2].user_attrs["outcome"] == "out_of_resources"
    assert it.outlook.mean[2] > it.outlook.mean[1]


def test_no_trial_is_left_running_once_all_are_told_and_judged():
    it = sampler()
    for number in it.ask(8):
        it.tell(Trial(number=number, config=CONFIGS[number], outcome=Outcome.CRASHED, failure=FAILURE))
    assert {t.state for t in it.study.trials} == {State.FAIL}
    assert it.outlook is None
    assert len(it.ask(4)) == 4


def test_a_later_word_replaces_an_earlier_one():
    it = sampler(first=(0, 1))
    it.ask(2)
    it.tell(measured(0, 1.0))
    it.tell(measured(1, 2.0))
    assert it.outlook.incumbent == 0
    it.tell(measured(0, 3.0, rung=1))
    assert it.outlook.incumbent == 1


def test_what_is_told_unasked_or_closed_is_not_asked():
    it = sampler("exhaustive", first=())
    it.tell(Trial(number=0, config=CONFIGS[0], outcome=Outcome.MERGED, merged_into=1))
    it.close([1, 2])
    assert it.ask(2) == [3, 4]


def test_a_merged_trial_counts_as_the_one_that_stands_for_it():
    it = sampler(first=(0, 1))
    it.ask(2)
    it.tell(measured(0, 2.0))
    it.tell(Trial(number=1, config=CONFIGS[1], outcome=Outcome.MERGED, merged_into=0))
    assert it.study.trials[1].state == State.FAIL
    assert it.outlook.mean[1] == pytest.approx(math.log(2.0), abs=0.01)


def test_a_space_of_one_config_without_a_choice():
    only = [Config(params={"BLOCK": 64})]
    for name in SAMPLERS:
        it = sampler(name, configs=only, first=())
        assert it.ask(4) == [0]
        assert it.ask(4) == []


def test_an_unknown_sampler_is_refused_with_the_names_there_are():
    with pytest.raises(SpecError, match=r"unknown sampler 'bayes'.*default, tpe, gp, cmaes, random, exhaustive"):
        sampler("bayes")


def test_optuna_is_quiet(capfd):
    it = sampler()
    sweep(it, 16)
    it.judge(5)
    assert capfd.readouterr() == ("", "")
