"""The linter of manifests: of each rule manifests that break it, and that it is this rule that says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from lint import RULES, lint
from overlays import everything

Document = dict[str, Any]
Spoil = Callable[["Overlay"], object]


class Overlay:
    """The production overlay with a submission, to be spoilt."""

    def __init__(self) -> None:
        self.documents = everything("prod")

    def find(self, kind: str, name: str = "") -> Document:
        return next(d for d in self.documents if d["kind"] == kind and name in d["metadata"]["name"])

    @property
    def job(self) -> Document:
        return self.find("RayJob", "sm-90")

    @property
    def spec(self) -> Document:
        found: Document = self.job["spec"]
        return found

    @property
    def cluster(self) -> Document:
        found: Document = self.spec["rayClusterSpec"]
        return found

    @property
    def head(self) -> Document:
        found: Document = self.cluster["headGroupSpec"]
        return found

    @property
    def group(self) -> Document:
        found: Document = self.cluster["workerGroupSpecs"][0]
        return found

    @property
    def pod(self) -> Document:
        found: Document = self.group["template"]["spec"]
        return found

    @property
    def container(self) -> Document:
        found: Document = self.pod["containers"][0]
        return found

    @property
    def driver(self) -> Document:
        found: Document = self.head["template"]["spec"]["containers"][0]
        return found

    def peers(self, *peers: Document) -> None:
        self.find("NetworkPolicy", "operator")["spec"]["ingress"][0]["from"] = list(peers)

    def drop(self, kind: str, name: str = "") -> None:
        self.documents.remove(self.find(kind, name))

    def add(self, kind: str, name: str = "x", **more: Any) -> None:
        self.documents.append({"kind": kind, "metadata": {"name": name, "namespace": "tunefarm"}, **more})


def _variable(o: Overlay, name: str, value: str) -> None:
    o.container["env"] = [{"name": name, "value": value}]


def _image(o: Overlay, name: str, image: str) -> None:
    o.find("StatefulSet", name)["spec"]["template"]["spec"]["containers"][0]["image"] = image


def _capabilities(o: Overlay, **those: list[str]) -> None:
    o.container["securityContext"]["capabilities"].update(those)


def _labels(o: Overlay, name: str, value: str) -> None:
    o.job["metadata"]["labels"][f"kueue.x-k8s.io/{name}"] = value


def _first(o: Overlay) -> None:
    o.pod["initContainers"] = [{"name": "first", "image": "x"}]


def _groups(o: Overlay) -> None:
    o.cluster["workerGroupSpecs"] = [{**o.group, "groupName": f"g{number}"} for number in range(18)]


def _again(o: Overlay) -> None:
    o.documents.append(copy.deepcopy(o.job))


def _standing(o: Overlay) -> None:
    o.add("RayCluster", "x" * 54, spec=o.cluster)


BAD: list[tuple[str, Spoil, str]] = [
    ("names", lambda o: o.job["metadata"].update(name="x" * 48), "longer than 47"),
    ("names", lambda o: o.job["metadata"].update(name="9-lives"), "no DNS-1035 label"),
    ("names", _again, "is there 2 times"),
    ("names", _standing, "longer than 53"),
    ("names", lambda o: o.group.update(groupName="head"), "called head"),
    ("names", _groups, "more than 17"),
    ("job_ends", lambda o: o.spec.pop("activeDeadlineSeconds"), "no activeDeadlineSeconds"),
    ("job_ends", lambda o: o.spec.update(activeDeadlineSeconds=0), "no activeDeadlineSeconds"),
    ("job_ends", lambda o: o.spec.update(deletionStrategy={}), "deletionStrategy beside"),
    ("job_ends", lambda o: o.spec.update(shutdownAfterJobFinishes=False), "want shutdownAfterJobFinishes"),
    ("job_ends", lambda o: o.spec.update(backoffLimit=0), "no retry"),
    ("job_modes", lambda o: o.spec.update(clusterSelector={"ray.io/cluster": "x"}), "clusterSelector beside"),
    ("job_modes", lambda o: o.spec.update(submissionMode="SidecarMode"), "no submitter of its own"),
    ("job_modes", lambda o: o.spec.update(submissionMode="InteractiveMode"), "cannot retry"),
    ("token", lambda o: o.cluster.pop("authOptions"), "authOptions.mode token"),
    ("token", lambda o: o.cluster["authOptions"].update(mode="disabled"), "authOptions.mode token"),
    ("token", lambda o: o.cluster.update(rayVersion="2.51.1"), "2.52 or newer"),
    ("token", lambda o: o.cluster.pop("rayVersion"), "2.52 or newer"),
    ("token", lambda o: o.cluster["authOptions"].update(enableK8sTokenAuth=True), "not for RayJobs"),
    ("fixed_size", lambda o: o.cluster.update(enableInTreeAutoscaling=True), "autoscaler"),
    ("fixed_size", lambda o: o.group.update(minReplicas=0), "differ"),
    ("fixed_size", lambda o: o.group.pop("maxReplicas"), "differ"),
    ("said_once", lambda o: o.group["rayStartParams"].update(labels="a=b"), "use labels"),
    ("said_once", lambda o: o.head.update(resources={"CPU": "0"}), "resources and rayStartParams"),
    ("said_once", lambda o: o.head["rayStartParams"].update({"redis-password": "x"}), "use gcsFaultToleranceOptions"),
    ("said_once", lambda o: o.driver["env"].append({"name": "RAY_REDIS_ADDRESS"}), "env"),
    ("no_alpha", lambda o: o.cluster.update(networkPolicy={}), "gate that is off"),
    ("no_alpha", lambda o: o.cluster.update(tlsOptions={}), "gate that is off"),
    ("no_alpha", lambda o: o.cluster.update(gcsFaultToleranceOptions={"backend": "rocksdb"}), "gate that is off"),
    ("no_alpha", lambda o: o.add("RayCronJob"), "alpha"),
    ("heads_without_gpu", lambda o: o.driver["resources"]["limits"].update({"nvidia.com/gpu": 1}), "takes a GPU"),
    ("heads_without_gpu", lambda o: o.head["rayStartParams"].pop("num-cpus"), "or work"),
    ("queues", lambda o: _labels(o, "queue-name", "other"), "queue other"),
    ("queues", lambda o: _labels(o, "priority-class", "x"), "no such priority"),
    ("queues", lambda o: o.find("LocalQueue")["spec"].update(clusterQueue="x"), "no ClusterQueue x"),
    ("queues", lambda o: o.drop("ResourceFlavor", "cpu"), "no ResourceFlavor cpu"),
    ("queues", lambda o: o.container["resources"]["requests"].update({"ephemeral-storage": "1Gi"}), "no queue covers"),
    ("queues", lambda o: o.group.update(replicas=60), "never admitted"),
    ("flavors_fit", lambda o: o.pod.pop("nodeSelector"), "of 0 flavors"),
    ("flavors_fit", lambda o: o.pod["nodeSelector"].update({"nvidia.com/gpu.product": "H100-NVL"}), "of 0 flavors"),
    ("flavors_fit", lambda o: o.find("ResourceFlavor", "h100")["spec"]["nodeLabels"].update(zone="a"), "of 0 flavors"),
    ("flavors_fit", lambda o: o.group.update(replicas=9), "more GPUs than h100 has"),
    ("pod_security", lambda o: o.pod.update(hostNetwork=True), "host's namespaces"),
    ("pod_security", lambda o: o.pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "hostPath"),
    ("pod_security", lambda o: o.pod["securityContext"].pop("runAsNonRoot"), "may be root"),
    ("pod_security", lambda o: o.container["securityContext"].update(runAsUser=0), "may be root"),
    ("pod_security", lambda o: o.pod.pop("securityContext"), "may be root"),
    ("pod_security", lambda o: o.container.pop("securityContext"), "may gain privileges"),
    ("pod_security", lambda o: o.container["securityContext"].update(privileged=True), "may gain privileges"),
    ("pod_security", lambda o: _capabilities(o, add=["SYS_ADMIN"]), "capabilities"),
    ("pod_security", lambda o: _capabilities(o, drop=["KILL"]), "capabilities"),
    ("pod_security", lambda o: o.pod["securityContext"].pop("seccompProfile"), "no seccomp profile"),
    ("pod_security", lambda o: o.container.update(ports=[{"hostPort": 8265}]), "a port of the host"),
    ("pod_security", _first, "first: may gain privileges"),
    ("pod_security", lambda o: o.spec["submitterPodTemplate"]["spec"].pop("securityContext"), "submitter: may be root"),
    ("pod_security", lambda o: o.find("DaemonSet")["metadata"].update(namespace="tunefarm"), "DaemonSet lock-clocks"),
    ("unprivileged", lambda o: o.pod.pop("automountServiceAccountToken"), "service account's token"),
    ("unprivileged", lambda o: o.container["securityContext"].pop("readOnlyRootFilesystem"), "writes to its root"),
    ("unprivileged", lambda o: o.container["resources"]["limits"].pop("memory"), "no limit of memory"),
    ("unprivileged", lambda o: o.container["securityContext"].update(privileged=True), ": privileged"),
    ("unprivileged", lambda o: o.find("Namespace", "mlflow")["metadata"].pop("labels"), "admits pods as None"),
    ("unprivileged", lambda o: o.add("Namespace", "open", metadata={"name": "open"}), "admits pods as None"),
    ("images_by_digest", lambda o: o.container.update(image="tunefarm:latest"), "tunefarm:latest"),
    ("images_by_digest", lambda o: _image(o, "postgres", "postgres:17"), "postgres:17"),
    ("no_secrets", lambda o: o.add("Secret", "hush"), "is a secret"),
    ("no_secrets", lambda o: _variable(o, "DB_PASSWORD", "x"), "DB_PASSWORD is written out"),
    ("no_secrets", lambda o: o.find("ConfigMap", "mlflow-settings")["data"].update(AWS_SECRET="x"), "AWS_SECRET"),
    ("no_secrets", lambda o: _variable(o, "DATABASE", "postgresql://me:pw@db/x"), "holds a password"),
    ("default_deny", lambda o: o.drop("NetworkPolicy", "default-deny"), "no default-deny"),
    ("default_deny", lambda o: o.find("NetworkPolicy", "default-deny")["spec"].update(policyTypes=["Ingress"]), "deny"),
    ("default_deny", lambda o: o.find("NetworkPolicy", "default-deny")["spec"].update(egress=[{}]), "no default-deny"),
    ("default_deny", lambda o: o.find("Deployment")["metadata"].update(namespace="other"), "namespace other"),
    ("nothing_exposed", lambda o: o.find("Service", "mlflow")["spec"].update(type="LoadBalancer"), "from outside"),
    ("nothing_exposed", lambda o: o.find("Service", "mlflow")["spec"].update(type="NodePort"), "from outside"),
    ("nothing_exposed", lambda o: o.add("Ingress"), "leads in from outside"),
    ("nothing_exposed", lambda o: o.head.update(serviceType="LoadBalancer"), "its head is reached from outside"),
    ("nothing_exposed", lambda o: o.head.update(enableIngress=True), "its head is reached from outside"),
    ("nothing_exposed", lambda o: o.peers(), "of anybody"),
    ("nothing_exposed", lambda o: o.peers({"ipBlock": {"cidr": "0.0.0.0/0"}}), "of anybody"),
    ("nothing_exposed", lambda o: o.peers({"namespaceSelector": {}}), "of anybody"),
    ("least_rights", lambda o: o.find("Role")["rules"][0].update(verbs=["*"]), "'*'"),
    ("least_rights", lambda o: o.find("Role")["rules"][1].update(resources=["secrets"]), "'secrets'"),
    ("least_rights", lambda o: o.add("ClusterRoleBinding"), "of the whole cluster"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)), ids=[f"{n}-{name}" for n, (name, _, _) in enumerate(BAD)])
def test_a_manifest_that_breaks_a_rule_is_caught(number: int) -> None:
    name, spoil, says = BAD[number]
    overlay = Overlay()
    spoil(overlay)
    found = lint(overlay.documents)
    assert any(line.startswith(f"{name}: ") and says in line for line in found), found


def test_every_rule_has_manifests_that_break_it() -> None:
    assert {name for name, _, _ in BAD} == set(RULES)
