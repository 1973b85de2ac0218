"""Capture: what a job launches is counted, over all its processes, and becomes experiments with these weights."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import plain_kernels
import pytest
import torch

from tunefarm.captured import read_capture
from tunefarm.cli.opening import open_experiment, plan_targets
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import Gemm
from tunefarm.problem import Problem
from tunefarm.runtime import capturing, noted
from tunefarm.spec.experiment import load_experiment

ROOT = Path(__file__).parents[1]

KERNELS = """
import torch, triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def scale_kernel(x, y, n, s, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * s, mask=at < n)

def scale(x, s: float):
    n = x.numel()
    y = torch.empty((n,), dtype=x.dtype, device=x.device)
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, s)
    return y
"""

JOB = """
import os, sys, threading, time
import torch
import kernels

def main(word):
    # One config: an autotuner with one times nothing, and there is no GPU to time on.
    kernels.scale_kernel.configs = kernels.scale_kernel.configs[:1]
    for step in range(5):
        kernels.scale(torch.randn(100 * (1 + step % 2)), 0.1 * step)
    if word == "odd":
        class Odd(torch.Tensor):
            @property
            def shape(self):
                raise RuntimeError("has none")
        kernels.scale(torch.randn(64).as_subclass(Odd), 1.0)
    if word == "code 127":
        sys.exit(127)
    if word == "raise":
        raise RuntimeError("no more data")
    if word == "killed":
        time.sleep(7)
        os.kill(os.getpid(), 9)

if __name__ == "__main__":
    if sys.argv[1] == "children":
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.map(main, ["", ""], chunksize=1)
            pool.close()
            pool.join()
    elif sys.argv[1] == "forked":
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=main, args=("",))
        child.start()
        child.join()
    elif sys.argv[1] != "idle":
        main(sys.argv[1])
    if sys.argv[1] in ("odd", "idle"):
        print("threads:", sorted(thread.name for thread in threading.enumerate()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def capture(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs a Python job of a folder, its kernels under Triton's interpreter."""
    command = [sys.executable, "-m", "tunefarm.cli", "capture", "--out", "captured", *options, "--"]
    # Meant for the job: tunefarm itself compiles.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [*command, sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def problems(folder: Path, name: str = "scale") -> dict[Any, Any]:
    experiment = load_experiment(folder / "captured" / f"{name}.yaml")
    return {spec.variables["n"]: spec.weight for spec in experiment.problems}


def test_calls_become_weighted_problems(folder: Path) -> None:
    done = capture(folder, "job.py", "")
    assert (done.returncode, done.stderr) == (0, "")
    assert problems(folder) == {100: 3, 200: 2}
    resolved = open_experiment(folder / "captured" / "scale.yaml")
    assert resolved.experiment.export == "packs/captured.json"
    assert {study.study.problem.dims["n"] for study in plan_targets(resolved, [])} == {100, 200}
    # That `s` is a float the kernel's text does not tell, and the job did.
    assert resolved.workload.specs is not None
    assert not hasattr(resolved.workload.specs["s"], "shape")


def test_all_processes_count(folder: Path) -> None:
    done = capture(folder, "job.py", "children", options=("--json",))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["experiments"][0]["calls"] == sum(problems(folder).values()) == 10
    assert told["processes"] in (1, 2)  # one of the pool may have done both


def test_what_is_forked_counts_to_its_end(folder: Path) -> None:
    """It ends by `os._exit`, and the parent has launched nothing."""
    done = capture(folder, "job.py", "forked")
    assert (done.returncode, done.stderr) == (0, "")
    assert problems(folder) == {100: 3, 200: 2}


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("killed", -9), ("code 127", 127)])
def test_a_job_that_fails_leaves_what_it_did(folder: Path, how: str, code: int) -> None:
    done = capture(folder, "job.py", how)
    assert done.returncode == 1
    assert f"the command ended with {code}: this is what it launched until then" in done.stderr
    assert problems(folder) == {100: 3, 200: 2}


def test_a_job_runs_as_it_would_without(folder: Path) -> None:
    """What cannot be told of a call is counted and harms nobody; who launches nothing is left alone."""
    assert "threads: ['MainThread']" in capture(folder, "job.py", "idle").stdout
    done = capture(folder, "job.py", "odd")
    assert (done.returncode, done.stderr) == (0, "")
    assert problems(folder) == {100: 3, 200: 2}
    assert "not tuned: scale_kernel, other calls, 1 call: " in done.stdout
    assert "threads: ['MainThread', 'tunefarm-capture']" in done.stdout


def test_no_pack_is_used_whatever_the_job_says(folder: Path) -> None:
    done = capture(folder, "-m", "tunefarm.runtime", "job.py", "")
    assert done.returncode == 0, done.stderr
    assert problems(folder) == {100: 3, 200: 2}


def test_a_release_that_is_made_otherwise_can_be_imported(caplog: pytest.LogCaptureFixture) -> None:
    capturing._try(capturing._watch_autotuners, ModuleType("triton.runtime.autotuner"))
    assert caplog.messages == ["what triton.runtime.autotuner launches is not captured: KeyError('Autotuner')"]


def test_a_graph_that_comes_from_inductor_s_cache_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers that are alike: the second is compiled by reading what was written of the first."""
    monkeypatch.setattr(noted, "NOTED", noted.Noted())
    product = Gemm(op="mm", problem=Problem(dims=FrozenMap({"M": 8})), refusal="")
    graph = noted.graph_of(Counter({product: 2}))
    graph.runs = 3
    pickle.loads(pickle.dumps(graph)).runs += 1
    assert [each["calls"] for each in noted.to_json()["products"]] == [2 * (3 + 1)]


def test_kernels_made_anew_are_one_and_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted, "NOTED", noted.Noted())
    kept = []
    for _ in range(3):
        kernel = type(plain_kernels.scale_kernel)(plain_kernels.scale_kernel.fn)
        noted.note_launch(kernel, [torch.empty(8), torch.empty(8), 8], {})
        kept.append(weakref.ref(kernel))
        del kernel
    gc.collect()
    assert [each() for each in kept[:2]] == [None, None]  # Triton keeps the last one
    (kernel,) = noted.to_json()["kernels"]
    assert [call["launches"] for call in kernel["calls"]] == [3]


def test_what_launches_nothing_is_said(folder: Path) -> None:
    done = capture(folder, "job.py", "idle")
    assert done.returncode == 2
    assert "nothing that can be tuned was launched by the command" in done.stderr
    assert not (folder / "captured").exists()
    done = capture(folder, "none.py")
    assert done.returncode == 2
    assert "launched by the command, which ended with 2 (" in done.stderr


def test_no_experiment_is_written_over(folder: Path) -> None:
    (folder / "captured").mkdir()
    (folder / "captured" / "scale.yaml").write_text("mine")
    done = capture(folder, "job.py", "")
    assert (done.returncode, done.stderr) == (2, "error: captured: holds experiments already (name a new folder)\n")
    assert (folder / "captured" / "scale.yaml").read_text() == "mine"


def test_a_command_that_is_not_there(folder: Path) -> None:
    command = [sys.executable, "-m", "tunefarm.cli", "capture", "--out", "captured", "--", "no-such-program"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: no-such-program: cannot be run: No such file or directory\n")


def test_kernels_of_one_name_get_an_experiment_each(folder: Path) -> None:
    (folder / "others.py").write_text(KERNELS)
    (folder / "job.py").write_text(
        "import torch, kernels, others\n"
        "for number, module in enumerate((kernels, others), 2):\n"
        "    module.scale_kernel.configs = module.scale_kernel.configs[:1]\n"
        "    for _ in range(number): module.scale(torch.ones(10 * number), 1.0)\n"
    )
    done = capture(folder, "job.py")
    assert done.returncode == 0, done.stderr
    assert problems(folder) == {20: 2}
    assert problems(folder, "scale_2") == {30: 3}
    text = (folder / "captured" / "scale_2.yaml").read_text()
    assert "\nname: scale_2\nworkload:\n  name: scale_2\n" in text


def test_a_script_is_not_run_again_to_read_its_kernel(folder: Path) -> None:
    does = "scale_kernel.configs = scale_kernel.configs[:1]\nopen('ran', 'a').write('x')\nscale(torch.ones(64), 2.0)\n"
    (folder / "script.py").write_text(KERNELS + does)
    done = capture(folder, "script.py")
    assert done.returncode == 0, done.stderr
    assert "not tuned: scale_kernel, 1 call: " in done.stdout
    assert "importing that would run it again" in done.stdout
    assert (folder / "ran").read_text() == "x"


def test_what_the_draft_cannot_say_is_listed_in_it(folder: Path) -> None:
    """A kernel that nobody's function launches: its experiment has the calls as comments."""
    (folder / "bare.py").write_text(KERNELS.split("def scale(")[0])
    (folder / "job.py").write_text(
        "import torch, bare\nbare.scale_kernel.configs = bare.scale_kernel.configs[:1]\n"
        "x = torch.ones(64)\nbare.scale_kernel[(1,)](x, torch.empty_like(x), 64, 2.0)\n"
    )
    done = capture(folder, "job.py")
    assert done.returncode == 0, done.stderr
    assert "lines to fill in" in done.stdout
    assert "#   scale_kernel: dims BLOCK=64 n=64; " in (folder / "captured" / "scale.yaml").read_text()


def test_our_own_kernels_are_seen_too(folder: Path) -> None:
    (folder / "job.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'experiments' / 'kernels')!r})\n"
        "import torch\nfrom softmax import softmax\nfor _ in range(3): softmax(torch.randn(8, 256))\n"
    )
    (folder / "kernels.py").unlink()
    done = capture(folder, "job.py")
    assert done.returncode == 0, done.stderr
    (spec,) = load_experiment(folder / "captured" / "softmax.yaml").problems
    assert (spec.variables["n_rows"], spec.variables["n_cols"], spec.weight) == (8, 256, 3)


GENERATED = """
import json, sys
from pathlib import Path
from tunefarm.inductor import standin
standin.prepare(Path(sys.argv[1]))
import harvested
from tunefarm.captured import Captured
from tunefarm.cli.captured import write_experiments
from tunefarm.device import nominal
from tunefarm.inductor.harvest import generate
with standin.standing_in(nominal("sm_90")):
    sources, _ = generate(harvested.gated_norm, "harvested:gated_norm")
found = Captured()
for number, source in enumerate(sources, 1):
    found.generated[source] = 10 * number
written, left = write_experiments(found, Path("captured"), "sm_90", "packs/captured.json")
print(json.dumps([len(sources), [each.experiment for each in written], len(left)]))
"""


def test_what_inductor_generated_is_weighted_with_its_launches(tmp_path: Path, store: Path) -> None:
    """Its text and launches as a job on a GPU leaves them; the text is Inductor's own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, "-c", GENERATED, str(store)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number, written, num_left = json.loads(done.stdout.splitlines()[-1])
    assert (len(written), num_left) == (number, 0)
    weights = {load_experiment(tmp_path / path).problems[0].weight for path in written}
    assert weights == {10 * (place + 1) for place in range(number)}


def test_descriptors_are_tensors_too(folder: Path) -> None:
    (folder / "job.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'experiments' / 'kernels')!r})\n"
        "import torch\nfrom matmul_tma import matmul_tma\n"
        "matmul_tma(torch.randn(64, 128).bfloat16(), torch.randn(128, 32).bfloat16())\n"
    )
    done = capture(folder, "job.py")
    assert done.returncode == 0, done.stderr
    (spec,) = load_experiment(folder / "captured" / "matmul_tma.yaml").problems
    assert [spec.variables[name] for name in ("M", "N", "K")] == [64, 32, 128]


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    from tunefarm.errors import DocumentError

    (tmp_path / "a.json").write_text('{"format": "tunefarm-report", "version": 1}')
    with pytest.raises(DocumentError, match="is no capture of this release"):
        read_capture(tmp_path)
