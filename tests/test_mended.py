"""What fresh readers found, as tests: each would fail on the code they read."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from farm import GPU, KERNEL, write_experiment

from tunefarm.bench.store import BuildStore
from tunefarm.bench.worker import build
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment
from tunefarm.cli.order import _text
from tunefarm.config import Config
from tunefarm.errors import InfrastructureError, UserError
from tunefarm.plan import Target, plan
from tunefarm.record.memo import Memo
from tunefarm.record.tracking import check_server
from tunefarm.source import source_hash
from tunefarm.spec.importing import import_object

ROOT = Path(__file__).parents[1]
CONFIG = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})


def test_a_worker_that_finds_another_kernel_does_not_fill_the_store(tmp_path: Path) -> None:
    """The store is keyed by what the driver read; a file edited meanwhile must not lie under that key."""
    resolved = open_experiment(write_experiment(tmp_path))
    (study, *_) = plan(resolved, [Target(device=GPU)])
    board = BuildBoard(resolved, BuildStore(tmp_path / "builds"))
    request = board.slot(study.call, CONFIG).request
    assert build(request)[0].build is not None
    with pytest.raises(UserError, match="finds another kernel"):
        build(dataclasses.replace(request, keys=("0" * 64,)))


def test_an_edit_of_the_call_is_an_edit() -> None:
    """Old measurements are answers only to what was asked then: the text of the call is part of the question."""

    def one(x: int) -> int:
        return x + 1

    def two(x: int) -> int:
        return x + 2

    assert _text(one) != _text(two)
    assert _text(sum) == "builtins.sum"
    assert _text(None) == "None"


def write_kernel(folder: Path, name: str, constant: str) -> str:
    (folder / f"{name}.py").write_text(
        "import triton\nimport triton.language as tl\n"
        f"ACC = tl.constexpr({constant})\n\n\n@triton.jit\ndef kernel(x, n):\n"
        "    tl.store(x, tl.zeros((1,), ACC).to(tl.float32) + n)\n"
    )
    return source_hash(import_object(f"{name}.py:kernel", str(folder)))


def test_the_source_hash_sees_dtypes_and_tuples_that_a_kernel_reads(tmp_path: Path) -> None:
    hashes = [
        write_kernel(tmp_path, f"kernel{position}", constant)
        for position, constant in enumerate(("tl.float32", "tl.float16", "(1, 2)", "(1, 3)"))
    ]
    assert len(set(hashes)) == 4


def test_a_decision_is_recorded_once() -> None:
    pruned = {"study": "s", "config": "a=1", "rung": 0, "reason": "slow"}
    memo = Memo([
        {"event": "epoch", "data": {"identity": {}}}, {"event": "pruned", "data": pruned},
        {"event": "study", "data": {"study": "s", "eager": True, "incumbent": None}},
    ])  # fmt: skip
    assert memo.decided("pruned", pruned)
    assert not memo.decided("pruned", pruned | {"rung": 1})
    assert not memo.decided("promoted", pruned)
    assert memo.study("s") is not None


def test_a_server_where_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(InfrastructureError, match=r"no MLflow server at .*--tracking none"):
            check_server(f"http://127.0.0.1:{port}")
        free.listen()
        check_server(f"http://127.0.0.1:{port}")
    check_server("sqlite:///mlflow.db")


def test_workload_files_import_under_the_interpreter() -> None:
    """Training code that imports a kernel's file must not die because somebody sets Triton's debug switch."""
    code = (
        "import sys; sys.path.insert(0, 'experiments/kernels'); from softmax import workload; print(workload.signature)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "constexprs=('RAGGED', 'ROWS', 'BLOCK_N')" in done.stdout


def test_a_space_with_no_legal_point_is_not_rescued_by_the_default(tmp_path: Path) -> None:
    resolved = open_experiment(write_experiment(tmp_path, KERNEL, constraints=["BLOCK > 100000"]))
    (study, *_) = plan(resolved, [Target(device=GPU)])
    assert study.candidates == ()
