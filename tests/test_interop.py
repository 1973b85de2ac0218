"""Other tools' tables: read in their published forms, written so that they read them, and nothing made up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_pack import PROVENANCE, make_table
from typer.testing import CliRunner

from tunefarm.cli.app import app
from tunefarm.config import CODE_OPTIONS, Config
from tunefarm.device import nominal
from tunefarm.errors import DocumentError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Row, dumps, seal
from tunefarm.pack_reader import load_pack
from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, find, shortlist

HASH = "f" * 64
MOE = {
    "triton_version": "3.5.1",
    "1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4,
          "num_stages": 4},
    "64": {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 16, "num_warps": 4,
           "num_stages": 3},
    "1024": {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 32, "num_warps": 8,
             "num_stages": 4},
}  # fmt: skip
MOE_NAME = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json"
MOE_WORDS = (
    "--kernel", "fused_moe", "--source-hash", HASH, "--dim", "M=tokens", "--dim", "E=", "--dim", "N=N",
    "--tensor", "a_ptr=fp8e4nv",
)  # fmt: skip


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["pack", *words])
    if done.exception is not None:
        raise done.exception
    return done.output


def imported(path: Path, content: Any, source: str, *words: str) -> tuple[Pack, str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    out = path.with_name("pack.json")
    said = run("import", str(path), "--from", source, "-o", str(out), *words)
    return load_pack(out), said


def answer(pack: Pack, problem: Problem, *, source_hash: str = HASH, strict: bool = False) -> Config | None:
    offered = [Activation(pack=pack, label="p", strict=strict)]
    kernel, triton = pack.tables[0].kernel, str(pack.tables[0].key_parts["triton"])
    listed = shortlist(offered, kernel, source_hash, nominal("sm_90"), triton)
    offer = find(listed.offers, problem, {*problem.dims, *problem.dtypes})
    return None if offer is None else offer.row.config


def moe_call(tokens: int, dtype: str = "fp8e4nv") -> Problem:
    facts = {"tokens": "one" if tokens == 1 else "div16"} if tokens == 1 or tokens % 16 == 0 else {}
    return Problem(
        dims=FrozenMap(tokens=tokens, N=7168), dtypes=FrozenMap(a_ptr=dtype),
        facts=FrozenMap(facts, a_ptr="div16", N="div16"),
    )  # fmt: skip


# ---- vLLM and SGLang ----


@pytest.mark.parametrize(
    ("source", "name", "triton"),
    [
        ("vllm", MOE_NAME, "3.5.1"),
        ("vllm", "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json", "3.5.1"),
        ("sglang", "triton_3_4_0/" + MOE_NAME.replace(".json", ",block_shape=[128, 128]_down.json"), "3.4.0"),
        ("sglang", "triton_3_4_0/E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json", "3.4.0"),
        ("sglang", MOE_NAME, "unknown"),
    ],
)
def test_tf_066_069_each_config_of_a_moe_table_is_found_where_it_was_tuned(
    tmp_path: Path, source: str, name: str, triton: str
) -> None:
    content = {k: v for k, v in MOE.items() if source == "vllm" or k != "triton_version"}
    pack, said = imported(tmp_path / name, content, source, *MOE_WORDS)
    assert "IMPORTED from another tool's file" in run("show", str((tmp_path / name).with_name("pack.json")))
    (table,) = pack.tables
    assert (table.key_parts["triton"], table.provenance.source, table.provenance.timer) == (
        triton,
        "imported",
        "unknown",
    )
    assert table.device == nominal("sm_90")
    assert not table.provenance.checked
    assert all(row.median_ms is None and row.interval_ms is None for row in table.rows)
    assert "times, whether outputs are right" in said
    for tokens, values in content.items():
        if tokens != "triton_version":
            found = answer(pack, moe_call(int(tokens)))
            assert found is not None
            assert found.flat == values
            assert set(found.options) == {"num_warps", "num_stages"}


def test_tf_060_067_imported_rows_reach_no_further_than_others(tmp_path: Path) -> None:
    pack, _ = imported(tmp_path / MOE_NAME, MOE, "vllm", *MOE_WORDS)
    assert answer(pack, moe_call(48)) == answer(pack, moe_call(64))
    assert answer(pack, moe_call(2048)) == answer(pack, moe_call(1024))
    for miss in (moe_call(4096), moe_call(16), moe_call(3), moe_call(64, "bf16")):
        assert answer(pack, miss) is None
    assert answer(pack, moe_call(64), source_hash="0" * 64) is None
    assert answer(pack, moe_call(64), strict=True) is None


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        ("moe.json", MOE, MOE_WORDS, "is not named as vLLM and SGLang name"),
        (MOE_NAME, {"016": MOE["1"]}, MOE_WORDS, "016: is no number of tokens"),
        (MOE_NAME, {"abc": MOE["1"]}, MOE_WORDS, "abc: is no number of tokens"),
        (MOE_NAME, {"16": 3}, MOE_WORDS, "16: is no config"),
        (MOE_NAME, {"16": {"BLOCK_SIZE_M": [1]}}, MOE_WORDS, "16.BLOCK_SIZE_M: is list"),
        (MOE_NAME, [], MOE_WORDS, "must be an object"),
        (MOE_NAME, {}, MOE_WORDS, "holds no config"),
        (MOE_NAME, '{"1": {}, "1": {}}', MOE_WORDS, "appears twice"),
        (MOE_NAME, MOE, MOE_WORDS[:2] + MOE_WORDS[4:], "which source of the kernel"),
        (MOE_NAME, MOE, (*MOE_WORDS[:3], "ffff", *MOE_WORDS[4:]), "'ffff' is no source hash"),
        (MOE_NAME, MOE, MOE_WORDS[2:], "does not name the kernel"),
        (MOE_NAME, MOE, MOE_WORDS[:-2], "names no tensor"),
        (MOE_NAME, MOE, (*MOE_WORDS[:6], *MOE_WORDS[-2:]), "holds E and N is not said"),
        (MOE_NAME.replace("H100_80GB_HBM3", "B200"), MOE, MOE_WORDS, "'NVIDIA B200' is not known"),
        (MOE_NAME, {"16": {**MOE["1"], "num_warps": "four"}}, MOE_WORDS, "num_warps: is 'four', not an integer >= 1"),
        (MOE_NAME, {"16": {**MOE["1"], "num_stages": -1}}, MOE_WORDS, "16.num_stages: is -1, not an integer >= 0"),
        (MOE_NAME, {"16": {**MOE["1"], "BLOCK_SIZE_M": 1 << 80}}, MOE_WORDS, "BLOCK_SIZE_M: is an integer of 81 bits"),
        (MOE_NAME, {"9" * 5000: MOE["1"]}, MOE_WORDS, "is no number of tokens"),
        (MOE_NAME, {**MOE, "triton_version": 3.5}, MOE_WORDS, "triton_version: is 3.5, no version"),
        (MOE_NAME, MOE, (*MOE_WORDS[:-1], "a_ptr=fp9"), "--tensor a_ptr=fp9: 'fp9' is no element type"),
        (MOE_NAME, MOE, (*MOE_WORDS[:-1], "a_ptr="), "--tensor a_ptr=: '' is no element type"),
        (MOE_NAME, MOE, (*MOE_WORDS[:-1], "N=bf16"), "has N both as a number and as a tensor"),
        (MOE_NAME, MOE, (*MOE_WORDS, "--set", "top_k=nan"), "--set top_k=nan: is nan, no number"),
        (MOE_NAME, MOE, (*MOE_WORDS, "--set", f"top_k={1 << 70}"), "is an integer of 22 digits"),
        (MOE_NAME, MOE, (*MOE_WORDS, "--set", "N=4"), "says itself that N is 7168"),
        (MOE_NAME, MOE, (*MOE_WORDS, "--dim", "X=x"), "--dim X=... is nothing that a file holds"),
        (MOE_NAME, MOE, (*MOE_WORDS[:6], "--dim", "E=N", *MOE_WORDS[8:]), "N is named twice"),
        (MOE_NAME, MOE, (*MOE_WORDS, "--name", "n"), "--name n says nothing of a file of vllm"),
    ],
)  # fmt: skip
def test_what_a_file_does_not_say_is_asked_for(
    tmp_path: Path, name: str, content: Any, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        imported(tmp_path / name, content, "vllm", *words)
    assert not (tmp_path / "pack.json").exists()


def test_words_mean_what_the_runtime_sees(tmp_path: Path) -> None:
    words = (*MOE_WORDS[:-1], "a_ptr=torch.float8_e4m3fn", "--set", "fast=true", "--set", "bias=none", "--set", "s=.5")
    pack, _ = imported(tmp_path / MOE_NAME, MOE, "vllm", *words)
    (row, *_) = pack.tables[0].rows
    assert dict(row.match.dtypes) == {"a_ptr": "fp8e4nv"}
    assert (row.match.dims["fast"], row.match.dims["bias"], row.match.dims["s"]) == (True, None, 0.5)


@pytest.mark.parametrize("name", sorted(CODE_OPTIONS))
def test_a_config_that_names_code_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / MOE_NAME
    with pytest.raises(DocumentError, match=rf"64\.{name}: is code"):
        imported(path, {**MOE, "64": {**MOE["64"], name: "a.ptx"}}, "vllm", *MOE_WORDS)
    assert not path.with_name("pack.json").exists()
    pack, _ = imported(path, {**MOE, "64": {**MOE["64"], name: None}}, "vllm", *MOE_WORDS)
    assert not any(name in row.config.flat for row in pack.tables[0].rows)


def test_a_device_can_be_that_of_a_pack(tmp_path: Path) -> None:
    h200 = replace(nominal("sm_90"), name="NVIDIA H200", bandwidth_gbps=4814.3, live=True)
    other = tmp_path / "other.json"
    other.write_text(dumps(seal(Pack(tables=(make_table(device=h200),)))))
    name = MOE_NAME.replace("H100_80GB_HBM3", "H200")
    pack, _ = imported(tmp_path / name, MOE, "vllm", *MOE_WORDS, "--device-from", str(other))
    assert pack.tables[0].device == h200


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_a_moe_table_that_is_exported_is_the_file_that_was_imported(tmp_path: Path, tool: str) -> None:
    imported(tmp_path / MOE_NAME, MOE, "vllm", *MOE_WORDS)
    words = "--dim", "M=tokens", "--dim", "E=", "--dim", "N=N", "--set", "E=8", "--dtype", "fp8_w8a8"
    run("export", str(tmp_path / "pack.json"), "--to", tool, "-o", str(tmp_path / "configs"), *words)
    name = MOE_NAME if tool == "vllm" else f"triton_3_5_1/{MOE_NAME}"
    written = json.loads((tmp_path / "configs" / name).read_text())
    assert written == {k: v for k, v in MOE.items() if tool == "vllm" or k != "triton_version"}
    with pytest.raises(UserError, match="--set E=8"):
        run("export", str(tmp_path / "pack.json"), "--to", tool, "-o", str(tmp_path), *words[:6])
    again = "export", str(tmp_path / "pack.json"), "--to", tool, "-o", str(tmp_path / "configs"), *words
    run(*again)
    (tmp_path / "configs" / name).write_text("what the tool came with")
    with pytest.raises(UserError, match="is there already, and another"):
        run(*again)
    assert (tmp_path / "configs" / name).read_text() == "what the tool came with"


def test_what_no_pack_can_hold_is_refused_when_it_is_imported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds a control character"):
        imported(tmp_path / MOE_NAME, {"64": {"BLOCK_SIZE_M": "\x1b[31m"}}, "vllm", *MOE_WORDS)
    assert not (tmp_path / "pack.json").exists()


def test_tf_075_rows_that_differ_in_what_a_moe_table_does_not_say_are_not_mixed(tmp_path: Path) -> None:
    """What follows from the number of tokens is no such thing."""
    pack, _ = imported(tmp_path / MOE_NAME, MOE, "vllm", *MOE_WORDS)
    words = "--to", "vllm", "-o", str(tmp_path), "--dim", "M=tokens", "--dim", "E=", "--dim", "N=N", "--set", "E=8"

    def exported(change: Callable[[Row, int], Row]) -> str:
        rows = tuple(change(row, number) for number, row in enumerate(pack.tables[0].rows))
        changed = tmp_path / "changed.json"
        changed.write_text(dumps(seal(Pack(tables=(replace(pack.tables[0], rows=rows),)))))
        return run("export", str(changed), *words)

    def with_dim(name: str, value: int, row: Row) -> Row:
        return replace(row, measured_at=FrozenMap({**row.measured_at, name: value}))

    with pytest.raises(UserError, match="rows of fused_moe differ in K, which the file does not say"):
        exported(lambda row, number: with_dim("K", 6144 + 1024 * number, row))
    with pytest.raises(UserError, match="differ in a_ptr"):
        exported(
            lambda row, number: replace(
                row, match=replace(row.match, dtypes=FrozenMap(a_ptr=("fp16", "bf16", "bf16")[number]))
            )
        )
    assert "3 rows" in exported(lambda row, _: with_dim("K", 7168, row))
    assert "3 rows" in exported(lambda row, _: with_dim("slots", 2 * int(row.measured_at["tokens"] or 0), row))


# ---- Triton's cache, flash-linear-attention ----


def triton_config(block: int, **options: Any) -> dict[str, Any]:
    return {
        "kwargs": {"BLOCK": block}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None,
        "ir_override": None, **options,
    }  # fmt: skip


KEY = [4096, True, "torch.bfloat16", "torch.float32"]
TIMINGS = [
    [triton_config(512), [0.031, 0.030, 0.033]],
    [triton_config(1024, num_warps=8, maxnreg=128), [0.021, 0.020, 0.022]],
    [triton_config(8192), [float("inf")] * 3],
]
KEY_NAMES = "--name", "n", "--name", "causal", "--name", "x", "--name", "y", "--source-hash", HASH
CALL = Problem(
    dims=FrozenMap(n=4096, causal=True), dtypes=FrozenMap(x="bf16", y="fp32"),
    facts=FrozenMap(n="div16", x="div16", y="div16"),
)  # fmt: skip


def test_triton_s_cache_gives_its_fastest_config_and_time(tmp_path: Path) -> None:
    content = json.dumps({"key": KEY, "configs_timings": TIMINGS})
    assert "Infinity" in content
    path = tmp_path / "norm_kernel.autotune.json"
    pack, said = imported(path, content, "triton-autotune", *KEY_NAMES, "--device", "H100", "--triton", "3.6.0")
    assert pack.tables[0].kernel == "norm_kernel"
    (row,) = pack.tables[0].rows
    assert (row.median_ms, row.interval_ms) == (0.021, None)
    assert "unknown: timer, intervals" in said
    assert answer(pack, CALL) == Config(
        params={"BLOCK": 1024}, options={"num_warps": 8, "num_stages": 3, "maxnreg": 128}
    )
    assert answer(pack, replace(CALL, dtypes=FrozenMap(x="bf16", y="bf16"))) is None


def test_what_triton_itself_would_write_is_read(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    configs = [triton.Config({"BLOCK": 64 * n}, num_warps=n) for n in (1, 2, 4)]
    timings = [(config.__dict__, [1.0 / config.num_warps] * 3) for config in configs]
    content = json.dumps({"key": KEY, "configs_timings": timings})
    pack, _ = imported(tmp_path / "k.autotune.json", content, "triton-autotune", *KEY_NAMES, "--device", "H100")
    assert answer(pack, CALL) == Config(params={"BLOCK": 256}, options={"num_warps": 4, "num_stages": 3})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"key": KEY}, "has no key and configs_timings"),
        ({"key": KEY[:3], "configs_timings": TIMINGS[:1]}, "key: has 3 values, 4 names are given"),
        ({"key": [[1], *KEY[1:]], "configs_timings": TIMINGS[:1]}, "key: n is list"),
        ({"key": KEY, "configs_timings": [[3, 0.1]]}, "holds no config that a pack can"),
        ({"key": KEY, "configs_timings": [[triton_config(1), 0]]}, r"configs_timings\[0\]\[1\]: is 0, no time"),
        ({"key": KEY, "configs_timings": TIMINGS[2:]}, "holds no config"),
        ({"key": KEY, "configs_timings": [[triton_config(1, ir_override="a.ttir"), 0.1]]}, "ir_override: is code"),
        ({"key": KEY, "configs_timings": [[triton_config(1, extern_libs="a.bc"), 0.1]]}, "extern_libs: is code"),
        ({"key": [*KEY[:-1], "torch.float9"], "configs_timings": TIMINGS[:1]}, "'torch.float9' is no element type"),
    ],
)
def test_tf_088_a_cache_file_that_is_none_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        imported(tmp_path / "k.autotune.json", content, "triton-autotune", *KEY_NAMES, "--device", "H100")


def fla_file() -> dict[str, Any]:
    entries = {}
    for n in (1024, 4096):
        key = [n, *KEY[1:]]
        name = hashlib.md5(json.dumps(key, separators=(",", ":")).encode(), usedforsecurity=False).hexdigest()
        config = {k: v for k, v in triton_config(n // 8).items() if k != "pre_hook"}
        del config["ir_override"]
        entries[name] = {"autotune_key": key, "config": config}
    return {
        "kernel_name": "norm_kernel", "triton_version": "3.6.0", "autotune_entries": entries,
        "default_config": triton_config(64),
    }  # fmt: skip


def test_flash_linear_attention_s_file_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "NVIDIA_H100_80GB_HBM3" / "norm_kernel.json"
    pack, said = imported(path, fla_file(), "fla", *KEY_NAMES)
    assert "left out default_config" in said
    assert [row.measured_at["n"] for row in pack.tables[0].rows] == [1024, 4096]
    assert answer(pack, CALL) == Config(params={"BLOCK": 512}, options={"num_warps": 4, "num_stages": 3})
    run("export", str(path.with_name("pack.json")), "--to", "fla", "-o", str(tmp_path), *KEY_NAMES[:8])
    assert json.loads((tmp_path / "norm_kernel.json").read_text()) == {**fla_file(), "default_config": None}


@pytest.mark.parametrize("kernel", ["../../x", "a:b", "k" * 300, ".k", "a\\b"])
def test_tf_089_a_pack_s_words_lead_to_no_other_file(tmp_path: Path, kernel: str) -> None:
    pack, _ = imported(tmp_path / "k.json", fla_file(), "fla", *KEY_NAMES, "--device", "H100", "--kernel", kernel)
    before = sorted(tmp_path.rglob("*"))
    assert pack.tables[0].kernel == kernel
    with pytest.raises(UserError, match="no name for a file"):
        run("export", str(tmp_path / "pack.json"), "--to", "fla", "-o", str(tmp_path / "a" / "b"), *KEY_NAMES[:8])
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_that_one_file_cannot_hold_are_chosen_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    imported(path, fla_file(), "fla", *KEY_NAMES, "--device", "H100")
    words = "export", str(path.with_name("pack.json")), "--to", "fla", "-o", str(tmp_path)
    with pytest.raises(UserError, match="say nothing of z"):
        run(*words, "--name", "z")
    with pytest.raises(UserError, match="two rows of norm_kernel have the key"):
        run(*words, "--name", "causal")
    assert "1 row of norm_kernel" in run(*words, "--name", "causal", "--only", "n=1024")


def test_flash_linear_attention_s_older_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="autotune_entries: holds one config for all calls"):
        imported(tmp_path / "k.json", triton_config(64), "fla", *KEY_NAMES, "--device", "H100")


# ---- and back into the house ----


def test_the_kernel_s_source_can_be_read_from_its_file(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path, kernels = tmp_path / "k.autotune.json", Path(__file__).parents[1] / "experiments/kernels/softmax.py"
    words = *KEY_NAMES[:8], "--kernel-source", f"{kernels}:softmax_kernel", "--device", "H100"
    pack, _ = imported(path, json.dumps({"key": KEY, "configs_timings": TIMINGS}), "triton-autotune", *words)
    assert len(pack.tables[0].source_hash) == 64


def test_a_measured_row_replaces_an_imported_one_and_answers_first(tmp_path: Path) -> None:
    pack, _ = imported(tmp_path / MOE_NAME, MOE, "vllm", *MOE_WORDS, "--triton", "3.6.0")
    match = Match(dims=FrozenMap(tokens=(32, 128), N=7168), dtypes=FrozenMap(a_ptr="fp8e4nv"), facts=moe_call(64).facts)
    ours = Row(
        match=match, measured_at=FrozenMap(tokens=64, N=7168), config=Config(params={"BLOCK_SIZE_M": 1}), median_ms=1.0,
        interval_ms=(0.9, 1.1),
    )  # fmt: skip
    made = replace(pack.tables[0], rows=(ours,), provenance=PROVENANCE)
    measured = tmp_path / "measured.json"
    measured.write_text(dumps(seal(Pack(tables=(made,)))))
    said = run("merge", str(tmp_path / "pack.json"), str(measured), "-o", str(tmp_path / "all.json"))
    assert "measured over imported" in said
    assert "holds imported and measured rows" in said
    assert answer(load_pack(tmp_path / "all.json"), moe_call(64)) == ours.config


def test_replayed_rows_are_exported_only_on_request_and_packs_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "NVIDIA_H100_80GB_HBM3" / "norm_kernel.json"
    pack, _ = imported(path, fla_file(), "fla", *KEY_NAMES)
    with pytest.raises(UserError, match="is there already"):
        imported(path, fla_file(), "fla", *KEY_NAMES)
    rows = tuple(replace(r, median_ms=1.0, interval_ms=(1.0, 1.0)) for r in pack.tables[0].rows)
    table = replace(pack.tables[0], rows=rows, provenance=replace(PROVENANCE, source="replayed"))
    replayed = tmp_path / "replayed.json"
    replayed.write_text(dumps(seal(Pack(tables=(table,)))))
    words = "export", str(replayed), "--to", "fla", "-o", str(tmp_path), *KEY_NAMES[:8]
    with pytest.raises(UserError, match="replayed"):
        run(*words)
    assert "2 rows of norm_kernel" in run(*words, "--allow-replayed")
    with pytest.raises(UserError, match="cannot be written"):
        run(*words[:4], "-o", str(path), *words[6:], "--allow-replayed")
    with pytest.raises(UserError, match="cannot be written"):
        run("import", str(path), "--from", "fla", "-o", str(path / "pack.json"), *KEY_NAMES)
