import itertools

from tunefarm.config import Config
from tunefarm.search.polish import NUM_LEADERS, Neighbourhood, leaders
from tunefarm.trial import Failure, Measurement, Outcome, Trial

SPACE = [
    Config(params={"BLOCK": block, "MODE": mode}, options={"num_warps": warps})
    for block, mode, warps in itertools.product((64, 128, 512), ("a", "b", "c"), (1, 2, 4))
]


def at(block, mode, warps):
    return SPACE.index(Config(params={"BLOCK": block, "MODE": mode}, options={"num_warps": warps}))


def trial(number, time_ms=None, outcome=Outcome.OK):
    timed = (Measurement(samples_ms=(time_ms,), timer="cold", rung=0, source="measured"),) if time_ms else ()
    failure = Failure(stage="verify", kind="mismatch", message="") if outcome is Outcome.WRONG_RESULT else None
    return Trial(number=number, config=SPACE[number], outcome=outcome, measurements=timed, failure=failure)


def test_neighbours_are_one_step_away_in_one_name():
    assert set(Neighbourhood(SPACE).beside([at(128, "b", 1)])) == {
        at(64, "b", 1), at(512, "b", 1), at(128, "a", 1), at(128, "c", 1), at(128, "b", 2),
    }  # fmt: skip


def test_candidates_with_other_names_are_no_neighbours():
    odd = Config(params={"BLOCK": 64}, options={"num_warps": 1})
    assert Neighbourhood([*SPACE, odd]).beside([len(SPACE)]) == []
    assert len(SPACE) not in Neighbourhood([*SPACE, odd]).beside([0])


def test_leaders_are_the_fastest_few_within_reach_pruned_ones_included_failed_ones_not():
    trials = [
        trial(0, 1.0),
        trial(1, 1.1, Outcome.PRUNED),
        trial(2, 1.2),
        trial(3),
        trial(4, 0.5, Outcome.WRONG_RESULT),
    ]
    assert leaders(trials) == [0, 1]
    assert leaders([trial(n, 1.0 + n / 1000) for n in range(20)]) == list(range(NUM_LEADERS))
    assert leaders([trial(3)]) == []
