"""Jobs that one worker alone may do: they end with it, rather than wait for what does not come back."""

from __future__ import annotations

from test_schedule import H100, gpu, joined, lose, measure, submit

from tunefarm.schedule.events import Action, GiveUp, Limits, Submitted, WorkerJoined, WorkerLeft
from tunefarm.schedule.machine import step
from tunefarm.schedule.standing import stand


def given_up(actions: list[Action]) -> dict[str, str]:
    return {a.job: a.reason for a in actions if isinstance(a, GiveUp)}


def test_a_job_for_one_worker_ends_with_it_and_keeps_nobody_waiting() -> None:
    state = joined(gpu("a"), gpu("b"), limits=Limits(depth=1, quarantine=1))
    assert [s.worker for s in submit(state, measure("for a", on="a"), measure("for a too", on="a"))] == ["a"]
    gone = step(state, WorkerLeft(worker="a"), 1.0)
    assert given_up(gone).keys() == {"for a", "for a too"}
    assert "a takes no more jobs" in given_up(gone)["for a"]
    assert given_up(step(state, Submitted(jobs=(measure("late", on="a"),)), 2.0)).keys() == {"late"}

    step(state, WorkerJoined(worker=gpu("c")), 3.0)
    running, waiting = submit(state, measure("x", where="sm_90"), measure("y", on="c"))
    assert (running.worker, waiting.worker) == ("b", "c")
    submit(state, measure("z", where=H100.key, on="c"))
    # To dashboards they are jobs for its device: names of workers would be labels without end.
    assert {place for (_, place), _ in stand(state).jobs} == {"sm_90", "", H100.key}
    assert given_up(lose(state, waiting, 4.0)).keys() == {"y", "z"}  # c is in quarantine for it
    assert (state.num_open, state.wake_s is None or state.wake_s > 4.0) == (1, True)
