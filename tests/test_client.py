"""The command on a laptop: pyyaml, rich and typer, and neither torch nor Triton, Ray, numpy or MLflow.

Each verb does its work, or says in one line which package it needs and which extra brings it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import laptop
import pytest
from runtime_kernels import LADDER, make_pack, own

from tunefarm.pack import dumps

ROOT = Path(__file__).parents[1]
Client = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Runs the command in a folder with experiments, manifests, a kernel and a pack."""
    folder = tmp_path_factory.mktemp("laptop")
    packages, desk = laptop.furnish(folder / "packages", "pyyaml", "rich", "typer"), folder / "desk"
    shutil.copytree(ROOT / "experiments", desk / "experiments")
    shutil.copytree(ROOT / "manifests", desk / "manifests")
    shutil.copy(ROOT / "tests" / "drafted.py", desk / "ops.py")
    (desk / "pack.json").write_text(dumps(make_pack(own, *LADDER)))
    (desk / "declared.yaml").write_text(
        "name: declared\nworkload: {call: ops.py:matmul, kernel: ops.py:matmul_kernel}\n"
        "inputs: {a: [M, K], b: [K, N]}\nproblems: [{M: 64, N: 64, K: 64, dtype: bf16}]\ndevices: [sm_90]\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        path = os.environ.get("PATH", "")
        return laptop.tunefarm(*words, packages=packages, folder=desk, store=folder / "cache", PATH=path)

    return run


def test_the_laptop_lacks_what_it_is_said_to_lack(client: Client) -> None:
    checks = {check["name"]: check for check in json.loads(client("doctor", "--json").stdout)["checks"]}
    for name in ("torch", "triton", "ray", "numpy", "optuna", "mlflow"):
        assert checks[name]["found"] == "not installed", name
    assert checks["mlflow"]["remedy"] == "pip install 'tunefarm[client]'"
    assert checks["torch"]["remedy"] == "pip install 'tunefarm[farm]'"
    assert checks["rich"]["state"] == "ok"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--help", "Exit codes: 0 done"),
        ("doctor", "read packs: yes"),
        ("pack show pack.json", "3 rows in 1 table"),
        ("pack schema", '"$schema"'),
        ("pack diff pack.json pack.json", "equal"),
        ("pack which pack.json own n=256 --device H100", "answer   BLOCK=128 num_warps=4"),
        ("pack merge pack.json pack.json -o merged.json", "3 rows in 1 table"),
        ("pack merge-driver pack.json pack.json pack.json", "3 rows in 1 table"),
        ("submit experiments/softmax.yaml --overlay prod --project k --dry-run", "kind: RayJob"),
        ("plan experiments/softmax.yaml", "softmax sm_90 n_rows=65536 n_cols=256 dtype=bf16: 19 candidates"),
    ],
)
def test_what_needs_no_more_works(client: Client, line: str, said: str) -> None:
    done = client(*line.split())
    assert "Traceback" not in done.stderr
    assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("sweep experiments/softmax.yaml", "MLflow", "client"),
        ("sweep experiments/softmax.yaml --tracking none", "torch", "farm"),
        ("build experiments/softmax.yaml", "torch", "farm"),
        ("aa experiments/softmax.yaml", "numpy", "farm"),
        ("init ops.py:add_kernel", "torch", "farm"),
        ("record experiments/softmax.yaml -o recorded.json.gz", "torch", "farm"),
        ("pack verify pack.json --kernels experiments/softmax.yaml", "torch", "farm"),
        ("pack check pack.json experiments/softmax.yaml", "numpy", "farm"),
        ("pack revalidate pack.json experiments/softmax.yaml -o new.json", "numpy", "farm"),
    ],
)
def test_what_needs_more_says_what_in_one_line(client: Client, line: str, package: str, extra: str) -> None:
    done = client(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert f"{package} is not installed (pip install 'tunefarm[{extra}]'" in done.stderr


def test_a_plan_without_the_kernel_counts_what_the_file_tells(client: Client) -> None:
    told = json.loads(client("plan", "experiments/softmax.yaml", "--json").stdout)
    assert told["without"] == "torch"
    assert len(told["studies"]) == 12
    for study in told["studies"]:
        assert study["candidates"] + sum(study["removed"].values()) == study["points"] == 240
        assert study["buckets"] is None
        assert "default" not in study
    done = client("plan", "experiments/softmax.yaml")
    assert done.stdout.splitlines()[-2:] == [
        "note: torch is not installed here, so this is what the file alone tells: no default, no buckets, and nothing "
        "that only the kernel knows.",
        "      pip install 'tunefarm[farm]' plans all of it",
    ]


def test_a_space_that_only_the_kernel_declares_is_not_made_up(client: Client) -> None:
    done = client("plan", "declared.yaml")
    assert done.returncode == 0
    assert "skipped: its space is the kernel's declared configs" in done.stdout


def test_a_plan_without_the_kernel_still_refuses_what_is_wrong(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "name: bad\nworkload: ops.py:workload\nproblems: [{n: 8}]\ndevices: [sm_90]\nspace: {BLOCK: [1, 2]}\n"
        "constraints: [BLOK < n]\n"
    )
    done = client("plan", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'BLOCK'?" in done.stderr


def test_a_bare_install_names_the_client_extra(tmp_path: Path) -> None:
    packages = tmp_path / "none"
    packages.mkdir()
    done = laptop.tunefarm("doctor", packages=packages, folder=tmp_path, store=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: typer is not installed (pip install 'tunefarm[client]')\n"
