"""Overlays as they would be applied: the platform's part, and the jobs of a submission."""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.fleet.kubernetes import render
from tunefarm.fleet.submission import Composed, Submission, compose

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.parents[1].name for path in MANIFESTS.glob("overlays/*/jobs/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))

Document = dict[str, Any]


@cache
def _rendered(folder: Path) -> list[Document]:
    return render(folder)


def platform(overlay: str) -> list[Document]:
    """What the platform team applies."""
    return copy.deepcopy(_rendered(MANIFESTS / "overlays" / overlay))


def submitted(overlay: str, project: str = "kernels", experiment: str = "softmax", **more: Any) -> Composed:
    """An experiment of two files for two devices, as the overlay's jobs."""
    values: dict[str, Any] = {
        "project": project, "experiment": experiment, "main": "softmax.yaml",
        "files": {"softmax.yaml": b"name: softmax\n", "kernels/softmax.py": b"\x00\xff"},
        "capabilities": ["sm_90", "sm_80"], **more,
    }  # fmt: skip
    folder = MANIFESTS / "overlays" / overlay
    return compose(copy.deepcopy(_rendered(folder / "jobs")), Submission(**values), str(folder))


def everything(overlay: str) -> list[Document]:
    """Platform and submission together."""
    return [*platform(overlay), *copy.deepcopy(submitted(overlay).documents)]


def with_component(folder: Path, name: str) -> list[Document]:
    """A component beside all that it may change."""

    def relative(path: str) -> str:
        return os.path.relpath(MANIFESTS / path, folder)

    lines = [
        "apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", "resources:",
        *(f"  - {relative(path)}" for path in ("base", "queue", "jobs")), "components:",
        *(f"  - {relative(path)}" for path in (f"components/{name}", "image")),
    ]  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text("\n".join(lines) + "\n")
    return render(folder)
