"""What training code calls: activate, install, report; and what loading tunefarm costs it."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from runtime_kernels import LADDER, SM_90, Seen, block, foreign, make_pack, make_row, own
from triton.tools.tensor_descriptor import TensorDescriptor
from typer.testing import CliRunner

import tunefarm
from tunefarm.cli.pack import app
from tunefarm.errors import MissError, PackError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, dumps, seal
from tunefarm.problem import SPELLING, Problem
from tunefarm.runtime import active, reporting
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.active import ACTIVE
from tunefarm.runtime.kernels import problem_of, signature_of, spelling
from tunefarm.runtime.reporting import report

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


@triton.jit(do_not_specialize=["k"])
def plain(x, n, k, scale: tl.constexpr = 3):
    tl.store(x, n)


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_import_and_activation_load_the_standard_library_only(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text(dumps(make_pack(own, *LADDER)))
    out = run(f"""
        import sys
        before = set(sys.modules)
        import tunefarm
        from tunefarm.runtime.autotuner import autotune
        tunefarm.activate({str(path)!r})
        print(tunefarm.report())
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print("GUESTS", sorted(loaded - set(sys.stdlib_module_names) - {{"tunefarm"}}))
    """)
    assert "GUESTS []" in out


def test_tf_047_two_processes_choose_alike_without_a_word_between_them(tmp_path: Path) -> None:
    """And can tell by the digest that they do, before the first launch."""
    path = tmp_path / "pack.json"
    path.write_text(dumps(make_pack(own, *LADDER)))
    script = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "tests")!r})
        import torch, tunefarm
        from runtime_kernels import SM_90, own
        pack = tunefarm.activate({str(path)!r}, device=SM_90)
        for n in (1, 129, 256, 257, 512, 1000, 1024, 2048, 4096):
            x = torch.zeros(n)
            print(n, own.config_for(x, x, n))
        print("digest", pack.digest)
    """
    first, second = run(script), run(script)
    assert first == second
    assert "256 BLOCK=128" in first
    assert f"digest {make_pack(own, *LADDER).digest}" in first


def test_a_pack_that_was_never_used_is_mentioned_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text(dumps(make_pack(own, *LADDER)))
    out = run(f"import tunefarm; tunefarm.activate({str(path)!r})")
    assert f"pack {path} was active, and none of its rows was used" in out


def test_a_used_pack_is_not_mentioned_at_exit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own.fn, "run", lambda *_, **__: None)
    activate(make_pack(own, *LADDER), device=SM_90)
    own[(1,)](torch.zeros(256), torch.zeros(256), 256)
    active.ACTIVE._warn_unused()
    assert "none of its rows" not in caplog.text


def test_tf_090_a_damaged_pack_is_as_good_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pack.json"
    text = dumps(make_pack(own, *LADDER))
    for defect in (text[: len(text) // 2], "", "[]", text.replace('"BLOCK":128', '"BLOCK":129')):
        path.write_text(defect)
        assert activate(path) is None
        with pytest.raises(PackError, match=r"pack\.json"):
            activate(path, strict=True)
    assert caplog.text.count("no pack is used: ") == 4
    assert caplog.text.count(str(path)) == 4
    assert report().packs == ()


def test_a_missing_pack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no such file"):
        activate(tmp_path / "typo.json")


def test_on_miss_is_one_of_four() -> None:
    with pytest.raises(UserError, match="stock, default, nearest, error"):
        activate(make_pack(own), on_miss="guess")


def test_terms_of_another_kind_are_refused_before_the_first_launch() -> None:
    with pytest.raises(UserError, match=r"device is 'H100' \(it is a tunefarm.Device"):
        activate(make_pack(own), device="H100")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"on_disagreement is 'rank1' .*error, rank0"):
        activate(make_pack(own), on_disagreement="rank1")
    for name, value in (("allow_replayed", "no"), ("strict", 1), ("digest", 5), ("digest", None)):
        with pytest.raises(UserError, match=f"{name} is {value!r}"):
            activate(make_pack(own), **{name: value})
    for source in (None, 3, ["p.json"]):
        with pytest.raises(UserError, match="name a pack, or a folder of packs"):
            activate(source)  # type: ignore[arg-type]
    assert active.ACTIVE.activations == []


def test_replayed_rows_are_refused_unless_allowed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    x, pack = torch.zeros(256), make_pack(own, *LADDER, source="replayed")
    activate(pack, device=SM_90)
    own[(1,)](x, x, 256)
    assert "replayed from a landscape" in caplog.text
    assert "allow_replayed=True" in report().refused[0]
    activate(pack, device=SM_90, allow_replayed=True)
    own[(1,)](x, x, 256)
    assert launched == [64, 128]
    with pytest.raises(MissError, match="replayed"):
        activate(pack, strict=True)


def test_the_later_pack_wins_and_the_earlier_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[int] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    activate(make_pack(own, *LADDER), device=SM_90)
    activate(make_pack(own, make_row(256, block(1024))), device=SM_90)
    x = torch.zeros(2048)
    for n in (256, 512):
        own[(1,)](x, x, n)
    assert launched == [1024, 256]


def test_equal_numbers_of_different_types_are_different_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row answers integers: whichever comes first, 512.0 misses and 512 does not."""
    launched: list[int] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    activate(make_pack(own, *LADDER), device=SM_90)
    x = torch.zeros(2048)
    for n in (512.0, 512, 256, 256.0):
        own[(1,)](x, x, n)
    assert launched == [64, 256, 128, 64]


def test_report_counts_and_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.fn, "run", lambda *_, **__: None)
    activate(make_pack(own, *LADDER), device=SM_90)
    activate(make_pack(foreign, *LADDER, name="absent"), device=SM_90)
    x = torch.zeros(4096)
    for n in (256, 256, 320, 4096, 4096):
        own[(1,)](x, x, n)
    now = report()
    assert (now.num_hits, now.num_misses) == (3, 2)
    assert [hit.launches for hit in now.hits] == [3]
    assert now.hits[0].step == "same device"
    assert now.misses[0].problem.key.startswith("dims n=4096")
    assert [table.split(" on ")[0] for table in now.never_asked] == ["absent"]
    lines = str(now).splitlines()
    assert lines[0].endswith("3 hits, 2 misses")
    assert lines[1].split() == ["kernel", "step", "match", "config", "launches", "graphs"]
    assert "n in (128, 362]" in lines[2]
    assert any("n is 4096, tuned for (724, 2048]" in line for line in lines)
    assert lines[-1].startswith("never asked: absent on NVIDIA H100")


def test_a_report_can_be_made_while_other_threads_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which each may be hit, missed or refused for the first time just then."""
    activate(make_pack(own, *LADDER), device=SM_90)
    x = torch.zeros(4096)
    monkeypatch.setattr(own.fn, "run", lambda *_, **__: None)
    for n in (256, 512, 4096, 2064):
        own[(1,)](x, x, n)
    (kernel, offer), tally = next(iter(ACTIVE.hits.items()))

    def meanwhile(stock: Any) -> Any:
        def made(**told: Any) -> Any:
            number = len(ACTIVE.hits)
            ACTIVE.hits[f"{kernel} {number}", offer] = tally
            ACTIVE.misses[f"{kernel} {number}", None, ""] = tally
            return stock(**told)

        return made

    for name in ("Hit", "Miss"):
        monkeypatch.setattr(reporting, name, meanwhile(getattr(reporting, name)))
    told = report()
    assert [(hit.kernel, hit.launches) for hit in told.hits] == [("own", 1)] * 2
    assert {miss.kernel for miss in told.misses} >= {"own", "own 2", "own 3"}


def test_misses_of_ever_new_shapes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "MAX_MISSES", 5)
    monkeypatch.setattr(own.fn, "run", lambda *_, **__: None)
    activate(make_pack(own, *LADDER), device=SM_90)
    x = torch.zeros(16)
    for n in range(10_000, 10_020):
        own[(1,)](x, x, n)
    assert (len(report().misses), report().num_misses) == (6, 20)


def test_install_takes_kernels_and_modules_and_is_idempotent() -> None:
    module = ModuleType("library")
    first = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"])(foreign.fn)
    second = triton.heuristics({"extra": lambda _: None})(
        tunefarm.autotune(configs=[triton.Config({"BLOCK": 16})], key=["n"])(own.fn)
    )
    vars(module).update(first=first, again=first, second=second, plain=plain, number=3)
    assert install(module) == ["foreign", "own"]
    kind = type(first)
    assert install(first) == ["foreign"]
    assert type(first) is kind
    assert issubclass(kind, triton.runtime.Autotuner)


def test_install_of_nothing_is_an_error() -> None:
    for target in (ModuleType("empty"), 3):
        with pytest.raises(UserError, match="holds no kernel"):
            install(target)
    for name in ("", ".kernels"):
        with pytest.raises(UserError, match=r"is no module .*whole dotted name"):
            install(name)


def test_a_third_partys_autotuner_class_keeps_its_behaviour(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Cached(triton.runtime.Autotuner):  # type: ignore[misc]
        def run(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("theirs")
            return self.fn.run(*args, **kwargs, **self.configs[-1].all_kwargs())

    launched: list[int] = []
    kernel = Cached(foreign.fn, foreign.fn.arg_names, [triton.Config({"BLOCK": 8})], ["n"], None, None)
    monkeypatch.setattr(foreign.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    install(kernel)
    activate(make_pack(kernel, *LADDER), device=SM_90)
    x = torch.zeros(4096)
    for n in (256, 4096):
        kernel[(1,)](x, x, n)
    assert (launched, calls) == ([128, 8], ["theirs"])
    assert isinstance(kernel, Cached)


def test_settings_that_only_benchmarks_know_do_not_bar_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    with pytest.warns(DeprecationWarning, match="warmup"):
        kernel = triton.autotune([triton.Config({"BLOCK": 16})], key=["n"], warmup=1, rep=2)(foreign.fn)
    bench = kernel.do_bench
    install(kernel)
    assert kernel.declared.do_bench is bench
    seen = Seen()

    def double(x: torch.Tensor) -> torch.Tensor:
        kernel[(1,)](x, x, x.shape[0])
        return x

    torch.compile(double, backend=seen, fullgraph=True)(torch.zeros(32))
    assert seen.blocks == [[16]]


@triton.autotune(configs=[triton.Config({}, num_warps=2), triton.Config({}, num_warps=8)], key=["n"])
@triton.heuristics({"BLOCK": lambda named: 32 if named["n"] < 300 else 64})
@triton.jit
def guessed(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def test_heuristics_under_the_autotuner(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Newer torch prunes such kernels; for an older one packs are refused inside torch.compile, and that is said."""
    from torch._higher_order_ops.triton_kernel_wrap import TritonHOPifier

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    install(guessed)
    wide = tunefarm.Config(options={"num_warps": 16})
    activate(make_pack(guessed, make_row(512, wide, bounds=(256, 1024))), device=SM_90)
    seen = Seen()

    def copy(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        guessed[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, x.shape[0])
        return y

    torch.compile(copy, backend=seen, fullgraph=True, dynamic=False)(torch.zeros(512))
    captured = [[(config["BLOCK"], config["num_warps"]) for config in graph] for graph in seen.graphs]
    if hasattr(TritonHOPifier, "recreate_variable"):
        assert captured == [[(64, 16)]]
    else:
        assert captured == [[(64, 2), (64, 8)]]
        assert "cannot prune" in caplog.text


def test_facts_of_a_call() -> None:
    signature = signature_of(plain)
    assert signature.name == "plain"
    assert signature.specialised == {"x", "n"}  # k is exempt, scale is compiled in
    assert signature.defaults == {"scale": 3}
    x = torch.zeros(64, dtype=torch.bfloat16)
    problem = problem_of({"x": x[1:], "n": 1, "m": 48, "k": 7, "b": True, "z": None}, ("n", "m", "k", "b"), ("x", "z"))
    assert dict(problem.facts) == {"n": "one", "m": "div16", "z": "none"}
    assert dict(problem.dtypes) == {"x": "bf16"}
    assert not problem_of({"x": x}, ("n",), ("x",)).dims


def test_a_descriptor_is_known_by_the_dtype_of_its_tensor() -> None:
    """As a sweep learns it; the block is the config's, and its tensor is aligned by definition."""
    x = TensorDescriptor.from_tensor(torch.zeros(64, dtype=torch.bfloat16), [16])
    assert problem_of({"x": x, "y": 3}, (), ("x", "y")) == Problem(dtypes=FrozenMap(x="bf16"))


def test_dtypes_are_spelled_as_triton_spells_them() -> None:
    """As in the signature of a launch, from which a sweep learns them."""
    from triton.runtime.jit import mangle_type

    for name in SPELLING:
        tensor = torch.empty(1, dtype=getattr(torch, name))
        assert f"*{spelling(tensor.dtype)}" == mangle_type(tensor), name


def test_pack_show(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    row = replace(LADDER[0], default=block(64), default_ms=2.0, gain=2.0, margin=math.pi / 100)
    row = replace(row, config=block(128, hint="[/x]"))  # no end of a style
    path.write_text(dumps(make_pack(own, row, source="replayed")))
    shown = CliRunner().invoke(app, ["show", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    for text in (
        "1 row in 1 table",
        "own on NVIDIA H100",
        "REPLAYED",
        "n in (128, 362]",
        "BLOCK=128",
        "hint=[/x]",
        "2.00x",
        "3.1%",
    ):
        assert text in shown.output
    (table,) = make_pack(own, row).tables
    path.write_text(dumps(seal(Pack(tables=(replace(table, layer=2), replace(table, layer=3))))))
    told = CliRunner().invoke(app, ["show", str(path)], env={"COLUMNS": "200"}).output
    assert "own, a template of Inductor's, on NVIDIA H100" in told
    assert "own, generated by Inductor, on NVIDIA H100" in told
    assert '"format": "tunefarm-pack"' in CliRunner().invoke(app, ["show", str(path), "--json"]).output
    path.write_text("{")
    assert isinstance(CliRunner().invoke(app, ["show", str(path)]).exception, PackError)


def test_logging_goes_through_one_logger() -> None:
    assert active.log is logging.getLogger("tunefarm.runtime")
