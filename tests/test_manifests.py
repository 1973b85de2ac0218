"""Every manifest of every overlay: rendered, held against schemas, linted; of each kind of fault one is caught.

Nothing here was applied to a cluster.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from lint import lint
from overlays import COMPONENTS, MANIFESTS, OVERLAYS, ROOT, everything, platform, submitted, with_component
from schemas import faults, needs_crds

from tunefarm.cli.app import app

Document = dict[str, Any]


def find(documents: list[Document], kind: str, name: str = "") -> Document:
    """The first of a kind, whose name holds this."""
    return next(d for d in documents if d["kind"] == kind and name in d["metadata"]["name"])


def container(job: Document, group: int = 0) -> Document:
    found: Document = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][group]["template"]["spec"]["containers"][0]
    return found


# ---- what is there is right ----


@needs_crds
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_is_of_its_schema(overlay: str) -> None:
    documents = everything(overlay)
    assert len(documents) > 30
    assert {"RayJob", "ClusterQueue", "NetworkPolicy", "Deployment"} <= {d["kind"] for d in documents}
    assert [said for document in documents for said in faults(document)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_keeps_the_rules_that_no_schema_holds(overlay: str) -> None:
    assert lint(everything(overlay)) == []


@needs_crds
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_can_be_added(tmp_path: Path, component: str) -> None:
    documents = with_component(tmp_path / "overlay", component)
    assert [said for document in documents for said in faults(document)] == []
    assert lint(documents) == []


def test_every_file_is_part_of_something_that_is_tested() -> None:
    named = {MANIFESTS / "overlays" / o for o in OVERLAYS} | {MANIFESTS / "overlays" / o / "jobs" for o in OVERLAYS}
    todo, files = [*named, *(MANIFESTS / "components" / name for name in COMPONENTS)], set()
    while todo:
        folder = todo.pop()
        files.add(folder / "kustomization.yaml")
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for path in (*kustomization.get("resources", ()), *kustomization.get("components", ())):
            place = (folder / path).resolve()
            (todo.append if place.is_dir() else files.add)(place)
    assert set(MANIFESTS.rglob("*.yaml")) == files


def takes(labels: dict[str, str], pod: Document) -> bool:
    """Whether a node of these labels may have the pod, as the scheduler judges what our manifests say."""
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert {e["operator"] for e in term["matchExpressions"]} == {"NotIn"}
    return all(labels.get(name) == value for name, value in pod["nodeSelector"].items()) and all(
        labels.get(e["key"]) not in e["values"] for e in term["matchExpressions"]
    )


def test_workers_go_to_whole_gpus_and_to_nothing_else() -> None:
    """Labels as NVIDIA's operator sets them: it names its strategy for MIG on nodes that have no MIG, too."""
    product = "NVIDIA-H100-80GB-HBM3"
    whole = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.sharing-strategy": "none",
             "nvidia.com/mig.capable": "true", "nvidia.com/mig.config": "all-disabled",
             "nvidia.com/mig.strategy": "single"}  # fmt: skip
    pod = find(everything("prod"), "RayJob", "sm-90")["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    assert takes(whole, pod["spec"])
    assert takes({"nvidia.com/gpu.product": product}, pod["spec"])
    for other in (
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        {"nvidia.com/gpu.product": f"{product}-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"nvidia.com/gpu.product": f"{product}-MIG-1g.10gb", "nvidia.com/mig.config": "all-1g.10gb"},
    ):
        assert not takes(whole | other, pod["spec"]), other


def test_overlays_differ_in_what_a_submission_may_cost() -> None:
    assert {o: (submitted(o).cap_gpu_hours, submitted(o).gpu_hours) for o in OVERLAYS} == {
        "dev": (6.0, 6.0), "prod": (64.0, 48.0),
    }  # fmt: skip


# ---- commands ----


def commands() -> Iterator[str]:
    """What jobs and batch scripts run."""
    for overlay in OVERLAYS:
        yield from (d["spec"]["entrypoint"] for d in submitted(overlay).documents if d["kind"] == "RayJob")
    for path in (MANIFESTS / "slurm").glob("*.sbatch"):
        yield from re.findall(r"^tunefarm [^&\n]*", path.read_text(), flags=re.MULTILINE)


def test_commands_are_the_command_line_s() -> None:
    found = sorted(set(commands()))
    assert [line.split()[1] for line in found].count("sweep") == 3
    for line in found:
        program, verb, *words = shlex.split(line)
        command: Any = typer.main.get_command(app)
        assert (program, verb in command.commands) == ("tunefarm", True), line
        context = command.commands[verb].make_context(verb, words, resilient_parsing=False)
        assert len(context.params["experiments"]) == 1


def test_prometheus_finds_a_driver_s_metrics_and_may_ask_for_them() -> None:
    documents = everything("prod")
    policy = find(documents, "NetworkPolicy", "prometheus")["spec"]
    allowed = {port["port"] for entry in policy["ingress"] for port in entry["ports"]}
    for name in ("sm-80", "sm-90"):
        job = find(documents, "RayJob", name)["spec"]
        words = shlex.split(job["entrypoint"])
        told = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("--metrics")}
        assert told["--metrics-address"] == "0.0.0.0"
        pod = job["rayClusterSpec"]["headGroupSpec"]["template"]
        marks = pod["metadata"]["annotations"]
        assert (marks["prometheus.io/scrape"], marks["prometheus.io/port"]) == ("true", told["--metrics-port"])
        assert int(told["--metrics-port"]) in allowed
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        # KubeRay makes the head's service of the ports that are listed, and of its own only where none is.
        assert "ports" not in pod["spec"]["containers"][0]


@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, about its own annotations, as its commands are imported
@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_commands_of_mlflow_are_mlflow_s(kind: str) -> None:
    from mlflow.cli import cli

    name = "mlflow" if kind == "Deployment" else "migrate"
    pod = find(platform("prod"), kind, name)["spec"]["template"]["spec"]
    program, *words = pod["containers"][0]["command"]
    command: Any = cli
    assert program == "mlflow"
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert command.make_context("mlflow", words, resilient_parsing=False) is not None


def test_mlflow_answers_to_the_names_of_its_service_and_to_no_other() -> None:
    from mlflow.server.security_utils import is_allowed_host_header

    documents = platform("prod")
    allowed = find(documents, "ConfigMap", "mlflow-settings")["data"]["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    uri = find(documents, "ConfigMap", "tunefarm-settings")["data"]["MLFLOW_TRACKING_URI"]
    service = find(documents, "Service", "mlflow")
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    port = service["spec"]["ports"][0]["port"]
    assert uri == f"http://{host}.svc:{port}"
    for name in (host, f"{host}.svc", f"{host}.svc.cluster.local"):
        assert is_allowed_host_header(allowed, f"{name}:{port}")
    assert not is_allowed_host_header(allowed, f"evil.example:{port}")


def test_scripts_are_of_their_language() -> None:
    script = find(platform("prod"), "ConfigMap", "lock-clocks")["data"]["lock.sh"]
    assert subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""
    bucket = find(platform("prod"), "Job")["spec"]["template"]["spec"]["initContainers"][0]["command"]
    assert bucket[:2] == ["python", "-c"]
    compile(bucket[2], "bucket", "exec")
    recipes = sorted((MANIFESTS / "slurm").glob("*.sbatch"))
    assert recipes
    for recipe in recipes:
        assert subprocess.run(["bash", "-n", recipe], capture_output=True, text=True, check=False).stderr == ""


def test_the_image_starts_from_a_digest_and_ends_unprivileged() -> None:
    text = (MANIFESTS / "image" / "Dockerfile").read_text()
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", line) for line in re.findall(r"^FROM .*$", text, flags=re.MULTILINE))
    assert re.findall(r"^USER (.*)$", text, flags=re.MULTILINE)[-1] == "1000:1000"
    for name in re.findall(r"^COPY (.*) \./?", text, flags=re.MULTILINE):
        assert all((ROOT / path).exists() for path in name.split()), name


def test_who_may_call_is_who_may_be_called() -> None:
    """Within a namespace, whose port somebody may call, somebody may call there, and the other way round."""
    ways: dict[str, set[tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
    for policy in (d for d in platform("prod") if d["kind"] == "NetworkPolicy"):
        for way, whom in (("ingress", "from"), ("egress", "to")):
            for entry in policy["spec"].get(way) or ():
                for peer in (p for p in entry[whom] if "namespaceSelector" not in p):
                    called = peer["podSelector"] if way == "egress" else policy["spec"]["podSelector"]
                    space = policy["metadata"]["namespace"]
                    ways[way] |= {(space, str(called), port["port"]) for port in entry["ports"]}
    assert ways["ingress"] == ways["egress"]
    assert {way[-1] for way in ways["egress"]} == {5432, 8333}


# ---- what is wrong is caught: by schemas ----


def _typo(d: list[Document]) -> Document:
    job = find(d, "RayJob", "sm-90")
    job["spec"]["activeDeadlineSecond"] = 1
    return job


def _typo_deep(d: list[Document]) -> Document:
    job = find(d, "RayJob", "sm-90")
    container(job)["imagePulPolicy"] = "Always"
    return job


def _wrong_type(d: list[Document]) -> Document:
    job = find(d, "RayJob", "build")
    job["spec"]["backoffLimit"] = "two"
    return job


def _missing(d: list[Document]) -> Document:
    job = find(d, "RayJob", "build")
    del job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    return job


def _manager(d: list[Document]) -> Document:
    job = find(d, "RayJob", "build")
    job["spec"]["managedBy"] = "somebody.example/else"
    return job


def _uncovered(d: list[Document]) -> Document:
    queue = find(d, "ClusterQueue")
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"].pop()
    return queue


def _effect(d: list[Document]) -> Document:
    flavor = find(d, "ResourceFlavor", "h100")
    flavor["spec"]["tolerations"][0]["value"] = "present"
    return flavor


def _deployment(d: list[Document]) -> Document:
    deployment = find(d, "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesytem"] = True
    return deployment


def _policy(d: list[Document]) -> Document:
    policy = find(d, "NetworkPolicy", "dns")
    policy["spec"]["egress"][0]["ports"][0]["port"] = {"number": 53}
    return policy


def _unknown(d: list[Document]) -> Document:
    return {**find(d, "LocalQueue"), "apiVersion": "kueue.x-k8s.io/v9"}


@needs_crds
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_typo, "activeDeadlineSecond"), (_typo_deep, "imagePulPolicy"), (_manager, "managedBy"),
        (_wrong_type, "'two' is not of type 'integer'"), (_missing, "'template' is a required property"),
        (_uncovered, "same number of resources"),
        (_effect, "value must be empty"), (_deployment, "readOnlyRootFilesytem"), (_policy, "port"),
        (_unknown, "no schema of kueue.x-k8s.io/v9"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_not_of_its_schema_is_caught(spoil: Callable[[list[Document]], Document], says: str) -> None:
    (said, *_) = faults(spoil(everything("prod")))
    assert says in said


@needs_crds
def test_defaults_count_before_what_is_required() -> None:
    """As an API server sees it: a protocol, or a suspension, need not be written."""
    policy = find(everything("prod"), "NetworkPolicy", "operator")
    policy["spec"]["ingress"][0]["ports"] = [{"port": 8265}]
    queue = find(everything("prod"), "ClusterQueue")
    del queue["spec"]["queueingStrategy"]
    assert faults(policy) + faults(queue) == []
