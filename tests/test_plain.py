"""Kernels without an autotuner: packs give them launch options, the rest is the host's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import plain_kernels
import pytest
import torch
import triton
import triton.language as tl
from farm import tunefarm as run_tunefarm
from farm import write_experiment, write_landscape
from plain_kernels import scale, scale_kernel
from runtime_kernels import SM_90, make_pack, make_row
from triton.runtime.jit import JITFunction

from tunefarm.bench.build import Artifact, compile_launch
from tunefarm.bench.launch import learn
from tunefarm.config import Config, Value
from tunefarm.errors import MissError, UserError
from tunefarm.export import match_of
from tunefarm.frozen import FrozenMap
from tunefarm.pack import Pack, Row
from tunefarm.pack_reader import load_pack
from tunefarm.runtime.activation import activate, deactivate, install
from tunefarm.runtime.reporting import report

Launches = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    deactivate()
    torch._dynamo.reset()
    yield
    deactivate()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What Triton was asked to launch."""
    seen: Launches = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: seen.append(kwargs))
    return seen


def row(n_cols: int, config: Config, **changes: Any) -> Row:
    made = make_row(n_cols, config)
    facts = {"x": "div16", "y": "div16", **({"n_cols": "div16"} if n_cols % 16 == 0 else {})}
    match = replace(made.match, dims=FrozenMap(n_cols=n_cols), facts=FrozenMap(facts))
    return replace(made, match=match, measured_at=match.dims, **changes)


def pack(*rows: Row) -> Pack:
    return make_pack(scale_kernel, *rows)


def options(**given: Value) -> Config:
    return Config(options=given)


def test_options_are_the_row_s_and_the_rest_is_the_host_s(launches: Launches) -> None:
    assert install(scale_kernel) == install(scale_kernel) == ["scale_kernel"]
    activate(pack(row(4096, options(num_warps=2, num_stages=5, maxnreg=64))), device=SM_90)
    scale(torch.zeros(3, 4096))
    scale(torch.zeros(3, 1024))
    common = {"grid": (3,), "warmup": False}
    assert launches == [
        {**common, "BLOCK_SIZE": 4096, "num_warps": 2, "num_stages": 5, "maxnreg": 64},
        {**common, "BLOCK_SIZE": 1024, "num_warps": 4},
    ]
    assert [(hit.launches, hit.graphs) for hit in report().hits] == [(1, 0)]
    (miss,) = report().misses
    assert "n_cols is 1024, tuned 4096" in miss.reason


def test_a_row_is_for_the_constexprs_it_was_tuned_with(launches: Launches) -> None:
    install(scale_kernel)
    other, same = (Config(params={"BLOCK_SIZE": b}, options={"num_warps": 2}) for b in (2048, 4096))
    activate(pack(row(4096, other)), device=SM_90)
    scale(torch.zeros(3, 4096))
    assert launches[-1]["num_warps"] == 8
    (miss,) = report().misses
    assert "BLOCK_SIZE is 4096, tuned 2048" in miss.reason
    activate(pack(row(4096, same)), device=SM_90)
    scale(torch.zeros(3, 4096))
    assert (launches[-1]["num_warps"], launches[-1]["BLOCK_SIZE"]) == (2, 4096)


@pytest.mark.parametrize(
    ("name", "value"), [("n_cols", 16), ("BLOCK_SIZE", 1024), ("factor", 2.0), ("warmup", True), ("grid", 1)]
)
def test_no_row_changes_what_the_host_says(
    launches: Launches, caplog: pytest.LogCaptureFixture, name: str, value: Value
) -> None:
    install(scale_kernel)
    activate(pack(row(4096, options(num_warps=2, **{name: value}))), device=SM_90)
    scale(torch.zeros(3, 4096))
    assert launches == [{"grid": (3,), "warmup": False, "BLOCK_SIZE": 4096, "num_warps": 8}]
    assert f"{name} is for the caller to say" in caplog.text


def test_strict_raises_where_no_row_answers(launches: Launches) -> None:
    install(scale_kernel)
    activate(pack(row(4096, Config(params={"BLOCK_SIZE": 2048}, options={"num_warps": 2}))), device=SM_90, strict=True)
    with pytest.raises(MissError, match="BLOCK_SIZE is 4096, tuned 2048"):
        scale(torch.zeros(3, 4096))
    assert not launches


def test_options_that_fail_here_are_used_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(scale_kernel)
    activate(pack(row(4096, options(num_warps=32))), device=SM_90)
    tried: list[int] = []

    def run(self: Any, *_: Any, num_warps: int, **__: Any) -> None:
        tried.append(num_warps)
        if num_warps == 32:
            raise triton.OutOfResources(300, 200, "registers")

    monkeypatch.setattr(JITFunction, "run", run)
    for _ in range(3):
        scale(torch.zeros(3, 4096))
    assert tried == [32, 8, 8, 8]
    assert caplog.text.count("failed here") == 1


def test_a_module_s_own_kernels_are_installed_when_asked() -> None:
    with pytest.raises(UserError, match="plain=True"):
        install("plain_kernels")
    assert install("plain_kernels", plain=True) == ["scale_kernel", "squared"]
    with pytest.raises(UserError, match="no kernel of Triton's"):
        install("json", plain=True)


def test_a_kernel_that_an_autotuner_launches_has_its_options_from_there(launches: Launches) -> None:
    @triton.jit
    def inner(x, n, BLOCK: tl.constexpr):
        tl.store(x, n)

    module = ModuleType("theirs")
    tuner = triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])(inner)
    inner.fn.__module__ = "theirs"
    vars(module).update(inner=inner, tuned=tuner)
    assert install(module, plain=True) == ["inner"]
    assert type(inner) is JITFunction
    assert type(tuner).__name__ == "PackedAutotuner"


def test_an_installed_kernel_and_what_it_calls_are_compiled_as_ever() -> None:
    install(plain_kernels, plain=True)
    inputs = {"x": torch.empty(3, 4096, device="meta")}
    launch = learn(plain_kernels.workload, inputs, options(num_warps=8), 90)
    _, artifact = compile_launch(launch, 90)
    assert isinstance(artifact, Artifact)


def test_inside_torch_compile_the_host_s_options_stay_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_: True)
    warps: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

        for node in graph.graph.nodes:
            if "triton" in str(node.target):
                kernel: Any = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
                warps.extend(config.num_warps for config in kernel.configs)
        return lambda *args: [torch.empty_like(next(a for a in args if isinstance(a, torch.Tensor)))]

    install(scale_kernel)
    compiled = torch.compile(scale, backend=backend, fullgraph=True, dynamic=False)
    compiled(torch.zeros(3, 512))
    assert "compile" not in caplog.text  # without a row there is nothing to say
    activate(pack(row(4096, options(num_warps=2))), device=SM_90)
    for n_cols in (4096, 2048):
        compiled(torch.zeros(3, n_cols))
    assert warps == [4, 8, 8]
    assert caplog.text.count("compiled calls keep those") == 1
    assert [(miss.kernel, miss.graphs > 0) for miss in report().misses] == [("scale_kernel", True)]
    activate(pack(row(4096, options(num_warps=2))), device=SM_90, strict=True)
    with pytest.raises(Exception, match="compiled calls keep those"):
        compiled(torch.zeros(3, 1024))


def test_a_space_of_launch_options_alone_is_swept_and_its_pack_obeyed(
    tmp_path: Path, store: Path, launches: Launches
) -> None:
    """From the YAML to a launch, through the ordinary command."""
    experiment = write_experiment(
        tmp_path,
        Path(plain_kernels.__file__).read_text(),
        problems=[{"n_rows": 64, "n_cols": [512, 4096], "dtype": "fp32"}],
        space={"num_warps": [1, 2, 4, 8, 16]},
        export="packs/plain.json",
    )

    def time_ms(config: Config, variables: Any) -> float:
        return 0.01 * (1 + abs(int(config.flat["num_warps"] or 0) - (2 if variables["n_cols"] == 512 else 16)))

    write_landscape(experiment, time_ms)
    done = run_tunefarm("sweep", experiment, "--fleet", "inline", "--tracking", "none", folder=tmp_path, store=store)
    assert done.returncode == 0, done.stderr
    made = load_pack(tmp_path / "packs" / "plain.json")
    assert [dict(r.config.flat) for t in made.tables for r in t.rows] == [{"num_warps": 2}, {"num_warps": 16}]
    install(scale_kernel)
    activate(made, device=SM_90, allow_replayed=True)
    for n_cols in (512, 4096):
        scale(torch.zeros(64, n_cols))
    assert [launch["num_warps"] for launch in launches] == [2, 16]


@pytest.mark.filterwarnings("default")  # what other packages warn of is theirs
def test_liger_s_rms_norm_obeys(launches: Launches) -> None:
    if importlib.util.find_spec("liger_kernel") is None:
        pytest.skip("liger_kernel is not installed")
    from liger_kernel.ops import rms_norm

    import tunefarm

    workload = tunefarm.Workload(
        call=lambda x, w: rms_norm.rms_norm_forward(x, w, 1e-6, 0.0, "llama", True),
        kernel=rms_norm._rms_norm_forward_kernel,
        inputs={"x": ["rows", "cols"], "w": ["cols"]},
        key=("n_cols",),
    )
    meta = {"x": torch.empty(8, 4096, device="meta"), "w": torch.empty(4096, device="meta")}
    launch = learn(workload, meta, options(num_warps=32), 90)
    assert isinstance(compile_launch(launch, 90)[1], Artifact)
    assert "_rms_norm_forward_kernel" in install("liger_kernel.ops.rms_norm", plain=True)
    problem = launch.problem(("n_cols",))
    tuned = Row(
        match=match_of(problem), measured_at=problem.dims, config=options(num_warps=32), median_ms=1.0,
        interval_ms=(1.0, 1.0),
    )  # fmt: skip
    activate(make_pack(workload.kernel, tuned), device=SM_90)
    workload.call(torch.zeros(8, 4096), torch.zeros(4096))
    workload.call(torch.zeros(8, 2048), torch.zeros(2048))
    assert [(launch["BLOCK_SIZE"], launch["num_warps"]) for launch in launches] == [(4096, 32), (2048, 8)]
