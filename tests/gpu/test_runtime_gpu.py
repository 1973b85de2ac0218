"""On a GPU: training code obeys a pack, in eager launches and inside torch.compile, and nothing is benchmarked for it.

The kernels write down the BLOCK and the number of warps with which they ran, so that what is checked is what ran on
the device, however it was launched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tunefarm
from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, dumps, seal
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
    pytest.mark.filterwarnings("default"),  # torch.compile warns of many things that are not ours
]

ROWS = 64
DEFAULT = (64, 1)
RANGES = {(512, 1448): (128, 2), (1448, 5792): (512, 4), (5792, 16384): (2048, 8)}
"""(lo, hi] of n_cols -> (BLOCK, num_warps)."""
SIZES = (1024, 2048, 8192, 528, 1440, 1456, 4096, 5792, 5808, 16384)
"""In all ranges, back and forth, their ends included; all multiples of 16, as measured."""


def expected(n_cols: int) -> tuple[int, int]:
    return next((config for (lo, hi), config in RANGES.items() if lo < n_cols <= hi), DEFAULT)


@tunefarm.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=1)], key=["n_rows", "n_cols"])
@triton.jit
def own_kernel(x, y, used, n_rows, n_cols, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * n_cols + column
    tl.store(y + at, tl.load(x + at, mask=column < n_cols) * 3 + 1, mask=column < n_cols)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(used, BLOCK)
        tl.store(used + 1, tl.extra.cuda.num_warps())


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 256}, num_warps=4)],
    key=["n_rows", "n_cols"],
)
@triton.jit
def stock_kernel(x, y, used, n_rows, n_cols, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * n_cols + column
    tl.store(y + at, tl.load(x + at, mask=column < n_cols) * 3 + 1, mask=column < n_cols)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(used, BLOCK)
        tl.store(used + 1, tl.extra.cuda.num_warps())


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=1), triton.Config({"BLOCK": 256}, num_warps=4)],
    key=["n_rows", "n_cols"],
)
@triton.jit
def foreign_kernel(x, y, used, n_rows, n_cols, BLOCK: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * n_cols + column
    tl.store(y + at, tl.load(x + at, mask=column < n_cols) * 3 + 1, mask=column < n_cols)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(used, BLOCK)
        tl.store(used + 1, tl.extra.cuda.num_warps())


def model_of(kernel: Any) -> Callable[[Any], tuple[Any, Any]]:
    """A forward pass: the kernel between operations of torch's own."""

    def model(x: Any) -> tuple[Any, Any]:
        x = torch.relu(x)
        y = torch.empty_like(x)
        used = torch.zeros(2, dtype=torch.int32, device=x.device)
        n_rows, n_cols = x.shape
        kernel[lambda meta: (n_rows, triton.cdiv(n_cols, meta["BLOCK"]))](x, y, used, n_rows, n_cols)
        return y * 0.5, used

    return model


class Affine(torch.autograd.Function):
    """3 x + 1, with the kernel in its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = torch.empty_like(x)
        used = torch.zeros(2, dtype=torch.int32, device=x.device)
        n_rows, n_cols = x.shape
        own_kernel[lambda meta: (n_rows, triton.cdiv(n_cols, meta["BLOCK"]))](x, y, used, n_rows, n_cols)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 3


def make_pack(kernel: Any, configs: dict[tuple[int, int], tuple[int, int]] | None = None) -> Pack:
    device = live_device(torch.cuda.current_device())
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", source="measured",
        tunefarm="0", created="",
    )  # fmt: skip
    pointers = {"x": "div16", "y": "div16", "used": "div16"}
    rows = tuple(
        Row(
            match=Match(
                dims=FrozenMap({"n_rows": ROWS, "n_cols": bounds}),
                dtypes=FrozenMap(x="fp32", y="fp32", used="i32"),
                facts=FrozenMap({**pointers, "n_rows": "div16", "n_cols": "div16"}),
            ),
            measured_at=FrozenMap(n_rows=ROWS, n_cols=bounds[1]),
            config=Config(params={"BLOCK": size}, options={"num_warps": warps}),
            median_ms=1.0, interval_ms=(1.0, 1.0),
        )
        for bounds, (size, warps) in (configs or RANGES).items()
    )  # fmt: skip
    parts = FrozenMap(triton=triton.__version__, capability=device.arch)
    table = Table(
        kernel=kernel.base_fn.__name__, source_hash=source_hash(kernel), device=device, key_parts=parts,
        provenance=provenance, rows=rows,
    )  # fmt: skip
    return seal(Pack(tables=(table,)))


def uncached() -> Any:
    """A cached graph or autotuning result of an earlier run would hide a benchmark. Holds for one thread."""
    import torch._inductor.config as inductor

    return inductor.patch({"force_disable_caches": True, "compile_threads": 1})


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    torch._dynamo.reset()
    with uncached():
        yield
    deactivate()


@pytest.fixture
def benchmarked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were benchmarked, by Triton's autotuner or by Inductor's: one a call."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.runtime.autotuner import Autotuner

    names: list[str] = []

    def count(owner: type, method: str, name_of: Callable[[Any], str]) -> None:
        original = getattr(owner, method)

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            names.append(name_of(self))
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, counted)

    count(Autotuner, "_bench", lambda tuner: tuner.base_fn.__name__)
    count(CachingAutotuner, "bench", lambda tuner: tuner.fn.__name__)
    return names


def of_kernel(names: Sequence[str], kernel: Any) -> list[str]:
    return [name for name in names if name.startswith(kernel.base_fn.__name__)]


class Compiled:
    """A compiled function that counts its graphs."""

    def __init__(self, function: Callable[..., Any], *, dynamic: bool) -> None:
        from torch._inductor.compile_fx import compile_fx

        self.num_graphs = 0

        def backend(graph: Any, inputs: Any) -> Any:
            self.num_graphs += 1
            return compile_fx(graph, inputs)

        self._compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)


def check(model: Callable[[Any], tuple[Any, Any]], n_cols: int) -> tuple[int, int]:
    """Runs the model on one size, checks its result, and tells with which BLOCK and how many warps the kernel ran."""
    x = torch.randn(ROWS, n_cols, device="cuda")
    y, used = model(x)
    torch.testing.assert_close(y, (torch.relu(x) * 3 + 1) * 0.5)
    size, warps = used.tolist()
    return size, warps


def test_eager_launches_obey_the_pack(tmp_path: Path, benchmarked: list[str]) -> None:
    model = model_of(own_kernel)
    assert [check(model, n) for n in SIZES] == [DEFAULT] * len(SIZES)
    path = tmp_path / "pack.json"
    path.write_text(dumps(make_pack(own_kernel)))
    tunefarm.activate(path)
    assert [check(model, n) for n in SIZES] == [expected(n) for n in SIZES]
    assert {hit.step for hit in report().hits} == {"same device"}
    for n in (512, 16400, 1030):  # below and beyond the ranges, and no multiple of 16
        assert check(model, n) == DEFAULT
    assert (report().num_hits, report().num_misses) == (len(SIZES), 3)
    assert of_kernel(benchmarked, own_kernel) == []


def test_one_graph_per_range_with_dynamic_shapes(benchmarked: list[str]) -> None:
    tunefarm.activate(make_pack(own_kernel))
    model = Compiled(model_of(own_kernel), dynamic=True)
    assert [check(model, n) for n in SIZES] == [expected(n) for n in SIZES]
    assert model.num_graphs == len(RANGES)
    assert sorted(hit.graphs for hit in report().hits) == [1, 1, 1]
    assert of_kernel(benchmarked, own_kernel) == []


def test_static_shapes_obey_the_pack(benchmarked: list[str]) -> None:
    tunefarm.activate(make_pack(own_kernel))
    for n in (1024, 2048, 8192):
        model = Compiled(model_of(own_kernel), dynamic=False)
        assert check(model, n) == expected(n)
        assert model.num_graphs == 1
        torch._dynamo.reset()
    assert of_kernel(benchmarked, own_kernel) == []


def test_eager_and_compiled_choose_alike() -> None:
    tunefarm.activate(make_pack(own_kernel))
    eager, compiled = model_of(own_kernel), Compiled(model_of(own_kernel), dynamic=True)
    for n in (1024, 8192, 16400, 1030):
        assert check(eager, n) == check(compiled, n) == (expected(n) if n % 16 == 0 else DEFAULT)


def test_without_a_pack_the_default_is_compiled(benchmarked: list[str]) -> None:
    model = Compiled(model_of(own_kernel), dynamic=True)
    assert [check(model, n) for n in SIZES] == [DEFAULT] * len(SIZES)
    assert model.num_graphs == 1
    assert of_kernel(benchmarked, own_kernel) == []


def test_a_pack_activated_after_the_first_compiled_call_is_obeyed() -> None:
    model = Compiled(model_of(own_kernel), dynamic=True)
    assert check(model, 1024) == DEFAULT
    tunefarm.activate(make_pack(own_kernel))
    assert check(model, 1024) == expected(1024)


def test_an_installed_kernel_obeys_and_is_benchmarked_only_on_a_miss(benchmarked: list[str]) -> None:
    tunefarm.activate(make_pack(foreign_kernel))
    assert tunefarm.install(foreign_kernel) == ["foreign_kernel"]
    eager, compiled = model_of(foreign_kernel), Compiled(model_of(foreign_kernel), dynamic=True)
    for model in (eager, compiled):
        assert [check(model, n) for n in SIZES] == [expected(n) for n in SIZES]
    assert compiled.num_graphs == len(RANGES)
    assert of_kernel(benchmarked, foreign_kernel) == []
    for model in (eager, compiled):
        assert check(model, 32768) in ((64, 1), (256, 4))
        assert of_kernel(benchmarked, foreign_kernel)
        benchmarked.clear()


def test_the_counter_counts(benchmarked: list[str]) -> None:
    """A stock autotuner is benchmarked by Triton and by Inductor, and the fixture sees both."""
    check(model_of(stock_kernel), 1024)
    assert len(of_kernel(benchmarked, stock_kernel)) == 2
    benchmarked.clear()
    check(Compiled(model_of(stock_kernel), dynamic=False), 1024)
    assert len(of_kernel(benchmarked, stock_kernel)) >= 2


def test_a_training_step(benchmarked: list[str]) -> None:
    """Forward and backward, compiled whole, in a thread that did not activate the pack."""
    tunefarm.activate(make_pack(own_kernel))

    def loss(x: Any, weight: Any) -> Any:
        return Affine.apply(x * weight).pow(2).mean()

    compiled = Compiled(loss, dynamic=True)
    failures: list[BaseException] = []

    def train() -> None:
        try:
            with uncached():
                for n in SIZES:
                    x = torch.randn(ROWS, n, device="cuda")
                    weight = torch.randn(n, device="cuda", requires_grad=True)
                    compiled(x, weight).backward()
                    gradient, weight.grad = weight.grad, None
                    (3 * x * weight + 1).pow(2).mean().backward()
                    torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-5)
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    assert compiled.num_graphs == len(RANGES)
    assert report().num_misses == 0
    assert of_kernel(benchmarked, own_kernel) == []


def test_tf_072_a_row_that_cannot_be_compiled_here_gives_way_to_the_default(caplog: pytest.LogCaptureFixture) -> None:
    tunefarm.activate(make_pack(own_kernel, {(512, 1448): (1 << 21, 4), (1448, 5792): (512, 4)}))
    model = model_of(own_kernel)
    assert [check(model, n) for n in (1024, 1024, 2048)] == [DEFAULT, DEFAULT, (512, 4)]
    assert caplog.text.count("failed here") == 1


def test_the_live_device_is_the_one_that_sweeps_record() -> None:
    from tunefarm.bench.telemetry import live_device as recorded

    assert live_device(0) == recorded(0)


def test_asking_the_driver_what_a_gpu_is_takes_nothing_of_it() -> None:
    from tunefarm.bench import telemetry

    code = (
        "import os, sys; from tunefarm.bench import telemetry; telemetry.live_device(); "
        "assert 'torch' not in sys.modules; telemetry.uuid = lambda index: os.environ['GPU_UUID']; "
        "print(telemetry.sample()['num_processes'])"
    )
    torch.zeros(1, device="cuda")
    environment = os.environ | {"GPU_UUID": telemetry.uuid(0)}
    asked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(asked.stdout) == telemetry.sample()["num_processes"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tf_103_tensors_on_another_gpu_than_the_current_one() -> None:
    tunefarm.activate(make_pack(own_kernel))
    model = model_of(own_kernel)
    for index in (1, 0):
        x = torch.randn(ROWS, 1024, device=f"cuda:{index}")
        y, used = model(x)
        assert used.tolist() == list(expected(1024))
        torch.testing.assert_close(y, (torch.relu(x) * 3 + 1) * 0.5)
    assert torch.cuda.current_device() == 0
