"""README: its links exist, its commands are the CLI's, its experiment loads, no placeholder is left."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
import typer

from tunefarm.cli.app import app
from tunefarm.cli.opening import open_experiment
from tunefarm.device import nominal
from tunefarm.plan import Target, plan
from tunefarm.spec.experiment import load_experiment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = [line.removeprefix("$ ") for line in README.splitlines() if line.startswith("$ ")]


def test_links_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_nothing_is_left_to_be_filled_in():
    assert "<<" not in README
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("line", [line for line in COMMANDS if re.match(r"(\S*/)?tunefarm ", line)])
def test_commands_are_the_command_line_s(line):
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, line
        command = command.commands[name]
    # Parsing alone: unknown options, missing arguments and wrong types raise.
    command.make_context(command.name, words, resilient_parsing=False)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.split()[0].endswith("python")])
def test_scripts_exist(line):
    assert (ROOT / line.split()[1]).exists()


def test_make_targets_exist():
    targets = {word for line in COMMANDS if line.startswith("make ") for word in line.split()[1:]}
    assert targets
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)


def test_the_checks_shown_are_read(tmp_path):
    (block,) = re.findall(r"```text\n(checks:.*?)```", README, flags=re.DOTALL)
    head = "name: x\nworkload: kernels.py:workload\nproblems: [{n_rows: 4, n_cols: 64}]\ndevices: [sm_90]\n"
    path = tmp_path / "x.yaml"
    path.write_text(head + block)
    experiment = load_experiment(path)
    assert len(experiment.checks) == 5
    assert (experiment.accept.same_bits, experiment.accept.one_config_over) == ("repeat", ("n_rows",))


def test_the_experiment_without_python_loads(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "experiment.yaml"
    path.write_text(block)
    experiment = load_experiment(path)
    assert len(experiment.problems) == 2
    assert len(block.strip().splitlines()) <= 10


def test_the_experiment_with_a_workload_of_ones_own_plans(tmp_path):
    (block,) = re.findall(r"```text\n(name: softmax\n.*?)```", README, flags=re.DOTALL)
    shutil.copytree(ROOT / "experiments" / "kernels", tmp_path / "kernels")
    (tmp_path / "experiment.yaml").write_text(block)
    studies = plan(open_experiment(tmp_path / "experiment.yaml"), [Target(device=nominal("sm_90"))])
    assert [len(study.candidates) > 20 for study in studies] == [True, True]


def test_the_tree_names_what_is_there():
    (tree,) = re.findall(r"## Layout\n\n```text\n(.*?)```", README, flags=re.DOTALL)
    named = set(re.findall(r"^ *(\w+)/", tree, flags=re.MULTILINE))
    folders = {p.name for p in (ROOT / "tunefarm").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= named
    assert all((ROOT / name).exists() or (ROOT / "tunefarm" / name).exists() for name in named)
