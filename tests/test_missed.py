"""From what a job missed to an experiment that fills the gaps: real jobs, real reports, a real sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from farm import KERNEL, THREE, Warm, environment, tunefarm, write_experiment, write_landscape

from tunefarm.cli.misses import _write
from tunefarm.cli.opening import open_experiment
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.missed import MARK, Found, Missed, Solver, differs
from tunefarm.pack_reader import load_pack
from tunefarm.problem import Problem

ROOT = Path(__file__).parents[1]
TUNED = KERNEL.replace(
    "@triton.jit",
    '@triton.autotune([triton.Config({"BLOCK": 64, "MARK": 0}), triton.Config({"BLOCK": 32, "MARK": 0})], key=["n"])\n'
    "@triton.jit",
)
JOB = """\
import sys
import torch
import tunefarm
import kernels
from tunefarm.pack_reader import load_pack

pack = load_pack("packs/fill.json")
tunefarm.activate(pack, device=pack.tables[0].device, allow_replayed=True, on_miss="default")
tunefarm.install(kernels.fill_kernel)
kernels.fill_kernel.fn.run = lambda *args, **kwargs: None  # nothing is launched here
for n in map(int, sys.argv[1:]):
    kernels.fill(torch.zeros(n), n)
print(tunefarm.report().num_misses)
"""


def job(folder: Path, *sizes: int) -> int:
    """How much a job that fills these sizes misses."""
    done = subprocess.run(
        [sys.executable, "-c", JOB, *map(str, sizes)], cwd=folder, capture_output=True, text=True, check=False,
        env=environment(folder, TUNEFARM_REPORT="reports", PYTHONPATH=f"{ROOT}:{folder}"), timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def write(folder: Path, **sections: Any) -> None:
    """A landscape of three sizes, an experiment of one."""
    write_landscape(write_experiment(folder, TUNED, problems=THREE, **sections))
    write_experiment(folder, TUNED, export="packs/fill.json", **sections)


REPORT = '{"format": "tunefarm-report", "version": 1, "misses": [%s]}'
MISS = '{"kernel": "fill_kernel", "problem": %s, "launches": %s, "graphs": 0}'
MISSES = ("misses", "reports", "-e", "experiment.yaml")
SWEEP = ("--fleet", "inline", "--tracking", "none", "--quiet")


def test_what_ranks_missed_is_swept_and_hit(tmp_path: Path, store: Path, warm: Warm) -> None:
    write(tmp_path)
    swept = tunefarm("sweep", "experiment.yaml", *SWEEP, folder=tmp_path, store=store)
    assert swept.returncode == 0, swept.stderr
    sizes = (1000, 4096, 4096, 5000)
    assert [job(tmp_path, *sizes), job(tmp_path, *sizes)] == [3, 3]
    (tmp_path / "later").mkdir()
    told = warm(*MISSES, "-o", "later/missed.yaml", folder=tmp_path, store=store)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[1] == "  as n=4096, dtype=fp32"
    assert told.stdout.splitlines()[-1] == "later/missed.yaml: 2 missed calls of 2 reports"
    written = yaml.safe_load((tmp_path / "later/missed.yaml").read_text())
    assert written["problems"] == [
        {"n": 4096, "dtype": "fp32", "weight": 4},
        {"n": 5000, "dtype": "fp32", "weight": 2},
    ]
    shown = warm("plan", "later/missed.yaml", "--json", folder=tmp_path, store=store)
    assert [s["study"] for s in json.loads(shown.stdout)["studies"]] == ["fill sm_90 4096 fp32", "fill sm_90 5000 fp32"]
    again = tunefarm("sweep", "later/missed.yaml", *SWEEP, folder=tmp_path, store=store)
    assert again.returncode == 0, again.stderr
    assert load_pack(tmp_path / "packs/fill.json").num_rows == 3
    assert job(tmp_path, *sizes) == 0


def test_what_cannot_be_solved_is_left_out_with_the_reason(tmp_path: Path, store: Path, warm: Warm) -> None:
    """Other kernels, calls nobody told of, and what the inputs cannot give; other landscapes are said to be left."""
    write(tmp_path)
    problem = {"dims": {"n": 2048}, "dtypes": {"y_ptr": "fp32"}, "facts": {"n": "div16", "y_ptr": "div16"}}
    odd = {**problem, "facts": {"n": "div16"}}
    named = [("fill_kernel", problem, 3, 1), ("fill_kernel", odd, 2, 0), ("fill_kernel", None, 9, 0), ("x", odd, 1, 0)]
    misses = [{"kernel": k, "problem": p, "reason": "", "launches": n, "graphs": g} for k, p, n, g in named]
    report = {"format": "tunefarm-report", "version": 1, "misses": misses}
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/rank0.json").write_text(json.dumps(report))
    told = warm(*MISSES, "-o", "missed.yaml", "--json", folder=tmp_path, store=store)
    assert told.returncode == 0, told.stderr
    facts = json.loads(told.stdout)
    assert [p["variables"] for p in facts["problems"]] == [{"n": 2048, "dtype": "fp32"}]
    reasons = [left["reason"] for left in facts["left"]]
    assert "does not say which calls" in reasons[0]
    assert "of y_ptr the compiler knows div16, and nothing where it was missed" in reasons[1]
    assert "is about fill_kernel" in reasons[2]
    assert "recording.json.gz is left out, so that a sweep of it needs a GPU" in facts["notes"][0]
    written = yaml.safe_load((tmp_path / "missed.yaml").read_text())
    assert written["problems"] == [{"n": 2048, "dtype": "fp32", "weight": 4}]
    assert written["devices"] == [{"arch": "sm_90"}]
    before = (tmp_path / "experiment.yaml").read_text()
    over = warm(*MISSES, "-o", "experiment.yaml", folder=tmp_path, store=store)
    assert (over.returncode, over.stderr.count("is there, and something else")) == (2, 1)
    assert (tmp_path / "experiment.yaml").read_text() == before
    report["misses"] = misses[-1:]
    (tmp_path / "reports/rank0.json").write_text(json.dumps(report))
    none = warm(*MISSES, "-o", "none.yaml", folder=tmp_path, store=store)
    assert none.returncode == 2
    assert not (tmp_path / "none.yaml").exists()


@pytest.mark.parametrize(
    ("variables", "error"),
    [({"n": 2048, "dtype": "fp32"}, InfrastructureError), ({"n": 2048, "dtype": "fp31"}, SpecError)],
)
def test_what_is_there_stays_until_what_replaces_it_is_known_to_be_right(
    tmp_path: Path, variables: dict[str, Any], error: type[Exception]
) -> None:
    write(tmp_path)
    resolved = open_experiment(tmp_path / "experiment.yaml")
    other = Problem(dims=FrozenMap(n=4096))
    missed = Missed(kernel="fill_kernel", problem=other, launches=1)
    found = [Found(missed=missed, variables=FrozenMap(variables), problem=other)]
    for text in ("", f"{MARK} of old"):
        (tmp_path / "missed.yaml").write_text(text) if text else None
        before = sorted(tmp_path.iterdir())
        with pytest.raises(error):
            _write(tmp_path / "missed.yaml", resolved, found)
        assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "missed.yaml").read_text() == text


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("a.json", "{}", "reports/a.json: is no report"), ("a.txt", "", "reports: holds no reports"),
     ("a.json", '{"format": "tunefarm-report", "version": 1, "misses": [{}]}', "reports/a.json: is damaged"),
     ("a.json", REPORT % "", "reports: tells of no missed call in 1 report"),
     ("a.json", REPORT % (MISS % ("[]", "1")), "reports/a.json: is damaged"),
     ("a.json", REPORT % (MISS % ("null", "-5")), "reports/a.json: is damaged: ValueError('launches is -5')"),
     ("a.json", REPORT % (MISS % ("null", "1e999")), "reports/a.json: is damaged")],
)  # fmt: skip
def test_bad_reports(tmp_path: Path, store: Path, warm: Warm, name: str, text: str, says: str) -> None:
    write_experiment(tmp_path)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / name).write_text(text)
    done = warm(*MISSES, "-o", "missed.yaml", folder=tmp_path, store=store)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {says}")


def test_variables_of_other_names_are_found_by_trying() -> None:
    """A matmul's M, N and K by names of their own; what the report does not tell stays the experiment's."""
    solver = Solver(open_experiment(ROOT / "experiments/matmul.yaml"))
    dims = FrozenMap(M=4096, N=512, K=1024)
    missed = Missed(kernel="matmul_kernel", problem=Problem(dims=dims, dtypes=FrozenMap()), launches=1)
    found = solver.solve(missed)
    assert not isinstance(found, str)
    assert {k: v for k, v in found.variables.items() if k in "MNK"} == dict(dims)
    softmax = Solver(open_experiment(ROOT / "experiments/softmax.yaml"))
    call = Problem(dims=FrozenMap(n_cols=777), dtypes=FrozenMap(x_ptr="fp16"), facts=FrozenMap(x_ptr="div16"))
    columns = softmax.solve(Missed(kernel="softmax_kernel", problem=call, launches=1))
    assert not isinstance(columns, str), columns
    assert (columns.variables["n_cols"], columns.variables["dtype"]) == (777, "fp16")
    assert columns.assumed == ("n_rows",)


def test_names_that_agree_in_nothing(tmp_path: Path) -> None:
    kernel = TUNED.replace('inputs={"y": ["n"], "n": {"value": "n"}}', 'inputs={"y": ["size"], "n": {"value": "size"}}')
    kernel = kernel.replace("num_bytes=lambda n, dtype: 4 * n,", "")
    path = write_experiment(tmp_path, kernel, problems=[{"size": 64, "dtype": "fp32"}])
    call = Problem(dims=FrozenMap(n=12345), dtypes=FrozenMap(y_ptr="bf16"), facts=FrozenMap(y_ptr="div16"))
    found = Solver(open_experiment(path)).solve(Missed(kernel="fill_kernel", problem=call, launches=1))
    assert not isinstance(found, str), found
    assert dict(found.variables) == {"size": 12345, "dtype": "bf16"}
    assert differs(found.problem, call) == ""
    assert "n is 12345, and 7 was missed" in differs(found.problem, Problem(dims=FrozenMap(n=7)))
