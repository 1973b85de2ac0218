"""Lookups under every Triton that this project says it works with, each fetched for that and without torch.

    python tests/compat/versions.py [VERSION ...]

A version that the index does not have for this Python, or that cannot be fetched, is left out, and that is said.
Exit code 1 if a lookup goes wrong under one that was fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
ROOT = Path(__file__).resolve().parents[2]


def fetch(version: str, folder: str) -> str:
    """Puts Triton into a folder; why that cannot be done, or nothing."""
    words = ("install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:", "--target", folder)
    command = [sys.executable, "-m", "pip", *words, f"triton=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return "it takes more than three minutes to fetch"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed"])[-1] if done.returncode else ""


def check(folder: str) -> bool:
    """Whether lookups are right under the Triton in a folder, seen from a Python without other packages."""
    path = os.pathsep.join((folder, str(ROOT)))
    command = [sys.executable, "-S", str(Path(__file__).with_name("lookups.py"))]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, timeout=120, check=False).returncode == 0


def main(versions: list[str]) -> int:
    right = True
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            if reason := fetch(version, folder):
                print(f"Triton {version}: skipped: {reason}", flush=True)
            elif not check(folder):
                print(f"Triton {version}: FAILED", flush=True)
                right = False
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))
