"""Where things are kept between sweeps, on machines that let nobody write where it is usual."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from farm import write_experiment

from tunefarm.cli import folders
from tunefarm.cli.folders import store_folder, unpack_all
from tunefarm.cli.opening import open_experiment
from tunefarm.cli.order import ledger_file
from tunefarm.document import write_atomic
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.inductor.kernel import Generated
from tunefarm.shards import WHOLE


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


def test_tf_089_a_long_name_is_cut_and_stays_its_own(tmp_path: Path) -> None:
    """The folder can be made, and the ledger in it; whole names stand inside."""
    found = [
        ledger_file(tmp_path, open_experiment(write_experiment(tmp_path, name=name)).experiment, WHOLE)
        for name in ("x" * 300, "x" * 301, "softmax")
    ]
    for path in found:
        write_atomic(path, b"")
    assert len(set(found)) == 3
    assert found[2] == tmp_path / "softmax" / "ledger.jsonl"
    assert {len(path.parent.name) for path in found[:2]} == {180}


def test_tf_089_a_generated_kernel_s_files_can_be_written_whatever_is_fused_in_it() -> None:
    name = "triton_red_fused_" + "_native_layer_norm_backward" * 10
    first, second = (
        Generated(
            name=name, key=key * 32, heuristic="reduction", text="", buffers=FrozenMap(), scalars=FrozenMap(),
            blocks=(), numels=FrozenMap(), mutated=(), grid="Grid1D", meta={}, max_block={},
        )
        for key in ("ab", "cd")
    )  # fmt: skip
    assert len(first.module) < 180
    assert first.module != second.module
