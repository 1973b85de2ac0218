"""A submission: an overlay's jobs made into those of one experiment, with a bound on what they cost."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.errors import UserError

Document = dict[str, Any]

MAX_JOB_NAME = 47
"""KubeRay adds six characters for the cluster, and services' names end with ten more, of 63."""

MAX_FILES_BYTES = 1 << 20
"""What a ConfigMap may hold."""

START_S = 900.0
"""How much longer than its budget a job may take: nodes that start, images that are fetched, finals and export."""

CAP = "tunefarm.dev/gpu-hours-cap"
SWEEP, ROLE, CAPABILITY = "tunefarm.dev/sweep", "tunefarm.dev/role", "tunefarm.dev/capability"
_SUFFIX = 6  # of `-build`, `-sm-90`
_WORDS = re.compile(r"\b(SWEEP|PROJECT|NAME|FILES|EXPERIMENT)\b")
_HASHED = re.compile(r"-[0-9a-f]{8}$")
_UNBUILT = "@sha256:" + "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is submitted.

    Attributes:
        project: whose it is.
        experiment: its name.
        main: path of the experiment's file among `files`.
        files: content by relative path: the experiment, and what it needs.
        capabilities: archs to measure on.
        budget_s: the longest that it may measure, on the clock; None to go by the overlay's deadline.
    """

    project: str
    experiment: str
    main: str
    files: Mapping[str, bytes]
    capabilities: Sequence[str]
    budget_s: float | None = None

    @property
    def name(self) -> str:
        """Of the sweep; its jobs' names begin with it, and no other project's or experiment's is equal."""
        return sweep_name(self.project, self.experiment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that a job may cost.

    Attributes:
        job: its name.
        num_gpus: that it holds, all of them from its first second to its last.
        deadline_s: of one attempt.
        num_attempts: how often it may be tried.
    """

    job: str
    num_gpus: int
    deadline_s: float
    num_attempts: int

    @property
    def gpu_hours(self) -> float:
        """What all attempts may hold."""
        return self.num_gpus * self.deadline_s / 3600 * self.num_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A submission, ready to be created.

    Attributes:
        name: of the sweep.
        namespace: where.
        shared: what all jobs need: files and network policy.
        build: the job that fills the store.
        measure: those that measure, one a capability.
        bounds: what they may cost.
        cap_gpu_hours: what the overlay allows.
        is_built: whether the image exists.
    """

    name: str
    namespace: str
    shared: tuple[Document, ...]
    build: Document
    measure: tuple[Document, ...]
    bounds: tuple[Bound, ...]
    cap_gpu_hours: float
    is_built: bool

    @property
    def documents(self) -> tuple[Document, ...]:
        """All of them, in the order in which they are created."""
        return (*self.shared, self.build, *self.measure)

    @property
    def gpu_hours(self) -> float:
        """The most that it may cost."""
        return sum(bound.gpu_hours for bound in self.bounds)


def sweep_name(project: str, experiment: str) -> str:
    """A DNS-1035 label for an experiment of a project, short enough for the names of its jobs.

    It reads as both names do. Where that says less than they, or is too long, it ends in a hash of them, so two sweeps
    share a name only if project and experiment are equal.
    """
    most = MAX_JOB_NAME - _SUFFIX
    parts = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in (project, experiment)]
    name = "--".join(parts)  # which neither part holds
    if parts == [project, experiment] and len(name) <= most and name[0].isalpha() and not _HASHED.search(name):
        return name
    tail = hashlib.sha256(f"{project}\0{experiment}".encode()).hexdigest()[:8]
    name = name if name[:1].isalpha() else f"p{name}"
    return f"{name[: most - len(tail) - 1].rstrip('-')}-{tail}"


def compose(documents: Sequence[Document], submission: Submission, overlay: str) -> Composed:
    """Makes an overlay's jobs those of a submission.

    Args:
        documents: of the overlay, rendered.
        submission: what is submitted.
        overlay: what to call the overlay in errors.

    Raises:
        UserError: the overlay lacks what is needed, or the files are too large.
    """
    jobs = [document for document in documents if document.get("kind") == "RayJob"]
    labels = [job["metadata"].get("labels", {}) for job in jobs]
    builds = [job for job, label in zip(jobs, labels, strict=True) if label.get(ROLE) == "build"]
    if len(builds) != 1:
        raise UserError(f"has {len(builds)} RayJobs with the label {ROLE}: build", file=overlay, hint="it needs one")
    by_capability = {label[CAPABILITY]: job for job, label in zip(jobs, labels, strict=True) if CAPABILITY in label}
    for capability in submission.capabilities:
        if capability not in by_capability:
            there = ", ".join(sorted(by_capability)) or "none"
            hint = "name another overlay, or choose devices with --device"
            raise UserError(f"has no RayJob for {capability}, but for {there}", file=overlay, hint=hint)
    files, items = _files(submission, builds[0]["metadata"].get("namespace", "default"))
    words = {
        "SWEEP": submission.name, "PROJECT": _folder(submission.project), "NAME": submission.experiment,
        "FILES": files["metadata"]["name"], "EXPERIMENT": shlex.quote(f"/experiment/{submission.main}"),
    }  # fmt: skip
    build = _job(builds[0], words, items, "build")
    measure = []
    for capability in submission.capabilities:
        job = _job(by_capability[capability], words, items, _slug(capability))
        if submission.budget_s is not None:
            job["spec"]["activeDeadlineSeconds"] = round(START_S + submission.budget_s)
        measure.append(job)
    others = [_fill(document, words) for document in documents if document.get("kind") != "RayJob"]
    return Composed(
        name=submission.name, namespace=files["metadata"]["namespace"], shared=(files, *others), build=build,
        measure=tuple(measure), bounds=tuple(_bound(job, overlay) for job in measure),
        cap_gpu_hours=min((_cap(job, overlay) for job in measure), default=0.0),
        is_built=not any(_UNBUILT in text for job in (build, *measure) for text in _texts(job)),
    )  # fmt: skip


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "x"


def _folder(text: str) -> str:
    """A folder's name for a text, which no other text has."""
    slug = _slug(text)
    return slug if slug == text else f"{slug[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _files(submission: Submission, namespace: str) -> tuple[Document, list[dict[str, str]]]:
    """The files as a ConfigMap, and where each of its keys belongs in a volume."""
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    items = []
    for number, (path, content) in enumerate(sorted(submission.files.items())):
        key = f"{number:03}-{_slug(path.rpartition('/')[2])[-200:]}"
        items.append({"key": key, "path": f"files/{path}"})
        try:
            text[key] = content.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(content).decode()
    total = sum(len(value.encode()) for value in (*text.values(), *binary.values()))
    if total > MAX_FILES_BYTES:
        largest = sorted(submission.files.items(), key=lambda item: -len(item[1]))[:3]
        named = ", ".join(f"{path} ({len(content):,} bytes)" for path, content in largest)
        raise UserError(
            f"experiment and kernels take {total:,} bytes, and a ConfigMap holds {MAX_FILES_BYTES:,}: {named}",
            hint="install what is large into the image, or name less in search.learn_from",
        )
    content_hash = hashlib.sha256(repr(sorted(submission.files.items())).encode()).hexdigest()[:10]
    document = {
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": True,
        "metadata": {
            "name": f"{submission.name}-{content_hash}", "namespace": namespace, "labels": {SWEEP: submission.name},
        },
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }  # fmt: skip
    return document, items


def _fill(document: Document, words: Mapping[str, str]) -> Document:
    """The document with what is in capitals put in."""

    def fill(node: Any) -> Any:
        if isinstance(node, str):
            return _WORDS.sub(lambda match: words[match[0]], node)
        if isinstance(node, list):
            return [fill(member) for member in node]
        return {key: fill(value) for key, value in node.items()} if isinstance(node, dict) else node

    filled: Document = fill(copy.deepcopy(document))
    return filled


def _job(template: Document, words: Mapping[str, str], items: list[dict[str, str]], role: str) -> Document:
    job = _fill(template, words)
    job["metadata"]["name"] = f"{words['SWEEP']}-{role.replace('_', '-')}"
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])):
        for volume in group["template"]["spec"].get("volumes", []):
            if volume.get("configMap", {}).get("name") == words["FILES"]:
                volume["configMap"]["items"] = copy.deepcopy(items)
    return job


def _texts(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    members = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [text for member in members for text in _texts(member)]


def _bound(job: Document, overlay: str) -> Bound:
    spec = job["spec"]
    if "activeDeadlineSeconds" not in spec:
        raise UserError(
            f"{job['metadata']['name']} has no activeDeadlineSeconds: what it costs has no bound", file=overlay,
            hint="give it one, or the experiment a budget of wall_s",
        )  # fmt: skip
    num_gpus = 0
    for group in spec["rayClusterSpec"].get("workerGroupSpecs", []):
        pods = max(group.get("replicas", 1), group.get("maxReplicas", 1)) * group.get("numOfHosts", 1)
        for container in group["template"]["spec"]["containers"]:
            num_gpus += pods * int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
    return Bound(
        job=job["metadata"]["name"], num_gpus=num_gpus, deadline_s=float(spec["activeDeadlineSeconds"]),
        num_attempts=1 + spec.get("backoffLimit", 0),
    )  # fmt: skip


def _cap(job: Document, overlay: str) -> float:
    written = job["metadata"].get("annotations", {}).get(CAP, "")
    try:
        return float(written)
    except ValueError:
        said = f"says {written!r}" if written else "is missing"
        raise UserError(
            f"annotation {CAP} of its RayJobs {said}",
            file=overlay,
            hint="write the most GPU hours a submission may cost",
        ) from None
