"""How far a study goes: what is expected of the rest, and what is left on the table."""

from test_search import SMALL, SPACE, Farm, study, time_ms

from tunefarm.study import WORTHWHILE, Left


def test_what_a_limit_left_on_the_table_is_told_and_shrinks_with_what_is_measured():
    lefts = []
    for max_trials in (10, 30):
        search = study(max_trials=max_trials, batch=4)
        Farm(search).explore()
        left = search.left()
        assert (left.num, left.limit) == (len(SPACE) - max_trials, "trials")
        assert left.expected_gain > 0
        lefts.append(left)
    assert lefts[0].is_worthwhile
    assert lefts[0].plausible_gain > lefts[1].plausible_gain


def test_a_study_that_ended_by_itself_left_nothing_that_matters():
    farm = Farm(study(max_trials=200))
    farm.build_all()
    farm.explore().finals()
    left = farm.search.left("wall_s")
    assert 0 < left.num < len(SPACE)
    assert left.plausible_gain < WORTHWHILE
    assert (left.limit, left.is_worthwhile) == ("", False)
    small = Farm(study(SMALL)).explore()
    assert small.search.left() == Left(num=0, expected_gain=0.0, plausible_gain=0.0)


def test_what_is_left_by_a_batch_that_was_cut_counts_its_answers_and_changes_no_decision():
    cut, whole = (Farm(study(max_trials=20, batch=4)) for _ in range(2))
    assert cut.search.left("wall_s") == Left(num=len(SPACE), limit="wall_s")
    assert cut.search.expected_gain == 1.0
    requests = cut.search.ask()
    cut.build([request.number for request in requests])
    best, *others = sorted(requests, key=lambda request: time_ms(cut.search.trials[request.number].config))
    for request in others:
        cut.search.tell(request.number, cut.measure(request.number, 0))
    before = cut.search.left("wall_s")
    assert (before.num, before.limit, before.is_worthwhile) == (len(SPACE) - 3, "wall_s", True)
    cut.decisions += cut.search.tell(best.number, cut.measure(best.number, 0))
    assert cut.search.left("wall_s").plausible_gain != before.plausible_gain
    assert cut.explore().decisions == whole.explore().decisions
    assert cut.search.trials == whole.search.trials


def test_what_is_expected_falls_as_a_search_goes_on():
    search = study(batch=4)
    farm = Farm(search)
    expected = []
    while requests := search.ask():
        farm.build([r.number for r in requests if search.trials[r.number].build is None])
        expected.append(search.expected_gain)
        for request in search.pending:
            search.tell(request.number, farm.measure(request.number, request.rung))
    assert expected[0] == 1.0
    assert all(0 <= gain < 1 for gain in expected[1:])
    assert expected[1] > 10 * expected[-1]
    assert search.expected_gain < 0.01
