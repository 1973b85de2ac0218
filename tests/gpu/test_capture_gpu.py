"""On a GPU: what a compiled job launches, forward and backward, is captured with how often, and can be planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunefarm.cli.opening import open_experiment, plan_targets
from tunefarm.spec.experiment import load_experiment

torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]

ROOT = Path(__file__).parents[2]
STEPS, EAGER = 5, 3

JOB = f"""
import sys, time
sys.path[:0] = [{str(ROOT / "experiments" / "kernels")!r}]
import torch
from softmax import softmax

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 4096, bias=False)

    def forward(self, x):
        return torch.nn.functional.gelu(self.up(self.norm(x))).sum()

net = torch.compile(Net().to(device="cuda", dtype=torch.bfloat16))
x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
for _ in range({STEPS}):
    net(x).backward()
for _ in range({EAGER}):
    softmax(torch.randn(512, 1000, device="cuda", dtype=torch.bfloat16))
torch.cuda.synchronize()
"""


def test_a_compiled_job_is_captured(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [
        sys.executable,
        "-m",
        "tunefarm.cli",
        "capture",
        "-o",
        "captured",
        "--json",
        "--",
        sys.executable,
        "job.py",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout[done.stdout.index("{") :])
    calls = {Path(each["experiment"]).stem: each["calls"] for each in told["experiments"]}
    generated = {name: number for name, number in calls.items() if name.startswith("triton_")}
    assert generated
    # One of them may have a part in forward and backward, or two.
    assert {number % STEPS for number in generated.values()} == {0}
    # Forward, and backward for the weight and for the norm.
    assert calls["mm"] == 3 * STEPS
    assert sum(spec.weight for spec in load_experiment(tmp_path / "captured" / "mm.yaml").problems) == 3 * STEPS
    assert calls["softmax"] == EAGER
    (spec,) = load_experiment(tmp_path / "captured" / "softmax.yaml").problems
    assert (spec.variables["n_rows"], spec.variables["n_cols"], spec.weight) == (512, 1000, EAGER)
    major, minor = torch.cuda.get_device_capability()
    for each in told["experiments"]:
        resolved = open_experiment(tmp_path / each["experiment"])
        assert resolved.experiment.devices[0].arch == f"sm_{major}{minor}"
        assert plan_targets(resolved, [])
