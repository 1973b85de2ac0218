"""A workload's files reach workers that do not see the driver's folders: through real fleets, once a process."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_fleet
from farm import GPU, KERNEL, check_ledger, play, write_experiment, write_landscape

from tunefarm.bench.faults import obituary
from tunefarm.bench.preload import load_builder
from tunefarm.bench.store import BuildStore
from tunefarm.bench.worker import build
from tunefarm.builds import BuildBoard
from tunefarm.cli.opening import open_experiment, supply_of
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.fleet.inline import InlineFleet
from tunefarm.fleet.ray import RayFleet
from tunefarm.plan import Target, plan
from tunefarm.seams import Fleet, Worker
from tunefarm.source import source_hash
from tunefarm.spec.bundling import bundled
from tunefarm.spec.experiment import load_experiment
from tunefarm.spec.workload import WorkloadRef, load_workload
from tunefarm.trial import Outcome

ray_cluster = test_fleet.ray_cluster

HELPED = f"""\
import helper
from pathlib import Path
{KERNEL.replace("MARK, mask", "MARK + 0, mask")}

def told():
    import helper as late
    return helper.VALUE, late.VALUE, Path(__file__).with_name("tokens.txt").read_text()


def broken():
    raise RuntimeError("on purpose")


def die():
    import os
    os.abort()
"""

WRAPPED = "import helper\nfrom pathlib import Path\n" + KERNEL.replace('"MARK": 0', "").replace(
    "@triton.jit",
    "@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'], reset_to_zero=['y_ptr'])\n"
    "@triton.heuristics({'MARK': lambda arguments: arguments['n'] % 2})\n@triton.jit",
)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The workers' cache, which a Ray cluster learns of when it starts."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("TUNEFARM_CACHE", str(folder))
        yield folder


def inline(refs: Sequence[WorkloadRef], **more: Any) -> InlineFleet:
    return InlineFleet([None], num_builders=1, supply=supply_of(refs), **more)


def over_ray(refs: Sequence[WorkloadRef], **more: Any) -> RayFleet:
    return RayFleet(num_measure=1, num_builders=1, supply=supply_of(refs), **more)


def write(folder: Path, value: int, kernel: str = HELPED, **sections: Any) -> Path:
    """An experiment with a helper and data beside it, and a recording elsewhere."""
    devices = [{"arch": "sm_90", "landscape": str(folder.parent / "recording.json.gz")}]
    path = write_experiment(folder, kernel, files=["tokens.txt"], **{"devices": devices, **sections})
    (folder / "helper.py").write_text(f"VALUE = {value}\n")
    (folder / "tokens.txt").write_text(f"tokens of {value}")
    return path


def ref_of(experiment: Path) -> WorkloadRef:
    """As a driver has it that has imported nothing."""
    return bundled(load_experiment(experiment)).ref


def look(ref: WorkloadRef) -> tuple[Any, ...]:
    workload = load_workload(ref)
    module = inspect.getmodule(workload.call)
    assert module is not None
    return (*module.told(), source_hash(workload.kernel), module.__file__, module.__name__, os.getpid())


def fall(ref: WorkloadRef, how: str = "broken") -> None:
    module = inspect.getmodule(load_workload(ref).call)
    assert module is not None
    getattr(module, how)()


def line_of(ref: WorkloadRef, word: str) -> int:
    """Of a word in its file."""
    lines = Path(ref.folder, "kernels.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if word in line)


def run(fleet: Fleet, job: Callable[[], Any], where: str = "build-0") -> Any:
    return fleet.submit(job, where).result(timeout=120)


@dataclass
class Hiding:
    """A fleet from whose workers a folder is hidden before the first job: the driver has read it by then."""

    fleet: Fleet
    folder: Path

    @property
    def workers(self) -> Sequence[Worker]:
        return self.fleet.workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        if self.folder.exists():
            self.folder.rename(self.folder.with_name("hidden"))
        return self.fleet.submit(job, where)

    def close(self) -> None:
        self.fleet.close()


@pytest.mark.parametrize("opened", [inline, over_ray])
def test_a_sweep_whose_workers_do_not_see_the_driver_s_folder(
    opened: Callable[..., Fleet], tmp_path: Path, store: Path, cache: Path, request: pytest.FixtureRequest
) -> None:
    """TF-096: it is gone when they begin, ignored helper and all."""
    if opened is over_ray:
        request.getfixturevalue("ray_cluster")
    path = write(tmp_path / "gone", 7)
    write_landscape(path, name="../recording.json.gz")
    unshipped = InlineFleet([None], num_builders=1)
    inside = play(path, unshipped, tmp_path / "a", ledger=tmp_path / "a.jsonl")
    unshipped.close()
    resolved = open_experiment(path, ship=True)
    fleet = Hiding(opened([resolved.experiment.ref]), tmp_path / "gone")
    try:
        played = play(path, fleet, tmp_path / "b", ledger=tmp_path / "b.jsonl", resolved=resolved)
    finally:
        fleet.close()
    assert not (tmp_path / "gone").exists()
    check_ledger(played)
    assert played.board.num_compiled == inside.board.num_compiled > 0
    assert played.results[0].winner is not None
    assert inside.results[0].winner is not None
    assert played.results[0].winner.config == inside.results[0].winner.config
    built = [sorted(file.name for file in (tmp_path / name / "builds").rglob("*.json")) for name in "ab"]
    assert built[0] == built[1]  # under the keys that builds have where they are not shipped
    assert resolved.experiment.ref.bundle is not None
    assert (cache / f"bundles-{os.getuid()}" / resolved.experiment.ref.bundle.digest / "helper.py").exists()


def test_versions_of_one_file_side_by_side_in_one_process(tmp_path: Path, cache: Path) -> None:
    """Where only a helper's text differs too, each workload keeps its own, even one that it imports late."""
    first = ref_of(write(tmp_path / "e", 1))
    second = ref_of(write(tmp_path / "e", 2))
    by_name = [
        ref_of(write(tmp_path / name, value, workload="kernels:workload"))
        for name, value in (("x", 3), ("y", 4))
    ]  # fmt: skip
    refs = [first, second, *by_name]
    shutil.rmtree(tmp_path / "e")
    fleet = inline(refs)
    try:
        seen = [[run(fleet, partial(look, ref)) for ref in refs] for _ in range(2)]
    finally:
        fleet.close()
    assert seen[0] == seen[1]
    assert [row[:3] for row in seen[0]] == [(n, n, f"tokens of {n}") for n in (1, 2, 3, 4)]
    assert len({row[3] for row in seen[0]}) == 1  # the kernel's own text is one
    assert len({row[4] for row in seen[0]}) == 4
    assert len({row[6] for row in seen[0]}) == 1


def test_the_driver_and_its_workers_give_modules_and_kernels_the_same_names(tmp_path: Path) -> None:
    """TF-095: lambdas, heuristics and autotuners stay in their file, which is what travels."""
    told = HELPED[HELPED.index("def told") :]
    path = write(tmp_path / "e", 1, WRAPPED + "\n\n" + told, space={"BLOCK": [64, 128]})
    here = open_experiment(path, ship=True)
    module = inspect.getmodule(here.workload.call)
    assert module is not None
    (study,) = plan(here, [Target(device=GPU)])
    request = BuildBoard(here, BuildStore(tmp_path)).slot(study.call, study.candidates[0]).request
    fleet = InlineFleet([], num_builders=2, supply=supply_of([here.experiment.ref]))
    try:
        ((built,), _) = [run(fleet, partial(build, request), where) for where in ("build-0", "build-1")]
        seen = [run(fleet, partial(look, here.experiment.ref), where) for where in ("build-0", "build-1")]
    finally:
        fleet.close()
    assert built.outcome is Outcome.OK  # under the key that the driver expects, or it would have been refused
    assert request.keys
    assert {(row[3], row[5]) for row in seen} == {(source_hash(here.workload.kernel), module.__name__)}
    assert len({row[6] for row in seen}) == 2


def test_errors_name_the_file_that_the_user_knows(tmp_path: Path) -> None:
    ref = ref_of(write(tmp_path / "e", 1))
    wrong = ref_of(write(tmp_path / "w", 1, "import helper\nhelper.nothing\n"))
    fleet = inline([ref, wrong])
    try:
        with pytest.raises(RuntimeError, match="on purpose") as caught:
            run(fleet, partial(fall, ref))
        with pytest.raises(SpecError, match=f"^{tmp_path}/w/kernels.py:2: cannot be imported on worker node"):
            run(fleet, partial(look, wrong))
        with pytest.raises(WorkerLost, match="SIGABRT") as lost:
            run(fleet, partial(fall, ref, "die"))
    finally:
        fleet.close()
    (note,) = caught.value.__notes__
    assert re.search(rf'File "{tmp_path}/e/kernels.py", line \d+ in die', lost.value.words)
    assert obituary(lost.value, "build", 1.0).message.endswith(f"({tmp_path}/e/kernels.py:{line_of(ref, 'abort')})")
    assert f'File "{tmp_path}/e/kernels.py", line ' in note
    assert "bundles" not in note


def test_a_package_that_a_worker_lacks_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a file that nobody has listed."""
    site = tmp_path / "site/only_here"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(site.parent))
    path = write(tmp_path / "e", 1, "import only_here.inner\n" + HELPED)
    (site / "inner.py").write_text("")
    resolved = open_experiment(path, ship=True)
    write_landscape(path, name="../recording.json.gz")
    reading = write(tmp_path / "r", 1, HELPED + "\nPath(__file__).with_name('unlisted.bin').read_bytes()\n")
    (tmp_path / "r/unlisted.bin").write_bytes(b"")
    ref = ref_of(reading)
    shutil.rmtree(site)
    fleet = inline([resolved.experiment.ref, ref])
    try:
        with pytest.raises(
            SpecError, match=rf"on worker node {os.uname().nodename}: .*'only_here'.*install it on every"
        ):
            play(path, fleet, tmp_path / "a", ledger=tmp_path / "a.jsonl", resolved=resolved)
        with pytest.raises(
            SpecError, match=rf"FileNotFoundError: .*{tmp_path}/r/unlisted.bin.*under the experiment's `fi"
        ):
            run(fleet, partial(look, ref))
    finally:
        fleet.close()
        for name in [name for name in sys.modules if name.startswith("only_here")]:
            del sys.modules[name]


@pytest.mark.parametrize("opened", [inline, over_ray])
def test_a_process_is_sent_the_files_once_and_so_is_its_successor(
    opened: Callable[..., Fleet], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if opened is over_ray:
        request.getfixturevalue("ray_cluster")
    ref = ref_of(write(tmp_path / "e", 1))
    shutil.rmtree(tmp_path / "e")
    fleet = opened([ref])
    try:
        first, second = (run(fleet, partial(look, ref)) for _ in range(2))
        assert first == second
        with pytest.raises(InfrastructureError):
            run(fleet, partial(os._exit, 1))
        third = run(fleet, partial(look, ref))
        assert first[:-1] == third[:-1]
        assert first[-1] != third[-1]
        fresh = run(fleet, partial(test_fleet.retire, 0), "measure-0"), run(fleet, partial(look, ref), "measure-0")
        assert fresh[1][:-1] == first[:-1]
    finally:
        fleet.close()


def has_loaded(name: str) -> bool:
    return any(name in getattr(module, "__name__", "") for module in list(sys.modules.values()))


def test_a_spare_has_loaded_the_workload_before_it_is_needed(tmp_path: Path) -> None:
    ref = ref_of(write(tmp_path / "e", 1, workload="kernels.py:workload"))
    shutil.rmtree(tmp_path / "e")
    fleet = inline([ref], warm={"measure": partial(load_builder, ref)})
    try:
        run(fleet, partial(test_fleet.retire, 0), "measure-0")
        assert run(fleet, partial(has_loaded, "tunefarm_workload_kernels"), "measure-0")
    finally:
        fleet.close()


def test_a_cache_that_cannot_be_written_is_said_once_for_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TF-085."""
    ref = ref_of(write(tmp_path / "e", 1))
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path / "e/kernels.py"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fleet = InlineFleet([], num_builders=2, supply=supply_of([ref]))
    try:
        places = {Path(run(fleet, partial(look, ref), where)[4]) for where in ("build-0", "build-1")}
    finally:
        fleet.close()
    (place,) = places
    assert place.is_relative_to(tmp_path / f"tunefarm-{os.getuid()}")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{os.uname().nodename}: cannot write to {tmp_path}/e/kernels.py/bundles-")


def test_a_fleet_that_was_given_nothing_says_so(tmp_path: Path) -> None:
    ref = ref_of(write(tmp_path / "e", 1))
    fleet = InlineFleet([], num_builders=1)
    try:
        with pytest.raises(InfrastructureError, match="have not reached this process"):
            run(fleet, partial(look, ref))
    finally:
        fleet.close()
