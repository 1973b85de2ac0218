"""`tunefarm inspect`, as people run it: a card, two configs side by side, stages, winners, and what is no use to it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm import KERNEL, Warm, tunefarm, write_experiment, write_landscape
from inspected import looked

from tunefarm.cli.opening import open_experiment
from tunefarm.config import LIBRARY
from tunefarm.device import nominal
from tunefarm.errors import UserError
from tunefarm.inspecting import choose, default_config, written_config
from tunefarm.plan import Target, plan

SWEEP = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--quiet")

MADE_BY_EXEC = KERNEL.replace("@triton.jit", 'TEXT = """\n@triton.jit').replace(
    "mask=i < n)\n",
    'mask=i < n)\n"""\nspace = {"triton": triton, "tl": tl}\nexec(TEXT, space)\nfill_kernel = space["fill_kernel"]\n',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """A finished sweep of two problems, and the pack that it exported."""
    made = tmp_path_factory.mktemp("inspect")
    problems = [{"n": [1000, 4096], "dtype": "fp32"}]
    write_landscape(write_experiment(made, problems=problems, export="packs/fill.json"))
    done = tunefarm(*SWEEP, folder=made, store=store)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def ask(folder: Path, store: Path, warm: Warm) -> Any:
    """Runs the verb in that folder, and gives what it printed."""

    def run(*arguments: str | Path, code: int = 0) -> str:
        done = warm("inspect", *arguments, folder=folder, store=store)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stderr if code else done.stdout

    return run


def test_a_card(ask: Any) -> None:
    lines = ask("experiment.yaml").splitlines()
    assert lines[0] == (
        "fill_kernel on sm_90, by the limits of NVIDIA H100 80GB HBM3; study 1 of 2: fill sm_90 1000 fp32"
    )
    told = {line[:15].strip(): line[15:] for line in lines[1:]}
    assert told["config"] == "BLOCK=64 MARK=0 num_warps=4"
    assert told["registers"].endswith(" of 255 a thread")
    assert told["spills"] == told["tensor cores"] == told["TMA"] == "none"
    assert told["occupancy"] == "100%: 16 blocks on an SM, 64 of 64 warps; limit: warps"
    assert told["grid"] == "16 programs of 4 warps, 0.0 waves on 132 SMs"
    assert told["loops"] == "ttir 0, ttgir 0, ptx 0, sass 0"
    assert "few programs: 16 programs for the 132 SMs of NVIDIA H100 80GB HBM3" in lines
    assert lines[-1].startswith("note: counted in the code, for which no GPU is needed")


@pytest.mark.parametrize("study", ["2", "fill sm_80 4096 fp32", "n=4096", "dtype=fp32 n=4096"])
def test_a_study_by_number_name_or_variables(ask: Any, study: str) -> None:
    assert "study 2 of 2: fill sm_80 4096 fp32" in ask("experiment.yaml", "--device", "sm_80", "--study", study)


def test_no_study_named_is_the_first_that_is_not_skipped(folder: Path) -> None:
    first, second = plan(open_experiment(folder / "experiment.yaml"), [Target(device=nominal("sm_90"))])
    assert choose([first, second], "", "x.yaml") is first
    skipped = replace(first, skipped="empty problem")
    assert choose([skipped, second], "", "x.yaml") is second
    with pytest.raises(UserError, match=r"x\.yaml: fill sm_90 1000 fp32 is skipped: empty problem"):
        choose([skipped, second], "1", "x.yaml")
    with pytest.raises(UserError, match="is skipped"):
        choose([skipped], "", "x.yaml")


def test_what_the_library_answers_has_no_kernel(folder: Path) -> None:
    resolved = open_experiment(folder / "experiment.yaml")
    study = replace(plan(resolved, [Target(device=nominal("sm_90"))])[0], default=LIBRARY)
    with pytest.raises(UserError, match="is answered by the library's call, of which there is no Triton kernel"):
        default_config(study)
    with pytest.raises(UserError, match="leaves out MARK, num_warps"):
        written_config(study, resolved, "BLOCK=64")
    assert written_config(study, resolved, "BLOCK=64 MARK=1 num_warps=2").flat["MARK"] == 1
    with pytest.raises(UserError, match="what fill sm_90 1000 fp32 uses without tuning is not known"):
        default_config(replace(study, default=None))


def test_two_configs_side_by_side(ask: Any) -> None:
    text = ask("experiment.yaml", "--config", "BLOCK=256", "--against", "BLOCK=256 num_warps=2")
    marked = [line.partition("*")[0].strip() for line in text.splitlines() if "*" in line]
    assert {"config", "grid", "blocks allowed"} <= set(marked)
    assert not {"shared memory", "compiled in"} & set(marked)
    assert "other: BLOCK=256 MARK=0 num_warps=2" in text


def test_as_json(ask: Any) -> None:
    document = json.loads(ask("experiment.yaml", "--json", "--against", "num_warps=1"))
    one, other = document["configs"]
    assert document["study"] == "study 1 of 2: fill sm_90 1000 fp32"
    assert one["config"]["options"] == {"num_warps": 4}
    assert (one["num_warps"], other["num_warps"]) == (4, 1)
    limits = other["occupancy"]["limits"]
    assert (limits["shared memory"], limits["warps"], limits["blocks"]) == (228, 64, 32)
    assert other["occupancy"]["limiters"] == ["blocks"]
    assert one["stages"] == ["ttir", "ttgir", "llir", "ptx", "sass"]
    assert one["findings"][0]["kind"] == "few programs"
    assert one["usage"]["registers"] > 0


@pytest.mark.parametrize(
    ("stage", "holds"),
    [("ttir", "tt.store"), ("ttgir", "#ttg.blocked"), ("llir", "define"), ("ptx", ".target sm_90a"), ("sass", "STG.E")],
)
def test_a_stage_is_printed(ask: Any, stage: str, holds: str) -> None:
    text = ask("experiment.yaml", "--stage", stage)
    assert holds in text
    assert "registers" not in text.splitlines()[0]


def test_stages_are_written(ask: Any, folder: Path) -> None:
    listed = ask("experiment.yaml", "--out", "stages").split()
    names = [f"stages/fill_kernel.sm_90.{stage}" for stage in ("ttir", "ttgir", "llir", "ptx", "sass")]
    assert listed == names
    assert all((folder / name).stat().st_size for name in names)
    both = ask("experiment.yaml", "--out", "stages", "--stage", "ptx", "--against", "num_warps=1").split()
    assert both == ["stages/fill_kernel.sm_90.one.ptx", "stages/fill_kernel.sm_90.other.ptx"]
    one, other = ((folder / name).read_text() for name in both)
    assert ".reqntid 128" in one
    assert ".reqntid 32" in other


def test_the_winner_of_a_sweep_and_of_a_pack(ask: Any) -> None:
    wanted = "config         BLOCK=256 MARK=0 num_warps=2"
    choice = ("experiment.yaml", "--study", "n=4096", "--config", "winner")
    assert wanted in ask(*choice)
    assert wanted in ask(*choice, "--sweep", "sweeps/fill/ledger.jsonl")
    assert wanted in ask(*choice, "--pack", "packs/fill.json")


def test_a_cubin_of_triton_s_cache(ask: Any, folder: Path) -> None:
    """All that its folder holds is read; what only a launch knows is not made up."""
    look = looked("softmax", "sm_90")
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    (cache / "softmax_kernel.cubin").write_bytes(look.cubin)
    (cache / "softmax_kernel.ptx").write_text(look.texts["ptx"])
    facts = {
        "name": "softmax_kernel", "num_warps": 4, "num_stages": 2, "shared": look.inspection.shared_bytes,
        "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
    }  # fmt: skip
    (cache / "softmax_kernel.json").write_text(json.dumps(facts))
    (shown,) = json.loads(ask("cache/softmax_kernel.cubin", "--json"))["configs"]
    assert shown["usage"]["registers"] == look.inspection.usage.registers
    assert shown["kinds"] == dict(look.inspection.kinds)
    assert shown["grid"] == []
    assert shown["stages"] == ["ptx", "sass"]
    assert "grid           not known" in ask("cache/softmax_kernel.cubin")
    assert "its ttgir is not beside it (what can be had is ptx, sass)" in ask(
        "cache/softmax_kernel.cubin", "--stage", "ttgir", code=2
    )
    assert "was compiled for sm_90, not sm_80" in ask("cache/softmax_kernel.cubin", "--device", "sm_80", code=2)
    shutil.copy(cache / "softmax_kernel.cubin", cache / "alone.cubin")
    assert "its metadata, alone.json, is not beside it" in ask("cache/alone.cubin", code=2)
    (cache / "alone.json").write_text("{}")
    assert "is no metadata of a kernel" in ask("cache/alone.cubin", code=2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing.yaml",), "nothing.yaml: no such file"),
        (("nothing.cubin",), "nothing.cubin: no such file"),
        (("experiment.yaml", "--study", "3"), "no study is '3' (--study may be 1: fill sm_90 1000 fp32; 2: fill"),
        (("experiment.yaml", "--study", "0"), "no study is '0'"),
        (("experiment.yaml", "--study", "dtype=fp32"), "2 studies are 'dtype=fp32' (--study may be"),
        (("experiment.yaml", "--device", "sm_75"), "device 'sm_75' is not known"),
        (("experiment.yaml", "--config", "BLOC=64"), "'BLOC' is neither tuned nor a parameter"),
        (("experiment.yaml", "--config", "fast"), "'fast' is no part of a config (write default, winner, or name="),
        (("experiment.yaml", "--config", "BLOCK=100"), "does not compile for fill sm_90 1000 fp32: build: "),
        (("experiment.yaml", "--config", "winner", "--sweep", "none"), "none: no such sweep"),
        (("experiment.yaml", "--config", "winner", "--pack", "none.json"), "none.json: no such file"),
        (("experiment.yaml", "--pack", "none.json"), "--sweep and --pack say whose winner, and none is shown (add"),
        (("experiment.yaml", "--device", "sm_80", "--config", "winner"), "tells of no winner of fill sm_80 1000"),
        (("experiment.yaml", "--json", "--stage", "ptx"), "--json leaves no place for --stage"),
        (("experiment.yaml", "--out", "kernels.py"), "kernels.py: is no folder"),
        (("x.cubin", "--against", "num_warps=1"), "a cubin is one config of one problem"),
    ],
    ids=lambda value: " ".join(value[1:]) or value[0] if isinstance(value, tuple) else "",
)
def test_what_is_no_use(ask: Any, arguments: tuple[str, ...], says: str) -> None:
    text = ask(*arguments, code=2)
    assert text.startswith("error: ")
    assert says in text


def test_a_kernel_without_source_says_what_can_still_be_had(tmp_path: Path, store: Path, warm: Warm) -> None:
    write_experiment(tmp_path, MADE_BY_EXEC)
    done = warm("inspect", "experiment.yaml", folder=tmp_path, store=store)
    assert done.returncode == 2
    assert "@jit functions should be defined in a Python file" in done.stderr
    assert "what Triton compiled of it elsewhere can be inspected all the same: name the .cubin" in done.stderr
    notebook = {"call": "a.ipynb:fill", "kernel": "a.ipynb:fill_kernel", "reference": "torch:relu"}
    write_experiment(tmp_path, workload=notebook, inputs={"y": ["n"]})
    done = warm("inspect", "experiment.yaml", folder=tmp_path, store=store)
    assert done.returncode == 2
    assert "is in a notebook" in done.stderr
    assert "name the .cubin in its cache" in done.stderr


def test_a_recording_has_no_kernel(folder: Path, store: Path, warm: Warm) -> None:
    experiment = {"name": "replayed", "workload": "landscape:recording.json.gz"}
    (folder / "replayed.yaml").write_text(json.dumps(experiment))
    done = warm("inspect", "replayed.yaml", folder=folder, store=store)
    assert done.returncode == 2
    assert "there is no kernel to compile" in done.stderr
