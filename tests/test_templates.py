"""Rows of a pack that decide how Inductor computes a matrix product: real lowering, of fake tensors of a GPU."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lowered import H200, lower, pack_of

from tunefarm.config import LIBRARY, Config
from tunefarm.errors import MissError
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import Gemm
from tunefarm.inductor.gemms import recording_gemms
from tunefarm.pack import Pack, seal
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import report

ROOT = Path(__file__).parents[1]
BF16 = torch.bfloat16
aten = torch.ops.aten
A, B, BIAS = ((1024, 544), BF16), ((544, 256), BF16), ((256,), BF16)
CONFIG = Config(
    params=FrozenMap(BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, GROUP_M=4), options=FrozenMap(num_warps=8, num_stages=4)
)
"""In no list of Inductor's: GROUP_M is 8 there. K = 544 is no multiple of its BLOCK_K."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


def gemm_asked(function: Any, *tensors: Any) -> Gemm:
    with recording_gemms() as calls:
        lower(function, *tensors)
    (gemm,) = calls
    return gemm


def test_a_hit_is_one_choice_the_template_under_the_rows_config() -> None:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    activate(pack_of((gemm_asked(aten.mm.default, A, B), CONFIG)), device=H200)
    ((name, choices),) = lower(aten.mm.default, A, B)
    (choice,) = choices
    assert name == "mm"
    assert isinstance(choice, TritonTemplateCaller)
    told = choice.info_dict()
    assert told["tile_shape"] == "(128, 64, 64)"
    assert (told["num_stages"], told["num_warps"], told["GROUP_M"]) == (4, 8, 4)
    (hit,) = report().hits
    assert (hit.kernel, hit.graphs, hit.launches) == ("mm", 1, 0)
    assert report().num_misses == 0


@pytest.mark.parametrize("depth", [32, 64])
def test_the_last_block_is_masked_if_and_only_if_it_must_be(depth: int) -> None:
    """K = 544: without its mask a depth of 64 reads beyond the row."""
    config = replace(CONFIG, params=FrozenMap({**CONFIG.params, "BLOCK_K": depth}))
    activate(pack_of((gemm_asked(aten.mm.default, A, B), config)), device=H200)
    ((_, (choice,)),) = lower(aten.mm.default, A, B)
    text = Path(choice.bmreq.module_path).read_text()
    assert ("mask=a_mask" in text) is (544 % depth != 0)
    assert f"EVEN_K : tl.constexpr = {544 % depth == 0}" in text


def test_addmm_is_asked_about_three_times_and_has_one_choice() -> None:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    activate(pack_of((gemm_asked(aten.addmm.default, BIAS, A, B), CONFIG)), device=H200)
    ((name, (choice,)),) = lower(aten.addmm.default, BIAS, A, B)
    assert name == "addmm"
    assert isinstance(choice, TritonTemplateCaller)
    assert "in_ptr0" in Path(choice.bmreq.module_path).read_text()  # the bias
    assert report().num_hits == 1


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (aten.bmm.default, (((4, 64, 96), BF16), ((4, 96, 64), BF16))),
        (
            lambda a, b, s, t: aten._scaled_mm(a, b, s, t, out_dtype=BF16),
            (
                ((1024, 512), torch.float8_e4m3fn),
                ((512, 256), torch.float8_e4m3fn, (1, 512)),
                ((), torch.float32),
                ((), torch.float32),
            ),
        ),
    ],
    ids=["bmm", "scaled_mm"],
)
def test_batches_and_scaled_products_obey_too(function: Any, tensors: Any) -> None:
    from torch._inductor.select_algorithm import TritonTemplateCaller

    activate(pack_of((gemm_asked(function, *tensors), CONFIG)), device=H200)
    ((_, (choice,)),) = lower(function, *tensors)
    assert isinstance(choice, TritonTemplateCaller)
    assert choice.info_dict()["tile_shape"] == "(128, 64, 64)"


@pytest.mark.parametrize("function", [aten.mm.default, aten.addmm.default], ids=["mm", "addmm"])
def test_a_row_may_name_the_librarys_call(function: Any) -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller

    tensors = (BIAS, A, B) if function is aten.addmm.default else (A, B)
    activate(pack_of((gemm_asked(function, *tensors), LIBRARY)), device=H200)
    ((_, (choice,)),) = lower(function, *tensors)
    assert isinstance(choice, ExternKernelCaller)
    assert report().num_hits == 1


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (aten.mm.default, (((1024, 544), BF16), ((544, 128), BF16))),
        (aten.mm.default, (A, ((544, 256), BF16, (1, 544)))),
        (aten.mm.default, (((1024, 544), torch.float16), ((544, 256), torch.float16))),
    ],
    ids=["other size", "other strides", "other type"],
)
def test_a_miss_is_the_librarys_call_and_nothing_is_timed(function: Any, tensors: Any) -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller

    activate(pack_of((gemm_asked(aten.mm.default, A, B), CONFIG)), device=H200)
    ((_, (choice,)),) = lower(function, *tensors)
    assert isinstance(choice, ExternKernelCaller)
    (miss,) = report().misses
    assert miss.kernel == "mm"
    assert "nearest row" in miss.reason
    assert report().num_hits == 0


def test_an_operation_without_rows_is_neither_hit_nor_miss() -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller

    activate(pack_of((gemm_asked(aten.mm.default, A, B), CONFIG)), device=H200)
    ((_, (choice,)),) = lower(aten.addmm.default, BIAS, A, B)
    assert isinstance(choice, ExternKernelCaller)
    assert (report().num_hits, report().num_misses) == (0, 0)


def test_rows_of_another_torch_or_template_are_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller

    gemm = gemm_asked(aten.mm.default, A, B)
    for pack, reason in (
        (pack_of((gemm, CONFIG), torch_version="1.2.3"), "tuned under torch 1.2.3, here is"),
        (pack_of((gemm, CONFIG), source="0" * 64), "the kernel's source has changed"),
    ):
        caplog.clear()
        activate(pack, device=H200)
        with caplog.at_level(logging.WARNING, "tunefarm.runtime"):
            for _ in range(2):
                ((_, (choice,)),) = lower(aten.mm.default, A, B)
                assert isinstance(choice, ExternKernelCaller)
        assert [reason in record.message for record in caplog.records].count(True) == 1
        (told,) = report().refused
        assert reason in told
        deactivate()


@pytest.mark.parametrize(
    "change",
    [
        {"GROUP_M": "8\nimport os"}, {"GROUP_M": 4.0}, {"BLOCK_K": "64"}, {"BLOCK_K": None},
        {"X : tl.constexpr = 1\nimport os": 1}, {"ACC_TYPE": 1}, {"BLOCK_M": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_says_numbers_under_known_names_and_nothing_else(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Inductor writes a config into the text of a module."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    config = replace(CONFIG, params=FrozenMap({**CONFIG.params, **change}))
    activate(pack_of((gemm_asked(aten.mm.default, A, B), config)), device=H200)
    with caplog.at_level(logging.WARNING, "tunefarm.runtime"):
        ((_, (choice,)),) = lower(aten.mm.default, A, B)
    assert isinstance(choice, ExternKernelCaller)
    assert "is no config of Inductor's template" in caplog.text
    assert report().num_hits == 0


def test_a_row_without_a_block_is_not_used() -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller

    config = replace(CONFIG, params=FrozenMap(BLOCK_M=64))
    activate(pack_of((gemm_asked(aten.mm.default, A, B), config)), device=H200)
    ((_, (choice,)),) = lower(aten.mm.default, A, B)
    assert isinstance(choice, ExternKernelCaller)


def test_a_strict_job_is_told_of_a_miss() -> None:
    from torch._inductor.exc import InductorError  # noqa: F401 (what compile_fx would wrap it in)

    activate(pack_of((gemm_asked(aten.mm.default, A, B), CONFIG)), device=H200, strict=True)
    with pytest.raises(Exception, match="no row of the active packs is for mm") as caught:
        lower(aten.mm.default, ((64, 64), BF16), ((64, 64), BF16))
    assert isinstance(caught.value, MissError) or "MissError" in str(caught.value)


def test_rows_reach_a_thread_that_knew_inductor_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one in which autograd compiles a backward."""
    from torch._inductor import config
    from torch._inductor.select_algorithm import TritonTemplateCaller

    found: list[Any] = []
    may_go_on, has_lowered = threading.Event(), threading.Event()

    def work() -> None:
        found.append((config.save_config_portable(readonly_values=True), lower(aten.mm.default, A, B)))
        has_lowered.set()
        may_go_on.wait(60)
        found.append((config.save_config_portable(readonly_values=True), lower(aten.mm.default, A, B)))

    gemm = gemm_asked(aten.mm.default, A, B)
    thread = threading.Thread(target=work)
    thread.start()
    assert has_lowered.wait(60)
    activate(pack_of((gemm, CONFIG)), device=H200)
    may_go_on.set()
    thread.join()
    (before, ((_, stock),)), (after, ((_, chosen),)) = found
    assert not isinstance(stock[0], TritonTemplateCaller)
    assert isinstance(chosen[0], TritonTemplateCaller)
    assert before != after


def test_the_key_of_cached_graphs_changes_when_the_rows_do() -> None:
    from torch._inductor import config

    def key() -> Any:
        return config.save_config_portable(readonly_values=True)

    gemm = gemm_asked(aten.mm.default, A, B)
    stock = key()
    keys = []
    other = replace(CONFIG, options=FrozenMap(num_warps=4, num_stages=4))
    for pack in (pack_of((gemm, CONFIG)), pack_of((gemm, other)), pack_of((gemm, CONFIG))):
        activate(pack, device=H200)
        keys.append(key())
        deactivate()
        assert key() == stock
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]
    # A table for another device changes nothing here.
    activate(pack_of((gemm, CONFIG)), device=H200)
    far = pack_of((gemm, other))
    device = replace(H200, arch="sm_80", name="other")
    activate(seal(Pack(tables=tuple(replace(t, device=device) for t in far.tables))), device=H200)
    assert key() == keys[0]


def test_nothing_but_products_is_autotuned_for_it() -> None:
    """Of a function compiled without a mode."""
    from torch._inductor import config

    gemm = gemm_asked(aten.mm.default, A, B)
    activate(pack_of((gemm, CONFIG)), device=H200)
    assert config.max_autotune_gemm
    assert not config.max_autotune
    assert not config.max_autotune_pointwise
    image, weights = ((2, 64, 32, 32), BF16), ((64, 64, 3, 3), BF16)
    selected = lower(
        lambda x, w: aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), image, weights
    )
    assert [len(choices) for _, choices in selected] == [1]


def test_a_program_that_wants_autotuning_keeps_its_rows() -> None:
    from torch._inductor import config
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    activate(pack_of((gemm_asked(aten.mm.default, A, B), CONFIG)), device=H200)
    with config.patch(max_autotune=True):
        ((_, (hit,)),) = lower(aten.mm.default, A, B)
        ((_, (miss,)),) = lower(aten.mm.default, ((64, 64), BF16), ((64, 64), BF16))
    assert isinstance(hit, TritonTemplateCaller)
    assert isinstance(miss, ExternKernelCaller)


def test_a_torch_that_cannot_be_told_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config, select_algorithm

    pack = pack_of((gemm_asked(aten.mm.default, A, B), CONFIG))
    monkeypatch.delattr(select_algorithm, "add_preprocessing_fn")
    with caplog.at_level(logging.WARNING, "tunefarm.runtime"):
        activate(pack, device=H200)
        activate(pack, device=H200)
    assert len([r for r in caplog.records if "has no select_algorithm.add_preprocessing_fn" in r.message]) == 1
    assert not config.max_autotune_gemm
    deactivate()
    with pytest.raises(MissError, match="rows for Inductor's templates are not used"):
        activate(pack, device=H200, strict=True)
    assert report().packs == ()


def test_an_older_torch_is_told_of_the_rows_once_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking which GPU is the current one would put rank 0's to use on all ranks, and forbid to fork."""
    from torch._inductor import config

    later: list[Any] = []
    pack = pack_of((gemm_asked(aten.mm.default, A, B), CONFIG))
    settings = config._config  # type: ignore[attr-defined]
    monkeypatch.delattr(config, "_cache_config_factory_keys")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_call", later.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("puts CUDA to use"))
    activate(pack)
    early = settings["lookup_table.table"].default
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("tunefarm.runtime.kernels.live_device", lambda _: H200)
    (settle,) = later
    settle()
    assert settings["lookup_table.table"].default != early
    deactivate()


def test_a_pack_without_such_rows_does_not_import_torch() -> None:
    script = """
    import sys
    import tunefarm
    from tunefarm.pack import Pack, seal
    tunefarm.activate(seal(Pack(tables=())))
    assert not any(name.startswith("torch") for name in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in script.splitlines())], cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
