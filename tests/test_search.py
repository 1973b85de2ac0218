import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.problem import Problem
from tunefarm.search.polish import Neighbourhood, leaders
from tunefarm.search.rungs import RUNGS
from tunefarm.search.search import StudySearch
from tunefarm.search.stopping import MAX_TRIALS
from tunefarm.trial import FINAL, Build, Failure, Measurement, Outcome, Trial

SPACE = [
    Config(params={"ROWS": rows, "BLOCK": block}, options={"num_warps": warps, "num_stages": stages})
    for rows, block, warps, stages in itertools.product(
        (1, 2, 4, 8), (256, 512, 1024, 2048, 4096), (1, 2, 4, 8, 16), (1, 2, 3)
    )
]
SMALL = [config for config in SPACE if config.options["num_stages"] == 1][:24]
DEFAULT = Config(params={"ROWS": 4, "BLOCK": 1024}, options={"num_warps": 4, "num_stages": 1})
OPTIMUM = {"ROWS": 2, "BLOCK": 2048, "num_warps": 8}


def time_ms(config):
    """A bowl in log space with an interaction; stages do nothing, as in a plain loop."""
    rows, block, warps = (math.log2(config.flat[name]) for name in OPTIMUM)
    per_thread = rows + block - warps - 5
    return 0.05 * (1 + 0.1 * (rows - 1) ** 2 + 0.15 * (block - 11) ** 2 + 0.08 * abs(per_thread - 4))


def no_merge(config):
    return config.key


def plain_loop(config):
    return config.key.replace(f"num_stages={config.options['num_stages']}", "")


class Farm:
    """Answers a search as a sweep would, from the function above; keeps a protocol of everything said."""

    def __init__(self, search, *, binary=no_merge, noise=0.01, fails=lambda config: None, shuffle=None):
        self.search, self.binary, self.noise, self.fails, self.shuffle = search, binary, noise, fails, shuffle
        self.asked, self.decisions, self.num_built = [], [], 0

    def build(self, numbers):
        trials = []
        for number in numbers:
            config = self.search.trials[number].config
            told = Trial(
                number=number,
                config=config,
                build=Build(binary=self.binary(config), registers=64, spills=0, shared_bytes=0),
            )
            if (failure := self.fails(config)) and failure[1].stage == "build":
                told = Trial(number=number, config=config, outcome=failure[0], failure=failure[1])
            trials.append(told)
        self.num_built += len(trials)
        self.decisions += self.search.built(trials)

    def build_all(self):
        while numbers := self.search.wants_builds(16):
            self.build(numbers)

    def measure(self, number, rung):
        config = self.search.trials[number].config
        if failure := self.fails(config):
            return failure
        rng = np.random.default_rng([*config.key.encode(), rung])
        samples_ms = time_ms(config) * (1 + self.noise * rng.standard_normal(RUNGS[rung].num_samples))
        return Measurement(samples_ms=tuple(map(float, samples_ms)), timer="cold", rung=rung, source="measured")

    def explore(self):
        while requests := self.search.ask():
            self.build([r.number for r in requests if self.search.trials[r.number].build is None])
            pending = self.search.pending
            if self.shuffle:
                self.shuffle.shuffle(pending)
            for request in pending:
                self.asked.append((self.search.trials[request.number].config.key, request.rung))
                self.decisions += self.search.tell(request.number, self.measure(request.number, request.rung))
        return self

    def finals(self):
        return self.search.crown({n: self.measure(n, FINAL) for n in self.search.finalists()})

    def measured(self, rung=0):
        return [key for key, at in self.asked if at == rung]


def study(configs=SPACE, **more):
    return StudySearch(configs=configs, problem=Problem(), device=nominal("sm_90"), **more)


def told(farm, kind):
    return [decision for decision in farm.decisions if decision.kind == kind]


def test_the_best_is_found_and_crowned_with_few_measurements():
    farm = Farm(study(default=DEFAULT))
    farm.build_all()
    winner = farm.explore().finals()
    assert time_ms(winner.config) <= 1.01 * min(map(time_ms, SPACE))
    assert winner.gain == pytest.approx(time_ms(DEFAULT) / time_ms(winner.config), rel=0.02)
    assert winner.default == DEFAULT
    assert len(farm.measured()) <= MAX_TRIALS < len(SPACE) / 4
    assert farm.search.ended


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "random", "exhaustive"])
def test_other_samplers_go_the_same_way(sampler):
    farm = Farm(study(default=DEFAULT, sampler=sampler, configs=SPACE[::3]))
    farm.build_all()
    winner = farm.explore().finals()
    assert DEFAULT.key in farm.measured()
    assert winner.gain >= 1.0
    assert len(set(farm.measured())) == len(farm.measured()) == farm.search.num_tried
    assert (len(farm.measured()) == 100) == (sampler == "exhaustive")


def test_equal_builds_are_measured_once():
    farm = Farm(study(default=DEFAULT), binary=plain_loop)
    farm.build_all()
    merged = [trial for trial in farm.search.trials if trial.outcome is Outcome.MERGED]
    assert len(merged) == len(SPACE) * 2 // 3 == len(told(farm, "merged"))
    farm.explore()
    assert len({plain_loop(t.config) for t in farm.search.trials if t.measurements}) == len(farm.measured())
    for trial in merged:
        stand_in = farm.search.trials[trial.merged_into]
        assert plain_loop(stand_in.config) == plain_loop(trial.config)
        assert stand_in.outcome is not Outcome.MERGED
        assert trial.bucket == -1


def test_a_merge_keeps_the_default_and_the_incumbent():
    default, incumbent = (
        Config(params={"ROWS": 2, "BLOCK": block}, options={"num_warps": 4, "num_stages": 3}) for block in (512, 1024)
    )
    farm = Farm(study(default=default, incumbent=incumbent), binary=plain_loop)
    farm.build_all()
    by_config = {trial.config: trial for trial in farm.search.trials}
    assert by_config[default].outcome is by_config[incumbent].outcome is Outcome.OK
    farm.explore()
    assert {by_config[default].number, by_config[incumbent].number} <= set(farm.search.finalists())


def test_on_demand_only_what_is_asked_is_built_and_a_late_twin_is_merged_unmeasured():
    farm = Farm(study(), binary=plain_loop).explore()
    assert farm.num_built < len(SPACE) / 2
    late = [t for t in farm.search.trials if t.outcome is Outcome.MERGED]
    assert late
    assert not any(t.measurements for t in late)
    assert min(map(time_ms, SPACE)) * 1.05 > time_ms(farm.finals().config)


def test_on_demand_a_twin_of_the_incumbent_that_comes_before_it_is_merged_in_peace():
    best = Config(params={"ROWS": 2, "BLOCK": 2048}, options={"num_warps": 8, "num_stages": 3})
    farm = Farm(study(default=best, stop_gain=0.0, max_trials=len(SPACE)), binary=plain_loop).explore()
    twins = [t for t in farm.search.trials if time_ms(t.config) == time_ms(best) and t.config != best]
    number = next(t.number for t in farm.search.trials if t.config == best)
    assert any(t.outcome is Outcome.MERGED and t.merged_into == number and t.number < number for t in twins)
    assert farm.finals().config == best


class NeedleFarm(Farm):
    """The same, but one config far from the good ones is 1.6 times as fast as all others."""

    needle = Config(params={"ROWS": 8, "BLOCK": 512}, options={"num_warps": 16, "num_stages": 1})

    def measure(self, number, rung):
        answer = super().measure(number, rung)
        if self.search.trials[number].config != self.needle:
            return answer
        return replace(answer, samples_ms=(min(map(time_ms, SPACE)) / 1.6,) * len(answer.samples_ms))


def test_a_needle_that_nothing_hints_at_is_for_the_exhaustive_sampler():
    distinct = [config for config in SPACE if config.options["num_stages"] == 1]
    assert NeedleFarm.needle in distinct
    farm = NeedleFarm(study(distinct, default=DEFAULT, sampler="exhaustive"))
    farm.build_all()
    assert farm.explore().finals().config == NeedleFarm.needle
    assert farm.search.num_tried == len(distinct)
    assert not farm.search.closed


def test_what_lies_beside_the_leaders_is_looked_at_before_the_study_stops():
    farm = Farm(study(default=DEFAULT, max_trials=200))
    farm.build_all()
    farm.explore()
    assert "plausibly" in farm.search.ended
    tried = {t.number for t in farm.search.trials if t.measurements}
    for leader in leaders(farm.search.trials):
        assert set(Neighbourhood([t.config for t in farm.search.trials]).beside([leader])) <= tried


def test_look_ahead_names_what_is_pending_first_and_then_the_promising():
    farm = Farm(study(batch=4))
    requests = farm.search.ask()
    wanted = farm.search.wants_builds(8)
    assert wanted[: len(requests)] == sorted((r.number for r in requests), key=wanted.index)
    assert {r.number for r in requests} == set(wanted[:4])
    farm.build(wanted)
    for request in farm.search.pending:
        farm.search.tell(request.number, farm.measure(request.number, 0))
    farm.explore()
    assert farm.search.wants_builds(8) == []


def test_decisions_say_why():
    farm = Farm(study(default=DEFAULT))
    farm.build_all()
    farm.explore()
    assert all(" ms, " in d.reason and "x the incumbent's" in d.reason for d in told(farm, "pruned"))
    assert all("on to rung 1" in d.reason for d in told(farm, "promoted"))
    assert {d.number for d in told(farm, "bucket_closed")} == set(farm.search.closed) != set()
    assert all("left unmeasured" in d.reason for d in told(farm, "bucket_closed"))
    pruned = {d.number for d in told(farm, "pruned")}
    assert pruned == {t.number for t in farm.search.trials if t.outcome is Outcome.PRUNED}
    climbed = {farm.search.trials[d.number].config.key for d in told(farm, "promoted")}
    assert climbed == set(farm.measured(rung=1))


def test_of_a_closed_bucket_nothing_is_asked_but_what_lies_beside_the_leaders():
    search = study()
    farm = Farm(search)
    farm.build_all()
    beside: set[int] = set()
    while requests := search.ask():
        closed = {n for b in search.buckets if b.number in search.closed for n in b.members}
        # What lay beside the leaders of an earlier batch may still wait for its turn.
        beside |= {
            n for t in leaders(search.trials) for n in Neighbourhood([t.config for t in search.trials]).beside([t])
        }
        assert closed.intersection(r.number for r in requests if r.rung == 0) <= beside
        for request in requests:
            search.tell(request.number, farm.measure(request.number, request.rung))


@pytest.mark.parametrize("sampler", ["default", "tpe", "cmaes", "random"])
@pytest.mark.parametrize("arrange", ["reversed", "shuffled 1", "shuffled 2", "shuffled 3"])
def test_listing_order_changes_nothing(sampler, arrange):
    """TF-056: same winner and same set of measured points, however the space is listed."""
    listed = SPACE[::-1] if arrange == "reversed" else random.Random(arrange).sample(SPACE, len(SPACE))
    straight, other = (Farm(study(space, sampler=sampler, default=DEFAULT, max_trials=24)) for space in (SPACE, listed))
    for farm in (straight, other):
        farm.build_all()
        farm.explore()
    assert other.asked == straight.asked
    assert other.decisions == straight.decisions
    assert other.finals() == straight.finals()


@pytest.mark.parametrize("built", ["all", "on demand"])
def test_the_same_answers_give_the_same_decisions_whatever_their_order_in_a_batch(built):
    """Resuming is asking again and answering from the ledger."""
    first, again = Farm(study(), binary=plain_loop), Farm(study(), binary=plain_loop, shuffle=random.Random(0))
    for farm in (first, again):
        if built == "all":
            farm.build_all()
        farm.explore()
    assert sorted(again.asked) == sorted(first.asked)
    assert again.decisions == first.decisions
    assert again.search.trials == first.search.trials
    assert again.finals() == first.finals()


def test_a_small_space_is_enumerated_and_ends_exhausted():
    """TF-114: 24 points, a budget of 60: each is measured once, and the study ends."""
    farm = Farm(study(SMALL, max_trials=60, batch=8), noise=0.0).explore()
    assert sorted(farm.measured()) == sorted(config.key for config in SMALL)
    assert farm.search.ended == "space exhausted: all 24 distinct candidates tried"
    assert time_ms(farm.finals().config) == min(map(time_ms, SMALL))


def test_the_budget_ends_exploration():
    farm = Farm(study(max_trials=10, batch=4)).explore()
    assert len(farm.measured()) == 10
    assert farm.search.ended == "budget of 10 trials used"
    assert farm.finals() is not None


def test_exploration_ends_when_nothing_more_can_be_gained():
    farm = Farm(study(max_trials=200))
    farm.build_all()
    farm.explore()
    assert len(farm.measured()) < 100
    assert "plausibly save" in farm.search.ended or "nothing is left open" in farm.search.ended


@pytest.mark.parametrize("stage", ["build", "launch"])
def test_ten_failures_alike_end_the_study_with_one_message(stage):
    """TF-012: the same error ten times in a row, nothing else: class, first line, count."""
    failure = (Outcome.COMPILE_ERROR, Failure(stage=stage, kind="NameError", message="kernel.py:12: 'tl_loud'"))
    farm = Farm(study(), fails=lambda config: failure)
    farm.build_all()
    farm.explore()
    assert farm.search.ended == f"10/10 candidates failed alike: {stage}: NameError: kernel.py:12: 'tl_loud'"
    assert len(farm.asked if stage == "launch" else range(farm.num_built)) == 10
    assert farm.finals() is None


def test_failures_that_differ_or_come_after_a_success_do_not_end_the_study():
    wide = (Outcome.OUT_OF_RESOURCES, Failure(stage="build", kind="OutOfResources", message="shared memory"))
    farm = Farm(study(default=DEFAULT), fails=lambda config: wide if config.params["BLOCK"] > 2048 else None)
    farm.build_all()
    winner = farm.explore().finals()
    assert sum(t.outcome is Outcome.OUT_OF_RESOURCES for t in farm.search.trials) == len(SPACE) // 5
    assert {name: winner.config.flat[name] for name in OPTIMUM} == OPTIMUM


def test_all_failed_means_no_winner():
    """TF-008: each fails in its own way, so all are tried; nobody wins."""
    farm = Farm(
        study(SMALL),
        fails=lambda config: (Outcome.LAUNCH_ERROR, Failure(stage="launch", kind="Error", message=config.key)),
    ).explore()
    assert farm.search.finalists() == []
    assert farm.search.crown({}) is None
    assert len(farm.asked) == len(SMALL)
    assert farm.search.ended == "space exhausted: all 24 distinct candidates tried"


def test_a_wrong_result_never_wins_however_fast():
    wrong = min(SPACE, key=time_ms)
    failure = (Outcome.WRONG_RESULT, Failure(stage="verify", kind="Mismatch", message="3 of 9 elements differ"))
    farm = Farm(study(), fails=lambda config: failure if config == wrong else None)
    farm.build_all()
    assert farm.explore().finals().config != wrong


def test_a_finalist_that_fails_in_the_finals_does_not_win():
    farm = Farm(study(max_trials=16)).explore()
    numbers = farm.search.finalists()
    fastest = min(numbers, key=lambda n: farm.search.trials[n].median_ms)
    failure = (Outcome.CRASHED, Failure(stage="measure", kind="WorkerLost", message="signal 9"))
    finals = {n: failure if n == fastest else farm.measure(n, FINAL) for n in numbers}
    assert farm.search.crown(finals).config != farm.search.trials[fastest].config
    assert farm.search.trials[fastest].outcome is Outcome.CRASHED


def test_a_slow_default_is_pruned_but_in_the_finals():
    slow = max(SPACE, key=time_ms)
    farm = Farm(study(default=slow))
    farm.build_all()
    winner = farm.explore().finals()
    number = next(t.number for t in farm.search.trials if t.config == slow)
    assert farm.search.trials[number].outcome is Outcome.PRUNED
    assert number in farm.search.finalists()
    assert winner.gain == pytest.approx(time_ms(slow) / time_ms(winner.config), rel=0.02)


def test_buckets_can_be_planned_without_a_build():
    search = study()
    buckets = search.form_buckets()
    assert sorted(n for b in buckets for n in b.members) == list(range(len(SPACE)))
    assert all(search.trials[n].bucket == b.number for b in buckets for n in b.members)


@pytest.mark.parametrize("configs", [[], SPACE[:1]])
def test_a_space_of_none_and_of_one(configs):
    farm = Farm(study(configs)).explore()
    assert len(farm.measured()) == len(configs)
    winner = farm.finals()
    assert (winner.reason if winner else None) == ("only candidate" if configs else None)


def test_a_batch_must_be_told_before_the_next_and_only_what_was_asked():
    farm = Farm(study())
    requests = farm.search.ask()
    with pytest.raises(RuntimeError, match="not answered"):
        farm.search.ask()
    with pytest.raises(ValueError, match="not asked for"):
        farm.search.tell(-1, farm.measure(0, 0))
    with pytest.raises(ValueError, match="rung 0, not 1"):
        farm.search.tell(requests[0].number, farm.measure(requests[0].number, 1))
