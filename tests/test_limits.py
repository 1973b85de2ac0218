"""What cannot be compiled or launched is not given to Inductor, which would have nothing else to try."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from lowered import H200, lower, pack_of
from test_templates import CONFIG, A, B, aten, gemm_asked

from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import in_flight_bytes
from tunefarm.inductor.gemms import _SPACE
from tunefarm.pack import Code, Pack, seal
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report
from tunefarm.spec.constraint import Expression


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


@pytest.mark.parametrize(
    ("params", "options", "why"),
    [
        ({"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}, {"num_stages": 5}, "524288 bytes of shared memory"),
        ({"BLOCK_M": 96}, {}, "powers of two"),
        ({"BLOCK_M": 2048, "BLOCK_N": 1024}, {"num_stages": 1}, "elements"),
        ({"BLOCK_K": 8}, {}, "tl.dot of 16-bit operands needs K >= 16"),
        ({}, {"num_warps": 64}, "threads per block"),
        ({}, {"num_warps": 6}, "no power of two"),
    ],
)
def test_what_cannot_run_here_is_the_librarys_call_and_the_report_says_why(
    params: dict[str, int], options: dict[str, int], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Inductor would compile the one choice that it has, and the job would end there."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    config = Config(params=FrozenMap({**CONFIG.params, **params}), options=FrozenMap({**CONFIG.options, **options}))
    activate(pack_of((gemm_asked(aten.mm.default, A, B), config)), device=H200)
    with caplog.at_level(logging.WARNING, "tunefarm.runtime"):
        for _ in range(2):
            ((_, (choice,)),) = lower(aten.mm.default, A, B)
            assert isinstance(choice, ExternKernelCaller)
    assert caplog.text.count(why) == 1
    (told,) = report().refused
    assert why in told
    (miss,) = report().misses
    assert (miss.graphs, why in miss.reason) == (2, True)


class Unable:
    """Stands in for the compiler on a GPU: it makes more of a template than there is room for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch._inductor.select_algorithm import TritonTemplateCaller

        self.asked: list[str] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(TritonTemplateCaller, "precompile", self.precompile)

    def precompile(self) -> None:
        self.asked.append("template")
        raise RuntimeError("No valid triton configs. OutOfResources: out of resource: shared memory, Required: 300000")


@pytest.mark.parametrize("function", [aten.mm.default, aten.addmm.default], ids=["mm", "addmm"])
def test_tf_073_what_another_triton_makes_too_large_is_the_librarys_call(
    function: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Told once, tried once; the miss says why."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    tensors = (((256,), torch.bfloat16), A, B) if function is aten.addmm.default else (A, B)
    gemm, compiler = gemm_asked(function, *tensors), Unable(monkeypatch)
    activate(pack_of((gemm, CONFIG), triton="3.0.0"), device=H200)
    with caplog.at_level(logging.WARNING, "tunefarm.runtime"):
        for _ in range(2):
            ((_, (choice,)),) = lower(function, *tensors)
            assert isinstance(choice, ExternKernelCaller)
    assert len(compiler.asked) == 1
    assert caplog.text.count("cannot be compiled here: RuntimeError: No valid triton configs. OutOfResources") == 1
    told = report()
    assert (told.num_hits, told.num_misses) == (0, 2)
    assert all("cannot be compiled here" in miss.reason for miss in told.misses)


def test_rows_of_this_triton_are_compiled_once_by_inductor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    gemm, compiler = gemm_asked(aten.mm.default, A, B), Unable(monkeypatch)
    activate(pack_of((gemm, CONFIG)), device=H200)
    ((_, (choice,)),) = lower(aten.mm.default, A, B)
    assert isinstance(choice, TritonTemplateCaller)
    assert compiler.asked == []
    deactivate()
    activate(pack_of((gemm, CONFIG), triton="3.0.0"), device=H200, on_miss="error")
    with pytest.raises(Exception, match="cannot be compiled here"):
        lower(aten.mm.default, A, B)


def test_what_a_row_says_that_it_takes_counts_for_more_than_arithmetic() -> None:
    """Operands of which no four bytes lie together are not loaded ahead."""
    from torch._inductor.select_algorithm import TritonTemplateCaller

    gemm = gemm_asked(aten.mm.default, A, B)
    config = replace(CONFIG, params=FrozenMap({**CONFIG.params, "BLOCK_K": 256}))
    assert in_flight_bytes(config, ("bf16", "bf16")) > H200.shared_bytes
    pack = pack_of((gemm, config))
    (table,) = pack.tables
    code = Code(sha256="0" * 64, registers=64, spills=0, shared_bytes=4096)
    rows = tuple(replace(row, code=code) for row in table.rows)
    activate(seal(Pack(tables=(replace(table, rows=rows),))), device=H200)
    ((_, (choice,)),) = lower(aten.mm.default, A, B)
    assert isinstance(choice, TritonTemplateCaller)


@pytest.mark.parametrize(
    ("a", "b", "widths"),
    [
        (A, B, 256 + 64),
        (((1024, 545), A[1]), ((545, 256), B[1]), 64),
        (((1024, 545), A[1], (546, 1)), ((545, 256), B[1]), 64),
        (((1023, 544), A[1], (1, 1024)), B, 64),
        (A, ((544, 255), B[1]), 256),
        (((1024, 545), A[1]), ((545, 255), B[1]), 0),
    ],
    ids=["even", "odd rows", "odd length", "odd columns", "odd rows of B", "both odd"],
)
def test_an_operand_of_odd_rows_is_not_loaded_ahead_and_counts_for_nothing(a: Any, b: Any, widths: int) -> None:
    """As the compiler has it. Triton 3.7.1 takes for 64 x 128 x 64 in 4 stages, on sm_80 and sm_90, 73,728 and 98,304
    bytes; with an odd A 57,344 and 73,728; with an odd B 40,960 and 49,152; with both odd 24,576."""
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    config = Config(
        params=FrozenMap(BLOCK_M=256, BLOCK_N=64, BLOCK_K=128, GROUP_M=8), options=FrozenMap(num_warps=8, num_stages=4)
    )
    gemm = gemm_asked(aten.mm.default, a, b)
    assert in_flight_bytes(config, ("bf16", "bf16"), gemm.problem.dims) == 2 * 3 * 128 * widths
    activate(pack_of((gemm, config)), device=H200)
    ((_, (choice,)),) = lower(aten.mm.default, a, b)
    is_too_large = 2 * 3 * 128 * widths > H200.shared_bytes
    assert isinstance(choice, ExternKernelCaller if is_too_large else TritonTemplateCaller)


def test_the_space_that_is_searched_counts_shared_memory_alike() -> None:
    text = next(line for line in _SPACE.splitlines() if "<= shared_bytes" in line)
    allowed = Expression((text.strip("- ") % 2).partition(" #")[0])
    for m, k, stages in itertools.product((16, 128, 256), (32, 128), (1, 3, 5)):
        sizes = {"BLOCK_M": m, "BLOCK_N": 64, "BLOCK_K": k}
        config = Config(params=FrozenMap(sizes), options=FrozenMap(num_stages=stages))
        taken = in_flight_bytes(config, ("bf16", "bf16"))
        assert allowed({**sizes, "num_stages": stages, "shared_bytes": taken})
        assert taken == 0 or not allowed({**sizes, "num_stages": stages, "shared_bytes": taken - 1})
