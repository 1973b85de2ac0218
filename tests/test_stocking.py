"""A store filled beforehand: a later sweep on it compiles nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from farm import AS_DEFAULT, KERNEL, Warm, tunefarm, write_experiment, write_landscape

from tunefarm.bench.store import BuildStore
from tunefarm.builds import BuildBoard
from tunefarm.cli import opening
from tunefarm.cli.build import build
from tunefarm.cli.opening import FleetKind, open_experiment
from tunefarm.device import nominal
from tunefarm.dispatch import Dispatch
from tunefarm.fleet.inline import InlineFleet
from tunefarm.plan import Target, plan
from tunefarm.stocking import Stock, fill

SECTIONS: dict[str, Any] = {
    "problems": [{"n": [1000, 4096], "dtype": "fp32"}],
    "devices": [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"],
}


def stocked(experiment: Path, store: Path, fleet: InlineFleet, *, checks: bool = True) -> Stock:
    resolved = open_experiment(experiment)
    studies = plan(resolved, [Target(device=nominal("sm_90"))])
    return fill(studies, BuildBoard(resolved, BuildStore(store)), Dispatch(fleet), checks=checks)


@pytest.mark.parametrize("fleet_kind", ["inline", "ray"])
def test_a_sweep_after_a_build_compiles_nothing(tmp_path: Path, fleet_kind: str) -> None:
    """Real compiles for sm_90 and sm_80; then every build of the sweep comes from the store."""
    write_landscape(write_experiment(tmp_path, **SECTIONS))
    store = tmp_path / "store"
    how = ("--fleet", fleet_kind, "--builders", "2")
    built = tunefarm("build", "experiment.yaml", *how, "--json", folder=tmp_path, store=store)
    assert (built.returncode, built.stderr) == (0, "")
    (said,) = json.loads(built.stdout)["experiments"]
    # 18 candidates, two divisibilities, two archs.
    assert (said["studies"], said["candidates"], said["builds"], said["compiled"]) == (4, 72, 72, 72)
    assert len(list((store / "builds").glob("??/*.json"))) == 72
    assert not (tmp_path / "sweeps").exists()
    swept = tunefarm("sweep", "experiment.yaml", *how, "--tracking", "none", "--json", folder=tmp_path, store=store)
    assert swept.returncode == 0, swept.stderr
    facts = json.loads(swept.stdout)
    assert (facts["compiled"], facts["from_store"]) == (0, said["builds"])
    assert {study["status"] for study in facts["studies"]} == {"winner", "not_measured"}


def test_a_second_build_finds_everything(tmp_path: Path, warm: Warm) -> None:
    write_experiment(tmp_path, devices=["sm_90"])
    words = ("build", "experiment.yaml", "--fleet", "inline", "--builders", "2")
    first = warm(*words, folder=tmp_path, store=tmp_path / "store")
    second = warm(*words, folder=tmp_path, store=tmp_path / "store")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "18 candidates in 1 study, 18 builds with their checks: 18 compiled in " in first.stdout
    assert "18 candidates in 1 study, 18 builds with their checks: 0 compiled in 0.0 CPU s, 18 in the store" in (
        second.stdout
    )
    assert f"store    {tmp_path / 'store' / 'builds'}" in second.stdout
    # Workers were sent the kernel's file: they may not see this folder.
    assert list((tmp_path / "store" / f"bundles-{os.getuid()}").glob("*/kernels.py"))


def test_nothing_is_built_of_a_recording_and_that_is_said(tmp_path: Path, warm: Warm) -> None:
    write_landscape(write_experiment(tmp_path))
    write_experiment(tmp_path, workload="landscape:recording.json.gz", problems=None, space=None, devices=None)
    words = ("--fleet", "inline", "--builders", "1")
    done = warm("build", "experiment.yaml", *words, folder=tmp_path, store=tmp_path / "store")
    assert (done.returncode, done.stdout) == (2, "")
    assert "experiment.yaml:1: workload: a recording is replayed, and nothing is built for it" in done.stderr


def test_build_workers_need_not_see_the_driver_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TF-096: it is hidden from them before the first job, as on another machine."""
    from test_shipping import Hiding, write

    path = write(tmp_path / "gone", 7, devices=["sm_90"])
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "cache"))
    opened = opening.open_builders
    monkeypatch.setattr(
        opening, "open_builders", lambda *words, **more: Hiding(opened(*words, **more), tmp_path / "gone")
    )
    build([path], fleet=FleetKind.INLINE, address=None, builders=1, as_json=True)
    (said,) = json.loads(capsys.readouterr().out)["experiments"]
    assert not (tmp_path / "gone").exists()
    assert (said["compiled"], said["failures"]) == (said["builds"], {})


def test_checks_are_built_for_too(tmp_path: Path, fleet: InlineFleet) -> None:
    """n - 1 is no multiple of 16 where n is: another specialisation, so another build of each candidate."""
    experiment = write_experiment(
        tmp_path, AS_DEFAULT, problems=[{"n": 4096, "dtype": "fp32"}], checks=[{"n": "n - 1"}, {"n": "2 * n"}]
    )
    alone = stocked(experiment, tmp_path / "alone", fleet, checks=False)
    assert (alone.num_builds, alone.num_compiled) == (18, 18)
    both = stocked(experiment, tmp_path / "both", fleet)
    assert (both.num_candidates, both.num_builds, both.num_compiled) == (18, 36, 36)


def test_candidates_that_do_not_compile_are_counted_and_the_others_kept(tmp_path: Path, fleet: InlineFleet) -> None:
    refuses = KERNEL.replace(
        "    i = tl.program_id(0)", '    tl.static_assert(MARK == 0, "no marks")\n    i = tl.program_id(0)'
    )
    stock = stocked(write_experiment(tmp_path, refuses), tmp_path / "store", fleet)
    (count,) = stock.failures.values()
    assert (stock.num_candidates, count) == (18, 9)
    assert len(list((tmp_path / "store").glob("??/*.json"))) == 9


def test_what_cannot_be_followed_ends_in_one_line(tmp_path: Path, warm: Warm) -> None:
    write_experiment(tmp_path, KERNEL.replace("    fill_kernel[", '    raise ValueError("no")\n    fill_kernel['))
    done = warm("build", "experiment.yaml", "--fleet", "inline", folder=tmp_path, store=tmp_path / "store")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: experiment.yaml:1: workload: the call of fill raised ValueError: no")


def test_the_store_is_made_for_its_owner_alone(tmp_path: Path, warm: Warm) -> None:
    write_experiment(tmp_path, devices=["sm_90"], space={"BLOCK": [64], "MARK": [0], "num_warps": [4]})
    warm("build", "experiment.yaml", "--fleet", "inline", "--builders", "1", folder=tmp_path, store=tmp_path / "store")
    assert os.stat(tmp_path / "store").st_mode & 0o077 == 0
