"""A sweep as a call: in this process, in scripts without a guard, and in a notebook that a real kernel runs."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from farm import AS_DEFAULT, KERNEL, LARGE, Warm, environment, events, write_experiment, write_landscape

from tunefarm import api
from tunefarm.api import SweepResult, sweep
from tunefarm.errors import InfrastructureError, SpecError, UserError
from tunefarm.pack_reader import load_pack
from tunefarm.source import source_hash
from tunefarm.spec.experiment import load_experiment
from tunefarm.spec.importing import import_object
from tunefarm.study import Status

TWO: dict[str, Any] = {"problems": [{"n": [1000, 4096], "dtype": "fp32"}]}
LABELS = ["fill sm_90 1000 fp32", "fill sm_90 4096 fp32"]


@pytest.fixture
def folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an experiment with a recording lies, and we are."""
    write_landscape(write_experiment(tmp_path, **TWO, export="packs/fill.json"))
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TUNEFARM_CACHE", str(store))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replay(*experiments: str, **more: Any) -> SweepResult:
    words = experiments or ("experiment.yaml",)
    return sweep(*words, **{"fleet": "inline", "meter": "replay", "builders": 1, "tracking": "none", **more})


def script(folder: Path, store: Path, text: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a script that has no guard: what its workers imported of it would sweep, too."""
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment(store, **more), capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip


def test_a_second_sweep_of_this_process_is_refused(folder: Path) -> None:
    """Both would import the workload, each in the place of the other's."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        with api._alone():
            begun.set()
            go_on.wait(60)

    first = threading.Thread(target=wait)
    first.start()
    assert begun.wait(60)
    with pytest.raises(UserError, match=r"a sweep is at work in this process \(wait for it, or name all"):
        replay(quiet=True)
    go_on.set()
    first.join()
    assert replay(quiet=True).exit_code == 0


def test_what_names_nothing_sweeps_nothing(folder: Path) -> None:
    """An empty name would be the working directory, and all that lies in it."""
    with pytest.raises(UserError, match=r"an empty name is no experiment"):
        replay("", quiet=True)
    with pytest.raises(UserError, match=r"^builders: 0 are too few \(at least 1, or None for one a CPU\)"):
        replay(builders=0, quiet=True)
    assert not (folder / "sweeps").exists()


def test_a_call_gives_what_the_command_gives(folder: Path, warm: Warm, store: Path) -> None:
    given = replay(quiet=True)
    assert (given.exit_code, [study.status for study in given.studies]) == (0, [Status.WINNER] * 2)
    assert list(given.winners) == LABELS
    assert given.packs == (Path("packs/fill.json"),)
    (experiment,) = given.experiments
    assert (experiment.name, experiment.ledger, experiment.error) == ("fill", Path("sweeps/fill/ledger.jsonl"), None)
    rows = [row for table in load_pack(given.packs[0]).tables for row in table.rows]
    assert {row.config for row in rows} == {winner.config for winner in given.winners.values()}
    other = folder / "other"
    write_landscape(write_experiment(other, **TWO, export="packs/fill.json"))
    words = ("sweep", "experiment.yaml", "--fleet", "inline", "--meter", "replay", "--tracking", "none", "--quiet")
    done = warm(*words, folder=other, store=store)
    assert done.returncode == 0, done.stderr
    mine, theirs = (
        [(e["study"], e["winner"]) for e in events(path / "sweeps/fill/ledger.jsonl", "winner")]
        for path in (folder, other)
    )
    assert mine == theirs


def test_the_result_is_frozen_short_and_travels(folder: Path) -> None:
    given = replay(quiet=True)
    with pytest.raises(FrozenInstanceError):
        given.exit_code = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(given)).winners == given.winners
    assert len(repr(given)) < 400, "what a notebook shows of it"


def test_it_is_quiet_where_that_is_asked_for_and_else_shows_what_the_command_shows(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    replay(quiet=True)
    assert capfd.readouterr() == ("", "")
    replay(fresh=True)
    out, err = capfd.readouterr()
    assert "starting the fleet (inline)" in err
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("fill sm_90")] == LABELS
    assert "pack     packs/fill.json, replayed" in out


def test_the_same_call_goes_on_from_the_ledger(folder: Path) -> None:
    first = replay(quiet=True)
    again = replay(quiet=True)
    assert again.winners == first.winners
    assert again.packs == first.packs
    path = folder / "sweeps/fill/ledger.jsonl"
    assert len(events(path, "epoch")) == 2
    assert len(events(path, "winner")) == 2, "what was decided is not decided again"


def test_a_running_event_loop_is_no_matter(folder: Path) -> None:
    async def cell() -> SweepResult:
        return replay(quiet=True)

    assert list(asyncio.run(cell()).winners) == LABELS


HELPED = KERNEL.replace("import sys\n", "from helper import first\n").replace('"BLOCK": 64,', '"BLOCK": first(),')


def test_files_are_as_they_are_now_and_the_process_keeps_its_own(folder: Path) -> None:
    write_experiment(folder, HELPED, **TWO, export="packs/fill.json")
    (folder / "helper.py").write_text("def first():\n    return 64\n")
    sys.path.insert(0, str(folder))
    try:
        import helper  # type: ignore[import-not-found]

        assert replay(quiet=True).studies[0].winner.default.params["BLOCK"] == 64  # type: ignore[union-attr]
        (folder / "helper.py").write_text("def first():\n    # edited\n    return 128\n")
        assert replay(quiet=True).studies[0].winner.default.params["BLOCK"] == 128  # type: ignore[union-attr]
        assert (sys.modules["helper"], helper.first()) == (helper, 64)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("helper", None)


def test_an_edited_kernel_is_packed_as_it_was_swept(folder: Path) -> None:
    replay(quiet=True)
    write_experiment(folder, KERNEL.replace("mask=i < n)", "mask=(i < n))"), **TWO, export="packs/fill.json")
    write_landscape(folder / "experiment.yaml")
    (pack,) = replay(quiet=True).packs
    spec = load_experiment(folder / "experiment.yaml")
    kernel = import_object("kernels.py:fill_kernel", str(spec.folder))
    assert {table.source_hash for table in load_pack(pack).tables} == {source_hash(kernel)}


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"fleet": "slurm"}, UserError, r"^fleet: 'slurm' is none .*one of ray, inline"),
        ({"meter": "sundial"}, UserError, r"^meter: 'sundial' is none .*one of auto, gpu, replay"),
        ({"shard": "9/8"}, UserError, "no shard 9 of 8"),
        ({"address": "ray://host:1"}, UserError, "address of a Ray cluster"),
        ({"tracking": "http://127.0.0.1:9"}, InfrastructureError, "no MLflow server"),
        ({"tracking": "ftp://host"}, SpecError, "nothing MLflow can write to"),
    ],
)
def test_what_makes_no_sense_raises_before_anything_is_touched(
    folder: Path, words: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        replay(quiet=True, **words)
    assert not (folder / "sweeps").exists()


def test_a_missing_file_raises(folder: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml"):
        replay("absent.yaml")


def test_one_of_several_that_breaks_stands_in_the_result(folder: Path) -> None:
    """Its call raises where it is built."""
    call = "def fill(y, n):\n"
    raising = KERNEL.replace(
        call, f"{call}    if sys.argv[0] == '-c' and sys.argv[1:]:\n        raise OSError('gone')\n"
    )
    raising = raising.replace("MARK, mask", "MARK + 9, mask")  # or its builds would be there already
    write_landscape(write_experiment(folder / "other", raising, name="raising", **TWO))
    given = replay("experiment.yaml", "other", quiet=True)
    assert given.exit_code == 1
    assert [str(each.file) for each in given.experiments] == ["experiment.yaml", "other/experiment.yaml"]
    sound, broken = given.experiments
    assert (len(sound.studies), sound.error, sound.pack) == (2, None, Path("packs/fill.json"))
    assert (broken.studies, broken.pack) == ((), None)
    assert "gone" in str(broken.error)
    with pytest.raises(SpecError, match="gone"):
        replay("other", quiet=True)


def test_a_study_without_winner_is_partial_and_raises_nothing(folder: Path) -> None:
    from tunefarm.trial import Outcome

    write_landscape(folder / "experiment.yaml", lambda config, variables: Outcome.LAUNCH_ERROR)
    given = replay(quiet=True)
    assert (given.exit_code, given.winners, given.packs) == (1, {}, ())


SCRIPT = """
import asyncio
from tunefarm.api import sweep

async def cell():
    return sweep("experiment.yaml", meter="replay", fleet={fleet!r}, builders=1, tracking="none", quiet=True)

for _ in range(2):
    given = asyncio.run(cell())
    print(given.exit_code, *given.winners, sep="; ")
"""


@pytest.mark.parametrize("fleet", ["inline", "ray"])
def test_a_script_without_a_guard_sweeps_twice(folder: Path, store: Path, fleet: str) -> None:
    done = script(folder, store, SCRIPT.format(fleet=fleet))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"0; {'; '.join(LABELS)}"] * 2


INTERRUPTED = """
import time
from tunefarm.api import sweep
print("begins", flush=True)
try:
    sweep("experiment.yaml", meter="replay", fleet="inline", builders=1, tracking="none", quiet=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
given = sweep("experiment.yaml", meter="replay", fleet="inline", builders=1, tracking="none", quiet=True)
print(given.exit_code, len(given.winners))
"""


def test_an_interrupt_saves_what_was_measured_and_the_process_goes_on(folder: Path, store: Path) -> None:
    write_landscape(write_experiment(folder, AS_DEFAULT, space=LARGE, **TWO))
    (folder / "script.py").write_text(INTERRUPTED)
    child = subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, env=environment(store), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    ledger = folder / "sweeps/fill/ledger.jsonl"
    give_up_s = time.monotonic() + 120
    while not (ledger.exists() and events(ledger, "measured")) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert out.splitlines() == ["begins", "interrupted", "0 2"]
    assert "interrupted: what was measured is in the ledger" in err


NOTEBOOK = """
from tunefarm.api import sweep
swept = sweep("experiment.yaml", meter="replay", fleet="inline", builders=1)
"""


def test_a_notebook_shows_the_view_as_it_goes_on(folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # type: ignore[import-not-found]
    from nbclient import NotebookClient  # type: ignore[import-not-found]

    for name, value in environment(store).items():
        monkeypatch.setenv(name, value)
    cells = [NOTEBOOK, "print(swept.exit_code, *swept.winners, sep='; ')", "swept"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    updates: list[str] = []

    class Watching(NotebookClient):  # type: ignore[misc]
        def process_message(self, message: Any, *rest: Any) -> Any:
            if message["msg_type"] == "update_display_data":
                updates.append(message["content"]["data"]["text/plain"])
            return super().process_message(message, *rest)

    Watching(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    outputs = notebook.cells[0].outputs
    (shown,) = [output for output in outputs if output.output_type == "display_data"]
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    # Others may warn there: where there are no widgets tqdm does, which MLflow brings.
    red = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert "fill" not in red
    assert len(updates) >= 2, "it moved"
    assert re.search(r"studies .* 2/2 ", shown.data["text/plain"]), "and shows how it ended"
    assert "2 of 2 studies" in shown.data["text/plain"]
    assert shown.data["text/html"].startswith("<pre style=")
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("fill sm_90") and ":" in line] == LABELS
    assert "pack     packs/fill.json, replayed" in said
    assert notebook.cells[1].outputs[0].text == f"0; {'; '.join(LABELS)}\n"
    assert notebook.cells[2].outputs[0].data["text/plain"].startswith("SweepResult(experiments=(SweptExperiment(name='")
