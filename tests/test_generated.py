"""Layer 3 in a job: rows of packs in Inductor's look-up table, seen by Inductor's own code."""

from __future__ import annotations

import queue
import runpy
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import FxGraphCachePickler, FxGraphHashDetails
from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code, lookup_autotune_config

import tunefarm
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import UserError
from tunefarm.export import update
from tunefarm.frozen import FrozenMap
from tunefarm.generated import key_of, least_blocks, parts_of, plain_name, public
from tunefarm.pack import Match, Pack, Provenance, Row, Table, dumps, seal
from tunefarm.pack_reader import parse_pack
from tunefarm.runtime import generated
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.settings import default

H100, A100 = nominal("sm_90"), nominal("sm_80")
SOURCE = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics

@triton_heuristics.pointwise(
    size_hints={'x': 4096},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32'}},
    inductor_meta={'dynamic_scale_rblock': True, 'coordinate_descent_tuning': True},
)
@triton.jit
def triton_poi_fused_add_7(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4000
    tl.store(out_ptr0 + tl.arange(0, XBLOCK), tl.load(in_ptr0 + tl.arange(0, XBLOCK)))
"""
HINTS, TEXT = "{'x': 4096}", SOURCE.partition("@triton.jit\n")[2]
KEY = key_of(HINTS, TEXT)


def table(device: Any = H100, block: int = 512, *, key: str = KEY, torch_version: str = "", **changes: Any) -> Table:
    row = Row(
        match=Match(dims=FrozenMap(xnumel=4000)), measured_at=FrozenMap(xnumel=4000), median_ms=1.0,
        interval_ms=(0.9, 1.1), config=Config(params={"XBLOCK": block}, options={"num_warps": 8, "num_stages": 1}),
    )  # fmt: skip
    parts = {"source_hash": key, "backend_options": FrozenMap(), "triton": "", "capability": device.arch}
    parts["torch"] = torch_version or public(torch.__version__)
    origin = Provenance(
        sweep="s", experiment="e", toolchain=FrozenMap(), timer="cold", source="measured", tunefarm="0", created="2026"
    )
    made = Table(
        kernel="triton_poi_fused_add", source_hash=key, device=device, key_parts=FrozenMap(parts), provenance=origin,
        rows=(row,), layer=3,
    )  # fmt: skip
    return replace(made, **changes)


def pack(*tables: Table) -> Pack:
    return seal(Pack(tables=tables or (table(),)))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    deactivate()
    assert KEY not in inductor.autotune_lookup_table


def in_a_thread(call: Any) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def chosen() -> Any:
    """What Inductor's own look-up answers for the kernel."""
    return lookup_autotune_config({"x": 4096}, SimpleNamespace(src=TEXT))


def test_the_key_is_inductors():
    assert parts_of(SOURCE) == (HINTS, TEXT.strip())
    assert generate_lookup_hash_from_source_code(HINTS, TEXT) == KEY
    assert key_of(HINTS, TEXT.replace("_7", "_12")) == KEY
    assert key_of("{'x': 8192}", TEXT) != KEY
    assert plain_name("triton_poi_fused_add_7") == "triton_poi_fused_add"
    assert parts_of(SOURCE + SOURCE) is None


def test_a_row_reaches_inductor_in_every_thread():
    activate(pack(), device=H100)
    for config in (chosen(), in_a_thread(chosen)):
        assert config.kwargs == {"XBLOCK": 512}
        assert (config.num_warps, config.num_stages) == (8, 1)
    deactivate()
    assert chosen() is None
    assert in_a_thread(chosen) is None


def test_a_row_reaches_a_thread_that_had_read_the_table_before():
    """As the one in which autograd compiled a backward."""
    found: list[Any] = []
    steps, told = queue.Queue[bool](), queue.Queue[bool]()

    def work() -> None:
        while steps.get():
            found.append((chosen(), inductor.save_config_portable(readonly_values=True)))
            told.put(True)

    def ask() -> Any:
        steps.put(True)
        told.get(timeout=60)
        return found[-1]

    thread = threading.Thread(target=work)
    thread.start()
    before, key_before = ask()
    activate(pack(), device=H100)
    during, key_during = ask()
    deactivate()
    after, key_after = ask()
    steps.put(False)
    thread.join()
    assert (before, after) == (None, None)
    assert during.kwargs == {"XBLOCK": 512}
    assert key_before == key_after
    assert key_before != key_during


def test_what_the_user_put_there_is_kept():
    mine = {"XBLOCK": 64, "num_warps": 1, "num_stages": 1}
    with inductor.patch(autotune_lookup_table={"other": mine, KEY: mine}):
        activate(pack(), device=H100)
        assert chosen().kwargs == {"XBLOCK": 64}
        deactivate()
        assert inductor.autotune_lookup_table == {"other": mine, KEY: mine}
        del inductor.autotune_lookup_table[KEY]


def test_the_later_pack_and_the_nearer_device_answer():
    near = replace(H100, name="NVIDIA H200")
    activate(pack(table(near, 128), table(H100, 256)), device=H100)
    assert chosen().kwargs == {"XBLOCK": 256}
    activate(pack(table(H100, 1024)), device=H100)
    assert chosen().kwargs == {"XBLOCK": 1024}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"torch_version": "1.0"}, "tuned under torch 1.0, here is"),
        ({"device": A100}, "tuned for sm_80, here is sm_90"),
    ],
)
def test_what_is_not_for_this_process_is_refused_and_told(other, why):
    activate(pack(table(**other)), device=H100)
    assert chosen() is None
    assert any(why in reason for reason in tunefarm.report().refused)


def test_replayed_rows_want_to_be_allowed():
    replayed = replace(table(), provenance=replace(table().provenance, source="replayed"))
    activate(pack(replayed), device=H100)
    assert chosen() is None
    deactivate()
    activate(pack(replayed), device=H100, allow_replayed=True)
    assert chosen() is not None


def test_layers_say_whose_tables_are_used():
    assert activate(pack(), device=H100, layers=(1, 2)).tables == ()
    assert chosen() is None
    for wrong in ((4,), ("3",), 3, "3", (True,)):
        with pytest.raises(UserError, match="layers is"):
            activate(pack(), layers=wrong)


def cache_key(*tables: Table) -> str:
    activate(pack(*tables), device=H100)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    try:
        return FxGraphCachePickler(graph).get_hash(FxGraphHashDetails(graph, [], {}, []))
    finally:
        deactivate()


def test_a_row_of_another_device_does_not_change_the_key_of_inductors_caches():
    other = table(key="0" * 64)
    base = cache_key(table(), other, table(A100, 64))
    assert base == cache_key(other, table(A100, 2048), table())
    assert base != cache_key(table(block=64), other)


def test_kernels_are_counted_and_their_config_is_settled():
    class Compiler:
        def triton(self, name: str, source: str) -> str:
            return source

    generated._watch(Compiler)
    assert Compiler().triton("triton_poi_fused_add_7", SOURCE) == SOURCE
    activate(pack(), device=H100)
    assert AsyncCompile.triton.watched
    passed = Compiler().triton("triton_poi_fused_add_7", SOURCE)
    assert "'dynamic_scale_rblock': False" in passed
    assert "'coordinate_descent_tuning': False" in passed
    assert key_of(*parts_of(passed)) == KEY
    other = SOURCE.replace("4000", "3000")
    assert Compiler().triton("triton_poi_fused_add_8", other) == other
    told = tunefarm.report()
    assert [(hit.kernel, hit.graphs) for hit in told.hits] == [("triton_poi_fused_add", 1)]
    assert [(miss.kernel, miss.graphs) for miss in told.misses] == [("triton_poi_fused_add", 1)]
    assert told.never_asked == ()


MIXED = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties, ReductionHint

@triton_heuristics.persistent_reduction(
    size_hints={'x': 8192, 'r0_': 1024},
    reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={'signature': {'XBLOCK': 'constexpr', 'RSPLIT_SIZE': 'constexpr', 'NUM_STAGES': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90)},
    inductor_meta={'RSPLIT_SIZE': 16, 'coordinate_descent_tuning': True, 'grid_type': 'MixOrderReductionGrid'},
)
@triton.jit
def triton_per_fused_norm_3(ws_ptr, XBLOCK : tl.constexpr, RSPLIT_SIZE : tl.constexpr, NUM_STAGES : tl.constexpr):
    pass
"""
MIXED_KEY = key_of(*parts_of(MIXED))


def mixed_table(device: Any = H100, **changes: int) -> Table:
    params = {"XBLOCK": 4, "RSPLIT_SIZE": 16, "NUM_STAGES": 2} | changes
    made = replace(table(device, key=MIXED_KEY), kernel="triton_per_fused_norm")
    row = replace(made.rows[0], config=Config(params=params, options={"num_warps": 8, "num_stages": 1}))
    return replace(made, rows=(row,))


def made_of(source: str, folder: Path) -> Any:
    """Inductor's own autotuner of a kernel's file."""
    file = folder / "mixed.py"
    file.write_text(source)
    return runpy.run_path(str(file))["triton_per_fused_norm_3"]


def test_a_mixed_kernel_has_the_rows_config_in_its_text(tmp_path):
    activate(pack(mixed_table(), table()), device=H100)
    source = generated._asked("triton_per_fused_norm_3", MIXED)
    assert source.partition("@triton.jit")[2] == MIXED.partition("@triton.jit")[2]
    made = made_of(source, tmp_path)
    (config,) = made.configs
    assert config.kwargs == {"XBLOCK": 4, "RSPLIT_SIZE": 16, "NUM_STAGES": 2}
    assert (config.num_warps, config.num_stages) == (8, 1)
    assert not made.inductor_meta["coordinate_descent_tuning"]
    assert made.inductor_meta["RSPLIT_SIZE"] == 16
    assert chosen().kwargs == {"XBLOCK": 512}
    told = tunefarm.report()
    assert (told.num_hits, told.num_misses) == (1, 0)


def test_a_mixed_kernel_of_another_split_is_a_miss_and_as_it_was(tmp_path):
    activate(pack(mixed_table()), device=H100)
    other = MIXED.replace("'RSPLIT_SIZE': 16", "'RSPLIT_SIZE': 64")
    assert generated._asked("triton_per_fused_norm_3", other) == other
    # What the table shows must not reach Inductor: it would take the blocks, and find the split missing.
    (config,) = made_of(other, tmp_path).configs
    assert (config.kwargs["RSPLIT_SIZE"], config.kwargs["XBLOCK"]) == (64, 2)
    assert [miss.kernel for miss in tunefarm.report().misses] == ["triton_per_fused_norm"]
    assert "for another RSPLIT_SIZE" in str(tunefarm.report())


@pytest.mark.parametrize("changes", [{"XBLOCK": 32}, {"XBLOCK": 0}, {"YBLOCK": 1}])
def test_a_mixed_config_that_inductor_would_fail_on_is_left_out(changes):
    activate(pack(mixed_table(**changes)), device=H100)
    assert generated._asked("triton_per_fused_norm_3", MIXED) == MIXED


def test_rows_of_mixed_kernels_change_the_key_of_inductors_caches():
    base = cache_key(mixed_table(), mixed_table(A100, NUM_STAGES=4))
    assert base == cache_key(mixed_table())
    assert base != cache_key(mixed_table(NUM_STAGES=3))


def test_a_config_that_inductor_could_not_read_is_left_out():
    bad = table()
    row = replace(bad.rows[0], config=Config(params={"XBLOCK": 512}))
    activate(pack(replace(bad, rows=(row,))), device=H100)
    assert chosen() is None


@pytest.mark.parametrize("block", [0, -64, 8192])
def test_a_block_beyond_inductors_greatest_is_left_out(block: int, caplog: pytest.LogCaptureFixture) -> None:
    """Inductor leaves masks out by its greatest block."""
    activate(seal(Pack(tables=(table(block=block),))), device=H100)
    assert KEY not in inductor.autotune_lookup_table
    assert "is no config that Inductor's table can hold" in caplog.text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"params": {"XBLOCK": 96}}, "powers of two"),
        ({"options": {"num_warps": 3, "num_stages": 1}}, "no power of two"),
        ({"options": {"num_warps": 64, "num_stages": 1}}, "threads per block"),
        ({"params": {"XBLOCK": 4096, "YBLOCK": 1024}}, "elements"),
    ],
)
def test_what_triton_never_compiles_is_left_out_and_told(change: dict[str, Any], why: str) -> None:
    made = table()
    config = Config(**{"params": {"XBLOCK": 512}, "options": {"num_warps": 8, "num_stages": 1}} | change)
    activate(pack(replace(made, rows=(replace(made.rows[0], config=config),))), device=H100)
    assert chosen() is None
    (told,) = tunefarm.report().refused
    assert "cannot be compiled" in told
    assert why in told


@pytest.mark.parametrize(
    "said",
    [
        "'min_xblock': 64", "'tma_min_block_sizes': {'YBLOCK': 1, 'XBLOCK': 64}",
        "'min_xblock': 8, 'tma_min_block_sizes': {'XBLOCK': 64}",
    ],
)  # fmt: skip
def test_a_block_below_what_the_kernels_text_needs_is_not_used(said: str, caplog: pytest.LogCaptureFixture) -> None:
    needing = SOURCE.replace("inductor_meta={", f"inductor_meta={{{said}, ")
    other = table(key="0" * 64)
    activate(pack(table(block=64), other), device=H100)
    assert generated._asked("triton_poi_fused_add_7", needing) != needing
    assert chosen().kwargs == {"XBLOCK": 64}
    deactivate()
    activate(pack(table(block=32), other), device=H100)
    for _ in range(2):
        assert generated._asked("triton_poi_fused_add_7", needing) == needing
    assert chosen() is None
    assert inductor.autotune_lookup_table.keys() == {"0" * 64}
    assert caplog.text.count("too small: the kernel's text needs XBLOCK >= 64") == 1
    (miss,) = tunefarm.report().misses
    assert (miss.graphs, "XBLOCK >= 64" in miss.reason) == (2, True)
    # Inductor cannot tell it from that one: a hit would be a lie.
    assert generated._asked("triton_poi_fused_add_7", SOURCE) == SOURCE


def test_a_row_that_one_thread_withdraws_is_not_put_back_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is at that moment putting another pack's rows beside those that were there."""
    needing = SOURCE.replace("inductor_meta={", "inductor_meta={'min_xblock': 64, ")
    stock, putting, withdrawn = generated.set_default, threading.Event(), threading.Event()

    def slow(name: str, value: Any) -> None:
        if threading.current_thread() is late and not putting.is_set():
            putting.set()
            withdrawn.wait(0.5)  # which does not come while the other has to wait
        stock(name, value)

    def withdraw() -> None:
        assert generated._asked("triton_poi_fused_add_7", needing) == needing
        withdrawn.set()

    activate(pack(table(block=32)), device=H100)
    late = threading.Thread(target=activate, args=(pack(table(key="0" * 64)),), kwargs={"device": H100})
    early = threading.Thread(target=withdraw)
    monkeypatch.setattr(generated, "set_default", slow)
    late.start()
    assert putting.wait(60)
    early.start()
    late.join()
    early.join()
    assert default("autotune_lookup_table").keys() == {"0" * 64}


def test_a_scan_has_room_for_no_smaller_blocks_than_it_was_made_for():
    scan = "@triton_heuristics.split_scan(inductor_meta={'min_split_scan_rblock': 256})"
    assert least_blocks(scan) == {"R0_BLOCK": 256}
    assert least_blocks(scan.replace("split_scan(", "reduction(")) == {}
    assert least_blocks(str({"min_xblock": None, "min_rblock": 8})) == {"R0_BLOCK": 8}


def test_packs_keep_every_kernel_of_a_name():
    old, new = pack(table()), pack(table(key="0" * 64))
    assert {t.source_hash for t in update(old, new).tables} == {KEY, "0" * 64}
    assert parse_pack(dumps(old), where="it") == old
