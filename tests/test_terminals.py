"""The command in terminals as they come: without UTF-8, narrow, without colour, dumb, or gone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from farm import Warm, command, environment, write_experiment
from runtime_kernels import LADDER, make_pack, own

from tunefarm.cli.app import app
from tunefarm.pack import dumps

ROOT = Path(__file__).parents[1]
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
TERMINALS = {
    "ascii-40": {**ASCII, "COLUMNS": "40", "NO_COLOR": "1"},
    "dumb-ascii-80": {**ASCII, "COLUMNS": "80", "TERM": "dumb"},
}


def verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, member in group.commands.items():
        if hasattr(member, "commands"):
            yield from verbs(member, (*path, name))
        else:
            yield (*path, name)


GROUP = typer.main.get_command(app)
VERBS = sorted(verbs(GROUP))
LINES = {
    "plan experiment.yaml": 0, "plan missing.yaml": 2, "doctor": 0, "pack show pack.json": 0, "pack schema": 0,
    "pack which pack.json own n=300 --device H100": 1, "sweep": 2, "frobnicate": 2, "init ops.py:no_kernel": 2,
    "init ops.py:matmul_kernel -o new.yaml": 0,
}  # fmt: skip
"""What is said, and how it ends."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminals")
    write_experiment(folder, devices=["sm_90"])
    shutil.copy(ROOT / "tests" / "drafted.py", folder / "ops.py")
    (folder / "pack.json").write_text(dumps(make_pack(own, *LADDER)))
    return folder


def run(folder: Path, store: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the encoding is chosen as Python starts."""
    return subprocess.run(
        command(*words), cwd=folder, env=environment(store, **more), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("terminal", TERMINALS)
def test_every_terminal_is_spoken_to(folder: Path, store: Path, terminal: str, line: str) -> None:
    (folder / "new.yaml").unlink(missing_ok=True)
    done = run(folder, store, *line.split(), **TERMINALS[terminal])
    said = done.stdout + done.stderr
    assert done.returncode == LINES[line]
    assert "Traceback" not in said
    assert "\x1b" not in said
    assert said.isascii()
    assert said.strip()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_help_has_an_example_and_fits(folder: Path, store: Path, warm: Warm, verb: tuple[str, ...]) -> None:
    for columns in (80, 40):
        environment = {**ASCII, "COLUMNS": str(columns)}
        done = warm(*verb, "--help", folder=folder, store=store, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Example: {'git' if verb[-1] == 'merge-driver' else 'tunefarm'}" in " ".join(done.stdout.split())
        member: click.Command | click.Group = GROUP
        for name in verb:
            member = member.commands[name]  # type: ignore[union-attr]
        for option in (opt for param in member.params for opt in param.opts if opt.startswith("--")):
            assert option in done.stdout, f"{option} is cut at {columns} columns"


def test_help_for_a_real_narrow_ascii_terminal(folder: Path, store: Path) -> None:
    done = run(folder, store, "sweep", "--help", **TERMINALS["ascii-40"])
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 50  # the least that click formats for
    assert "--optuna-storage" in done.stdout


def test_a_table_that_does_not_fit_becomes_paragraphs(folder: Path, store: Path) -> None:
    narrow = run(folder, store, "pack", "show", "pack.json", **TERMINALS["ascii-40"]).stdout
    assert "config   BLOCK=128 num_warps=4\ntime     1.000 ms\n" in narrow
    assert "~" not in narrow
    wide = run(folder, store, "pack", "show", "pack.json", **TERMINALS["dumb-ascii-80"]).stdout
    assert "margin" in wide.splitlines()[6]
    assert max(map(len, wide.splitlines())) <= 80


def test_a_folder_that_the_locale_cannot_read_is_told_in_one_line(tmp_path: Path, store: Path) -> None:
    write_experiment(tmp_path / "B\u00fcro", devices=["sm_90"])
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(tmp_path / "B\u00fcro", store, "plan", "experiment.yaml", **locale)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": this locale cannot read such a name (set PYTHONUTF8=1)\n")
    assert done.stderr.count("\n") == 1


def test_letters_that_a_terminal_lacks_become_question_marks(folder: Path, store: Path) -> None:
    done = run(folder, store, "plan", "größe….yaml", **ASCII)
    assert done.returncode == 2
    assert done.stderr == "error: gr??e~.yaml: no such file\n"


@pytest.mark.parametrize("words", [["pack", "schema"], ["plan", "experiment.yaml", "--json"], ["--help"]], ids=" ".join)
def test_who_stops_listening_is_left_in_peace(folder: Path, store: Path, words: list[str]) -> None:
    with subprocess.Popen(
        command(*words), cwd=folder, env=environment(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=120)
    assert err == ""


def test_nobody_listening_at_all_is_no_error(folder: Path, store: Path) -> None:
    words = " ".join(command("pack", "show", "pack.json", "--json"))
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], cwd=folder, env=environment(store), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_json_is_the_same_everywhere(folder: Path, store: Path) -> None:
    said = [run(folder, store, "pack", "show", "pack.json", "--json", **more).stdout for more in TERMINALS.values()]
    assert len(set(said)) == 1
    assert json.loads(said[0])["tables"]
