"""`tunefarm doctor` on this machine, on one without the heavy packages, and on a broken one."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tunefarm.cli import doctor, packages
from tunefarm.cli.doctor import Check, abilities, check_build, check_folder, check_package, check_torch

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "triton", "ray", "optuna", "mlflow", "numpy", "pynvml", "pandas")


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor.doctor)
    return app


def test_every_line_says_how_it_stands_and_what_to_do(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split()[:2] == ["ok", "Python"]
    for before, line in itertools.pairwise(lines):
        if before.startswith(("missing", "warn")):
            assert line.strip().startswith("-> "), f"no remedy for: {before}"
    assert "plan: yes" in lines


def test_json_is_for_machines(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["--json"])
    report = json.loads(done.output)
    assert report["can"]["plan"] is True
    assert {c["state"] for c in report["checks"]} <= {"ok", "warn", "missing"}
    assert {"Python", "CPUs", "GPU", "folder sweeps", "torch", "ray", "mlflow"} <= {c["name"] for c in report["checks"]}


@pytest.mark.parametrize(("arch", "target"), doctor.ARCHS.items())
def test_a_kernel_is_really_compiled_for_each_arch(arch: str, target: int) -> None:
    pytest.importorskip("triton")
    check = check_build(arch, target)
    assert check.state == "ok", check
    assert int(check.found.split()[-2]) > 1000, "bytes of a real binary"


def test_an_arch_that_does_not_compile_is_missing_with_the_reason() -> None:
    pytest.importorskip("triton")
    check = check_build("sm_1", 1)
    assert check.state == "missing"
    assert check.found.startswith("a small kernel does not compile: ")
    assert check.remedy


def test_a_client_without_the_heavy_packages_is_told_what_it_can_do() -> None:
    """The packages are hidden from import and from the list of what is installed, as on a laptop."""
    code = f"""
import importlib.metadata, importlib.util, sys
hidden = {HEAVY!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
find, version = importlib.util.find_spec, importlib.metadata.version
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in hidden else find(name, package)
def shown(name):
    if name in hidden or name == "nvidia-ml-py":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = shown
import typer
from tunefarm.cli.doctor import doctor
app = typer.Typer()
app.command()(doctor)
app(["--json"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report["can"].values()) == [True, False, False, False, False]
    checks = {c["name"]: c for c in report["checks"]}
    assert checks["torch"] | {"state": "missing", "remedy": "pip install 'tunefarm[farm]'"} == checks["torch"]
    assert checks["GPU"]["state"] == "missing"
    assert "build sm_90" not in checks


def test_nothing_possible_exits_as_a_fault_of_the_machine(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Check(name="pyyaml", state="missing", found="not installed", remedy="pip install")
    monkeypatch.setattr(doctor, "examine", lambda: iter([lacking]))
    assert CliRunner().invoke(app, []).exit_code == 3


def test_what_can_be_done_follows_from_what_was_found() -> None:
    names = ["pyyaml", "folder sweeps", "torch", "triton", "build sm_80", "optuna", "numpy", "GPU"]
    found = [Check(name=name, state="ok", found="") for name in names]
    assert all(abilities(found).values())
    no_gpu = [*found[:-1], Check(name="GPU", state="missing", found="none")]
    assert list(abilities(no_gpu).values()) == [True, True, True, True, False]
    no_build = [c for c in found if c.name != "build sm_80"]
    assert list(abilities(no_build).values()) == [True, True, False, False, False]


def test_a_folder_that_does_not_exist_is_judged_by_its_parent(tmp_path: Path) -> None:
    check = check_folder("sweeps", tmp_path / "a" / "b")
    assert check.state == "ok"
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_a_folder_that_cannot_be_written_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # tests may run as root, whom no mode bits stop
    check = check_folder("sweeps", tmp_path)
    assert (check.state, check.found) == ("missing", f"{tmp_path} cannot be written: Permission denied")


def test_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 1 << 60)
    assert check_folder("sweeps", tmp_path).state == "warn"


@pytest.mark.parametrize(
    ("version", "state"), [("2.9.1", "warn"), ("2.11", "ok"), ("2.11.0+cu130", "ok"), ("3.0", "ok")]
)
def test_a_version_too_old_is_a_warning(version: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert check_package("torch", "2.11").state == state


def test_a_torch_that_does_not_load_is_missing_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Check(name="torch", state="ok", found="2.11.0")
    monkeypatch.setitem(sys.modules, "torch", None)
    check = check_torch(installed)
    assert (check.state, check.found.split(":")[0]) == ("missing", "2.11.0 does not load")
    assert check.remedy


def test_the_oldest_versions_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = dict(line.split(">=") for line in [*extras["client"], *extras["farm"]] if ">=" in line)
    assert {name.split("[")[0]: oldest for name, oldest in wanted.items()} == packages.OLDEST
    assert tuple(line.split(">=")[0] for line in extras["client"]) == packages.CLIENT
