"""What a workload is made of: found without importing, ignored by git or not, and refused when it is too large."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from farm import KERNEL, Warm, write_experiment, write_landscape

from tunefarm.bundle import Bundle
from tunefarm.cli.opening import open_experiment
from tunefarm.errors import SpecError
from tunefarm.source import source_hash
from tunefarm.spec.bundling import MAX_BYTES, bundled
from tunefarm.spec.experiment import Experiment, load_experiment


def gather(experiment: Path) -> Bundle:
    bundle = bundled(load_experiment(experiment)).ref.bundle
    assert bundle is not None
    return bundle


def names(experiment: Path) -> list[str]:
    return [name for name, _ in gather(experiment).files]


def lay(folder: Path, **files: str) -> None:
    """Modules, `__` in a name for a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_modules_beside_the_workload_come_along_and_installed_packages_do_not(tmp_path: Path) -> None:
    path = write_experiment(
        tmp_path, "import os, torch, one\nfrom two import three\nfrom pack.inner import f\n" + KERNEL
    )
    lay(
        tmp_path, one="def late():\n    import four\n", two="three = 3\n", five="import one\n", unwanted="",
        four="try:\n    import five\nexcept ImportError:\n    pass\n", triton_in_fake="",
    )  # fmt: skip
    lay(tmp_path, pack_in___init__="from . import side\n", pack_in_inner="from .deep.er import g\nfrom ..x import y\n")
    lay(tmp_path, pack_in_side="import pack.other\n", pack_in_other="", pack_in_deep_in_er="import one as er\n")
    assert names(path) == [
        "five.py", "four.py", "kernels.py", "one.py", "pack/__init__.py", "pack/deep/er.py", "pack/inner.py",
        "pack/other.py", "pack/side.py", "two.py",
    ]  # fmt: skip


def test_a_module_by_name_and_parts_in_other_folders(tmp_path: Path) -> None:
    """A helper is looked for beside the file, then beside the experiment; names start where all of it lies."""
    parts = {"call": "../lib/ops.py:fill", "kernel": "mine.kernels:fill_kernel"}
    path = write_experiment(tmp_path / "experiments", workload=parts, inputs={"y": ["n"], "n": {"value": "n"}})
    lay(tmp_path, lib_in_ops="import helper, beside\n", lib_in_helper="", experiments_in_beside="", helper="")
    lay(tmp_path, experiments_in_mine_in___init__="", experiments_in_mine_in_kernels="")
    assert names(path) == [
        "experiments/beside.py", "experiments/mine/__init__.py", "experiments/mine/kernels.py", "lib/helper.py",
        "lib/ops.py",
    ]  # fmt: skip
    assert gather(path).root == str(tmp_path)


def test_what_git_ignores_comes_along(tmp_path: Path) -> None:
    """TF-096."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=60)
    (tmp_path / ".gitignore").write_text("generated/\n*.bin\n")
    path = write_experiment(tmp_path, workload="generated/softmax_v3.py:workload", files=["generated/tokens.bin"])
    lay(tmp_path, generated_in_softmax_v3="import tables\n" + KERNEL, generated_in_tables="")
    (tmp_path / "generated/tokens.bin").write_bytes(b"\0\1")
    assert names(path) == ["generated/softmax_v3.py", "generated/tables.py", "generated/tokens.bin"]


def test_beside_a_link_to_a_file_means_beside_the_file(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "e", workload="linked.py:workload")
    lay(tmp_path / "real", kernels="import helper\n" + KERNEL, helper="")
    (tmp_path / "e/linked.py").symlink_to(tmp_path / "real/kernels.py")
    assert names(path) == ["helper.py", "linked.py"]


def test_the_surroundings_do_not_matter(tmp_path: Path) -> None:
    """TF-097: a project of many gigabytes around two kilobytes of kernel. Builds are named as they always were."""
    here, there = (write_experiment(tmp_path / name) for name in ("here", "there"))
    git = tmp_path / "here/.git"
    git.mkdir()
    with (git / "pack").open("wb") as file:
        file.truncate(800 << 20)
    assert gather(here).digest == gather(there).digest
    hashes = {
        source_hash(open_experiment(path, ship=ship).workload.kernel) for path in (here, there) for ship in (0, 1)
    }
    assert len(hashes) == 1
    listing = write_experiment(tmp_path / "listing", files=["kernels.py"])
    experiments = [load_experiment(here), bundled(load_experiment(here)), load_experiment(listing)]
    assert len({experiment.digest for experiment in experiments}) == 1  # a ledger begun before goes on


def sparse(path: Path, size: int) -> None:
    """A file of zeros that takes no room on the disk; of a TiB, whoever reads it fails."""
    with path.open("wb") as file:
        file.truncate(size)


def test_too_much_is_refused_by_size_alone(tmp_path: Path) -> None:
    """TF-097: the message names the three largest, the limit and the key."""
    path = write_experiment(tmp_path, files=["small.bin", "large.bin", "more.bin", "huge.bin"])
    for name, size in (("small", 1000), ("large", 3 << 20), ("more", 2 << 20), ("huge", 1 << 40)):
        sparse(tmp_path / f"{name}.bin", size)
    with pytest.raises(
        SpecError,
        match=r"experiment.yaml:\d+: files: .*, more than the 20 MiB .*: "
        r"huge.bin \(1048576.0 MiB\), large.bin \(3.0 MiB\), more.bin \(2.0 MiB\) \(make large data in `inputs`",
    ):
        bundled(load_experiment(path))
    path = write_experiment(tmp_path, files=["large.bin", "more.bin"])
    assert names(path) == ["kernels.py", "large.bin", "more.bin"]


def test_a_module_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "import tables\n" + KERNEL)
    sparse(tmp_path / "tables.py", 1 << 40)
    with pytest.raises(SpecError, match=r"workload: the workload's files hold 1048576.0 MiB.*tables.py \(1048576.0"):
        bundled(load_experiment(path))
    sparse(tmp_path / "tables.py", MAX_BYTES)  # with the kernel beside it a little too much
    with pytest.raises(SpecError, match=r"hold 20.0 MiB"):
        bundled(load_experiment(path))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["tokens.bin"], r"files\[0\]: tokens.bin: no such file \(name files"),
        (["kernels.py", "."], r"files\[1\]: . is a folder"),
        (["kernels.py", "kernels.py"], "listed twice"),
        ("kernels.py", "files"),
    ],
)
def test_files_that_cannot_be_sent(tmp_path: Path, files: list[str], says: str) -> None:
    path = write_experiment(tmp_path, files=files)
    with pytest.raises(SpecError, match=says):
        bundled(load_experiment(path))


@pytest.mark.parametrize("workload", ["gone.py:workload", "torch.nn:Linear", "nothing"])
def test_what_cannot_be_imported_or_is_installed_is_nobody_s_luggage(tmp_path: Path, workload: str) -> None:
    made: Experiment = bundled(load_experiment(write_experiment(tmp_path, workload={"call": "a:b", "kernel": "a:c"})))
    assert made.ref.bundle is None
    if ":" in workload:
        assert bundled(load_experiment(write_experiment(tmp_path, workload=workload))).ref.bundle is None


def test_a_module_that_is_no_python_is_left_to_who_imports_it(tmp_path: Path) -> None:
    assert names(write_experiment(tmp_path, "def (\n")) == ["kernels.py"]


@pytest.mark.parametrize("words", [("plan", "experiment.yaml"), ("sweep", "experiment.yaml", "--tracking", "none")])
def test_what_is_too_large_is_said_before_anything_starts(
    words: tuple[str, ...], tmp_path: Path, store: Path, warm: Warm
) -> None:
    """TF-097."""
    path = write_experiment(tmp_path, files=["data.bin"])
    write_landscape(path)
    sparse(tmp_path / "data.bin", 100 << 20)
    done = warm(*words, folder=tmp_path, store=store)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "experiment.yaml:1: files: the workload's files hold 100.0 MiB, more than the 20 MiB" in line
    assert not (tmp_path / "sweeps").exists()
