"""The command on a machine that has no farm: a laptop, or a CI job that looks at a pull request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from farm import environment

FARM = ("torch", "triton", "ray", "optuna")

_BARE = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
sys.argv = ["tunefarm", *sys.argv[2:]]
from tunefarm.cli.__main__ import main
main()
"""


def bare(
    *words: str | Path, folder: Path, without: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs `tunefarm` where nothing of a farm, nor what `without` names, can be imported."""
    return subprocess.run(
        [sys.executable, "-c", _BARE, " ".join((*FARM, *without)), *map(str, words)], cwd=folder, text=True,
        env=environment(folder, COLUMNS="120", **more), capture_output=True, check=False,
    )  # fmt: skip
