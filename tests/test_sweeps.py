"""Several experiments in one command: one fleet, one pack, each its own ledger; what breaks one leaves the others."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from farm import KERNEL, Warm, events, measured, running, tunefarm, wait_until, write_experiment, write_landscape

from tunefarm.pack_reader import load_pack
from tunefarm.spec.importing import import_object

ROOT = Path(__file__).parents[1]
SWEEP = ("--fleet", "inline", "--tracking", "none", "--json", "-o", "all.json")


def write(root: Path, name: str, kernel: str = KERNEL, **sections: Any) -> Path:
    path = write_experiment(root / name, kernel, name=name, **sections)
    write_landscape(path)
    return path


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Two kernels of one name but other text, and the first at another size."""
    write(tmp_path, "a")
    write(tmp_path, "b", KERNEL.replace("MARK, mask", "MARK + 1, mask"))
    write(tmp_path, "c", problems=[{"n": 4096, "dtype": "fp32"}])
    return tmp_path


FILES = ("a/experiment.yaml", "b/experiment.yaml", "c/experiment.yaml")


def test_three_experiments_make_one_pack(three: Path, store: Path) -> None:
    """Rows of one kernel stand in one table; the kernel of the same name and other text has its own."""
    done = tunefarm("sweep", *FILES, *SWEEP, folder=three, store=store)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [e["experiment"] for e in facts["experiments"]] == ["a", "b", "c"]
    assert [s["experiment"] for s in facts["studies"]] == ["a", "b", "c"]
    assert {e["pack"] for e in facts["experiments"]} == {"all.json"}
    pack = load_pack(three / "all.json")
    assert sorted(len(table.rows) for table in pack.tables) == [1, 2]
    assert len({table.source_hash for table in pack.tables}) == 2
    for name in "abc":
        assert len(events(three / f"sweeps/{name}/ledger.jsonl", "winner")) == 1
        (told,) = events(three / f"sweeps/{name}/ledger.jsonl", "export")
        assert told["digest"] == pack.digest
    # Each as if it had been swept alone.
    alone = tunefarm("sweep", FILES[2], *SWEEP[:-1], "alone.json", "--sweeps", "alone", folder=three, store=store)
    assert json.loads(alone.stdout)["studies"][0]["winner"] == facts["studies"][2]["winner"]
    before = (three / "all.json").read_bytes()
    again = tunefarm("sweep", *FILES, *SWEEP, folder=three, store=store)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["compiled"] == 0
    assert len(events(three / "sweeps/a/ledger.jsonl", "finals")) == 1
    assert (three / "all.json").read_bytes() == before


def test_killed_several_go_on_where_they_were(tmp_path: Path, store: Path) -> None:
    slow: dict[str, Any] = {
        "space": {"BLOCK": {"pow2": [16, 512]}, "MARK": [0, 1], "num_warps": [1, 2, 4, 8]},
        "search": {"sampler": "tpe", "batch": 1},
        "budget": {"trials": 25},
    }
    for name in "ab":
        write(tmp_path, name, **slow)
    ledgers = [tmp_path / f"sweeps/{name}/ledger.jsonl" for name in "ab"]
    with running("sweep", *FILES[:2], *SWEEP, folder=tmp_path, store=store) as process:
        assert wait_until(lambda: all(len(measured(path)) >= 5 for path in ledgers) or process.poll() is not None)
        assert process.poll() is None, "too fast to be killed"
        process.send_signal(signal.SIGKILL)
    done = tunefarm("sweep", *FILES[:2], *SWEEP, folder=tmp_path, store=store)
    assert done.returncode == 0, done.stderr
    for path in ledgers:
        found = measured(path)
        assert len(found) == len(set(found))
        assert len({event["epoch"] for event in events(path, "measured")}) == 2
    assert len(load_pack(tmp_path / "all.json").tables) == 1


def test_what_breaks_one_is_said_at_the_end(three: Path, store: Path) -> None:
    """Its call raises where it is built; with a budget of time, another has the fleet to itself."""
    call = "def fill(y, n):\n"
    raising = KERNEL.replace(
        call, f"{call}    if sys.argv[0] == '-c' and sys.argv[1:]:\n        raise OSError('gone')\n"
    )
    raising = raising.replace("MARK, mask", "MARK + 7, mask")  # or its builds would be there already
    write(three, "b", raising)
    write(three, "c", budget={"wall_s": 600})
    done = tunefarm("sweep", *FILES, *SWEEP, folder=three, store=store)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: b/experiment.yaml:")
    assert "gone" in line
    facts = json.loads(done.stdout)
    assert [bool(e["error"]) for e in facts["experiments"]] == [False, True, False]
    assert [s["status"] for s in facts["studies"]] == ["winner"] * 2
    assert load_pack(three / "all.json").num_rows == 1
    none = tunefarm("sweep", FILES[1], *SWEEP, folder=three, store=store)
    assert none.returncode == 2
    assert none.stdout == ""


def test_one_bad_among_good_ones_is_refused_before_anything_runs(three: Path, store: Path, warm: Warm) -> None:
    bad = three / "b/experiment.yaml"
    good = bad.read_text()
    for text, says in (
        (good.replace('"space"', '"spaec"'), "spaec"),
        (good.replace('"name": "b"', '"name": "a"'), "a/experiment.yaml is called a too"),
        (good.replace("recording", "other"), "no such file"),
        (good.replace("kernels.py", "nothing.py"), "nothing.py"),
    ):
        bad.write_text(text)
        for verb in ("sweep", "plan"):
            if verb == "plan" and "called" in says:
                continue
            options = ("--fleet", "inline", "--tracking", "none") if verb == "sweep" else ()
            done = warm(verb, *FILES, *options, folder=three, store=store)
            assert done.returncode == 2, done.stderr
            assert "b/experiment.yaml" in done.stderr
            assert says in done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert not list((three / "sweeps").rglob("ledger.jsonl"))


def test_two_experiments_of_one_kernel_are_told_apart(three: Path, store: Path) -> None:
    """The same problem of one kernel: each study says whose it is, and the end says whose winner is in the pack."""
    write(three, "b")
    done = tunefarm("sweep", *FILES[:2], *SWEEP[:-3], "-o", "all.json", folder=three, store=store)
    assert done.returncode == 0, done.stderr
    for name in "ab":
        assert f"\n{name}: fill sm_90 1000 fp32: " in done.stderr
        assert f" {name} sm_90 1000 fp32 " in done.stdout
    assert "a and b each have a winner for fill sm_90 1000 fp32: the pack holds the last one's" in done.stdout
    assert load_pack(three / "all.json").num_rows == 1


@pytest.mark.parametrize(("text", "says"), [("{}", "is not a tunefarm pack"), (None, "cannot be written")])
def test_a_pack_that_cannot_be_written_is_said_of_the_pack(
    three: Path, store: Path, warm: Warm, text: str | None, says: str
) -> None:
    (three / "all.json").mkdir() if text is None else (three / "all.json").write_text(text)
    done = warm("sweep", *FILES, *SWEEP, folder=three, store=store)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: all.json: {says}")
    assert not (three / "sweeps").exists()


def test_a_folder_stands_for_the_experiments_in_it(three: Path, store: Path, warm: Warm) -> None:
    shown = warm("plan", "a", "b", "--json", folder=three, store=store)
    assert shown.returncode == 0, shown.stderr
    assert [e["experiment"] for e in json.loads(shown.stdout)["experiments"]] == ["a", "b"]
    told = warm("plan", "a", "a/experiment.yaml", folder=three, store=store)
    assert told.stdout.count("18 candidates") == 1
    (three / "empty").mkdir()
    none = warm("plan", "empty", folder=three, store=store)
    assert none.returncode == 2
    assert none.stderr.startswith("error: empty: holds no experiment")


def test_real_experiments_of_the_repository_side_by_side(tmp_path: Path, store: Path) -> None:
    """Two kernels, replayed from the landscapes recorded of them, each at its first problem."""
    for name in ("softmax", "vector_add"):
        spec = yaml.safe_load((ROOT / f"experiments/{name}.yaml").read_text())
        spec["workload"] = str(ROOT / "experiments" / spec["workload"])
        (device,) = [d for d in spec["devices"] if isinstance(d, dict)]
        spec |= {"devices": [{**device, "landscape": str(ROOT / "experiments" / device["landscape"])}]}
        spec |= {"problems": spec["problems"][:1], "budget": {"trials": 6}}
        spec.pop("export")
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    done = tunefarm("sweep", ".", *SWEEP, folder=tmp_path, store=store, timeout_s=300)
    assert done.returncode == 0, done.stderr
    pack = load_pack(tmp_path / "all.json")
    assert sorted(table.kernel for table in pack.tables) == ["softmax_kernel", "vector_add_kernel"]
    assert {table.provenance.sweep for table in pack.tables} == {"softmax", "vector_add"}


def test_neighbours_of_one_name_are_each_their_own_workload_s(tmp_path: Path) -> None:
    for name in "xy":
        folder = tmp_path / name
        folder.mkdir()
        (folder / "beside_it.py").write_text(f"WORD = {name!r}\n")
        (folder / "kernels.py").write_text("from beside_it import WORD\n")
    assert [import_object("kernels.py:WORD", str(tmp_path / name)) for name in "xyx"] == ["x", "y", "x"]
