"""What workers load before their first job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

CODE = """\
import sys
from tunefarm.bench import preload
from tunefarm.spec.workload import WorkloadRef

refs = [WorkloadRef(call="", kernel="", object=f"{path}:workload") for path in sys.argv[2:]]
getattr(preload, sys.argv[1])(*refs)
import torch
print("triton.compiler" in sys.modules, "torch._dynamo" in sys.modules, torch.cuda.is_initialized())
print(sorted(name for name in sys.modules if "softmax" in name)[:1])
"""


def loaded(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_meter_loads_what_it_needs_and_no_gpu_is_touched() -> None:
    assert loaded("load_meter")[0] == "True True False"


def test_the_workload_is_loaded_too_and_a_bad_one_is_left_to_who_needs_it(tmp_path: Path) -> None:
    _, modules = loaded("load_meter", "experiments/kernels/softmax.py")
    assert "softmax" in modules
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere_to_be_found\n")
    assert loaded("load_builder", str(broken))[1] == "[]"
