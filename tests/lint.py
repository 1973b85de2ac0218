"""Rules that no schema holds: KubeRay's and Kueue's webhooks', PodSecurity's, and our own. Each says what it finds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Document = dict[str, Any]
Rule = Callable[[Sequence[Document]], Iterator[str]]

RULES: dict[str, Rule] = {}
PRIVILEGED = "tunefarm-nodes"  # the platform team's
QUEUE = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"


def rule(check: Rule) -> Rule:
    RULES[check.__name__] = check
    return check


def lint(documents: Sequence[Document]) -> list[str]:
    return [f"{name}: {said}" for name, check in RULES.items() for said in check(documents)]


def of(documents: Sequence[Document], *kinds: str) -> list[Document]:
    return [document for document in documents if document["kind"] in kinds]


def title(document: Document) -> str:
    return f"{document['kind']} {document['metadata'].get('name')}"


def clusters(documents: Sequence[Document]) -> Iterator[tuple[Document, Document]]:
    """(document, its RayCluster's spec)."""
    for document in of(documents, "RayJob", "RayCluster"):
        yield document, document["spec"] if document["kind"] == "RayCluster" else document["spec"]["rayClusterSpec"]


def groups(cluster: Document) -> list[Document]:
    return [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]


def pods(documents: Sequence[Document]) -> Iterator[tuple[str, str, Document]]:
    """(what it is of, namespace, spec) of every pod that documents make."""
    for document, cluster in clusters(documents):
        space = document["metadata"].get("namespace", "")
        yield from (
            (f"{title(document)} {g.get('groupName', 'head')}", space, g["template"]["spec"]) for g in groups(cluster)
        )
        if submitter := document["spec"].get("submitterPodTemplate"):
            yield f"{title(document)} submitter", space, submitter["spec"]
    for document in of(documents, "Deployment", "StatefulSet", "DaemonSet", "Job"):
        yield title(document), document["metadata"].get("namespace", ""), document["spec"]["template"]["spec"]


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def strings(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield path, node
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, member in members:
        yield from strings(member, f"{path}.{key}")


# ---- names ----


@rule
def names(documents: Sequence[Document]) -> Iterator[str]:
    """KubeRay adds to names what must still be a label."""
    counts = Counter((d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents)
    yield from (f"{' '.join(map(str, key))} is there {count} times" for key, count in counts.items() if count > 1)
    for document in documents:
        name = document["metadata"]["name"]
        most = {"RayJob": 47, "RayCluster": 53}.get(document["kind"], 63)
        if len(name) > most:
            yield f"{title(document)}: longer than {most}"
        if document["kind"] in ("RayJob", "RayCluster", "Service") and not re.fullmatch(
            r"[a-z]([-a-z0-9]*[a-z0-9])?", name
        ):
            yield f"{title(document)}: no DNS-1035 label"
    for document, cluster in clusters(documents):
        named = [group["groupName"] for group in cluster.get("workerGroupSpecs", [])]
        if len(set(named)) < len(named) or "head" in named or len(named) > 17:
            yield f"{title(document)}: groups {named}: twice, called head, or more than 17"


# ---- KubeRay ----


@rule
def job_ends(documents: Sequence[Document]) -> Iterator[str]:
    """Clusters end with their jobs, and jobs by a deadline."""
    for job in of(documents, "RayJob"):
        spec = job["spec"]
        if not spec.get("activeDeadlineSeconds", 0) > 0:
            yield f"{title(job)}: no activeDeadlineSeconds"
        if "deletionStrategy" in spec and (spec.get("shutdownAfterJobFinishes") or "ttlSecondsAfterFinished" in spec):
            yield f"{title(job)}: deletionStrategy beside shutdownAfterJobFinishes or a ttl"
        if not spec.get("shutdownAfterJobFinishes") and (
            spec.get("suspend") or "ttlSecondsAfterFinished" in spec or QUEUE in job["metadata"].get("labels", {})
        ):
            yield f"{title(job)}: suspension, ttl and Kueue want shutdownAfterJobFinishes"
        if spec.get("backoffLimit", 0) < 1:
            yield f"{title(job)}: no retry, so a lost head loses the sweep"


@rule
def job_modes(documents: Sequence[Document]) -> Iterator[str]:
    for job in of(documents, "RayJob"):
        spec, mode = job["spec"], job["spec"].get("submissionMode", "K8sJobMode")
        if "clusterSelector" in spec and (
            spec.get("backoffLimit")
            or spec.get("suspend")
            or mode == "SidecarMode"
            or QUEUE in job["metadata"]["labels"]
        ):
            yield f"{title(job)}: clusterSelector beside backoffLimit, suspend, SidecarMode or Kueue"
        if mode == "SidecarMode" and ("submitterPodTemplate" in spec or "submitterConfig" in spec):
            yield f"{title(job)}: SidecarMode has no submitter of its own"
        if mode == "InteractiveMode" and spec.get("backoffLimit"):
            yield f"{title(job)}: InteractiveMode cannot retry"


@rule
def token(documents: Sequence[Document]) -> Iterator[str]:
    for document, cluster in clusters(documents):
        options = cluster.get("authOptions", {})
        version = tuple(int(part) for part in cluster.get("rayVersion", "0.0").split(".")[:2])
        if options.get("mode") != "token" or version < (2, 52):
            yield f"{title(document)}: authOptions.mode token, with a rayVersion of 2.52 or newer, is missing"
        if options.get("enableK8sTokenAuth") and document["kind"] == "RayJob":
            yield f"{title(document)}: enableK8sTokenAuth is not for RayJobs"


@rule
def fixed_size(documents: Sequence[Document]) -> Iterator[str]:
    for document, cluster in clusters(documents):
        if cluster.get("enableInTreeAutoscaling"):
            yield f"{title(document)}: Ray's autoscaler grows what Kueue has admitted whole"
        for group in cluster.get("workerGroupSpecs", []):
            sizes = {group.get(name) for name in ("replicas", "minReplicas", "maxReplicas")}
            if len(sizes) > 1 or None in sizes:
                yield f"{title(document)} {group['groupName']}: replicas, minReplicas and maxReplicas differ"


@rule
def said_once(documents: Sequence[Document]) -> Iterator[str]:
    """Resources and labels of Ray's nodes: in the structured field or in rayStartParams, not both."""
    for document, cluster in clusters(documents):
        for group in groups(cluster):
            params, where = group.get("rayStartParams", {}), f"{title(document)} {group.get('groupName', 'head')}"
            if "labels" in params:
                yield f"{where}: rayStartParams.labels; use labels"
            if group.get("resources") and params.keys() & {"num-cpus", "num-gpus", "memory", "resources"}:
                yield f"{where}: resources and rayStartParams"
        env = {e["name"] for e in cluster["headGroupSpec"]["template"]["spec"]["containers"][0].get("env", [])}
        if env & {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"}:
            yield f"{title(document)}: what gcsFaultToleranceOptions and the operator set is set by env"
        if {"redis-password", "redis-username"} & cluster["headGroupSpec"].get("rayStartParams", {}).keys():
            yield f"{title(document)}: redis in rayStartParams; use gcsFaultToleranceOptions"


@rule
def no_alpha(documents: Sequence[Document]) -> Iterator[str]:
    """What KubeRay 1.7 knows behind gates that are off, and 1.6 does not know."""
    yield from (f"{title(document)}: alpha" for document in of(documents, "RayCronJob"))
    for document, cluster in clusters(documents):
        alpha = cluster.keys() & {"networkPolicy", "tlsOptions", "historyServerOptions"}
        if alpha or cluster.get("gcsFaultToleranceOptions", {}).get("backend", "redis") != "redis":
            yield f"{title(document)}: {sorted(alpha) or 'a backend'} is behind a gate that is off"


@rule
def heads_without_gpu(documents: Sequence[Document]) -> Iterator[str]:
    for document, cluster in clusters(documents):
        head = cluster["headGroupSpec"]
        limits = [c.get("resources", {}).get("limits", {}) for c in head["template"]["spec"]["containers"]]
        if any(GPU in limit for limit in limits) or head.get("rayStartParams", {}).get("num-cpus") != "0":
            yield f"{title(document)}: its head takes a GPU, or work"


# ---- Kueue ----


def _requests(documents: Sequence[Document]) -> Iterator[tuple[str, str, int, Document]]:
    """(job, group, pods, requests of each) of what a queue admits."""
    for document, cluster in clusters(documents):
        for group in groups(cluster):
            for container in group["template"]["spec"]["containers"]:
                count = group.get("replicas", 1) if "groupName" in group else 1
                yield (
                    title(document),
                    group.get("groupName", "head"),
                    count,
                    container.get("resources", {}).get("requests", {}),
                )


def _quotas(documents: Sequence[Document]) -> Iterator[Document]:
    for queue in of(documents, "ClusterQueue"):
        for group in queue["spec"]["resourceGroups"]:
            for flavor in group["flavors"]:
                yield from ({**resource, "flavor": flavor["name"]} for resource in flavor["resources"])


@rule
def queues(documents: Sequence[Document]) -> Iterator[str]:
    """What names a queue, a flavor or a priority names one that is there, and that has what is asked for."""
    local = {q["metadata"]["name"]: q["spec"]["clusterQueue"] for q in of(documents, "LocalQueue")}
    cluster = {q["metadata"]["name"]: q["spec"] for q in of(documents, "ClusterQueue")}
    flavors = {f["metadata"]["name"] for f in of(documents, "ResourceFlavor")}
    priorities = {p["metadata"]["name"] for p in of(documents, "WorkloadPriorityClass")}
    yield from (f"LocalQueue {name}: no ClusterQueue {to}" for name, to in local.items() if to not in cluster)
    for name, spec in cluster.items():
        named = {f["name"] for g in spec["resourceGroups"] for f in g["flavors"]}
        yield from (f"ClusterQueue {name}: no ResourceFlavor {flavor}" for flavor in named - flavors)
    for document in of(documents, "RayJob", "RayCluster"):
        labels = document["metadata"].get("labels", {})
        if labels.get(QUEUE) not in local:
            yield f"{title(document)}: queue {labels.get(QUEUE)} is not there"
        if labels.get("kueue.x-k8s.io/priority-class", next(iter(priorities), "")) not in priorities:
            yield f"{title(document)}: no such priority"
    covered = {r for spec in cluster.values() for g in spec["resourceGroups"] for r in g["coveredResources"]}
    cpus: Counter[str] = Counter()
    for what, group, count, requests in _requests(documents):
        yield from (f"{what} {group}: no queue covers {resource}" for resource in requests.keys() - covered)
        cpus[what] += count * int(requests.get("cpu", 0))
    quota = max((int(r["nominalQuota"]) for r in _quotas(documents) if r["name"] == "cpu"), default=0)
    yield from (f"{what}: asks for {n} CPUs of {quota}: never admitted" for what, n in cpus.items() if n > quota)


@rule
def flavors_fit(documents: Sequence[Document]) -> Iterator[str]:
    """A flavor's labels are injected: pods that select otherwise fit none. What is admitted whole must fit whole."""
    gpus = [f for f in of(documents, "ResourceFlavor") if f.get("spec", {}).get("nodeLabels")]
    quota = {r["flavor"]: int(r["nominalQuota"]) for r in _quotas(documents) if r["name"] == GPU}
    for document, cluster in clusters(documents):
        for group in cluster.get("workerGroupSpecs", []):
            pod = group["template"]["spec"]
            asked = sum(int(c["resources"].get("limits", {}).get(GPU, 0)) for c in pod["containers"])
            if not asked:
                continue
            fits = [f for f in gpus if f["spec"]["nodeLabels"].items() <= pod.get("nodeSelector", {}).items()]
            if len(fits) != 1:
                yield f"{title(document)}: its nodeSelector equals the labels of {len(fits)} flavors, not of one"
            elif asked * group["replicas"] > quota.get(fits[0]["metadata"]["name"], 0):
                yield f"{title(document)}: asks for more GPUs than {fits[0]['metadata']['name']} has: never admitted"


# ---- security ----


def _seccomp(context: Document) -> str:
    return str(context.get("seccompProfile", {}).get("type", ""))


@rule
def pod_security(documents: Sequence[Document]) -> Iterator[str]:
    """The restricted standard, as the API server applies it to pods that an operator makes of templates."""
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for what, space, pod in pods(documents):
        if space == PRIVILEGED:
            continue
        context = pod.get("securityContext", {})
        if pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}:
            yield f"{what}: shares the host's namespaces"
        if bad := {key for v in pod.get("volumes", []) for key in v.keys() - {"name"}} - allowed:
            yield f"{what}: volumes {sorted(bad)}"
        for container in containers(pod):
            own = {**context, **container.get("securityContext", {})}
            capabilities = own.get("capabilities", {})
            if own.get("runAsNonRoot") is not True or own.get("runAsUser", 1) == 0:
                yield f"{what} {container['name']}: may be root"
            if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
                yield f"{what} {container['name']}: may gain privileges"
            if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
                yield f"{what} {container['name']}: keeps capabilities"
            if _seccomp(own) not in ("RuntimeDefault", "Localhost"):
                yield f"{what} {container['name']}: no seccomp profile"
            if any("hostPort" in port for port in container.get("ports", [])):
                yield f"{what} {container['name']}: a port of the host"


@rule
def unprivileged(documents: Sequence[Document]) -> Iterator[str]:
    """Beyond the standard: nothing writes to its image, nobody has a token of the API, memory has a limit."""
    for what, space, pod in pods(documents):
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{what}: gets a service account's token"
        for container in containers(pod):
            if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
                yield f"{what} {container['name']}: writes to its root"
            if "memory" not in container.get("resources", {}).get("limits", {}):
                yield f"{what} {container['name']}: no limit of memory"
            if space != PRIVILEGED and container.get("securityContext", {}).get("privileged"):
                yield f"{what} {container['name']}: privileged"
    for space in of(documents, "Namespace"):
        level = space["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
        if level != ("privileged" if space["metadata"]["name"] == PRIVILEGED else "restricted"):
            yield f"{title(space)}: admits pods as {level}"


@rule
def images_by_digest(documents: Sequence[Document]) -> Iterator[str]:
    for what, _, pod in pods(documents):
        for container in containers(pod):
            if not re.search(r"@sha256:[0-9a-f]{64}$", container["image"]):
                yield f"{what} {container['name']}: {container['image']}"


@rule
def no_secrets(documents: Sequence[Document]) -> Iterator[str]:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|STORE_URI", re.IGNORECASE)
    yield from (f"{title(document)}: is a secret" for document in of(documents, "Secret"))
    for what, _, pod in pods(documents):
        for container in containers(pod):
            for variable in container.get("env", []):
                if secret.search(variable["name"]) and "value" in variable:
                    yield f"{what}: {variable['name']} is written out"
    for document in documents:
        if document["kind"] == "ConfigMap":
            yield from (f"{title(document)}: {key}" for key in document.get("data", {}) if secret.search(key))
        for path, text in strings(document):
            if re.search(r"://[^/\s:@]+:[^/\s@$]+@|-----BEGIN [A-Z ]*PRIVATE KEY", text):
                yield f"{title(document)}: {path} holds a password or a key"


@rule
def default_deny(documents: Sequence[Document]) -> Iterator[str]:
    """Each namespace has a policy for all its pods that allows nothing."""
    denied = {
        policy["metadata"]["namespace"]
        for policy in of(documents, "NetworkPolicy")
        if policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    }
    spaces = {d["metadata"]["name"] for d in of(documents, "Namespace")} | {space for _, space, _ in pods(documents)}
    yield from (f"namespace {space or '(none)'}: no default-deny" for space in sorted(spaces - denied))


@rule
def nothing_exposed(documents: Sequence[Document]) -> Iterator[str]:
    """No dashboard, job or metrics port is reached from outside, and inside by those only who are named."""
    for document in of(documents, "Ingress", "Gateway", "HTTPRoute", "Route"):
        yield f"{title(document)}: leads in from outside"
    for service in of(documents, "Service"):
        if service["spec"].get("type", "ClusterIP") != "ClusterIP" or service["spec"].get("externalIPs"):
            yield f"{title(service)}: reached from outside"
    for document, cluster in clusters(documents):
        head = cluster["headGroupSpec"]
        if head.get("serviceType", "ClusterIP") != "ClusterIP" or head.get("enableIngress") or head.get("headService"):
            yield f"{title(document)}: its head is reached from outside"
    for policy in of(documents, "NetworkPolicy"):
        for way, whom in (("ingress", "from"), ("egress", "to")):
            for entry in policy["spec"].get(way) or ():
                peers = entry.get(whom)
                if not peers or any("ipBlock" in p or not any(p.values()) for p in peers):
                    yield f"{title(policy)}: {way} of anybody"


@rule
def least_rights(documents: Sequence[Document]) -> Iterator[str]:
    yield from (
        f"{title(document)}: of the whole cluster" for document in of(documents, "ClusterRole", "ClusterRoleBinding")
    )
    for role in of(documents, "Role"):
        for entry in role["rules"]:
            words = {*entry["apiGroups"], *entry["resources"], *entry["verbs"]}
            if words & {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}:
                yield f"{title(role)}: {sorted(words)}"
