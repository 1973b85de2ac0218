"""A submission that somebody cancels while its build is waited for."""

from __future__ import annotations

from pathlib import Path

import test_submit
from apiserver import Server
from farm import Warm, wait_until
from test_submit import submit_in_background

checkout, server = test_submit.checkout, test_submit.server


def test_who_waits_for_a_build_hears_that_it_was_cancelled(
    checkout: Path, server: tuple[Server, Path], warm: Warm
) -> None:
    api, config = server
    thread, done = submit_in_background(checkout, config)
    assert wait_until(lambda: "RayJob team-a--fill-build" in api.created, 60)
    gone = warm("cancel", "team-a--fill", folder=checkout, store=checkout, KUBECONFIG=str(config))
    assert gone.returncode == 0, gone.stderr
    thread.join(timeout=60)
    assert done[0].returncode == 3
    assert "error: team-a--fill-build is no longer there (somebody has cancelled it" in done[0].stderr
    assert "Traceback" not in done[0].stderr
    assert not any("sm-90" in line for line in api.created)
