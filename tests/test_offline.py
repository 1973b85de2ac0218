"""No telemetry leaves: a sweep in a network namespace without any route."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from farm import command, environment, write_experiment, write_landscape

NAMESPACE = ["unshare", "--map-root-user", "--net"]
OFFLINE = Path(__file__).parent / "offline.py"


def permitted() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not permitted(), reason="this machine allows no network namespaces (unshare --net)")

TRIES = "import socket; s = socket.socket(); s.connect_ex(('192.0.2.1', 443))"


def offline(folder: Path, words: list[str]) -> tuple[subprocess.CompletedProcess[str], int]:
    """What a command did, and how often something in it wanted to leave."""
    # In test runs MLflow sends nothing anyway: let it not know that this is one.
    alien = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "CI", "MLFLOW_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED")
    mine = {name: value for name, value in environment(folder / "store").items() if name not in alien}
    done = subprocess.run(
        [*NAMESPACE, sys.executable, str(OFFLINE), str(folder / "count"), *words], cwd=folder, env=mine,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    return done, int((folder / "count").read_text())


def test_who_wants_to_leave_is_counted(tmp_path: Path) -> None:
    assert offline(tmp_path, [sys.executable, "-c", "pass"])[1] == 0
    done, count = offline(tmp_path, [sys.executable, "-c", TRIES])
    assert (done.returncode, count) == (0, 1)


@pytest.mark.parametrize("fleet", ["inline", "ray"])
def test_a_sweep_passes_without_any_route(tmp_path: Path, fleet: str) -> None:
    """Replayed, with MLflow and a pack; nothing of ours even tries.

    Ray's dashboard process asks the cloud's own metadata service, which is no further than the host, what cloud it is
    in, with usage reports switched off, too.
    """
    write_landscape(write_experiment(tmp_path, export="pack.json"))
    done, count = offline(tmp_path, command("sweep", "experiment.yaml", "--fleet", fleet, "--json"))
    assert done.returncode == 0, done.stderr
    (study,) = json.loads(done.stdout)["studies"]
    assert study["status"] == "winner"
    assert (tmp_path / "mlflow.db").exists()
    print(f"{fleet}: {count} attempts")
    if fleet == "inline":
        assert count == 0
