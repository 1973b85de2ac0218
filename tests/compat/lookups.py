"""Lookups of autotuners (layer 1) under whatever Triton is there, and without torch: run by `versions.py`.

Nothing is launched: what would reach the jitted function is looked at.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import triton
import triton.language as tl

import tunefarm
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import MissError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, seal
from tunefarm.runtime.activation import deactivate
from tunefarm.source import source_hash

CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 32}, num_warps=2)]
SM_90 = nominal("sm_90")


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def foreign(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@tunefarm.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def own(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def plain(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


class Place:
    index = None


class Tensor:
    """What a lookup asks of a tensor."""

    device = Place()

    def __init__(self, dtype: str = "torch.float32", address: int = 4096) -> None:
        self.dtype = dtype
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def made(kernel: Any, *configs: Config) -> Pack:
    """A pack with a row for n = 256 and, with a second config, for 512."""
    rows = tuple(
        Row(
            match=Match(
                dims=FrozenMap(n=(n // 2, n)), dtypes=FrozenMap(x="fp32", y="fp32"),
                facts=FrozenMap(x="div16", y="div16", n="div16"),
            ),
            measured_at=FrozenMap(n=n), config=config, median_ms=1.0, interval_ms=(1.0, 1.0),
        )
        for n, config in zip((256, 512), configs, strict=False)
    )  # fmt: skip
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", tunefarm="0",
        source="measured", created="",
    )  # fmt: skip
    table = Table(
        kernel=kernel.fn.__name__ if kernel is plain else kernel.base_fn.__name__, source_hash=source_hash(kernel),
        device=SM_90, provenance=provenance, rows=rows, key_parts=FrozenMap(triton=triton.__version__),
    )  # fmt: skip
    return seal(Pack(tables=(table,)))


def block(size: int, **options: Any) -> Config:
    return Config(params={"BLOCK": size}, options={"num_warps": 8, **options})


def passed(kernel: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The keywords with which the jitted function would be run."""
    seen: list[dict[str, Any]] = []
    kernel.fn.run = lambda *_, **launched: seen.append(launched)
    kernel[(1,)](*args, **kwargs)
    return {name: value for name, value in seen[0].items() if name not in ("grid", "warmup")}


def refused(kernel: Any, *args: Any) -> str:
    """Why no row answers; empty if one does."""
    try:
        passed(kernel, *args)
    except MissError as error:
        return str(error)
    return ""


def check_an_autotuner(kernel: Any) -> None:
    x = Tensor()
    tunefarm.activate(made(kernel, block(128), block(256, num_stages=5)), device=SM_90, on_miss="default")
    assert passed(kernel, x, x, 256) == {"BLOCK": 128, "num_warps": 8, "num_ctas": 1, "num_stages": 3}
    assert passed(kernel, y=x, x=x, n=512)["num_stages"] == 5
    assert passed(kernel, x, x, 144)["BLOCK"] == 128  # its range
    for call in ((x, x, 4096), (x, x, 250), (Tensor("torch.bfloat16"), x, 256), (x, Tensor(address=4), 256)):
        assert passed(kernel, *call)["BLOCK"] == 64, call
    told = tunefarm.report()
    assert (told.num_hits, told.num_misses) == (3, 4)
    assert [name for name in ("4096", "n is not div16", "bf16", "y is not div16") if name not in str(told)] == []
    tunefarm.activate(made(kernel, block(128)), device=SM_90, strict=True)
    assert "n is 4096, tuned for (128, 256]" in refused(kernel, x, x, 4096)
    deactivate()


def check_a_plain_kernel() -> None:
    x, seen = Tensor(), []
    type(plain).__mro__[1].run = lambda self, *_, **launched: seen.append(launched)
    tunefarm.activate(made(plain, block(128)), device=SM_90)
    for size in (128, 64):
        plain[(1,)](x, x, 256, BLOCK=size, num_warps=4)
    assert [(launched["BLOCK"], launched["num_warps"]) for launched in seen] == [(128, 8), (64, 4)]
    assert "BLOCK is 64, tuned 128" in str(tunefarm.report())
    deactivate()


if __name__ == "__main__":
    assert importlib.util.find_spec("torch") is None, "torch is there, so this shows nothing"
    assert tunefarm.install(sys.modules[__name__]) == ["foreign", "own"]
    assert tunefarm.install(plain) == ["plain"]
    check_an_autotuner(own)
    check_an_autotuner(foreign)
    check_a_plain_kernel()
    assert "torch" not in sys.modules
    print(f"Triton {triton.__version__}: lookups are right")
