"""The batch script for Slurm, run by bash with stand-ins for what only a cluster has."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from farm import wait_until
from overlays import MANIFESTS

STAND_INS = {
    "scontrol": "echo here",
    "srun": 'case "$*" in *"ray start"*) exec sleep 60 ;; esac',
    "tunefarm": """\
echo "$RAY_AUTH_TOKEN_PATH" > "$SEEN/began"
stop() { sleep 1; test -s "$RAY_AUTH_TOKEN_PATH" && echo "gave back what was in flight" > "$SEEN/ended"; exit 130; }
trap stop TERM
while :; do sleep 0.1; done""",
}


def test_a_driver_is_given_the_time_to_end_when_the_job_s_own_runs_out(tmp_path: Path) -> None:
    """Slurm tells the script alone, a minute before; the token is there until the driver needs it no more."""
    for name, script in STAND_INS.items():
        place = tmp_path / name
        place.write_text(f"#!/usr/bin/env bash\n{script}\n")
        place.chmod(0o700)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "here", "SLURM_JOB_ID": "7",
        "SLURM_NNODES": "1", "TUNEFARM_CACHE": str(tmp_path), "SEEN": str(tmp_path),
    }  # fmt: skip
    job = subprocess.Popen(
        ["bash", MANIFESTS / "slurm" / "measure.sbatch", "experiment.yaml"], env=environment, start_new_session=True
    )
    try:
        assert wait_until(lambda: (tmp_path / "began").exists() and (tmp_path / "began").read_text() != "", 60)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 130
        assert (tmp_path / "ended").read_text() == "gave back what was in flight\n"
        assert not Path((tmp_path / "began").read_text().strip()).exists()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it has left behind
            os.killpg(job.pid, signal.SIGKILL)
