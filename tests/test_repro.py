"""A trial as a script of its own: it is run, and says what the sweep said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from farm import AS_DEFAULT, KERNEL, Warm, tunefarm, write_experiment, write_landscape

ROOT = Path(__file__).parents[1]
# With MARK=1 it does not compile.
BROKEN = KERNEL.replace("    tl.store(", "    if MARK == 1:\n        i = i + tl.nothing(i)\n    tl.store(")
SWEEP = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """A finished sweep."""
    made = tmp_path_factory.mktemp("repro")
    write_landscape(write_experiment(made, BROKEN, problems=[{"n": [1000, 4096], "dtype": "fp32"}]))
    done = tunefarm(*SWEEP, folder=made, store=store)
    assert done.returncode == 0, done.stderr
    return made


STUDY = ("-e", "experiment.yaml", "-o", "repro.py", "--study", "fill sm_90 4096 fp32")


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    # The workload's file imports tunefarm; the script does not.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "repro.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_winner_compiles(folder: Path, store: Path, warm: Warm) -> None:
    told = warm("repro", "sweeps/fill", "winner", *STUDY, folder=folder, store=store)
    assert told.returncode == 0, told.stderr
    text = (folder / "repro.py").read_text()
    assert "import tunefarm" not in text
    head = [line for line in text.splitlines() if line.startswith("# ")]
    assert "of fill sm_90 4096 fp32: BLOCK=256 MARK=0 num_warps=2" in head[0]
    assert head[1] == "# sweep      sweeps/fill/ledger.jsonl"
    assert head[3].startswith("# outcome    ok: 0.02")
    assert "triton" in head[4]
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "grid (16,), config {'BLOCK': 256, 'MARK': 0, 'num_warps': 2}" in done.stdout
    assert "compiled for sm_90: " in done.stdout


def test_a_trial_that_did_not_compile_shows_why(folder: Path, store: Path, warm: Warm) -> None:
    """By its text, in any order, and by the number that this gives."""
    ledger = "sweeps/fill/ledger.jsonl"
    told = warm("repro", ledger, "num_warps=2 BLOCK=64 MARK=1", *STUDY, folder=folder, store=store)
    assert told.returncode == 0, told.stderr
    assert "compile_error: build: " in told.stdout
    number = told.stdout.split("trial ")[1].partition(",")[0]
    again = warm("repro", "sweeps/fill", number, *STUDY, folder=folder, store=store)
    assert again.stdout == told.stdout
    done = run(folder)
    assert done.returncode == 1
    assert "i = i + tl.nothing(i)" in done.stderr
    assert "nothing" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("sweeps/fill", "99", *STUDY), "has no trial '99' (there are: 0: "),
     (("sweeps/fill", "BLOCK=7", *STUDY), "and 8 more; and `winner`"),
     (("sweeps/fill", "0", *STUDY[:4]), "has 2 studies that may be meant (name one with --study: 'fill sm_90 1000"),
     (("sweeps/fill", "0", *STUDY[:5], "fill"), "has no study 'fill'"),
     (("sweeps/none", "0", *STUDY), "sweeps/none: no such sweep (sweeps has fill)"),
     (("kernels.py", "0", *STUDY), "kernels.py: tells of no study (name the folder of a sweep"),
     (("sweeps/fill", "0", *STUDY[:2], "-o", "kernels.py", *STUDY[4:]), "kernels.py: is there, and something else")],
)  # fmt: skip
def test_what_is_not_there_is_said_with_what_is(
    folder: Path, store: Path, warm: Warm, arguments: tuple[str, ...], says: str
) -> None:
    done = warm("repro", *arguments, folder=folder, store=store)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_function_as_reference_there_is_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunefarm.cli.opening import open_experiment
    from tunefarm.device import nominal
    from tunefarm.plan import Target, plan
    from tunefarm.repro import script

    for kernel, told in ((KERNEL, "there is no reference"), (AS_DEFAULT, "the default's outputs are the reference")):
        resolved = open_experiment(write_experiment(tmp_path, kernel))
        (study,) = plan(resolved, [Target(device=nominal("sm_90"))])
        made: dict[str, Any] = {"__name__": "repro"}
        exec(script(resolved, study, 0, ["from a test"]), made)
        assert made["compare"]([]) is True
        assert told in capsys.readouterr().out


def test_inputs_of_the_script_are_those_of_the_sweep(tmp_path: Path) -> None:
    """Bit by bit, with views, offsets and special values, from the same seed."""
    import torch

    from tunefarm.bench.tensors import make_inputs
    from tunefarm.cli.opening import open_experiment
    from tunefarm.device import nominal
    from tunefarm.plan import Target, plan
    from tunefarm.repro import script

    inputs = (
        'inputs={"y": {"shape": ["n"], "strides": [2], "offset": 1, "special": True}, "n": {"value": "n"}, '
        '"z": {"shape": [3], "init": "uniform", "low": -1, "dtype": "bf16"}}'
    )
    kernel = KERNEL.replace('inputs={"y": ["n"], "n": {"value": "n"}}', inputs).replace(
        "def fill(y, n)", "def fill(y, n, z)"
    )
    resolved = open_experiment(write_experiment(tmp_path, kernel, search={"seed": 5}))
    (study,) = plan(resolved, [Target(device=nominal("sm_90"))])
    made: dict[str, object] = {"__name__": "repro"}
    exec(script(resolved, study, 0, ["from a test"]), made)
    theirs = made["make_inputs"]("cpu")  # type: ignore[operator]
    mine = make_inputs(resolved.workload, study.study.variables, "cpu", 5)
    assert list(mine) == list(theirs)
    for name in ("y", "z"):
        assert torch.equal(mine[name].nan_to_num(), theirs[name].nan_to_num())
        assert mine[name].stride() == theirs[name].stride()
    assert mine["n"] == theirs["n"] == 1000
