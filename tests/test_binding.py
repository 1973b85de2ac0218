"""What ties an adopted kernel to the packs: whose it is, and what calls far from every row get."""

from __future__ import annotations

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
from tunefarm.runtime import binding
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


@pytest.mark.parametrize("terms", [{"strict": True}, {"on_miss": "error"}])
def test_tf_072_where_every_call_needs_a_row_one_that_fails_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    kernel = tunefarm.autotune(configs=CONFIGS, key=["n"])(own.fn)
    activate(make_pack(kernel, *LADDER), device=SM_90, **terms)

    def run(*_: Any, BLOCK: int, **__: Any) -> None:
        if BLOCK == 128:
            raise triton.OutOfResources(300, 200, "shared memory")

    monkeypatch.setattr(kernel.fn, "run", run)
    x = torch.zeros(2048)
    for _ in range(2):
        with pytest.raises(MissError, match="its config failed here"):
            kernel[(1,)](x, x, 256)


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
    x = torch.zeros(256)
    assert again[(1,)](x, x, 256) == "as before"
    again.configs = CONFIGS[1:]
    assert chosen(again, x, x, 256) == 32


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
