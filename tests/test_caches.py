"""Caches: real entries of Triton's and Inductor's are told, and so is what would make them miss elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

COMPILE = """
import sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def copy_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))

for block in map(int, sys.argv[1:]):
    signature = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(copy_kernel, signature, {(2,): block})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


def run(folder: Path, *words: str, cache: str = "cache") -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / cache),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }  # fmt: skip
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def caches(folder: Path, *words: str, cache: str = "cache") -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "tunefarm.cli", "caches", *words, cache=cache)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "compile.py").write_text(COMPILE)
    done = run(tmp_path, "compile.py", "64", "128")
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_what_triton_kept_is_told(folder: Path) -> None:
    done = caches(folder, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (kernels,) = [kept for kept in told["kept"] if kept["what"] == "copy_kernel"]
    assert (kernels["cache"], kernels["number"], kernels["made_for"][:14]) == ("triton", 2, "sm_90, Triton ")
    assert kernels["num_bytes"] > 2000
    assert told["folders"]["triton"] == str(folder / "cache")
    assert told["parts"]["triton assembler for sm_90"].startswith("V1")
    assert told["num_damaged"] == 0
    for_people = caches(folder).stdout
    assert "      2 copy_kernel, sm_90, Triton " in for_people


def test_an_entry_that_cannot_be_read_is_counted(folder: Path) -> None:
    next((folder / "cache").glob("*/copy_kernel.json")).write_text("{")
    done = caches(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "      1 copy_kernel, sm_90, Triton " in done.stdout
    assert "damaged  1 entry that cannot be read" in done.stdout


def test_a_machine_that_is_alike_finds_all(folder: Path) -> None:
    (folder / "here.json").write_text(caches(folder, "--json").stdout)
    done = caches(folder, "--against", "here.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing differs: what is kept here would be found there, for the same program\n")


@pytest.mark.parametrize(
    ("part", "says"),
    [("triton assembler for sm_90", "not found there: kernels and graphs"),
     ("inductor torch version", "not found there: graphs; kernels compiled by Triton alone are")],
)  # fmt: skip
def test_what_differs_is_told_with_what_follows(folder: Path, part: str, says: str) -> None:
    told = json.loads(caches(folder, "--json").stdout)
    told["parts"][part] = "another"
    (folder / "there.json").write_text(json.dumps(told))
    done = caches(folder, "--against", "there.json")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"differs  {part}: " in done.stdout
    assert done.stdout.endswith(f"here, another there\n{says}\n")


def test_a_cache_that_was_moved_misses_and_that_is_told(folder: Path) -> None:
    """Triton's files name each other by their whole path: so the folder is a part of the key, too."""
    (folder / "here.json").write_text(caches(folder, "--json").stdout)
    (folder / "cache").rename(folder / "moved")
    cubin = next((folder / "moved").glob("*/copy_kernel.cubin"))
    before_ns = cubin.stat().st_mtime_ns
    done = caches(folder, "--against", "here.json", cache="moved")
    assert done.returncode == 1
    assert "differs  triton folder: " in done.stdout
    assert run(folder, "compile.py", "64", "128", cache="moved").returncode == 0
    assert cubin.stat().st_mtime_ns != before_ns, "compiled again"
    # And where it stays, it is found.
    again_ns = cubin.stat().st_mtime_ns
    assert run(folder, "compile.py", "64", "128", cache="moved").returncode == 0
    assert cubin.stat().st_mtime_ns == again_ns


def test_graphs_that_inductor_kept_are_counted(tmp_path: Path) -> None:
    code = "import torch\ntorch.compile(lambda x: (x * 2).relu())(torch.ones(8))\n"
    done = run(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    told = json.loads(caches(tmp_path, "--json").stdout)
    graphs = {kept["what"]: kept["number"] for kept in told["kept"] if kept["cache"] == "inductor"}
    assert graphs["graphs that Inductor compiled"] == 1


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pack.json").write_text("{}")
    done = caches(tmp_path, "--against", "pack.json")
    assert done.returncode == 2
    assert done.stderr == "error: pack.json: tells of no caches (write it with `tunefarm caches --json`)\n"
