"""Experiments drafted from kernels: what is read, what is guessed, and that the guesses are said."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from tunefarm.cli.opening import open_experiment, plan_targets
from tunefarm.errors import SpecError
from tunefarm.plan import PlannedStudy
from tunefarm.spec.autotuned import read_autotuned
from tunefarm.spec.draft import FILL_IN, Draft, draft
from tunefarm.spec.experiment import Experiment, Resolved, load_experiment
from tunefarm.spec.importing import import_object

ROOT = Path(__file__).parents[1]
SHIPPED = sorted(p.stem for p in (ROOT / "experiments" / "kernels").glob("*.py") if p.stem != "rowwise")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    shutil.copy(ROOT / "tests" / "drafted.py", folder / "drafted.py")
    shutil.copytree(ROOT / "experiments" / "kernels", folder / "kernels")
    return folder


def drafted(folder: Path, kernel: str, file: str = "drafted.py") -> Draft:
    return draft(f"{folder / file}:{kernel}", folder)


def loaded(made: Draft, folder: Path) -> Experiment:
    return load_experiment(folder / "draft.yaml", made.text)


def planned(made: Draft, folder: Path) -> tuple[Resolved, list[PlannedStudy]]:
    resolved = open_experiment(folder / "draft.yaml", made.text)
    return resolved, plan_targets(resolved, [])


def test_an_autotuned_kernel_is_read(folder: Path) -> None:
    made = drafted(folder, "matmul_kernel")
    resolved, (study,) = planned(made, folder)
    autotuned = read_autotuned(resolved.workload.kernel)
    assert autotuned is not None
    assert resolved.workload.key == ("M", "N", "K")
    assert set(autotuned.configs) <= set(study.candidates)
    assert len(study.candidates) + sum(study.removed.values()) == study.num_points == 3 * 4 * 2 * 3 * 3
    assert made.facts["kernel"] == "matmul_kernel, 5 declared configs, key M, N, K"
    # Only what nobody can read is open: what is right, and which sizes matter.
    assert [what.split()[0:3] for _, what in made.open_lines] == [["the", "same", "in"], ["what", "your", "job"]]
    assert {name: str(spec.shape) for name, spec in (resolved.experiment.inputs or {}).items()}.keys() == {"a", "b"}
    assert "not given: activation" in made.text


def test_restored_and_zeroed_arguments_are_written_down(folder: Path) -> None:
    workload = loaded(drafted(folder, "relu_kernel"), folder).workload
    assert (workload.restore, workload.zero, workload.key) == (("x",), ("y",), ("n",))
    assert workload.call == "drafted.py:relu"  # around the autograd function, which takes nothing by name


def test_a_plain_kernel_gets_launch_options_and_what_its_call_leaves_open(folder: Path) -> None:
    experiment = loaded(drafted(folder, "add_kernel"), folder)
    assert [param.name for param in experiment.space] == ["num_warps", "num_stages"]
    assert experiment.workload.reference == "drafted.py:add_reference"
    made = drafted(folder, "fill_kernel")
    resolved, (study,) = planned(made, folder)
    assert [param.name for param in resolved.experiment.space] == ["BLOCK", "num_warps", "num_stages"]
    assert study.default in study.candidates
    assert "default: {BLOCK: 128}" in made.text


def test_shapes_are_followed_through_views(folder: Path) -> None:
    made = drafted(folder, "_swiglu_forward_kernel")
    assert "  a: [n_rows, n_cols]\n" in made.text
    assert f"  b: [n_rows, n_cols] # {FILL_IN}: its shape; this is a guess\n" in made.text


def test_a_dim_without_a_name_is_a_dim(folder: Path) -> None:
    made = drafted(folder, "halves_kernel")
    assert f"  x: [n_rows, x_1] # {FILL_IN}: its shape; this is a guess\n" in made.text
    _, (study,) = planned(made, folder)
    assert study.candidates


def test_scalars_are_values_and_names_do_not_collide(folder: Path) -> None:
    made = drafted(folder, "scale_kernel")
    assert "# scale_by_two launches it, too" in made.text
    assert "  n: {value: n}\n" in made.text
    assert f"  factor: {{value: 1.0}} # {FILL_IN}: a float\n" in made.text
    assert f"  flag: {{value: false}} # {FILL_IN}: a bool\n" in made.text
    assert "they do not all name the same params" in made.text
    experiment = loaded(made, folder)
    assert experiment.space == ()
    assert {"n", "num_warps"} <= set(experiment.problems[0].variables)


def test_one_declared_config_is_one_step_around(folder: Path) -> None:
    space = {param.name: param.values for param in loaded(drafted(folder, "lonely_kernel"), folder).space}
    assert space == {"BLOCK": (48,), "num_warps": (16, 32), "num_stages": (1, 2)}


def test_what_nobody_launches_says_so_in_draft_and_plan(folder: Path) -> None:
    made = drafted(folder, "lonely_kernel")
    assert made.facts["call"] == "no function found that launches it"
    loaded(made, folder)
    with pytest.raises(SpecError, match="has no 'FILL_IN'") as caught:
        planned(made, folder)
    line = int(caught.value.file.rpartition(":")[2])
    assert line in dict(made.open_lines)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_kernels_that_come_with_it_plan_at_once(folder: Path, name: str) -> None:
    made = drafted(folder, f"{name}_kernel", f"kernels/{name}.py")
    resolved, (study,) = planned(made, folder)
    autotuned = read_autotuned(import_object(f"kernels/{name}.py:{name}_kernel", str(folder)))
    assert autotuned is not None
    assert resolved.experiment.workload.object == f"kernels/{name}.py:workload"
    points = math.prod(len(param.values) for param in resolved.experiment.space)
    assert study.num_points == points
    assert resolved.workload.default in resolved.space.points(study.study.variables, study.study.device).configs
    assert set(autotuned.configs) <= set(study.candidates)


def test_a_module_is_named_as_it_is_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    made = draft("bench_kernels:descriptor_kernel", folder)
    assert "  call: bench_kernels:with_descriptors\n" in made.text
    made = draft("bench_kernels:scale_kernel", folder)
    assert "workload: bench_kernels:scaling #" in made.text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("drafted.py:no_kernel", "is not a Triton kernel"),
        ("drafted.py:matmul_kernle", "did you mean 'matmul_kernel'"),
        ("missing.py:kernel", "missing.py is not there"),
        ("no.such.module:kernel", "No module named"),
        ("drafted.py", "names no object"),
    ],
)
def test_what_is_no_kernel_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SpecError) as caught:
        draft(target, folder)
    assert said in str(caught.value)


def test_paths_start_at_the_experiment(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    made = draft("drafted.py:add_kernel", folder / "experiments")
    assert "  call: ../drafted.py:add\n" in made.text
    (folder / "experiments").mkdir()
    planned(made, folder / "experiments")


def test_a_linked_file_keeps_its_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "linked.py").symlink_to(folder / "drafted.py")
    assert "  call: linked.py:add\n" in draft(f"{tmp_path / 'linked.py'}:add_kernel", tmp_path).text
