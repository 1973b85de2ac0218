"""`tunefarm init`, as people run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from farm import Warm

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "tests" / "drafted.py", tmp_path / "ops.py")
    return tmp_path


def test_from_a_kernel_to_its_plan(folder: Path, store: Path, warm: Warm) -> None:
    done = warm("init", "ops.py:matmul_kernel", folder=folder, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "wrote    matmul.yaml"
    written = (folder / "matmul.yaml").read_text().splitlines()
    told = [int(line.split()[3].rstrip(":")) for line in lines if line.startswith("fill in  line ")]
    assert told == [number for number, line in enumerate(written, 1) if "# FILL IN: " in line]
    assert lines[-2:] == ["plan     216 candidates in 1 study", "next     tunefarm plan matmul.yaml"]
    done = warm(*lines[-1].split()[2:], folder=folder, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("matmul sm_90 4096x4096x4096 bf16: 216 candidates")


def test_nothing_is_written_over(folder: Path, store: Path, warm: Warm) -> None:
    (folder / "matmul.yaml").write_text("mine")
    for more in ((), ("--out", "matmul.yaml")):
        done = warm("init", "ops.py:matmul_kernel", *more, folder=folder, store=store)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: matmul.yaml: is there already (name a new file, or remove this one)\n"
    assert (folder / "matmul.yaml").read_text() == "mine"


def test_what_cannot_be_planned_yet_says_where(folder: Path, store: Path, warm: Warm) -> None:
    done = warm("init", "ops.py:lonely_kernel", "-o", "new/lonely.yaml", "--json", folder=folder, store=store)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["experiment"] == "new/lonely.yaml"
    assert told["plan"].startswith(
        "not yet: new/lonely.yaml:5: workload.call: ../ops.py has no 'FILL_IN' (fill it in; known here: "
    )
    assert 5 in [line["line"] for line in told["fill_in"]]
    assert (folder / "new" / "lonely.yaml").exists()


@pytest.mark.parametrize("target", ["ops.py:no_kernel", "ops.py", "nothing.py:kernel", "ops.py:matmul_kernle"])
def test_errors_are_one_line(folder: Path, store: Path, warm: Warm, target: str) -> None:
    done = warm("init", target, folder=folder, store=store)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert list(folder.glob("*.yaml")) == []
