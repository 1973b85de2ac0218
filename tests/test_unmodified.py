"""Jobs that know nothing of tunefarm: run by `python -m tunefarm.runtime`, with children, and reports at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

KERNELS = """\
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)

@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def other(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)
"""

MAKE_PACK = """\
import sys
from kernels import tuned
sys.path.insert(0, {tests!r})
from runtime_kernels import make_pack, make_row, block
from tunefarm.pack import dumps
row = make_row(256, block(64), bounds=(128, 1024), dtypes={{"x": "fp32"}})
from dataclasses import replace
facts = {{k: v for k, v in row.match.facts.items() if k != "y"}}
row = replace(row, match=replace(row.match, facts=type(row.match.facts)(facts)))
open("pack.json", "w").write(dumps(make_pack(tuned, row)))
"""

JOB = """\
import sys, subprocess, multiprocessing
from kernels import other, tuned

def told(where):
    kinds = type(tuned).__name__, type(other).__name__
    sys.stdout.write(f"{where} {chr(32).join(kinds)}\\n")  # in one piece: two ranks may write at once
    sys.stdout.flush()

if __name__ == "__main__":
    print(sys.argv[1:], "tunefarm" in vars(sys.modules["__main__"]))
    told("job")
    child = multiprocessing.get_context("spawn").Process(target=told, args=("spawned",))
    child.start()
    child.join()
    subprocess.run([sys.executable, "-c", "import train; train.told('child')"], check=True)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "train.py").write_text(JOB)
    (folder / "make.py").write_text(MAKE_PACK.format(tests=str(ROOT / "tests")))
    done = run(folder, "make.py")
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TUNEFARM")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), **variables}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_job_and_its_children_obey_and_kernels_without_a_table_are_left_alone(job: Path) -> None:
    done = run(job, "-m", "tunefarm.runtime", "train.py", "--epochs", "3", TUNEFARM_PACK="pack.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['--epochs', '3'] False",
        "job PackedAutotuner Autotuner",
        "spawned PackedAutotuner Autotuner",
        "child PackedAutotuner Autotuner",
    ]


def test_a_module_runs_as_with_python_and_torchrun_s_workers_obey(job: Path) -> None:
    words = ("-m", "tunefarm.runtime", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    (job / "rank.py").write_text("import train; train.told('rank')\n")
    done = run(job, *words, "rank.py", TUNEFARM_PACK=str(job / "pack.json"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines().count("rank PackedAutotuner Autotuner") == 2


def test_another_sitecustomize_is_loaded_as_ever(job: Path) -> None:
    site = job / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text("print('theirs')\n")
    done = run(
        job, "-m", "tunefarm.runtime", "train.py", TUNEFARM_PACK="pack.json",
        PYTHONPATH=os.pathsep.join([str(site), str(ROOT), str(job)]),
    )  # fmt: skip
    assert done.stdout.count("theirs") >= 3, done.stdout  # Python has helpers of its own.
    assert "child PackedAutotuner Autotuner" in done.stdout


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"TUNEFARM": "off"}, ""),
        ({"TUNEFARM_EXCLUDE": "tuned"}, "tables of tuned are not used: TUNEFARM_EXCLUDE"),
    ],
)
def test_an_operator_may_say_no(job: Path, variables: dict[str, str], says: str) -> None:
    done = run(job, "-m", "tunefarm.runtime", "train.py", TUNEFARM_PACK="pack.json", **variables)
    assert done.returncode == 0, done.stderr
    assert "job Autotuner Autotuner" in done.stdout
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (["train.py"], {}, "TUNEFARM_PACK names no pack"),
        (["train.py"], {"TUNEFARM_PACK": "typo.json"}, "typo.json: no such file"),
        (["typo.py"], {"TUNEFARM_PACK": "pack.json"}, "typo.py: no such file"),
        (["-m"], {"TUNEFARM_PACK": "pack.json"}, "-m is followed by no module"),
        (["-m", "typo.train"], {"TUNEFARM_PACK": "pack.json"}, "-m typo.train: no such module"),
        (["-m", ".train"], {"TUNEFARM_PACK": "pack.json"}, "-m .train: no such module"),
        (["-m", "json.typo"], {"TUNEFARM_PACK": "pack.json"}, "-m json.typo: no such module"),
        (["-m", "json.decoder.typo"], {"TUNEFARM_PACK": "pack.json"}, "-m json.decoder.typo: no such module"),
        (["-m", "json"], {"TUNEFARM_PACK": "pack.json"}, "-m json: no such module, or a package without __main__"),
        (["."], {"TUNEFARM_PACK": "pack.json"}, ".: is a folder without __main__.py"),
        (["train.py"], {"TUNEFARM_PACK": "pack.json", "TUNEFARM": "perhaps"}, "TUNEFARM is 'perhaps' (it is on or off"),
        (["train.py"], {"TUNEFARM_PACK": "pack.json", "TUNEFARM_ON_MISS": "guess"}, "on_miss is 'guess'"),
    ],
)
def test_a_mistake_is_one_line_before_the_job_starts(
    job: Path, words: list[str], variables: dict[str, str], says: str
) -> None:
    done = run(job, "-m", "tunefarm.runtime", *words, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tunefarm: ")
    assert says in line


def test_each_process_leaves_a_report(job: Path, tmp_path: Path) -> None:
    launch = """
        import torch, tunefarm
        from tunefarm.device import nominal
        tunefarm.activate("pack.json", device=nominal("sm_90"))
        from kernels import tuned
        tunefarm.install(tuned)
        tuned.fn.run = lambda *args, **kwargs: None
        for n in (256, 256, 300, 4096):
            try:
                tuned[(1,)](torch.zeros(64), n)
            except Exception:  # the miss tunes as ever, for which there is no GPU
                pass
    """
    done = run(job, "-c", textwrap.dedent(launch), TUNEFARM_REPORT=str(tmp_path / "reports"), RANK="3")
    assert done.returncode == 0, done.stderr
    prom, written = sorted((tmp_path / "reports").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert written.name.startswith("rank3-")
    told = json.loads(written.read_text())
    assert (told["format"], told["version"], told["rank"]) == ("tunefarm-report", 1, 3)
    assert [hit["launches"] for hit in told["hits"]] == [2]
    by_n = {miss["problem"]["dims"]["n"]: miss for miss in told["misses"]}
    assert {n: miss["launches"] for n, miss in by_n.items()} == {300: 1, 4096: 1}
    assert by_n[4096]["problem"]["dtypes"] == {"x": "fp32"}
    assert "n is 4096, tuned for (128, 1024]" in by_n[4096]["reason"]
    text = prom.read_text()
    assert f'digest="{told["digest"]}"' in text
    assert 'tunefarm_pack_hits_total{rank="3",kernel="tuned",step="same device",kind="launch"} 2' in text
    assert 'tunefarm_pack_misses_total{rank="3",kernel="tuned",kind="launch"} 2' in text


@pytest.mark.parametrize("where", ["/proc/nowhere", "pack.json"])
def test_a_report_that_cannot_be_written_is_said_once_and_early_and_harms_nobody(job: Path, where: str) -> None:
    before = (job / "pack.json").read_bytes()
    code = "import sys, tunefarm; tunefarm.activate('pack.json'); print('the job runs', file=sys.stderr)"
    done = run(job, "-c", code, TUNEFARM_REPORT=where)
    assert done.returncode == 0
    assert done.stderr.startswith(f"no report of packs is left in {where}: ")
    assert done.stderr.count("no report of packs") == 1
    assert (job / "pack.json").read_bytes() == before


def test_a_kernel_that_is_excluded_and_in_no_table_is_named(job: Path) -> None:
    done = run(job, "-c", "import tunefarm; tunefarm.activate('pack.json')", TUNEFARM_EXCLUDE="tuned,tunde")
    assert "pack.json: has no table of tunde, named in TUNEFARM_EXCLUDE" in done.stderr
    assert "pack.json: tables of tuned are not used: TUNEFARM_EXCLUDE" in done.stderr


COMPILED = """\
import sys
sys.path.insert(0, {tests!r})
import torch, torch.utils._triton, triton
from dataclasses import replace
from kernels import tuned
from runtime_kernels import SM_90, Seen
from triton.runtime.autotuner import Autotuner
from tunefarm.runtime.active import ACTIVE

ACTIVE.activations[:] = [replace(activation, device=SM_90) for activation in ACTIVE.activations]

class Derived(Autotuner):
    def __init__(self, fn, configs):
        super().__init__(fn, fn.arg_names, configs, ["n"], None, None)
        self.late = True

jitted = triton.jit(tuned.fn.fn)
derived = Derived(jitted, list(tuned.declared.configs))
print(type(derived).__name__, derived.declared.late)

def launch(x):
    tuned[(1,)](x, x.shape[0])
    derived[(1,)](x, x.shape[0])
    return x + 1

seen = Seen()
torch.utils._triton.has_triton = lambda *_: True
compiled = torch.compile(launch, backend=seen, fullgraph=True)
compiled(torch.zeros(256))
print(seen.blocks)
"""


def test_compiled_and_derived_autotuners_obey(job: Path) -> None:
    """torch.compile makes autotuners itself, one within another: those are none of ours."""
    (job / "compiled.py").write_text(COMPILED.format(tests=str(ROOT / "tests")))
    done = run(job, "-m", "tunefarm.runtime", "compiled.py", TUNEFARM_PACK="pack.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["PackedDerived True", "[[64], [64]]"]


WRAPPED = """\
import functools
from triton.runtime.autotuner import Autotuner
stock = Autotuner.__init__

@functools.wraps(stock)
def timed(self, *args, **kwargs):
    stock(self, *args, **kwargs)

Autotuner.__init__ = timed
from tunefarm.runtime.__main__ import follow
follow()
follow()
from kernels import other, tuned
print(type(tuned).__name__, type(other).__name__, Autotuner.__init__.__wrapped__ is timed)
"""


def test_autotuners_are_adopted_though_somebody_else_watches_them_too(job: Path) -> None:
    done = run(job, "-c", WRAPPED, TUNEFARM_PACK="pack.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["PackedAutotuner", "Autotuner", "True"]


MOVING = """\
import os, subprocess, sys
from kernels import tuned
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
subprocess.run([sys.executable, "-c", "from kernels import tuned; print(type(tuned).__name__)"], check=True)
"""


def test_a_job_that_changes_its_folder_keeps_packs_and_reports(job: Path) -> None:
    (job / "moving.py").write_text(MOVING)
    done = run(job, "-m", "tunefarm.runtime", "moving.py", TUNEFARM_PACK="pack.json", TUNEFARM_REPORT="moved")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["PackedAutotuner"]
    assert len(list((job / "moved").glob("*.json"))) == 2
    assert not list((job / "elsewhere").iterdir())


def test_a_module_that_is_only_looked_for_is_still_waited_for(tmp_path: Path) -> None:
    """As libraries do, to see whether it could be imported. Who came first acts first, and each once."""
    (tmp_path / "awaited.py").write_text("done = ['loaded']\n")
    look = (
        "import importlib.util\nfrom tunefarm.runtime.loading import once_loaded\n"
        "once_loaded('awaited', lambda m: m.done.append('first'))\n"
        "once_loaded('awaited', lambda m: m.done.append('second'))\n"
        "assert importlib.util.find_spec('awaited') and importlib.util.find_spec('awaited')\n"
        "import awaited\nprint(*awaited.done)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("loaded first second\n", "")
