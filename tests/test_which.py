"""`pack which`: the runtime's own lookup, asked from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_pack import make_row, make_table
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.device import nominal
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, Row, Table, dumps, seal
from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, Step, find, shortlist
from tunefarm.runtime.which import Reply, ask, here_of

H100 = nominal("sm_90")
H200 = replace(H100, name="NVIDIA H200", bandwidth_gbps=4800.0)


def row(n: int, lo: int, hi: int, **params: Any) -> Row:
    made = make_row(n, lo, hi, **params)
    return replace(made, match=replace(made.match, facts=FrozenMap(n="div16", x="div16", y="div16")))


def reply(
    *tables: Table, device: Any = H100, source_hash: str = "", triton: str = "", layer: int = 0, torch: str = "",
    **call: str,
) -> Reply:  # fmt: skip
    strict, replayed = "strict" in call, "replayed" in call
    arguments = {name: value for name, value in call.items() if name not in ("strict", "replayed")}
    activation = Activation(pack=seal(Pack(tables=tables)), label="p.json", strict=strict, allow_replayed=replayed)
    here, asked = here_of(
        activation, "k", device, source_hash=source_hash, triton=triton, layer=layer, torch=torch
    )  # fmt: skip
    return ask(activation, here, asked, {"k": "64", **arguments}, set())


NEAR, FAR = make_table(row(1024, 512, 2048), device=H100), make_table(row(1024, 0, 9999, BLOCK=1), device=H200)


def test_the_answer_is_the_runtime_s() -> None:
    for n in (16, 512, 528, 1000, 2048, 4096, 9999):
        told = reply(NEAR, FAR, n=str(n))
        facts = {"x": "div16", "y": "div16", "k": "div16"} | ({"n": "div16"} if n % 16 == 0 else {})
        problem = Problem(
            dims=FrozenMap(n=n, k=64), dtypes=FrozenMap(x="bf16", y="fp32"), facts=FrozenMap(facts)
        )  # fmt: skip
        activation = Activation(pack=seal(Pack(tables=(NEAR, FAR))), label="p.json")
        listed = shortlist([activation], "k", "s" * 64, H100, "3.6.0")
        found = find(listed.offers, problem, {"n", "k", "x", "y"})
        assert told.problem == problem
        assert (told.offer and told.offer.row) == (found and found.row)


def test_it_says_at_which_step_and_what_nearer_devices_lack() -> None:
    near, far = reply(NEAR, FAR, n="1024"), reply(NEAR, FAR, n="4096")
    assert near.offer is not None
    assert (near.offer.step, near.nearer) == (Step.DEVICE, ())
    assert far.offer is not None
    assert far.offer.step is Step.ARCH
    assert far.nearer == ("nearest row n in (512, 2048] div16, k=64, bf16, fp32: n is 4096, tuned for (512, 2048]",)
    twin = reply(make_table(row(1024, 0, 2048), device=replace(H100, name="OEM H100")), n="1024")
    assert twin.offer is not None
    assert twin.offer.step is Step.TWIN


def test_tf_060_dtypes_and_alignment_are_part_of_the_question() -> None:
    assert reply(NEAR, n="1024").assumed == ("x bf16", "y fp32")
    assert reply(NEAR, n="1024", x="bfloat16", y="torch.float32").offer is not None
    half = reply(NEAR, n="1024", x="fp16")
    assert half.offer is None
    assert "x is fp16, tuned bf16" in half.nearer[0]
    assert "x is not div16, tuned div16" in reply(NEAR, n="1024", x="bf16:unaligned").nearer[0]
    both = replace(row(1024, 0, 2048), match=replace(row(1024, 0, 2048).match, dtypes=FrozenMap(x="fp16", y="fp32")))
    with pytest.raises(UserError, match=r"x is missing \(rows know x=bf16, x=fp16\)"):
        reply(make_table(row(1024, 0, 2048), both), n="1024")


@pytest.mark.parametrize(
    ("n", "answers"), [("1", False), ("48", True), ("80", True), ("0", False), ("-16", False), ("2048", False)]
)
def test_tf_067_068_no_row_reaches_beyond_its_range(n: str, answers: bool) -> None:
    told = reply(make_table(row(64, 32, 90)), n=n)
    assert (told.offer is not None) is answers
    assert answers or "tuned for (32, 90]" in told.nearer[0]


def test_refusals_are_the_runtime_s() -> None:
    replayed = make_table(row(16, 0, 32), provenance=replace(NEAR.provenance, source="replayed"))
    assert "replayed" in reply(replayed, n="16").listed.refused[0]
    assert reply(replayed, n="16", replayed="").offer is not None
    assert "source has changed" in reply(NEAR, n="1024", source_hash="f" * 64).listed.refused[0]
    assert reply(NEAR, n="1024", source_hash="sss").offer is not None
    assert reply(FAR, n="1024", strict="").offer is None


def test_tf_071_another_triton_is_noted_or_refused() -> None:
    assert "here is 3.7.1" in reply(NEAR, n="1024", triton="3.7.1").listed.notes[0]
    assert "here is 3.7.1" in reply(NEAR, n="1024", triton="3.7.1", strict="").listed.refused[0]
    other = make_table(row(16, 0, 32), key_parts=FrozenMap({**NEAR.key_parts, "triton": "3.7.1"}))
    with pytest.raises(UserError, match=r"tables of k differ: 3\.6\.0, 3\.7\.1 .*--triton"):
        reply(NEAR, other, n="16")
    sources = make_table(row(16, 0, 32), source_hash="t" * 64)
    with pytest.raises(UserError, match="--source-hash"):
        reply(NEAR, sources, n="16")


def test_inductors_tables_are_asked_as_inductor_asks_them() -> None:
    """Under one release of torch; for a generated kernel whatever its sizes are, as its text holds them."""
    parts = FrozenMap({**NEAR.key_parts, "torch": "2.11.0"})
    template = make_table(row(1024, 512, 2048), layer=2, key_parts=parts)
    assert reply(template, n="1024").offer is not None
    assert reply(template, n="4096").offer is None
    assert reply(template, n="1024", torch="2.11.0+cu130").offer is not None
    assert "here is 2.13.0" in reply(template, n="1024", torch="2.13.0").listed.refused[0]
    assert reply(replace(template, layer=3)).offer is not None
    own = make_table(row(1024, 512, 2048, BLOCK=1))
    with pytest.raises(UserError, match=r"tables of k differ: 1, 2 .*--layer"):
        reply(own, template, n="1024")
    for layer, block in ((1, 1), (2, 1024)):
        found = reply(own, template, n="1024", layer=layer).offer
        assert found is not None
        assert found.row.config.params["BLOCK"] == block


# ---- the command ----


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "p.json"
    file.write_text(dumps(seal(Pack(tables=(NEAR, FAR)))))
    return file


def test_the_command_answers_with_its_exit_code(path: Path) -> None:
    run = CliRunner().invoke
    found = run(app, ["pack", "which", str(path), "k", "n=1024", "k=64", "--device", "H100"])
    assert found.exit_code == 0, found.output
    assert "answer   BLOCK=1024 num_warps=4\n" in found.output
    assert "step     same device\n" in found.output
    missed = run(app, ["pack", "which", str(path), "k", "n=1023", "k=64", "--device", "H200", "--json"])
    assert missed.exit_code == 1
    told = json.loads(missed.output)
    assert (told["config"], told["step"]) == (None, None)
    assert "n is not div16" in told["nearer"][0]
    other = run(app, ["pack", "which", str(path), "k", "n=1024", "k=64", "--device", "sm_80"])
    assert other.exit_code == 1
    assert "tuned for sm_90, here is sm_80" in other.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["k", "n=16"], "no device is named"),
        (["k", "n", "--device", "H100"], "'n' is no argument"),
        (["k", "n=1", "n=2", "--device", "H100"], "is given twice"),
        (["k", "m=1", "--device", "H100"], "no row of k asks about m"),
        (["k", "x=16", "--device", "H100"], "x=16 is no dtype"),
        (["other", "--device", "H100"], "has no table of kernel other"),
        (["k", "n=16", "--device", "H10"], "'H10' is not known"),
        (["k", "n=16", "k=64", "x=bf17", "--device", "H100"], "x=bf17 is no dtype"),
        (["k", "n=16", "k=64", "x=bf16:", "--device", "H100"], "x=bf16: is no dtype"),
        (["k", "n=many", "k=64", "--device", "H100"], "n=many is no value that a row has (rows have (512, 2048]"),
        (["k", "n=inf", "k=64", "--device", "H100"], "n=inf is inf, no number"),
        (["k", f"n={10**30}", "k=64", "--device", "H100"], "is an integer of 31 digits"),
        (["k", "n=16", "k=64", "--device", "H100", "--source-hash", "xyz"], "--source-hash 'xyz' is no source hash"),
        (["k", "n=16", "k=64", "--device", "H100", "--unspecialised", "m"], "asks about m, named as --unspecialised"),
    ],
)
def test_a_question_that_makes_no_sense_is_asked_back(path: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["pack", "which", str(path), *words])
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)


def test_neither_torch_nor_triton_is_needed(path: Path) -> None:
    code = (
        "import sys; sys.modules.update(torch=None, triton=None, ray=None, numpy=None, optuna=None);"
        "from tunefarm.cli.__main__ import main; main()"
    )
    words = ["pack", "which", str(path), "k", "n=1024", "k=64", "--device", "H100"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
