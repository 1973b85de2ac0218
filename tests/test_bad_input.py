"""What people get wrong ends in one line that names file, key and remedy; nothing is started, nothing is touched."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import farm
import pytest
from farm import EXPERIMENT, GPU, KERNEL, Warm, tunefarm, write_experiment, write_landscape

REPLAY = ("--fleet", "inline", "--tracking", "none")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing got wrong.

    Attributes:
        name: of the test.
        says: pattern of the error, after `error: `.
        text: the experiment file; or `sections` of one that is sound otherwise.
        kernel: the workload file.
        arrange: what else is to be done in the folder.
        arguments: of the command.
    """

    name: str
    says: str
    text: str | bytes | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    kernel: str = KERNEL
    arrange: Callable[[Path], object] = lambda folder: None
    arguments: tuple[str, ...] = ("sweep", "experiment.yaml", *REPLAY)


def yaml(**sections: Any) -> str:
    """The experiment, a section a line."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in {**EXPERIMENT, **sections}.items()) + "\n"


def with_landscape(kernel: str = KERNEL, **changes: Any) -> Callable[[Path], object]:
    """Records the landscape for another kernel, or changes it."""

    def arrange(folder: Path) -> None:
        experiment = write_experiment(folder / "elsewhere", kernel)
        recording = write_landscape(experiment, **changes)
        (folder / "recording.json.gz").write_bytes(recording.read_bytes())

    return arrange


def damaged(folder: Path) -> None:
    (folder / "recording.json.gz").write_bytes(gzip.compress(b'{"format": "tunefarm-landscape", "version": 1, "k')[:40])


def with_pack(text: str) -> Callable[[Path], object]:
    def arrange(folder: Path) -> None:
        (folder / "packs").mkdir()
        (folder / "packs/fill.json").write_text(text)

    return arrange


FILES = [
    Mistake(name="missing file", says=r"nowhere.yaml: no such file", arguments=("sweep", "nowhere.yaml", *REPLAY)),
    Mistake(name="directory", says=r"elsewhere: holds no experiment",
            arrange=lambda folder: (folder / "elsewhere").mkdir(), arguments=("sweep", "elsewhere", *REPLAY)),
    Mistake(name="not UTF-8", text=b"name: caf\xe9\n",
            says=r"experiment.yaml: is not UTF-8 text \(byte 9\) \(save it as"),
    Mistake(name="empty file", text="", says=r"experiment.yaml: is empty \(start with name, workload"),
    Mistake(name="only comments", text="# later\n", says=r"experiment.yaml: is empty \(start with name, workload"),
    Mistake(name="list for mapping", text="- name: x\n", says=r"experiment.yaml:1: .*mapping"),
    Mistake(name="YAML syntax", text="name: [x\nworkload: y\n",
            says=r"experiment.yaml:2: is not valid YAML: .*\(check"),
    Mistake(name="duplicate key", text=yaml() + "name: again\n",
            says=r"experiment.yaml:6: name: is written twice, on lines 1 and 6 \(keep one\)"),
    Mistake(name="unknown key", text=yaml().replace("problems:", "problem:"),
            says=r"experiment.yaml:3: problem: .*unknown.*\(.*problems"),
    Mistake(name="missing key", text=yaml().replace("name: ", "# name: "),
            says=r"experiment.yaml:\d: name: is missing"),
    Mistake(name="wrong type", text=yaml(problems=3), says=r"experiment.yaml:3: problems: .*list.*\(.+\)"),
    Mistake(name="number as text", text=yaml(accept={"rtol": "1_000"}),
            says=r"experiment.yaml:6: accept.rtol: .*number.*1_000"),
    Mistake(name="warps", text=yaml(space={"BLOCK": [64], "num_warps": [4, 3]}),
            says=r"experiment.yaml:4: space.num_warps\[1\]: a power of two .* not 3"),
    Mistake(name="no dtype", text=yaml(problems=[{"n": 8, "dtype": "float"}]),
            says=r"experiment.yaml:3: problems\[0\].dtype: 'float' is no element type \(Triton's spelling"),
    Mistake(name="integer of too many bits", text=yaml(space={"BLOCK": [64], "MARK": [0, 2**64]}),
            says=r"experiment.yaml:4: space.MARK\[1\]: an integer of 65 bits is too large \(at most 64 bits\)"),
    Mistake(name="integer of too many digits", text=yaml(space={"BLOCK": [64], "MARK": [0, 2**2000]}),
            says=r"experiment.yaml:4: space.MARK\[1\]: 1148\d+ has more than 40 digits \(a kernel's integers have 64"),
    Mistake(name="option of too many bits", text=yaml(space={"BLOCK": [64], "num_stages": [1e300]}),
            says=r"experiment.yaml:4: space.num_stages\[0\]: an integer of 997 bits is too large"),
    Mistake(name="size of too many bits", text=yaml(problems=[{"n": [8, 1e300], "dtype": "fp32"}]),
            says=r"experiment.yaml:3: problems\[0\].n\[1\]: an integer of 997 bits is too large"),
    Mistake(name="empty space", text=yaml(space={}), says=r"experiment.yaml:4: space: is empty \(give at least one"),
    Mistake(name="no values", text=yaml(space={"BLOCK": []}), says=r"experiment.yaml:4: space.BLOCK: .*empty.*\(give"),
    Mistake(name="call in constraint", text=yaml(constraints=["open('x') == 1"]),
            says=r"experiment.yaml:6: constraints\[0\]: .*open"),
    Mistake(name="unknown arch", text=yaml(devices=["sm_9"]), says=r"experiment.yaml:5: devices\[0\]: .*sm_90"),
]  # fmt: skip

NAMES = [
    Mistake(name="unknown name in constraint", sections={"constraints": ["BLOCK > 1", "BLOK < 99"]},
            says=r"experiment.yaml:1: constraints\[1\]: 'BLOK < 99' has the unknown name 'BLOK' \(.*BLOCK"),
    Mistake(name="import fails", kernel=KERNEL + "\nimport no_such_module\n",
            says=r"\S+/kernels.py:\d+: workload: cannot be imported: ModuleNotFoundError: .*\(install it"),
    Mistake(name="GPU at import", kernel=KERNEL + "\nimport torch\ntorch.cuda.get_device_properties(0)\n",
            says=r"\S+/kernels.py:\d+: workload: cannot be imported: .*\(importing must work without a GPU"),
    Mistake(name="syntax of the workload", kernel="def f(:\n",
            says=r"\S+/kernels.py:1: workload: cannot be imported: SyntaxError: .*\(.+\)"),
    Mistake(name="no such workload file", sections={"workload": "kernel.py:workload"},
            says=r"experiment.yaml:1: workload: \S*kernel.py cannot be read: .*\(paths start at"),
    Mistake(name="no such object", sections={"workload": "kernels.py:worklod"},
            says=r"experiment.yaml:1: workload: kernels.py has no 'worklod' \(.*workload"),
    Mistake(name="no workload", sections={"workload": "kernels.py:fill"},
            says=r"experiment.yaml:1: workload: kernels.py:fill is a function, not a tunefarm.Workload \(name a"),
    Mistake(name="kernel lacks a param", sections={"space": {"BLOCKS": [64], "MARK": [0]}},
            says=r"experiment.yaml:1: space.BLOCKS: 'BLOCKS': neither .* of fill_kernel nor .* Triton \d.*\(.*BLOCK"),
    Mistake(name="unknown launch option", sections={"space": {"BLOCK": [64], "num_consumer_groups": [0, 2]}},
            says=r"experiment.yaml:1: space.num_consumer_groups: .* nor a launch option of Triton \d"),
    Mistake(name="key is no argument", kernel=KERNEL.replace('key=("n",)', 'key=("n_elemnts",)'),
            says=r"experiment.yaml:1: workload.key: 'n_elemnts' is no argument of kernel fill_kernel"),
    Mistake(name="call cannot be followed", kernel=KERNEL.replace("    return y", "    return y.sum().item()"),
            says=r"experiment.yaml:1: workload: the call of fill raised .*kernels.py:\d+\) \(it must run on tensors"),
    Mistake(name="call launches nothing", kernel=KERNEL.replace("    fill_kernel[", "    return y\n    fill_kernel["),
            says=r"experiment.yaml:1: workload: the call of fill launched fill_kernel 0 times \(.+\)"),
    Mistake(name="inputs raise", says=r"experiment.yaml:1: workload: .*inputs of fill.*ZeroDivisionError",
            kernel=KERNEL.replace('{"y": ["n"], "n": {"value": "n"}}', "lambda **_: 1 // 0")),
    Mistake(name="default of too many bits", kernel=KERNEL.replace('"MARK": 0}', '"MARK": 2**2000}'),
            says=r"\S+/kernels.py:28: workload: config value MARK is an integer of 2001 bits \(a kernel's have 64"),
    Mistake(name="bytes raise", kernel=KERNEL.replace("lambda n, dtype: 4 * n", "lambda m: 4 * m"),
            says=r"experiment.yaml:1: workload.*: num_bytes of fill raised TypeError.*problem's variables: n, dtype"),
]  # fmt: skip

PLACES = [
    Mistake(name="nothing to measure with", sections={"devices": ["sm_90", "sm_80"]},
            says=r"experiment.yaml:1: devices: nothing to measure with: no GPU of sm_90, sm_80 .*landscape: FILE"),
    Mistake(name="no GPU though asked for", arguments=("sweep", "experiment.yaml", *REPLAY, "--meter", "gpu"),
            says=r"experiment.yaml:1: devices: nothing to measure with"),
    Mistake(name="landscape missing", arrange=lambda folder: (folder / "recording.json.gz").unlink(),
            says=r"experiment.yaml:1: devices\[0\].landscape: recording.json.gz: no such file \(record it with"),
    Mistake(name="landscape stale", arrange=with_landscape(KERNEL.replace("BLOCK + tl", "BLOCK + 0 + tl")),
            says=r"recording.json.gz: records kernel fill_kernel with source hash .*\(the kernel has changed"),
    Mistake(name="landscape damaged", arrange=damaged, says=r"recording.json.gz: .*(archive|cannot be read)"),
    Mistake(name="landscape of another arch", arrange=with_landscape(device=replace(GPU, arch="sm_80")),
            says=r"experiment.yaml:1: devices\[0\].landscape: .*recorded on sm_80, not sm_90 \(name a landscape"),
    Mistake(name="landscape lacks the problem", sections={"problems": [{"n": 48, "dtype": "fp32"}]},
            says=r"recording.json.gz: does not hold problem .*record this one"),
    Mistake(name="pack damaged", sections={"export": "packs/fill.json"}, arrange=with_pack('{"format": "tunefarm-pa'),
            says=r"packs/fill.json: is not valid JSON"),
    Mistake(name="pack of a stranger", sections={"export": "packs/fill.json"}, arrange=with_pack("[]"),
            says=r"packs/fill.json: is not a tunefarm pack \(packs are written by"),
    Mistake(name="export is a folder", sections={"export": "packs"},
            arrange=lambda folder: (folder / "packs").mkdir(),
            says=r"experiment.yaml:1: export: packs cannot be written \(name a file"),
    Mistake(name="export below a file", sections={"export": "kernels.py/fill.json"},
            says=r"experiment.yaml:1: export: kernels.py/fill.json cannot be written \(name a file in a folder"),
    Mistake(name="runs in a folder", sections={"tracking": {"uri": "./mlruns"}},
            arguments=("sweep", "experiment.yaml", "--fleet", "inline"),
            says=r"experiment.yaml:1: tracking.uri: './mlruns' is a folder, .*\(use a database"),
    Mistake(name="runs in a folder by flag", arguments=("sweep", "experiment.yaml", "--tracking", "./mlruns"),
            says=r"--tracking: './mlruns' is a folder, .*\(use a database"),
    Mistake(name="mirror in nothing Optuna knows", sections={"tracking": {"optuna_storage": "redis://me:hunter2@host"}},
            says=r"experiment.yaml:1: tracking.optuna_storage: 'redis://me:\*\*\*@host' is nothing Optuna can write to "
                 r"\(write journal:FILE, sqlite:///FILE, or"),
    Mistake(name="mirror in nothing Optuna knows by flag",
            arguments=("sweep", "experiment.yaml", *REPLAY, "--optuna-storage", "optuna.db"),
            says=r"--optuna-storage: 'optuna.db' is nothing Optuna can write to \(write journal:FILE"),
    Mistake(name="mirror with a password for SQLite",
            arguments=("sweep", "experiment.yaml", *REPLAY, "--optuna-storage", "sqlite:///o.db?password=hunter2"),
            says=r"--optuna-storage: sqlite:///o.db\?password=\*\*\*: SQLite ignores password: leave out .*\(write"),
    Mistake(name="runs behind a password for SQLite", sections={"tracking": {"uri": "sqlite:///m.db?password=hunter2"}},
            arguments=("sweep", "experiment.yaml", "--fleet", "inline"),
            says=r"experiment.yaml:1: tracking.uri: sqlite:///m.db\?password=\*\*\*: SQLite ignores password"),
    Mistake(name="mirror in MLflow's database",
            arguments=("sweep", "experiment.yaml", "--meter", "replay", "--tracking", "sqlite:///m.db",
                       "--optuna-storage", "sqlite:///m.db"),
            says=r"--optuna-storage: sqlite:///m.db is MLflow's database in this sweep \(name another"),
    Mistake(name="plan of a mirror in nothing Optuna knows", sections={"tracking": {"optuna_storage": "optuna.db"}},
            arguments=("plan", "experiment.yaml"),
            says=r"experiment.yaml:1: tracking.optuna_storage: 'optuna.db' is nothing Optuna can write to \(write"),
    Mistake(name="plan that learns from what is not there", sections={"search": {"learn_from": ["old/ledger.jsonl"]}},
            arguments=("plan", "experiment.yaml"),
            says=r"experiment.yaml:1: search.learn_from\[0\]: \S*old/ledger.jsonl: .*\(name a ledger or landscape"),
    Mistake(name="plan that learns from what is no ledger", sections={"search": {"learn_from": ["kernels.py"]}},
            arguments=("plan", "experiment.yaml", "--json"),
            says=r"experiment.yaml:1: search.learn_from\[0\]: \S*kernels.py: is no ledger and no landscape \(see"),
    Mistake(name="sweep that learns from a folder", sections={"search": {"learn_from": ["."]}},
            arguments=("sweep", "experiment.yaml", *REPLAY),
            says=r"experiment.yaml:1: search.learn_from\[0\]: \S*: is no file \(name a"),
    Mistake(name="mirror that is no text", sections={"tracking": {"optuna_storage": ["a"]}},
            says=r"experiment.yaml:1: tracking.optuna_storage: text belongs here, not a list"),
    Mistake(name="ledger below a file", arguments=("sweep", "experiment.yaml", *REPLAY, "--sweeps", "kernels.py"),
            says=r"kernels.py/fill/ledger.jsonl: cannot be written: .+ \(it must lie in a folder you may"),
    Mistake(name="ledger of another experiment",
            arrange=lambda folder: foreign_ledger(folder / "sweeps/fill/ledger.jsonl"),
            says=r"sweeps/fill/ledger.jsonl: belongs to experiment 'other', not to 'fill' \(give this sweep"),
    Mistake(name="address without Ray", arguments=("sweep", "experiment.yaml", *REPLAY, "--address", "localhost:1"),
            says=r"localhost:1 is the address of a Ray cluster \(leave out --fleet inline, or"),
    Mistake(name="record without GPU", arguments=("record", "experiment.yaml", "-o", "new.json.gz"),
            says=r"this measures on a GPU, and this machine has none \(see `tunefarm doctor`\)"),
    Mistake(name="record to a strange name", arguments=("record", "experiment.yaml", "-o", "new.json"),
            says=r"new.json: a landscape is gzipped JSON \(name it"),
    Mistake(name="record below a file", arguments=("record", "experiment.yaml", "-o", "kernels.py/new.json.gz"),
            says=r"kernels.py/new.json.gz: cannot be written"),
    Mistake(name="plan of a stale landscape", arguments=("plan", "experiment.yaml", "--json"),
            arrange=with_landscape(KERNEL.replace("BLOCK + tl", "BLOCK + 0 + tl")), says=r"recording.json.gz: records"),
    Mistake(name="show of nothing", arguments=("pack", "show", "nowhere.json"), says=r"nowhere.json: no such file"),
]  # fmt: skip


def foreign_ledger(path: Path) -> None:
    from tunefarm.record.ledger import open_ledger

    open_ledger(path, {"experiment": "other"}).close()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, Python's own caches apart."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("mistake", [pytest.param(m, id=m.name) for m in (*FILES, *NAMES, *PLACES)])
def test_a_mistake_is_one_line_and_exit_code_2(mistake: Mistake, tmp_path: Path, store: Path, warm: Warm) -> None:
    """TF-012, TF-014 to TF-018, TF-022, TF-024, TF-026, TF-093, TF-125 to TF-128: in the experiment, the workload, the
    files beside them, the command's arguments.
    """
    if mistake not in FILES:
        with_landscape()(tmp_path)
    experiment = write_experiment(tmp_path, mistake.kernel, **mistake.sections)
    if mistake.text is not None:
        experiment.write_bytes(mistake.text if isinstance(mistake.text, bytes) else mistake.text.encode())
    mistake.arrange(tmp_path)
    before = contents(tmp_path)
    done = warm(*mistake.arguments, folder=tmp_path, store=store)
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert re.match(f"error: {mistake.says}", line), line
    assert done.returncode == 2
    assert done.stdout == ""
    assert contents(tmp_path) == before


def test_a_cluster_that_cannot_be_reached(tmp_path: Path, store: Path) -> None:
    """TF-104: not the user's file, so exit code 3; at once."""
    write_landscape(write_experiment(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        done = tunefarm(
            "sweep", "experiment.yaml", "--address", address, "--tracking", "none", "--quiet", folder=tmp_path,
            store=store, timeout_s=30,
        )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: no Ray cluster at {address}: ")
    assert line.endswith("(is it up, and the port right?)")
    assert done.returncode == 3
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """TF-086: said before machines are taken, with the variable to set."""
    write_landscape(write_experiment(tmp_path))
    done = tunefarm("sweep", "experiment.yaml", *REPLAY, folder=tmp_path, store=tmp_path / "kernels.py")
    (line,) = done.stderr.splitlines()
    assert re.match(r"error: cannot write to .*kernels.py \(set TUNEFARM_CACHE", line)
    assert done.returncode == 3
    assert farm.events(tmp_path / "sweeps/fill/ledger.jsonl") == []
