"""One config for several problems: who shares, what is chosen, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farm import events, play, smooth, write_experiment, write_landscape

from tunefarm.config import Config, Value
from tunefarm.seams import Fleet
from tunefarm.study import Status
from tunefarm.trial import Failure, Outcome

PROBLEMS = [{"n": [1000, 4096, 5000], "dtype": "fp32"}]


def wrong_when_large(config: Config, variables: Mapping[str, Value]) -> float | Outcome:
    if int(variables["n"] or 0) > 2000 and config.params["BLOCK"] != 256:
        return Outcome.WRONG_RESULT
    return (
        Outcome.WRONG_RESULT if variables["n"] == 1000 and config.params["BLOCK"] == 256 else smooth(config, variables)
    )


def test_problems_that_share_one_config(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=PROBLEMS, accept={"one_config_over": ["n"]})
    write_landscape(experiment)
    apart = play(write_experiment(tmp_path, problems=PROBLEMS), fleet, store, ledger=tmp_path / "apart.jsonl").results
    assert len({result.winner.config for result in apart if result.winner}) == 2

    experiment = write_experiment(tmp_path, problems=PROBLEMS, accept={"one_config_over": ["n"]})
    played = play(experiment, fleet, store, ledger=tmp_path / "shared.jsonl")
    winners = [result.winner for result in played.results]
    (shared,) = {winner.config for winner in winners if winner}
    assert shared == Config(params={"BLOCK": 256, "MARK": 0}, options={"num_warps": 2})  # two of three want it
    costs = [result.reason for result in played.results]
    assert costs[1] == costs[2] == "one config over n: 0.0% behind its own best"
    assert costs[0] == "one config over n: 40.0% behind its own best"
    for winner in winners:
        assert winner is not None
        assert winner.gain == winner.default_ms / winner.median_ms


def test_a_driver_that_goes_on_holds_no_sitting_again(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    """TF-057: the same ledger gives the same decisions."""
    experiment = write_experiment(tmp_path, problems=PROBLEMS, accept={"one_config_over": ["n"]})
    write_landscape(experiment)
    first = play(experiment, fleet, store)
    again = play(experiment, fleet, store)
    assert [result.winner for result in again.results] == [result.winner for result in first.results]
    assert len(events(again.ledger, "unified")) == 3
    assert len(events(again.ledger, "winner")) == len(events(first.ledger, "winner"))


def test_other_variables_keep_studies_apart(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=PROBLEMS, accept={"one_config_over": ["dtype"]})
    write_landscape(experiment)
    results = play(experiment, fleet, store).results
    assert len({result.winner.config for result in results if result.winner}) == 2
    assert not any("one config" in result.reason for result in results)


def test_where_no_config_is_right_for_all_nobody_wins(tmp_path: Path, fleet: Fleet, store: Path) -> None:
    experiment = write_experiment(tmp_path, problems=PROBLEMS, accept={"one_config_over": ["n"]})
    write_landscape(experiment, wrong_when_large)
    results = play(experiment, fleet, store).results
    assert {result.status for result in results} == {Status.NO_WINNER}
    assert {result.reason for result in results} == {"no config is right for all values of n"}
    assert all(isinstance(t.failure, Failure) for r in results for t in r.trials if t.outcome is Outcome.WRONG_RESULT)
