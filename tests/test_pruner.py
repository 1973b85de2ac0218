import optuna
import pytest

from tunefarm.search.pruner import FASTEST, RatioPruner


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(pruner=RatioPruner())


def reported(study, value_ms, step=0):
    trial = study.ask()
    trial.report(value_ms, step=step)
    return trial


def test_nobody_is_pruned_without_an_incumbent(study):
    assert not study.ask().should_prune()
    assert not reported(study, 5.0).should_prune()


@pytest.mark.parametrize(("step", "gate"), [(0, 1.3), (1, 1.1)])
def test_gate_of_each_rung(study, step, gate):
    study.tell(reported(study, 1.0, step=1), 1.0)
    assert not reported(study, gate - 0.01, step).should_prune()
    assert reported(study, gate + 0.01, step).should_prune()


def test_incumbent_is_the_last_word_on_the_fastest_other_trial(study):
    lucky = reported(study, 1.0)
    lucky.report(2.0, step=1)
    assert not reported(study, 2.4).should_prune()
    assert not lucky.should_prune()


def test_failed_trials_are_no_incumbents(study):
    wrong = reported(study, 0.1)
    study.tell(wrong, state=optuna.trial.TrialState.FAIL)
    reported(study, 1.0)
    assert not reported(study, 1.2).should_prune()


def test_disturbed_samples_do_not_end_a_trial_whose_fastest_is_good(study):
    reported(study, 1.0)
    disturbed = reported(study, 1.6)
    disturbed.set_user_attr(FASTEST, 0.98)
    assert not disturbed.should_prune()
    disturbed.set_user_attr(FASTEST, 1.5)
    assert disturbed.should_prune()


def test_optuna_accepts_the_pruned_trial(study):
    reported(study, 1.0)
    slow = reported(study, 9.0)
    assert slow.should_prune()
    study.tell(slow, state=optuna.trial.TrialState.PRUNED)
    assert study.trials[1].state == optuna.trial.TrialState.PRUNED
    assert study.trials[1].value == 9.0
