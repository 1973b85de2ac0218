"""What ties an adopted kernel to the packs: whose it is, and what calls far from every row get."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import triton
from runtime_kernels import CONFIGS, LADDER, SM_90, block, foreign, make_pack, make_row, own

from tunefarm.errors import MissError
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.autotuner import adopt
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
