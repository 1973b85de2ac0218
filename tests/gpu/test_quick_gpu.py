"""On a GPU: calls of kinds that were seen before are launched without Triton's help, and what they compute is right.

Whatever changes between two calls (dtype, alignment, divisibility, a value that equals 1, an absent tensor, the stream,
the device), the answer is that of the long way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import tunefarm
from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, seal
from tunefarm.runtime.activation import deactivate
from tunefarm.runtime.kernels import live_device
from tunefarm.runtime.reporting import report
from tunefarm.source import source_hash

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs Triton")
tl = triton.language

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 4096


@tunefarm.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=1)], key=["n"])
@triton.jit
def scaled(x, y, bias, n, stride, factor, MODE: tl.constexpr = "plain", BLOCK: tl.constexpr = 32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at * stride, mask=at < n) * factor
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    if MODE == "relu":
        value = tl.maximum(value, 0)
    tl.store(y + at, value, mask=at < n)


def over(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def pack() -> Pack:
    """Rows for fp32 with and without a bias; every other call uses the default."""
    text, device = source_hash(scaled), live_device(torch.cuda.current_device())
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", source="measured",
        tunefarm="0", created="",
    )  # fmt: skip
    rows = [
        Row(
            match=Match(
                dims=FrozenMap(n=(0, SIZE)), dtypes=FrozenMap(dict.fromkeys(tensors, "fp32")),
                facts=FrozenMap({**dict.fromkeys(tensors, "div16"), "n": "div16", **absent}),
            ),
            measured_at=FrozenMap(n=1024), config=Config(params={"BLOCK": block}, options={"num_warps": 4}),
            median_ms=1.0, interval_ms=(1.0, 1.0),
        )
        for tensors, absent, block in ((("x", "y"), {"bias": "none"}, 256), (("x", "y", "bias"), {}, 512))
    ]  # fmt: skip
    parts = FrozenMap(source_hash=text, triton=triton.__version__, capability=device.arch)
    table = Table(
        kernel="scaled", source_hash=text, device=device, key_parts=parts, provenance=provenance, rows=tuple(rows)
    )
    return seal(Pack(tables=(table,)))


@pytest.fixture(autouse=True)
def active() -> Iterator[None]:
    deactivate()
    tunefarm.activate(pack())
    yield
    deactivate()


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each launch that Triton made."""
    told: list[int] = []
    launch = scaled.fn.run

    def run(*args: Any, **kwargs: Any) -> Any:
        told.append(kwargs["BLOCK"])
        return launch(*args, **kwargs)

    monkeypatch.setattr(scaled.fn, "run", run, raising=False)
    return told


def right(x: Any, bias: Any, n: int, stride: int, factor: float, mode: str) -> Any:
    value = x[: n * stride : stride].double() * factor
    value = value + bias[:n].double() if bias is not None else value
    return torch.relu(value) if mode == "relu" else value


def test_a_call_seen_before_is_launched_without_triton(long_way: list[int]) -> None:
    x = torch.randn(SIZE, device="cuda")
    for _ in range(4):
        y = torch.zeros_like(x)
        compiled = scaled[over](x, y, None, 2048, 1, 2.0)
        assert torch.equal(y[:2048], x[:2048] * 2)
        assert scaled.best_config.kwargs == {"BLOCK": 256}
        assert compiled.metadata.num_warps == 4
    assert long_way == [256]
    assert report().hits[0].launches == 4


def test_whatever_changes_between_calls_the_result_is_right(long_way: list[int]) -> None:
    torch.manual_seed(0)
    dtypes, ns, offsets = (torch.float32, torch.float16), (2048, 1024, 1000, 1), (0, 1)
    cases = list(itertools.product(dtypes, ns, offsets, (1, 2, 16), (False, True), (2.0, 3), ("plain", "relu")))
    for _ in range(3):
        for dtype, n, offset, stride, with_bias, factor, mode in cases:
            if n * stride > SIZE:
                continue
            x = torch.randn(SIZE + offset, device="cuda", dtype=dtype)[offset:]
            bias = torch.randn(SIZE, device="cuda", dtype=dtype) if with_bias else None
            y = torch.zeros(n, device="cuda", dtype=dtype)
            scaled[over](x, y, bias, n, stride, factor, mode)
            expected = right(x, bias, n, stride, factor, mode)
            torch.testing.assert_close(y.double(), expected, atol=2e-2, rtol=2e-2)
    assert 0 < len(long_way) < len(cases) * 3


def test_it_launches_on_the_current_stream_and_into_graphs(long_way: list[int]) -> None:
    x, y = torch.randn(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    for _ in range(3):
        scaled[over](x, y, None, SIZE, 1, 2.0)
    long_way.clear()
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled[over](x, y, None, SIZE, 1, 2.0)
    torch.cuda.synchronize()
    assert not y.any()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 2)
    assert long_way == []


def test_a_profilers_hooks_see_every_launch(long_way: list[int]) -> None:
    seen: list[str] = []
    x = torch.randn(SIZE, device="cuda")
    for _ in range(3):
        scaled[over](x, x, None, SIZE, 1, 1.0)
    long_way.clear()

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        scaled[over](x, x, None, SIZE, 1, 1.0)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert len(seen) == len(long_way) == 1
    assert "scaled" in seen[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_has_a_kernel_of_its_own() -> None:
    for _ in range(3):
        for index in (0, 1, 0):
            x = torch.randn(SIZE, device=f"cuda:{index}")
            y = torch.zeros_like(x)
            scaled[over](x, y, None, SIZE, 1, 2.0)
            assert torch.equal(y, x * 2)
