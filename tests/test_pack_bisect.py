"""`tunefarm pack bisect`: the rows that break a command are found, alone or together, and what cannot be is said."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path

import pytest
from farm import children, running, wait_until
from test_pack import make_row, make_table
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.device import nominal
from tunefarm.errors import UserError
from tunefarm.pack import Pack, dumps, seal
from tunefarm.pack_bisect import Found, Rows, Verdict, all_rows, bisect, numbers, reduced
from tunefarm.pack_reader import load_pack

ROOT = Path(__file__).parents[1]
JUDGE = """\
import json, os, sys
pack = json.load(open(os.environ["TUNEFARM_PACK"]))
blocks = {row["config"]["params"]["BLOCK"] for table in pack["tables"] for row in table["rows"]}
"""


def make_pack(*blocks: int) -> Pack:
    """A row for each block on an H100; the last is an A100's."""
    rows = [make_row(16 * n, 16 * n - 8, 16 * n + 8, BLOCK=block) for n, block in enumerate(blocks, 1)]
    return seal(Pack(tables=(make_table(*rows[:-1]), make_table(rows[-1], device=nominal("sm_80")))))


def harmful(*sets: Collection[int]) -> tuple[list[Rows], Found]:
    """What is tried of 12 rows, and found, if all of one of these sets do harm together."""
    tried: list[Rows] = []

    def judge(rows: Rows) -> Verdict:
        tried.append(rows)
        return Verdict.BAD if any(set(rows) >= set(bad) for bad in sets) else Verdict.GOOD

    return tried, bisect(12, judge)


def test_every_row_and_every_pair_is_found() -> None:
    for size in (1, 2, 3):
        for bad in itertools.combinations(range(12), size):
            tried, found = harmful(bad)
            assert found.culprits == (bad,)
            assert found.is_clean
            assert tried[:2] == [tuple(range(12)), ()]
            assert len(tried) == found.num_tries
            assert len(set(tried)) == len(tried) - 2, "only the answer is tried twice: by itself, and the rest"
            assert harmful(bad)[0] == tried


def test_rows_that_do_harm_each_by_itself_are_all_found() -> None:
    _, found = harmful({2}, {7, 9}, {11})
    assert sorted(found.culprits) == [(2,), (7, 9), (11,)]
    assert found.rows == (2, 7, 9, 11)
    assert found.is_clean


def test_what_says_nothing_is_passed_over() -> None:
    def judge(rows: Rows) -> Verdict:
        if len(rows) == 1:
            return Verdict.SKIP
        return Verdict.BAD if 4 in rows else Verdict.GOOD

    found = bisect(6, judge)
    (culprits,) = found.culprits
    assert 4 in culprits
    assert len(culprits) == 2
    assert found.num_skipped > 0


def test_parts_of_a_pack_and_their_names() -> None:
    pack = make_pack(1, 2, 3, 4)
    assert reduced(pack, range(4)) == pack
    assert [row.config.params["BLOCK"] for _, row in all_rows(reduced(pack, (0, 3)))] == [
        all_rows(pack)[n][1].config.params["BLOCK"] for n in (0, 3)
    ]
    assert reduced(pack, ()) == seal(Pack(tables=()))
    assert [numbers(rows) for rows in ((), (3,), (0, 1, 2, 4))] == ["no row", "row 4", "rows 1-3, 5"]


# ---- the verb ----


def run(folder: Path, *arguments: str | Path, judge: str = "") -> tuple[int, str]:
    """The verb on `pack.json` and a command that has the blocks of its part of the pack."""
    (folder / "judge.py").write_text(JUDGE + judge)
    words = ["pack", "bisect", str(folder / "pack.json"), *map(str, arguments)]
    done = CliRunner().invoke(app, [*words, *(["--", sys.executable, str(folder / "judge.py")] if judge else [])])
    said = "" if done.exception is None else f"{done.exception}"
    return done.exit_code, done.output + said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pack.json").write_text(dumps(make_pack(1, 2, 3, 4, 5, 6)))
    return tmp_path


def test_the_verb(folder: Path) -> None:
    judge = "if {2, 5} <= blocks: sys.exit('wrong result')"
    code, output = run(folder, "--write", folder / "clean.json", judge=judge)
    assert code == 0, output
    lines = output.splitlines()
    assert lines[0].endswith("pack.json: 6 rows")
    assert lines[1] == "run 1   bad   rows 1-6: exit code 1: wrong result"
    assert lines[2] == "run 2   good  no row"
    at = lines.index("bad together, 2 rows:")
    assert all("k on NVIDIA H100 80GB HBM3, k=64, n in (" in line for line in lines[at + 1 : at + 3])
    assert [line.split(": ")[1] for line in lines[at + 1 : at + 3]] == ["BLOCK=2 num_warps=4", "BLOCK=5 num_warps=4"]
    assert lines[-2].startswith("good without rows ")
    left = {row.config.params["BLOCK"] for _, row in all_rows(load_pack(folder / "clean.json"))}
    assert left == {1, 3, 4, 6}
    assert run(folder, judge=judge)[1].splitlines() == lines[:-1], "the same runs in the same order"
    code, output = run(folder, "--json", judge=judge)
    told = json.loads(output)
    assert [row["config"]["params"]["BLOCK"] for row in told["culprits"][0]] == [2, 5]
    assert told["good_without"]
    assert [entry["verdict"] for entry in told["runs"]] == [line.split()[2] for line in lines if line[:4] == "run "]


def test_the_pack_s_place_among_the_arguments_a_signal_and_a_timeout(folder: Path) -> None:
    (folder / "job.py").write_text(
        "import json, os, signal, sys, time\n"
        "text = open(sys.argv[1].removeprefix('--pack=')).read()\n"
        "'\"BLOCK\":3}' in text and os.kill(os.getpid(), signal.SIGSEGV)\n"
        "'\"BLOCK\":4}' in text and time.sleep(600)\n"
    )
    code, output = run(folder, "--timeout", "3", "--", sys.executable, folder / "job.py", "--pack={pack}")
    assert code == 0, output
    assert "SIGSEGV" in output
    assert "still running after 3 s" in output
    assert output.count("bad by itself:") == 2


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ("pass", "good with the whole pack: there is nothing to find"),
        ("sys.exit(3)", "bad with an empty pack, too: not the pack's fault"),
        ("sys.exit(125)", "says nothing about the whole pack (exit code 125)"),
        ("sys.exit(125 if not blocks else 1)", "says nothing about an empty pack (exit code 125)"),
        ("sys.exit(127)", "exit code 127"),
    ],
)
def test_what_cannot_be_found(folder: Path, judge: str, message: str) -> None:
    code, output = run(folder, "--write", folder / "clean.json", judge=judge)
    assert code != 0
    assert message in output
    assert not (folder / "clean.json").exists()


def test_a_command_that_changes_its_mind(folder: Path) -> None:
    """Bad whenever row 3 is there, but not the second time."""
    judge = "import pathlib; seen = pathlib.Path(__file__).with_name('seen')\n"
    judge += "if blocks == {3}:\n    sys.exit(not seen.exists() and (seen.write_text('') or 1))\nsys.exit(3 in blocks)"
    code, output = run(folder, judge=judge)
    assert code != 0
    assert "was bad and is good now: the command is not steady" in output


def test_a_signal_without_a_name(folder: Path) -> None:
    code, output = run(folder, judge="import os\nif 3 in blocks:\n    os.kill(os.getpid(), 40)")
    assert code == 0, output
    assert "bad   rows 1-6: signal 40" in output


def test_bad_input(folder: Path) -> None:
    assert "cannot run nowhere-to-be-found: No such file" in run(folder, "--", "nowhere-to-be-found")[1]
    assert "Missing argument" in run(folder)[1]
    assert "is there already" in run(folder, "--write", folder / "pack.json", judge="pass")[1]
    (folder / "pack.json").write_text((folder / "pack.json").read_text().replace("16", "17"))
    assert "does not match its digest" in run(folder, judge="pass")[1]


def test_interrupted_it_leaves_nothing_behind(folder: Path) -> None:
    (folder / "tmp").mkdir()
    (folder / "job.py").write_text("import subprocess, sys; subprocess.run(['sleep', '600'])")
    words = ("pack", "bisect", folder / "pack.json", "--", sys.executable, folder / "job.py")
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), str(folder / "tmp")
    try:
        with running(*words, folder=folder, store=folder) as process:
            grandchildren: list[int] = []

            def sleeps() -> bool:
                grandchildren[:] = [grand for child in children(process.pid) for grand in children(child)]
                return bool(grandchildren)

            assert wait_until(sleeps)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in grandchildren), 10)
    assert list((folder / "tmp").iterdir()) == []


JOB = """\
import sys
import torch
import tunefarm
from kernels import double
from tunefarm.device import nominal

tunefarm.activate(sys.argv[1], device=nominal("sm_90"))
for n in (256, 512, 1024):
    x, y = torch.ones(n), torch.zeros(n)
    double[lambda meta: (1,)](x, y, n)
    assert torch.equal(y, 2 * x), f"wrong at {n}"
"""

KERNELS = """\
import triton
import triton.language as tl
import tunefarm


@tunefarm.autotune(configs=[tunefarm.Config(params={"BLOCK": 1024})], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
"""


def test_a_real_job(tmp_path: Path) -> None:
    """One program a launch: the row with a block of half the row leaves the rest undone, in Triton's interpreter."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "make.py").write_text(
        textwrap.dedent(
            """\
            from kernels import double
            from runtime_kernels import block, make_pack, make_row
            from tunefarm.pack import dumps
            rows = [make_row(n, block(size), bounds=(n // 2, n)) for n, size in ((256, 256), (512, 256), (1024, 1024))]
            open("pack.json", "w").write(dumps(make_pack(double, *rows)))
            """
        )
    )
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", tmp_path)))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, env=environment, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tunefarm.cli", "pack", "bisect", "pack.json", "--", sys.executable, "job.py", "{pack}"],
        cwd=tmp_path, env={**environment, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "AssertionError: wrong at 512" in done.stdout
    assert "bad by itself:" in done.stdout
    assert "n in (256, 512] div16, fp32: BLOCK=256" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("good without row 2")


def test_an_answer_is_asked_for_twice() -> None:
    answers = iter([Verdict.BAD, Verdict.GOOD, Verdict.GOOD])
    with pytest.raises(UserError, match=r"the same pack \(row 1\) was bad and is good now"):
        bisect(1, lambda rows: next(answers))
