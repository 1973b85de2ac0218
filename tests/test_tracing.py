"""Kernels obey packs inside torch.compile: what Dynamo captures, seen on a CPU.

The traces are those of a machine with a GPU, as far as capturing goes: torch is told that Triton can be used, and a
backend of our own looks at the graph that Dynamo captured instead of compiling it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from runtime_kernels import CONFIGS, LADDER, SM_90, Seen, block, foreign, make_pack, make_row, own, pruned, restoring

from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.reporting import report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    torch._dynamo.reset()
    yield
    deactivate()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    return Seen()


def compiled(kernel: Any, seen: Seen, *, dynamic: bool = True) -> Callable[[torch.Tensor], torch.Tensor]:
    def double(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        n = x.shape[0]
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y

    return torch.compile(double, backend=seen, fullgraph=True, dynamic=dynamic)


def test_tf_062_one_graph_and_one_config_per_range(seen: Seen) -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    double = compiled(own, seen)
    for n in (256, 320, 512, 144, 1024, 640, 2048):
        double(torch.zeros(n))
    assert seen.blocks == [[128], [256], [512]]
    assert [(hit.config.split()[0], hit.graphs, hit.launches) for hit in report().hits] == [
        ("BLOCK=128", 1, 0), ("BLOCK=256", 1, 0), ("BLOCK=512", 1, 0),
    ]  # fmt: skip


def test_static_shapes_take_their_range_too(seen: Seen) -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    for n in (256, 1024, 4096):
        compiled(own, seen, dynamic=False)(torch.zeros(n))
    assert seen.blocks == [[128], [512], [64]]


def test_a_call_that_no_row_answers_compiles_the_default(seen: Seen) -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    double = compiled(own, seen)
    double(torch.zeros(250))  # no multiple of 16
    double(torch.zeros(350))
    double(torch.zeros(256, dtype=torch.bfloat16))
    assert seen.blocks == [[64], [64]]
    assert report().num_misses == 2
    assert all(miss.graphs == 1 for miss in report().misses)


def test_without_a_pack_the_default_is_compiled_and_nothing_else(seen: Seen) -> None:
    compiled(own, seen)(torch.zeros(256))
    assert seen.blocks == [[64]]


def test_a_pack_activated_later_is_seen(seen: Seen) -> None:
    double = compiled(own, seen)
    double(torch.zeros(256))
    activate(make_pack(own, *LADDER), device=SM_90)
    double(torch.zeros(256))
    deactivate()
    double(torch.zeros(256))
    assert seen.blocks == [[64], [128], [64]]


def test_an_installed_kernel_hits_and_otherwise_keeps_all_its_configs(seen: Seen) -> None:
    assert install(foreign) == ["foreign"]
    compiled(foreign, seen)(torch.zeros(256))
    activate(make_pack(foreign, *LADDER), device=SM_90)
    double = compiled(foreign, seen)
    double(torch.zeros(256))
    double(torch.zeros(4096))
    assert seen.blocks == [[64, 32], [128], [64, 32]]


def test_on_miss_default_leaves_an_installed_kernel_its_first_config(seen: Seen) -> None:
    install(foreign)
    activate(make_pack(own, *LADDER), device=SM_90, on_miss="default")
    compiled(foreign, seen)(torch.zeros(256))
    assert seen.blocks == [[64]]


def test_on_a_miss_a_kernels_own_pruning_is_respected(seen: Seen) -> None:
    install(pruned)
    activate(make_pack(pruned, *LADDER), device=SM_90)
    for n in (256, 4096, 16):
        compiled(pruned, seen, dynamic=False)(torch.zeros(n))
    assert seen.blocks == [[128], [32], [64]]


def test_a_kernel_that_restores_is_never_benchmarked_on_live_data(seen: Seen) -> None:
    """Torch drops restore_value of an autotuner that prunes, so several configs must not reach it."""
    install(restoring)
    compiled(restoring, seen)(torch.zeros(256))
    torch._dynamo.reset()
    activate(make_pack(restoring, *LADDER), device=SM_90)
    double = compiled(restoring, seen)
    double(torch.zeros(256))
    double(torch.zeros(4096))
    assert seen.blocks == [[64, 32], [128], [64]]


def test_strict_names_the_difference_while_compiling(seen: Seen) -> None:
    activate(make_pack(own, *LADDER), device=SM_90, strict=True)
    with pytest.raises(Exception, match=r"x is bf16, tuned fp32"):
        compiled(own, seen)(torch.zeros(256, dtype=torch.bfloat16))


def test_tf_023_options_that_torch_would_take_for_arguments_stay_eager(
    seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    activate(make_pack(own, make_row(256, block(128, enable_fp_fusion=False))), device=SM_90)
    compiled(own, seen)(torch.zeros(256))
    assert seen.blocks == [[64]]
    assert "enable_fp_fusion for an argument" in caplog.text


def test_guards_do_not_grow_with_the_table(seen: Seen) -> None:
    """Host cost of a compiled call: a guard per row would be paid on every step."""
    sizes = []
    for num in (3, 300):
        torch._dynamo.reset()
        deactivate()
        rows = [make_row(16 * i, block(128), bounds=(16 * i - 16, 16 * i)) for i in range(1, num + 1)]
        activate(make_pack(own, *rows), device=SM_90)

        def double(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            own[(1,)](x, y, x.shape[0])
            return y

        torch.compile(double, backend=seen, fullgraph=True, dynamic=True)(torch.zeros(48))
        entry = torch._dynamo.eval_frame._debug_get_cache_entry_list(double.__code__)[0]
        sizes.append(str(entry.guard_manager).count("\n"))
    assert sizes[1] <= sizes[0] + 10


def test_nearest_answers_traces_as_it_answers_launches(seen: Seen) -> None:
    activate(make_pack(own, *LADDER), device=SM_90, on_miss="nearest")
    double = compiled(own, seen)
    for n in (4096, 300, 4100, 80, 8192):
        double(torch.zeros(n))
    assert seen.blocks == [[512], [128], [64], [128], [64]]
    assert [own.config_for(torch.zeros(n), torch.zeros(n), n).params["BLOCK"] for n in (4096, 300, 4100, 80, 8192)] == [
        512, 128, 64, 128, 64,
    ]  # fmt: skip


@pytest.fixture
def many_ranks() -> Iterator[None]:
    """This process is one of two, as far as torch.distributed knows."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("many_ranks")
def test_one_of_many_ranks_benchmarks_nothing_that_a_pack_is_about(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank would time for itself, and they would disagree. A kernel without a table is left as it was."""
    tuned: list[Any] = []
    monkeypatch.setattr(type(foreign).__mro__[1], "run", lambda self, *args, **kwargs: tuned.append(self))
    launched: list[int] = []
    monkeypatch.setattr(foreign.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    install(foreign)
    foreign[(1,)](torch.zeros(64), torch.zeros(64), 64)
    assert len(tuned) == 1
    activate(make_pack(foreign, *LADDER), device=SM_90)
    foreign[(1,)](torch.zeros(64), torch.zeros(64), 64)
    assert (len(tuned), launched) == (1, [64])
    compiled(foreign, seen)(torch.zeros(64))
    assert seen.blocks == [[64]]


def test_tf_079_hooks_run_in_eager_launches_and_are_never_left_out_in_silence(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch compiles no launch with a hook: it says so, or leaves the call to eager code, hook and all."""
    hooked_with: list[int] = []
    launched: list[int] = []
    config = triton.Config({"BLOCK": 64}, pre_hook=lambda named: hooked_with.append(named["BLOCK"]))
    hooked = triton.autotune([config], key=["n"])(foreign.fn)
    install(hooked)
    activate(make_pack(hooked, *LADDER), device=SM_90)
    monkeypatch.setattr(hooked.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))

    def double(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        hooked[(1,)](x, y, x.shape[0])
        return y

    with pytest.raises(Exception, match="pre_hook"):
        torch.compile(double, backend=seen, fullgraph=True, dynamic=False)(torch.zeros(256))
    assert not launched
    torch._dynamo.reset()
    torch.compile(double, backend=seen, dynamic=False)(torch.zeros(256))
    assert (launched, hooked_with, seen.blocks) == ([128], [128], [])


def test_tf_079_hooks_of_an_autotuner_are_for_its_own_tuning(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton calls them around measurements alone, so a launch with a row needs none; torch refuses them."""
    called: list[str] = []
    launched: list[int] = []
    hooked = triton.autotune(CONFIGS, key=["n"], pre_hook=lambda *_, **__: called.append("hook"))(foreign.fn)
    install(hooked)
    activate(make_pack(hooked, *LADDER), device=SM_90)
    monkeypatch.setattr(hooked.fn, "run", lambda *_, BLOCK, **__: launched.append(BLOCK))
    hooked[(1,)](torch.zeros(256), torch.zeros(256), 256)
    assert (launched, called) == ([128], [])
    with pytest.raises(Exception, match="pre_hook"):
        compiled(hooked, seen)(torch.zeros(256))
