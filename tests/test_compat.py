"""Lookups need Triton alone: what `make compat` runs under each Triton, run here under the one that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import triton

sys.path.insert(0, str(Path(__file__).parent / "compat"))

import versions


def test_lookups_without_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "triton").symlink_to(Path(triton.__file__).parent)
    assert versions.check(str(tmp_path))
    assert capfd.readouterr().out == f"Triton {triton.__version__}: lookups are right\n"


def test_a_wrong_lookup_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "fetch", lambda version, _: "not there" if version == "3.6.0" else "")
    monkeypatch.setattr(versions, "check", lambda _: False)
    assert versions.main(["3.6.0"]) == 0
    assert versions.main(["3.6.0", "3.7.1"]) == 1
    assert "Triton 3.6.0: skipped: not there\nTriton 3.7.1: FAILED\n" in capfd.readouterr().out
