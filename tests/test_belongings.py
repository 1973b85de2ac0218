"""What of an experiment travels to Kubernetes: all that a fleet sends to its workers, and what it learns from."""

from __future__ import annotations

import re
from pathlib import Path

import test_submit
from farm import KERNEL, Warm, write_experiment
from test_submit import dry, refused

checkout = test_submit.checkout


def test_files_that_do_not_fit_are_named_with_their_sizes(checkout: Path, warm: Warm) -> None:
    """TF-097."""
    (checkout / "ledger.jsonl").write_bytes(b"\xff" * 900_000)
    write_experiment(checkout, KERNEL + "\n#" + "x" * 200_000, project="a", search={"learn_from": ["ledger.jsonl"]})
    said = refused(checkout, warm, "--overlay", "prod", "--dry-run")
    assert re.search(
        r"take 1,40\d,\d\d\d bytes, and a ConfigMap holds 1,048,576: ledger.jsonl \(900,000 bytes\), kern", said
    )


def test_ignored_files_beside_the_kernel_travel_too(checkout: Path, warm: Warm) -> None:
    """TF-096: what Git ignores, packages, relative imports and the reference of another file."""
    (checkout / ".gitignore").write_text("generated/\n")
    (checkout / "generated").mkdir()
    (checkout / "generated/__init__.py").write_text("")
    (checkout / "generated/parts.py").write_text("from . import more\nfrom .more import *\nimport numpy\n")
    (checkout / "generated/more.py").write_text("import kernels\n")
    (checkout / "unrelated.py").write_text("")
    (checkout / "generated/scales.bin").write_bytes(b"\xff")
    write_experiment(
        checkout, "def late():\n    from generated.parts import x\n" + KERNEL, project="a", devices=["sm_90"],
        files=["generated/scales.bin"],
    )  # fmt: skip
    _, _, build, _ = dry(warm, "experiment.yaml", checkout)[0]
    volumes = build["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    paths = {item["path"].removeprefix("files/") for item in volumes[1]["configMap"]["items"]}
    names = ("__init__.py", "parts.py", "more.py", "scales.bin")
    assert paths == {"experiment.yaml", "kernels.py", *(f"generated/{name}" for name in names)}


def test_what_the_experiment_lists_and_what_lies_beside_it_travels_as_to_workers(checkout: Path, warm: Warm) -> None:
    """`files`, and a module that the kernel's file in a folder of its own imports from the experiment's."""
    folder = checkout / "experiments"
    path = write_experiment(
        folder, project="a", devices=["sm_90"], workload="deep/kernels.py:workload", files=["deep/tokens.bin", "odd.py"]
    )
    (folder / "deep").mkdir()
    (folder / "deep/kernels.py").write_text("import beside\n" + KERNEL)
    (folder / "deep/tokens.bin").write_bytes(b"\xff\x00")
    (folder / "beside.py").write_text("")
    (folder / "odd.py").write_text("{{ a template }}")
    files, _, build, _ = dry(warm, str(path.relative_to(checkout)), checkout)[0]
    volumes = build["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    paths = {item["path"].removeprefix("files/"): item["key"] for item in volumes[1]["configMap"]["items"]}
    assert paths.keys() == {"experiment.yaml", "deep/kernels.py", "deep/tokens.bin", "beside.py", "odd.py"}
    assert files["binaryData"] == {paths["deep/tokens.bin"]: "/wA="}
    (folder / "beside.py").write_text("def (")
    assert "beside.py:1: cannot be parsed" in refused(folder, warm, "--overlay", "../manifests/overlays/prod")
