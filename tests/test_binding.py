"""What ties an adopted kernel to the packs: whose it is, and what calls far from every row get."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from runtime_kernels import CONFIGS, LADDER, SM_90, block, foreign, make_pack, make_row, own

import tunefarm
from tunefarm.config import Config
from tunefarm.errors import MissError
from tunefarm.runtime import binding, kernels
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.autotuner import BINDING, adopt
from tunefarm.runtime.reporting import report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    yield
    deactivate()


def test_a_kernel_of_our_own_that_was_adopted_as_it_was_made_is_our_own(chosen: Callable[..., int]) -> None:
    made = triton.autotune(configs=CONFIGS, key=["n"])(foreign.fn)
    assert adopt(made, owned=False)
    assert not adopt(made, owned=True)
    assert not adopt(made, owned=False)
    assert chosen(made, torch.zeros(64), torch.zeros(64), 64) == 64  # There is no GPU to time configs on.


def test_tf_068_below_the_smallest_range_is_a_miss_on_every_policy(chosen: Callable[..., int]) -> None:
    """The nearest row reaches half as far as it was tuned for, and no call below takes it for want of another."""
    x = torch.zeros(4096)
    for terms in ({}, {"on_miss": "default"}, {"on_miss": "nearest"}):
        deactivate()
        activate(make_pack(own, *LADDER), device=SM_90, **terms)  # type: ignore[arg-type]
        assert chosen(own, x, x, 16) == 64
        assert report().num_misses == 1
    deactivate()
    activate(make_pack(own, *LADDER), device=SM_90, strict=True)
    with pytest.raises(MissError, match=r"n is 16, tuned for \(128, 362\]"):
        chosen(own, x, x, 16)


@pytest.mark.parametrize("name", ["extra", "n", "nope"])
def test_no_row_gives_an_argument_that_the_caller_left_out(
    chosen: Callable[..., int], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Under a right digest a pack may hold anything."""
    row = make_row(256, Config(params={"BLOCK": 128, name: 5}))
    activate(make_pack(own, row, make_row(512, block(128))), device=SM_90)
    x = torch.zeros(256)
    assert [chosen(own, x, x, n) for n in (256, 512)] == [64, 128]
    assert f"{name} is for the caller to say" in caplog.text
    assert report().num_misses == 1


def test_tf_078_a_thousand_lengths_take_one_config_a_range_and_no_benchmark(
    chosen: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(foreign)
    rows = [make_row(n, block(b), bounds=bounds) for n, b, bounds in (
        (8000, 128, (4000, 8500)), (8001, 128, (4000, 8500)), (9008, 256, (8500, 12000)), (9001, 256, (8500, 12000)),
    )]  # fmt: skip
    activate(make_pack(foreign, *rows), device=SM_90)
    monkeypatch.setattr(foreign.declared, "_bench", None)  # calling it would be an error
    x = torch.zeros(1)
    used = {n: chosen(foreign, x, x, n) for n in range(8001, 9001)}
    assert {b for n, b in used.items() if n <= 8500} == {128}
    assert {b for n, b in used.items() if n > 8500} == {256}
    assert (report().num_hits, report().num_misses) == (1000, 0)


def test_a_redeclared_kernel_repeats_no_launch_of_before(chosen: Callable[..., int]) -> None:
    again = tunefarm.autotune(configs=CONFIGS, key=["n"])(foreign.fn)
    again.__dict__[BINDING].forms = (lambda *_, **__: "as before",)
    x, launch = torch.zeros(256), again[(1,)]
    assert launch(x, x, 256) == "as before"
    again.configs = CONFIGS[1:]
    assert chosen(again, x, x, 256) == 32
    assert launch(x, x, 256) != "as before"


def test_packs_that_change_while_a_call_is_decided_are_seen_by_the_next(
    chosen: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread."""
    x, stock = torch.zeros(256), binding.shortlist

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        found = stock(*args, **kwargs)
        monkeypatch.setattr(binding, "shortlist", stock)
        activate(make_pack(own, make_row(256, block(512))), device=SM_90)
        assert own.config_for(x, x, 256) == block(512)
        return found

    activate(make_pack(own, make_row(256, block(128))), device=SM_90)
    monkeypatch.setattr(binding, "shortlist", interrupted)
    assert chosen(own, x, x, 256) == 128
    assert chosen(own, x, x, 256) == 512
    assert chosen(own, x, x, 512) == 64


def test_a_call_that_is_decided_while_packs_change_costs_later_ones_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads: one had begun before another pack came, the other is tying the kernel to it meanwhile."""
    x, asking, tying = torch.zeros(256), binding.problem_of, kernels.triton_config
    asks, may_ask, ties, may_tie = (threading.Event() for _ in range(4))

    def slow(stock: Any, begun: threading.Event, may_go_on: threading.Event) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun.set()
            assert may_go_on.wait(60)
            return stock(*args, **kwargs)

        return call

    activate(make_pack(own, make_row(256, block(128))), device=SM_90)
    assert own.config_for(x, x, 256) == block(128)
    monkeypatch.setattr(binding, "problem_of", slow(asking, asks, may_ask))
    early = threading.Thread(target=own.config_for, args=(x, x, 512))
    early.start()
    assert asks.wait(60)
    activate(make_pack(own, make_row(512, block(256))), device=SM_90)
    monkeypatch.setattr(kernels, "triton_config", slow(tying, ties, may_tie))
    late = threading.Thread(target=own.config_for, args=(x, x, 512))
    late.start()
    assert ties.wait(60)
    may_ask.set()
    early.join()
    may_tie.set()
    late.join()
    assert own.config_for(x, x, 512) == block(256)


def test_a_condemned_row_is_launched_for_no_call_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for one that went well with it before: what is kept is forgotten."""
    kernel = tunefarm.autotune(configs=CONFIGS, key=["n"])(foreign.fn)
    launched: list[int] = []

    def run(_x: Any, _y: Any, n: int, *, BLOCK: int, **_: Any) -> None:
        launched.append(BLOCK)
        if (n, BLOCK) == (320, 128):
            raise triton.OutOfResources(300, 200, "shared memory")

    monkeypatch.setattr(kernel.fn, "run", run)
    activate(make_pack(kernel, *LADDER), device=SM_90)
    x = torch.zeros(320)
    kernel[(1,)](x, x, 256)
    kernel.__dict__[BINDING].forms = (lambda *_, **__: launched.append(128),)
    kernel.run(x, x, 320, grid=(1,), warmup=False)
    kernel[(1,)](x, x, 256)
    assert launched == [128, 128, 64, 64]


@pytest.mark.parametrize("terms", [{"strict": True}, {"on_miss": "error"}], ids=["strict", "error"])
def test_tf_072_where_every_call_needs_a_row_one_that_fails_is_an_error_at_once(
    terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is it the default's turn first: that is what such a job asks not to have."""
    kernel = tunefarm.autotune(configs=CONFIGS, key=["n"])(foreign.fn)
    launched: list[int] = []

    def run(*_: Any, BLOCK: int, **__: Any) -> None:
        launched.append(BLOCK)
        raise triton.OutOfResources(300, 200, "shared memory")

    monkeypatch.setattr(kernel.fn, "run", run)
    activate(make_pack(kernel, *LADDER), device=SM_90, **terms)
    x = torch.zeros(256)
    with pytest.raises(MissError, match="its config failed here") as caught:
        kernel[(1,)](x, x, 256)
    assert isinstance(caught.value.__context__, triton.OutOfResources)
    with pytest.raises(MissError, match="its config failed here"):
        kernel[(1,)](x, x, 256)
    assert launched == [128]
    assert (
        "the row n in (128, 362] div16, fp32 (BLOCK=128 num_warps=4) failed here, its calls are errors" in caplog.text
    )


def test_a_launch_under_packs_of_before_is_not_kept() -> None:
    kept: list[Any] = []
    bound, x = own.__dict__[BINDING], torch.zeros(256)
    activate(make_pack(own, make_row(256, block(128))), device=SM_90)
    for is_late in (False, True):
        choice = bound.choose((x, x, 256), {})
        choice.index, choice.proven = 0, True
        if is_late:
            activate(make_pack(own, make_row(256, block(512))), device=SM_90)
            bound.choose((x, x, 256), {})
        quick = SimpleNamespace(generation=bound.quick.generation, keep=lambda *a: kept.append(a), forms=())
        bound.quick = quick
        bound.keep(choice, None, (x, x, 256), {})
    assert [config.kwargs["BLOCK"] for _, config, *_ in kept] == [128]


def test_a_row_that_failed_meanwhile_is_not_kept() -> None:
    kernel, kept = tunefarm.autotune(configs=CONFIGS, key=["n"])(foreign.fn), []
    bound, x = kernel.__dict__[BINDING], torch.zeros(256)
    activate(make_pack(kernel, *LADDER), device=SM_90)
    choice = bound.choose((x, x, 256), {})
    choice.index, choice.proven = 0, True
    bound.condemn(choice, ValueError())
    bound.choose((x, x, 512), {})
    bound.quick = SimpleNamespace(generation=choice.generation, keep=lambda *a: kept.append(a), forms=())
    bound.keep(choice, None, (x, x, 256), {})
    assert kept == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(params={"BLOCK": 128, "extra": 5}), "extra is for the caller to say, not for a pack"),
        (Config(params={"BLOCK_M": 128}), "BLOCK_M is for the caller to say, not for a pack"),
        (block(128, num_stages="3"), "num_stages is '3', no number >= 0"),
        (block(128, num_ctas=0), "num_ctas is 0, no number >= 1"),
        (block(128, maxnreg=True), "maxnreg is True, no number >= 1"),
    ],
    ids=["an argument", "unknown", "text", "too small", "a truth value"],
)
def test_a_row_decides_nothing_that_is_no_config_of_the_kernel(
    config: Config, reason: str, chosen: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    """An argument that the call leaves to its default would be another, and torch.compile has nothing else to try."""
    activate(make_pack(own, make_row(256, config, facts={"extra": "none"})), device=SM_90)
    x = torch.zeros(256)
    assert [chosen(own, x, x, 256) for _ in range(2)] == [64, 64]
    assert own.configs == own.declared.configs
    assert caplog.text.count(f"is not used: {reason}") == 1
    assert chosen(own, x, x, 256, 7) == 64


def test_a_row_may_leave_the_number_of_registers_to_the_compiler(chosen: Callable[..., int]) -> None:
    activate(make_pack(own, make_row(256, block(128, maxnreg=None, num_stages=0))), device=SM_90)
    x = torch.zeros(256)
    assert chosen(own, x, x, 256) == 128


def test_many_configs_are_compared_with_the_declared_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack with thousands cost the first launch seconds."""
    asked: list[Any] = []
    stock = triton.Config.all_kwargs
    monkeypatch.setattr(triton.Config, "all_kwargs", lambda self: asked.append(self) or stock(self))
    rows = [make_row(16 * i, block(16 * i)) for i in range(1, 201)]
    activate(make_pack(own, *rows), device=SM_90)
    assert own.config_for(torch.zeros(256), torch.zeros(256), 256) == block(256)
    assert len(asked) <= 3 * len(rows)


def test_a_dim_that_is_no_scalar_is_a_miss_that_names_it(chosen: Callable[..., int]) -> None:
    """Whether the kernel takes it is Triton's to say: of a constexpr it does."""
    x = torch.zeros(256)
    activate(make_pack(own, *LADDER), device=SM_90)
    assert [chosen(own, x, x, n) for n in ([256], [256], {256: 1}, 256)] == [64, 64, 64, 128]
    assert {(miss.kernel, miss.problem and miss.problem.dims["n"]) for miss in report().misses} == {
        ("own", "a list"), ("own", "a dict"),
    }  # fmt: skip
    assert "n is 'a list', tuned for" in str(report())
    deactivate()
    activate(make_pack(own, *LADDER), device=SM_90, strict=True)
    with pytest.raises(MissError, match="own with dims n=a list"):
        chosen(own, x, x, [256])
