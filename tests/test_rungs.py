from tunefarm.search.rungs import EXPLORATION, LAST, RUNGS
from tunefarm.trial import FINAL


def test_rungs_climb_from_a_few_samples_to_finals_that_gate_nobody():
    assert [rung.number for rung in EXPLORATION] == [0, 1]
    assert [RUNGS[number].num_samples for number in (0, 1, FINAL)] == [3, 10, 20]
    assert [RUNGS[number].gate for number in (0, 1, FINAL)] == [1.3, 1.1, None]
    assert LAST == 1
