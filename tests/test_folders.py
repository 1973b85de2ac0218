"""Where things are kept between sweeps, on machines that let nobody write where it is usual."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tunefarm.cli import folders
from tunefarm.cli.folders import store_folder, unpack_all
from tunefarm.errors import InfrastructureError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing can be made, whoever runs the test; the temporary folder can be written."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("TUNEFARM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def test_a_home_that_cannot_be_written_is_said_and_done_without(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TF-085."""
    own = home / "tmp" / f"tunefarm-{os.getuid()}"
    assert store_folder() == own / "builds"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"cannot write to {home}/file/.cache/tunefarm: builds are kept in {own};")
    notice = unpack_all([(("a.py", b""),)])
    assert f"cannot write to {home}/file/.cache/tunefarm/bundles-" in notice
    assert notice.endswith(f"workloads are unpacked in {own}/bundles-{os.getuid()}")


def test_where_nothing_can_be_written_the_variable_to_set_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF-085: before GPUs are taken."""
    monkeypatch.setattr(tempfile, "tempdir", str(home / "file"))
    for use in (store_folder, lambda: unpack_all([(("a.py", b""),)])):
        with pytest.raises(InfrastructureError, match=rf"{home}/file/.*set TUNEFARM_CACHE"):
            use()


def test_a_disk_that_is_nearly_full_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TF-087."""
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path))
    store_folder()
    monkeypatch.setattr(folders, "MIN_FREE_BYTES", 1 << 60)
    store_folder()
    (said,) = [record.getMessage() for record in caplog.records if "GiB free" in record.getMessage()]
    assert said.startswith(f"{tmp_path} has only ")
