"""Documents: links and anchors exist, commands are the CLI's and are run, blocks load, nothing is left open."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import click
import pytest
import typer
import yaml
from documented import ROOT, Reader, Step, blocks, documents, lacking, steps

from tunefarm.cli.app import app
from tunefarm.cli.opening import open_experiment
from tunefarm.device import nominal
from tunefarm.plan import Target, plan
from tunefarm.spec.experiment import load_experiment

pytestmark = pytest.mark.timeout(600)  # the first to need it waits until the README was followed

README, GUIDE = ROOT / "README.md", ROOT / "experiments/GUIDE.md"
DOCUMENTS = documents()
COMMANDS = {document: [s for s in steps(document) if s.command] for document in DOCUMENTS}
ALL = [step for found in COMMANDS.values() for step in found]

GPU = "measures on a GPU, or compares with what one measured"
CLUSTER = "asks a cluster"
LONG = "takes minutes of two CPUs"
THEIRS = "is another's program, or needs another's files"
SKIPPED = {
    ". .venv/bin/activate": "the environment of the tests is active",
    "tunefarm sweep experiments/softmax.yaml --meter gpu": GPU,
    "tunefarm sweep swiglu.yaml --meter gpu": GPU,
    "tunefarm record ": GPU,
    "tunefarm aa ": GPU,
    "tunefarm sweep harvested/block": GPU,
    "tunefarm sweep softmax-misses.yaml": "follows a job on a GPU; the guide has one that runs here",
    "tunefarm misses reports --experiment experiments/softmax.yaml": "follows a job on a GPU; so does the guide's",
    "TUNEFARM_PACK=packs/softmax.json TUNEFARM_REPORT=reports python -m tunefarm.runtime train.py": GPU,
    "python experiments/training.py": GPU,
    "python experiments/benchmarks/compare.py --only": GPU,
    "python experiments/benchmarks/regret.py": GPU,
    "python experiments/benchmarks/autotune.py": GPU,
    "python experiments/benchmarks/noise.py": GPU,
    "python experiments/benchmarks/agreement.py": GPU,
    "python experiments/benchmarks/first_call.py": GPU,
    "python experiments/benchmarks/launch.py": GPU,
    "tunefarm pack check packs/softmax.json experiments/softmax.yaml": GPU,
    "tunefarm pack bisect ": "finds a row that does harm, and this pack has none: tests/test_pack_bisect.py",
    "tunefarm status kernels--softmax": CLUSTER,
    "tunefarm logs ": CLUSTER,
    "tunefarm cancel ": CLUSTER,
    "tunefarm promote softmax --tracking http": "asks a server; the guide promotes in a database",
    "tunefarm compare models:": "asks a registry that holds a champion; the guide has one",
    "tunefarm build experiments/softmax.yaml": LONG,
    "tunefarm sweep experiments/softmax.yaml experiments/rms_norm.yaml": LONG,
    "tunefarm sweep experiments/rms_norm.yaml": LONG,
    "tunefarm harvest ": LONG + ": tests/test_harvest.py",
    "python experiments/benchmarks/search.py": LONG + ": tests/test_benchmark_search.py",
    "python experiments/benchmarks/scale.py": LONG,
    "tunefarm sweep fla-matmul.yaml": THEIRS + ": tests/test_third_party.py",
    "tunefarm pack import ": THEIRS + ": tests/test_interop.py",
    "pip install ": THEIRS,
    "optuna-dashboard ": THEIRS,
    "tunefarm sweep experiments/softmax.yaml --metrics-port": "opens a port that may be taken: tests/test_metrics.py",
}
"""Commands that are not run, by their beginning, with the reason."""

EXITS = {
    "tunefarm pack which packs/swiglu.json swiglu_kernel n_cols=8192 --device H100 --allow-replayed": 1,
    "tunefarm pack diff old.json packs/softmax.json": 0,
    "tunefarm pack revalidate packs/softmax.json experiments/softmax.yaml -o packs/softmax.json": 1,
}
"""Exit codes that documents speak of, where the command is run on what this reader has made."""

VARYING = ("tunefarm doctor", "tunefarm caches")
"""Commands that say what machine this is."""


STAND_INS = (
    "old.json",
    "main.json",
    "packs/h100.json",
    "packs/a100.json",
    *(f"packs/softmax-{n}-of-8.json" for n in (1, 2)),
)
"""Packs that documents name and nobody made here: each is the one that the README made."""


def str_of(document: Path) -> str:
    """A document's name, the same on every machine."""
    return str(document.relative_to(ROOT))


def program(command: str) -> str:
    """What a command starts, without the variables that it sets."""
    return next(word for word in shlex.split(command) if not re.match(r"\w+=", word)).rpartition("/")[2] or "."


def is_skipped(command: str) -> bool:
    return any(command.startswith(beginning) for beginning in SKIPPED)


# ---- followed ----


def make(reader: Reader, step: Step) -> None:
    """`make` as documented, but that the environment it would set up is this one."""
    binaries = shlex.quote(reader.environment["PATH"].split(os.pathsep)[0])
    words = f"make --old-file=.venv/.ready BIN={binaries} {step.command.removeprefix('make ')}"
    reader.give(Step(place=step.place, command=f"exec {words}", output=step.output))


def serve(reader: Reader, step: Step) -> None:
    """A server, on a port of its own, until its page and its runs were seen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*shlex.split(step.command), "--port", str(port), "--workers", "1"]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(
        words, cwd=reader.folder, env={**reader.environment, **quiet}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        page = f"http://127.0.0.1:{port}"
        assert "<title>MLflow</title>" in _ask(page, server)
        found = json.loads(_ask(f"{page}/api/2.0/mlflow/experiments/search", server, {"max_results": 100}))
        (ours,) = [e["experiment_id"] for e in found["experiments"] if e["name"] == "softmax"]
        search = {"experiment_ids": [ours], "filter": "tags.`tunefarm.kind` = 'study' and metrics.gain > 1.2"}
        runs = json.loads(_ask(f"{page}/api/2.0/mlflow/runs/search", server, search))["runs"]
        assert len(runs) == 4
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _ask(address: str, server: subprocess.Popen[bytes], body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())
        time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """One who has followed the README, and stands where it left them."""
    reader = Reader(
        folder=tmp_path_factory.mktemp("clone"), cache=tmp_path_factory.mktemp("cache"), exits=EXITS, varying=VARYING,
        instead={"make ": make, "mlflow ui": serve}, skipped=is_skipped,
    )  # fmt: skip
    reader.unpack()
    reader.follow(README)
    return reader


def test_the_readme_can_be_followed(reader: Reader) -> None:
    assert reader.done[0] == "make sweep"
    page = (reader.folder / "softmax.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "replayed" in page
    assert "REPLAYED" in (reader.folder / "softmax.md").read_text()


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d != README and COMMANDS[d]], ids=str_of)
def test_a_document_can_be_followed(reader: Reader, document: Path) -> None:
    pack = reader.folder / "packs/softmax.json"
    for name in STAND_INS:
        shutil.copy(pack, reader.folder / name)
    reader.follow(document)


def test_the_results_shown_are_those_recorded(reader: Reader) -> None:
    page = "experiments/benchmarks/README.md"
    (draw,) = [step for step in COMMANDS[ROOT / page] if "--draw" in step.command]
    reader.give(draw)
    assert (reader.folder / page).read_text() == (ROOT / page).read_text()


def test_every_command_is_run_or_left_out_for_a_reason() -> None:
    assert len(ALL) > 60
    assert {beginning for beginning in SKIPPED if not any(s.command.startswith(beginning) for s in ALL)} == set()
    assert {c for c in EXITS if not any(s.command == c for s in ALL)} == set()


def test_what_is_documented_is_compared_but_for_the_day_and_the_machine() -> None:
    told = ("softmax   21.3 us", "wall 86.6 s", "2026-11-30, torch 2.11.0+cu130", "store /tmp/x", "...", "──")
    assert lacking(told, "wall 4 s\nsoftmax 21.3 us\n2027-01-01, torch 2.13.0\nstore /home/y/z\n") == []
    assert lacking(told[:1], "softmax 21.4 us\n") == ["softmax 21.3 us"]
    assert lacking(("twice", "twice"), "twice\n") == ["twice"]


# ---- read ----


@pytest.mark.parametrize("document", DOCUMENTS, ids=str_of)
def test_links_and_anchors_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        if not path.startswith("http"):
            there = (document.parent / path).resolve() if path else document
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link


def anchors(document: Path) -> set[str]:
    """Those of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_nothing_is_left_to_be_filled_in() -> None:
    for document in DOCUMENTS:
        assert not re.search(r"<<|TODO|TBD|@@", document.read_text("utf-8")), document
    assert 250 < len(README.read_text("utf-8").splitlines()) < 420, "a newcomer reads it in ten minutes"


@pytest.mark.parametrize("step", [s for s in ALL if "tunefarm" in program(s.command)], ids=lambda s: s.place)
def test_a_command_is_the_command_line_s(step: Step) -> None:
    words = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), shlex.split(step.command)))[1:]
    command = typer.main.get_command(app)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, step
        command = command.commands[name]
    # Parsing alone: unknown options, missing arguments and wrong types raise.
    command.make_context(command.name, words, resilient_parsing=False)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str_of)
def test_what_a_command_names_is_there(document: Path) -> None:
    saved = {step.path for step in steps(document)}
    known = {"make", "python", "tunefarm", "mlflow", "git", "echo", "cp", "pip", "optuna-dashboard", "."}
    for step in COMMANDS[document]:
        assert program(step.command) in known, step
        words = [word for word in shlex.split(step.command) if "=" not in word]
        if words[0] == "python" and words[1] != "-m":
            assert words[1] in saved or (ROOT / words[1]).exists(), step
        if words[0] == "make":
            assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in words[1:]), step
    targets = re.findall(r"`make ([a-z-]+)", document.read_text("utf-8"))
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str_of)
def test_a_block_of_python_is_python(document: Path) -> None:
    for block in blocks(document):
        if block.language == "python":
            ast.parse(block.text, f"{document}:{block.line}")


HEAD = {"name": "x", "workload": "kernels.py:workload", "problems": [{"n_rows": 4}], "devices": ["sm_90"]}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str_of)
def test_a_block_of_yaml_is_an_experiment_or_a_part_of_one(document: Path, tmp_path: Path) -> None:
    for block in blocks(document):
        if block.language == "yaml":
            path = tmp_path / "experiment.yaml"
            given = yaml.safe_load(block.text)
            rest = {} if "name" in given else {key: value for key, value in HEAD.items() if key not in given}
            path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in rest.items()) + block.text)
            load_experiment(path)


def yaml_block(document: Path, beginning: str) -> str:
    (block,) = [b for b in blocks(document) if b.language == "yaml" and b.text.startswith(beginning)]
    return block.text


def test_the_checks_shown_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in HEAD.items())
    path.write_text(head + yaml_block(ROOT / "tunefarm/search/README.md", "checks:"))
    experiment = load_experiment(path)
    assert len(experiment.checks) == 5
    assert (experiment.accept.same_bits, experiment.accept.one_config_over) == ("repeat", ("n_rows",))


def test_the_experiment_without_python_is_short(tmp_path: Path) -> None:
    block = yaml_block(GUIDE, "name: fla-matmul\n")
    path = tmp_path / "experiment.yaml"
    path.write_text(block)
    assert len(load_experiment(path).problems) == 2
    assert len(block.strip().splitlines()) <= 10


def test_the_experiment_with_a_workload_of_ones_own_plans(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "experiments" / "kernels", tmp_path / "kernels")
    (tmp_path / "experiment.yaml").write_text(yaml_block(GUIDE, "name: softmax\n"))
    studies = plan(open_experiment(tmp_path / "experiment.yaml"), [Target(device=nominal("sm_90"))])
    assert [len(study.candidates) > 20 for study in studies] == [True, True]


def test_the_tree_names_what_is_there() -> None:
    (tree,) = re.findall(r"## Layout\n\n```text\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"^ *(\w+)/", tree, flags=re.MULTILINE))
    folders = {p.name for p in (ROOT / "tunefarm").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= named
    assert all((ROOT / name).exists() or (ROOT / "tunefarm" / name).exists() for name in named)
