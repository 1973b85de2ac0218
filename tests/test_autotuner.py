"""Kernels obey packs in eager launches: the choice for each call, and real launches in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from runtime_kernels import CONFIGS, LADDER, SM_90, block, foreign, make_pack, make_row, own, pruned
from triton.tools.tensor_descriptor import TensorDescriptor

import tunefarm
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import MissError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.runtime import kernels
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.reporting import report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


def test_tf_063_the_key_does_not_depend_on_how_arguments_are_passed(chosen: Callable[..., int]) -> None:
    activate(make_pack(own, make_row(256, block(128), facts={"extra": "none"})), device=SM_90)
    x, y = torch.zeros(256), torch.zeros(256)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, y, 256), {}),
        ((x, y), {"n": 256}),
        ((), {"y": y, "n": 256, "x": x}),
        ((x, y, 256, None), {}),
        ((x, y, 256), {"extra": None}),
    ]
    assert [chosen(own, *args, **kwargs) for args, kwargs in calls] == [128] * 5
    assert [hit.launches for hit in report().hits] == [5]
    assert chosen(own, x, y, 256, x) == 64


def test_eager_misses_are_the_default_and_are_reported(chosen: Callable[..., int]) -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    x = torch.zeros(8192)
    assert chosen(own, x, x, 4096) == 64
    assert chosen(own, x, x, 250) == 64
    assert chosen(own, x, x[1:], 256) == 64  # an unaligned pointer
    assert chosen(own, x.half(), x, 256) == 64
    assert chosen(own, x, x, 256) == 128
    assert {miss.reason.splitlines()[0].rpartition(": ")[2] for miss in report().misses} == {
        "n is 4096, tuned for (724, 2048]", "n is not div16, tuned div16", "y is not div16, tuned div16",
        "x is fp16, tuned fp32",
    }  # fmt: skip


def test_descriptors_find_the_rows_that_were_tuned_with_descriptors(chosen: Callable[..., int]) -> None:
    row = make_row(256, block(128))
    activate(make_pack(own, replace(row, match=replace(row.match, facts=FrozenMap(n="div16")))), device=SM_90)
    x = torch.zeros(256)
    narrow, wide = (TensorDescriptor.from_tensor(x, [size]) for size in (16, 64))
    assert [chosen(own, narrow, narrow, 256), chosen(own, wide, wide, 256)] == [128, 128]
    assert chosen(own, TensorDescriptor.from_tensor(x.half(), [16]), narrow, 256) == 64
    assert chosen(own, x, x, 256) == 64


def test_a_foreign_miss_is_the_stock_autotuner(chosen: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    install(foreign)
    activate(make_pack(foreign, *LADDER), device=SM_90)
    timed: list[Any] = []

    def bench(*_: Any, config: Any, **__: Any) -> list[float]:
        timed.append(config.kwargs["BLOCK"])
        return [float(config.kwargs["BLOCK"])] * 3

    monkeypatch.setattr(foreign.declared, "_bench", bench)
    x = torch.zeros(4096)
    assert chosen(foreign, x, x, 256) == 128
    assert not timed
    assert chosen(foreign, x, x, 4096) == 32
    assert timed == [64, 32]
    assert foreign.best_config.kwargs["BLOCK"] == 32
    assert chosen(foreign, x, x, 512) == 256
    assert timed == [64, 32]


def test_own_kernels_are_never_benchmarked(chosen: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.declared, "_bench", None)
    x = torch.zeros(4096)
    assert chosen(own, x, x, 256) == 64
    activate(make_pack(own, *LADDER), device=SM_90)
    assert chosen(own, x, x, 4096) == 64


def test_strict_and_error_raise_with_the_difference(chosen: Callable[..., int]) -> None:
    x = torch.zeros(4096)
    for terms in ({"strict": True}, {"on_miss": "error"}):
        deactivate()
        activate(make_pack(own, *LADDER), device=SM_90, **terms)  # type: ignore[arg-type]
        with pytest.raises(
            MissError, match=r"(?s)own with dims n=4096.*nearest row .*n is 4096, tuned for \(724, 2048\]"
        ):
            chosen(own, x, x, 4096)
        assert chosen(own, x, x, 256) == 128


def test_strict_names_another_source_and_another_triton(chosen: Callable[..., int]) -> None:
    x = torch.zeros(256)
    for change, text in (({"text": "0" * 64}, "source has changed"), ({"triton": "3.0.0"}, "under Triton 3.0.0")):
        deactivate()
        activate(make_pack(own, *LADDER, **change), device=SM_90, strict=True)
        # The call is told in full also where no row of the pack can be of use.
        with pytest.raises(MissError, match=rf"(?s)own with dims n=256.*{text}"):
            chosen(own, x, x, 256)


def test_tf_071_another_triton_is_used_with_one_warning(
    chosen: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    activate(make_pack(own, *LADDER, triton="3.0.0"), device=SM_90)
    x = torch.zeros(2048)
    assert [chosen(own, x, x, n) for n in (256, 512)] == [128, 256]
    assert caplog.text.count("tuned under Triton 3.0.0") == 1


def test_order_of_activation_and_installation_does_not_matter(chosen: Callable[..., int]) -> None:
    x = torch.zeros(256)
    activate(make_pack(pruned, *LADDER), device=SM_90)
    assert install(pruned) == install(pruned) == ["pruned"]
    assert chosen(pruned, x, x, 256) == 128
    activate(make_pack(pruned, make_row(256, block(1024))), device=SM_90)
    assert chosen(pruned, x, x, 256) == 1024


def test_tf_072_a_config_that_fails_here_is_condemned_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = tunefarm.autotune(configs=CONFIGS, key=["n"])(own.fn)  # its row stays condemned for this process
    activate(make_pack(kernel, *LADDER), device=SM_90)
    tried: list[int] = []

    def run(*_: Any, BLOCK: int, **__: Any) -> None:
        tried.append(BLOCK)
        if BLOCK == 128:
            raise triton.OutOfResources(300, 200, "shared memory")

    monkeypatch.setattr(kernel.fn, "run", run)
    x = torch.zeros(2048)
    for n in (256, 256, 320, 512):
        kernel[(1,)](x, x, n)
    assert tried == [128, 64, 64, 64, 256]
    assert caplog.text.count("failed here") == 1
    assert "BLOCK=128" in caplog.text
    assert "OutOfResources" in caplog.text
    assert [(hit.launches, "BLOCK=256" in hit.config) for hit in report().hits] == [(1, True)]
    assert report().num_misses == 3  # the launch that had to do without its row is none that a row answered


def test_tf_072_the_callers_own_error_is_raised_and_condemns_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    activate(make_pack(own, *LADDER), device=SM_90)

    def run(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("grid")

    monkeypatch.setattr(own.fn, "run", run)
    x = torch.zeros(256)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            own[(1,)](x, x, 256)
    assert "failed here" not in caplog.text


def test_tf_079_a_pack_config_runs_the_hook_that_the_declared_ones_share(chosen: Callable[..., int]) -> None:
    zeroed: list[int] = []

    def hook(named: dict[str, Any]) -> None:
        zeroed.append(named["BLOCK"])

    hooked = triton.autotune([triton.Config({"BLOCK": 64}, pre_hook=hook)], key=["n"])(foreign.fn)
    install(hooked)
    activate(make_pack(hooked, *LADDER), device=SM_90)
    x = torch.zeros(256)
    assert chosen(hooked, x, x, 256) == 128
    assert zeroed == [128]


def test_tf_079_without_one_hook_for_all_a_new_config_is_not_used(
    chosen: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32}, num_warps=4, pre_hook=lambda _: None)]
    mixed = triton.autotune(configs, key=["n"])(foreign.fn)
    install(mixed)
    activate(make_pack(mixed, make_row(256, block(32, num_stages=3)), make_row(512, block(16))), device=SM_90)
    x = torch.zeros(512)
    assert mixed.configs == configs
    assert chosen(mixed, x, x, 256) == 32  # declared, hook and all
    assert "different pre_hooks" in caplog.text


def test_the_config_of_a_launch_is_known_beforehand(chosen: Callable[..., int]) -> None:
    x, y = torch.zeros(4096), torch.zeros(4096)
    assert own.config_for(x, y, 256).params["BLOCK"] == 64
    activate(make_pack(own, *LADDER), device=SM_90)
    assert own.config_for(x, y, 256) == own.config_for(n=256, y=y, x=x) == LADDER[0].config
    assert own.config_for(x, y, 4096) == Config(params={"BLOCK": 64}, options={"num_warps": 4, "num_stages": 3})
    assert report().hits == report().misses == ()
    for n in (256, 512, 1024, 4096):
        assert chosen(own, x, y, n) == own.config_for(x, y, n).params["BLOCK"]
    assert (report().num_hits, report().num_misses) == (3, 1)
    activate(make_pack(own), strict=True, device=SM_90)
    with pytest.raises(MissError):
        own.config_for(x, y, 4096)


def test_a_config_that_only_tuning_can_tell_is_not_guessed() -> None:
    install(foreign)
    x = torch.zeros(4096)
    with pytest.raises(UserError, match=r"(?s)after its own tuning only.*on_miss='default'"):
        foreign.config_for(x, x, 4096)
    activate(make_pack(foreign, *LADDER), device=SM_90, on_miss="default")
    assert foreign.config_for(x, x, 256) == LADDER[0].config
    assert foreign.config_for(x, x, 4096).params["BLOCK"] == 64


def test_what_was_declared_stays_readable() -> None:
    activate(make_pack(own, *LADDER), device=SM_90)
    assert len(own.configs) == 5
    assert [c.kwargs["BLOCK"] for c in own.declared.configs] == [64, 32]
    assert own.declared.early_config_prune is None
    assert own.declared.keys == ["n"]


def test_a_kernel_may_be_redeclared(chosen: Callable[..., int]) -> None:
    again = tunefarm.autotune(configs=CONFIGS, key=["n"])(foreign.fn)
    again.configs = CONFIGS[1:]
    x = torch.zeros(256)
    assert chosen(again, x, x, 256) == 32


def test_autotune_needs_a_config() -> None:
    with pytest.raises(UserError, match="at least one config"):
        tunefarm.autotune(configs=[], key=[])


SCRIPT = """
    import torch, triton, triton.language as tl, tunefarm
    from tunefarm.device import nominal
    from tunefarm.runtime.reporting import report

    @tunefarm.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
    @triton.jit
    def kernel(x, y, n, used, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
        tl.store(used, BLOCK)

    def double(x):
        y, used = torch.empty_like(x), torch.zeros(1, dtype=torch.int32)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), used)
        assert torch.equal(y, x * 2), "wrong result"
        return used.item()
"""


def test_real_launches_obey_the_pack(tmp_path: Path) -> None:
    """Triton's interpreter runs the kernel: results are right, and the kernel says with which BLOCK it ran."""
    (tmp_path / "kernels.py").write_text(textwrap.dedent(SCRIPT))
    script = """
        import triton
        from kernels import double, kernel, nominal, report, torch, tunefarm
        from runtime_kernels import make_pack, make_row, block
        rows = [make_row(n, block(b), bounds=(n // 2, n), dtypes={"x": "fp32", "y": "fp32", "used": "i32"},
                         facts={"used": "div16"}) for n, b in ((128, 16), (1024, 256))]
        print(double(torch.rand(128)))
        tunefarm.activate(make_pack(kernel, *rows), device=nominal("sm_90"))
        print(*[double(torch.rand(n)) for n in (128, 1024, 800, 2048)], double(torch.rand(1000)))
        print(report().num_hits, report().num_misses)
    """
    assert interpreted(script, tmp_path) == ["64", "16 256 256 64 64", "3 2"]


def interpreted(script: str, *folders: Path) -> list[str]:
    """The lines that a script prints under Triton's interpreter."""
    path = [*folders, Path(__file__).parent, Path(__file__).parents[1]]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=path[-1], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_arguments_are_prepared_for_the_config_that_is_launched() -> None:
    """Token ids of a mixture of experts are padded to the launched blocks, also where a pack's config fails."""
    script = """
        import torch, tunefarm
        from runtime_kernels import SM_90, make_pack
        from tunefarm.frozen import FrozenMap
        from tunefarm.pack import Match, Row
        from tunefarm.spec.importing import import_object

        moe = import_object("kernels/fused_moe.py:workload", "experiments")
        inputs = moe.inputs("cpu", 0, tokens=20, experts=4, top_k=2, hidden=32, intermediate=16, dtype="fp32")

        def launch():
            assert torch.allclose(moe.call(**inputs), moe.reference(**inputs), atol=1e-4), "wrong result"
            print(moe.kernel.best_config.kwargs["BLOCK_M"])

        launch()
        tensors = {"x_ptr": "fp32", "w_ptr": "fp32", "c_ptr": "fp32"}
        tensors |= {"slots_ptr": "i32", "experts_ptr": "i32", "ends_ptr": "i32"}
        dims = {"num_slots": 40, "num_experts": 4, "N": 32, "K": 32, "TOP_K": 2}
        facts = dict.fromkeys([*tensors, "N", "K"], "div16")
        match = Match(dims=FrozenMap(dims), dtypes=FrozenMap(tensors), facts=FrozenMap(facts))
        for width in (16, 24):
            config = tunefarm.Config(params={"BLOCK_M": 16, "BLOCK_N": width, "BLOCK_K": 16, "GROUP_M": 1})
            row = Row(match=match, measured_at=match.dims, config=config, median_ms=1.0, interval_ms=(1.0, 1.0))
            tunefarm.activate(make_pack(moe.kernel, row), device=SM_90)
            launch()
        launch()
        print(*(miss.reason for miss in tunefarm.report().misses))
    """
    assert interpreted(script) == ["64", "16", "64", "64", "its config failed here"]


# ---- several GPUs ----


class There:
    """A tensor on a GPU that this machine has not."""

    dtype = torch.float32

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def data_ptr(self) -> int:
        return 4096


def test_tf_103_a_call_belongs_to_the_gpu_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other GPU's capability finds the row, and it is the current one while the kernel is launched."""
    devices = [nominal("sm_80"), SM_90]
    made_current: list[int] = []
    launched: list[tuple[int, int]] = []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        made_current.append(index)
        yield
        made_current.pop()

    def run(*_: Any, **passed: Any) -> None:
        launched.append((passed["BLOCK"], made_current[-1] if made_current else 0))

    monkeypatch.setattr(kernels, "live_device", devices.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(own.fn, "run", run)
    activate(make_pack(own, make_row(256, block(128))))
    for index in (0, 1, 1, 0):
        own[(1,)](There(index), There(index), 256)
    default = CONFIGS[0].all_kwargs()["BLOCK"]
    assert launched == [(default, 0), (128, 1), (128, 1), (default, 0)]
    assert made_current == []


def test_a_tensor_of_a_gpu_that_is_not_there_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fake one is, where a program is traced without a GPU."""
    launched: list[int] = []
    monkeypatch.setattr(own.fn, "run", lambda *_, **passed: launched.append(passed["BLOCK"]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    activate(make_pack(own, make_row(256, block(128))))
    own[(1,)](There(0), There(0), 256)
    assert launched == [CONFIGS[0].all_kwargs()["BLOCK"]]
    assert report().num_misses == 1
