"""A machine that has only some packages: those named, what they need, and the standard library."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from farm import environment

ROOT = Path(__file__).parents[1]


def furnish(folder: Path, *distributions: str) -> Path:
    """A folder of links to installed distributions and to all that these require."""
    folder.mkdir(parents=True)
    left, seen = list(distributions), set()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        for top in {Path(file).parts[0] for file in found.files or () if not str(file).startswith("..")}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
        left += [
            match[0]
            for needed in found.requires or ()
            if "extra ==" not in needed and (match := re.match(r"[\w.-]+", needed)) and _is_here(match[0])
        ]
    return folder


def _is_here(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False  # for other Pythons or systems
    return True


def tunefarm(
    *arguments: str | Path, packages: Path, folder: Path, store: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs `tunefarm` where there are these packages alone."""
    # Without `site` nothing else is installed; Python's own environment of packages would have all of it.
    return subprocess.run(
        [sys.executable, "-S", "-m", "tunefarm.cli", *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**environment(store, **more), "PYTHONPATH": f"{ROOT}:{packages}"}, timeout=120, check=False,
    )  # fmt: skip
