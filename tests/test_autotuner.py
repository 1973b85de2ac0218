"""Kernels obey packs: real launches in Triton's interpreter, and traces of torch.compile on a CPU.

The traces are those of a machine with a GPU, as far as capturing goes: torch is told that Triton can be used, and a
backend of our own looks at the graph that Dynamo captured instead of compiling it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tunefarm
from tunefarm.config import Config
from tunefarm.device import nominal
from tunefarm.errors import MissError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Match, Pack, Provenance, Row, Table, seal
from tunefarm.runtime.activation import activate, deactivate, install, report
from tunefarm.source import source_hash

SM_90 = nominal("sm_90")
CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 32}, num_warps=2)]


def first_two(configs: list[Any], named_args: dict[str, Any], **kwargs: Any) -> list[Any]:
    return configs[1:2] if named_args["n"] > 100 else configs[:1]


@tunefarm.autotune(configs=[Config(params={"BLOCK": 64}, options={"num_warps": 4}), CONFIGS[1]], key=["n"])
@triton.jit
def own(x, y, n, extra=None, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def foreign(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(
    configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": first_two, "perf_model": None, "top_k": 0.5}
)
@triton.jit
def pruned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["y"])
@triton.jit
def restoring(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def make_pack(kernel: Any, *rows: Row, **changes: Any) -> Pack:
    text = source_hash(kernel)
    provenance = Provenance(
        sweep="s", experiment="", toolchain=FrozenMap(triton=triton.__version__), timer="cold", tunefarm="0",
        source=changes.pop("source", "measured"), created="",
    )  # fmt: skip
    table = Table(
        kernel=changes.pop("name", kernel.base_fn.__name__), source_hash=changes.pop("text", text),
        device=changes.pop("device", SM_90), provenance=provenance, rows=rows,
        key_parts=FrozenMap(triton=changes.pop("triton", triton.__version__)),
    )  # fmt: skip
    return seal(Pack(tables=(table,)))


def make_row(n: int, config: Config, *, bounds: tuple[int, int] | None = None, **changes: Any) -> Row:
    facts = {"n": "one"} if n == 1 else {"n": "div16"} if n % 16 == 0 else {}
    facts = {"x": "div16", "y": "div16", **facts, **changes.pop("facts", {})}
    match = Match(
        dims=FrozenMap(n=bounds or n), dtypes=FrozenMap(changes.pop("dtypes", {"x": "fp32", "y": "fp32"})),
        facts=FrozenMap(facts),
    )  # fmt: skip
    return Row(match=match, measured_at=FrozenMap(n=n), config=config, median_ms=1.0, interval_ms=(1.0, 1.0))


def block(size: int, **options: Any) -> Config:
    return Config(params={"BLOCK": size}, options={"num_warps": 4, **options})


LADDER = (
    make_row(256, block(128), bounds=(128, 362)),
    make_row(512, block(256), bounds=(362, 724)),
    make_row(1024, block(512), bounds=(724, 2048)),
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    torch._dynamo.reset()
    yield
    deactivate()


# torch.compile


class Seen:
    """A torch.compile backend that keeps, per graph, the configs captured for the kernel."""

    def __init__(self) -> None:
        self.graphs: list[list[dict[str, Any]]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        for node in graph.graph.nodes:
            if "triton" in str(node.target):
                kernel: Any = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                self.graphs.append([config.all_kwargs() for config in kernel.configs])
        return lambda *args: [torch.empty_like(next(a for a in args if isinstance(a, torch.Tensor)))]

    @property
    def blocks(self) -> list[list[int]]:
        return [[config["BLOCK"] for config in graph] for graph in self.graphs]


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


def test_options_that_torch_would_take_for_arguments_stay_eager(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
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


# eager launches


class Launched(Exception):
    """Stands for the launch of a kernel that no GPU is here to run."""


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The BLOCK with which a kernel would be launched."""

    def of(kernel: Any, *args: Any, **kwargs: Any) -> int:
        def run(*_: Any, **passed: Any) -> None:
            launched.append(passed["BLOCK"])

        launched: list[int] = []
        monkeypatch.setattr(kernel.fn, "run", run)
        kernel[(1,)](*args, **kwargs)
        return launched[-1]

    return of


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
        with pytest.raises(MissError, match=text):
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
    activate(make_pack(own, *LADDER), device=SM_90)
    tried: list[int] = []

    def run(*_: Any, BLOCK: int, **__: Any) -> None:
        tried.append(BLOCK)
        if BLOCK == 128:
            raise triton.OutOfResources(300, 200, "shared memory")

    monkeypatch.setattr(own.fn, "run", run)
    x = torch.zeros(2048)
    for n in (256, 256, 320, 512):
        own[(1,)](x, x, n)
    assert tried == [128, 64, 64, 64, 256]
    assert caplog.text.count("failed here") == 1
    assert "BLOCK=128" in caplog.text
    assert "OutOfResources" in caplog.text


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
    from tunefarm.runtime.activation import report

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
        from tests.test_autotuner import make_pack, make_row, block
        rows = [make_row(n, block(b), bounds=(n // 2, n), dtypes={"x": "fp32", "y": "fp32", "used": "i32"},
                         facts={"used": "div16"}) for n, b in ((128, 16), (1024, 256))]
        print(double(torch.rand(128)))
        tunefarm.activate(make_pack(kernel, *rows), device=nominal("sm_90"))
        print(*[double(torch.rand(n)) for n in (128, 1024, 800, 2048)], double(torch.rand(1000)))
        print(report().num_hits, report().num_misses)
    """
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["64", "16 256 256 64 64", "3 3"]
