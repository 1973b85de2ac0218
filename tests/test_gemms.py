"""Inductor's matrix products on the farm: noted, made into kernels of their own, competing with the library's call."""

from __future__ import annotations

import ast
import math
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from farm import GPU, environment, play, tunefarm
from lowered import H200, lower, pack_of

from tunefarm import choosing, landscape
from tunefarm.bench.worker import BuildRequest, build
from tunefarm.choosing import Chooser, choose
from tunefarm.cli.opening import open_experiment
from tunefarm.config import LIBRARY, Config, Value
from tunefarm.errors import SpecError, UserError
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.gemm import TEMPLATES, Gemm
from tunefarm.generated import public
from tunefarm.inductor.gemms import Written, recording_gemms, workload_text, write_gemms
from tunefarm.inductor.rendering import FORMS, render, template_text
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.pack_reader import load_pack
from tunefarm.plan import Target, plan
from tunefarm.runtime.activation import activate, deactivate
from tunefarm.runtime.reporting import write_report
from tunefarm.source import source_hash
from tunefarm.study import Status
from tunefarm.trial import Outcome

ROOT = Path(__file__).parents[1]
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
aten = torch.ops.aten

# K = 544 is no multiple of 64: the last block of such a config needs its mask.
A, B, B_T, BIAS = ((1024, 544), BF16), ((544, 256), BF16), ((544, 256), BF16, (1, 544)), ((256,), BF16)


def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return aten._scaled_mm(a, b, scale_a, scale_b, out_dtype=BF16, use_fast_accum=True)


ASKED: dict[str, tuple[Any, ...]] = {
    "mm": (aten.mm.default, A, B),
    "addmm": (aten.addmm.default, BIAS, A, B_T),
    "bmm": (aten.bmm.default, ((4, 64, 96), BF16), ((4, 96, 64), BF16)),
    "scaled_mm": (scaled, ((1024, 512), FP8), ((512, 256), FP8, (1, 512)), ((1024, 1), torch.float32),
                  ((1, 256), torch.float32)),
}  # fmt: skip
"""By operation a function that asks for it, and its tensors."""


@pytest.fixture(scope="module")
def calls() -> Counter[Gemm]:
    """What the functions ask for, each twice."""
    with recording_gemms() as found:
        for function, *tensors in ASKED.values():
            lower(function, *tensors)
            lower(function, *tensors)
    return found


@pytest.fixture(scope="module")
def written(calls: Counter[Gemm], tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_gemms(calls, tmp_path_factory.mktemp("gemms"), archs=("sm_80", "sm_90"), export="pack.json")


def of(calls: Counter[Gemm], op: str) -> Gemm:
    (gemm,) = (gemm for gemm in calls if gemm.op == op)
    return gemm


# ---- noting ----


def test_each_product_is_noted_once_a_lowering(calls: Counter[Gemm]) -> None:
    """Inductor asks three times about one addmm."""
    assert {gemm.op: count for gemm, count in calls.items()} == dict.fromkeys(TEMPLATES, 2)


def test_a_product_is_known_by_sizes_strides_and_types(calls: Counter[Gemm]) -> None:
    problem = of(calls, "addmm").problem
    assert dict(problem.dims) == {
        "M": 1024, "N": 256, "K": 544, "stride_am": 544, "stride_ak": 1, "stride_bk": 1, "stride_bn": 544,
        "stride_cm": 0, "stride_cn": 1, "ALLOW_TF32": False,
    }  # fmt: skip
    assert dict(problem.dtypes) == dict.fromkeys(("arg_A", "arg_B", "bias", "out"), "bf16")
    assert of(calls, "scaled_mm").problem.dims["USE_FAST_ACCUM"] is True


def test_what_no_row_can_be_for_is_noted_with_the_reason(tmp_path: Path) -> None:
    with recording_gemms() as calls:
        lower(lambda c, a, b: aten.addmm(c, a, b, alpha=2), BIAS, A, B_T)
        lower(aten.mm.default, ((64, 64), torch.float64), ((64, 64), torch.float64))
    told = write_gemms(calls, tmp_path)
    assert told.experiments == ()
    assert dict(told.left_out) == {
        "addmm: it scales its product or its bias": 1,
        "mm: element type float64 has no template that is tuned": 1,
    }


def test_a_product_in_tf32_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunefarm.gemm._allows_tf32", lambda: True)
    with recording_gemms() as calls:
        lower(aten.mm.default, ((64, 64), torch.float32), ((64, 64), torch.float32))
        lower(aten.mm.default, A, B)
    told = write_gemms(calls, tmp_path)
    assert [path.name for path in told.experiments] == ["mm.yaml"]
    (reason,) = told.left_out
    assert "TF32" in reason


def test_recording_leaves_no_trace() -> None:
    from torch._inductor import config, virtualized

    before = config.max_autotune_gemm, config.max_autotune_gemm_backends, config.inductor_choices_class
    key = virtualized._choices._key
    with recording_gemms():
        assert config.max_autotune_gemm
        assert virtualized._choices._key != key
    assert (config.max_autotune_gemm, config.max_autotune_gemm_backends, config.inductor_choices_class) == before
    assert virtualized._choices._key == key
    assert not hasattr(virtualized.V.choices, "uuid")


def test_products_of_other_threads_are_noted() -> None:
    with recording_gemms() as calls:
        thread = threading.Thread(target=lower, args=(aten.mm.default, A, B))
        thread.start()
        thread.join()
    assert [gemm.op for gemm in calls] == ["mm"]


def test_a_torch_that_lacks_what_is_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import select_algorithm

    monkeypatch.delattr(select_algorithm, "add_preprocessing_fn")
    with pytest.raises(UserError, match=r"has no select_algorithm.add_preprocessing_fn"), recording_gemms():
        pass


def test_a_choices_handler_of_the_program_is_left_alone() -> None:
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class Own(InductorChoices):
        pass

    with V.set_choices_handler(Own()), pytest.raises(UserError, match="handler of its own"), recording_gemms():
        pass


# ---- the kernel ----


@pytest.mark.parametrize("op", FORMS)
def test_the_kernel_holds_the_template_line_by_line(op: str) -> None:
    """All but what Inductor fills in: in the same order, as the installed torch has it."""
    text = template_text(op)
    kernel = render(op, text)
    ast.parse(kernel)
    with_marks = re.sub(r"\{\{.*?\}\}", "{}", text, flags=re.DOTALL)
    plain = [line.strip() for line in with_marks.splitlines() if "{" not in line and line.strip()]
    left = iter(line.strip() for line in kernel.splitlines())
    assert len(plain) > 30
    assert all(line in left for line in plain)


def test_a_template_that_asks_for_more_is_refused() -> None:
    with pytest.raises(SpecError, match=r"asks for 'workspace"):
        render("mm", '{{def_kernel("A", "B")}}\n    x = {{workspace("A")}}\n')
    with pytest.raises(SpecError, match="that is not known"):
        render("mm", '{{def_kernel("A", "B")}}\n    {% for i in range(3) %}\n')


@pytest.mark.parametrize("op", FORMS)
def test_the_farm_sees_the_problem_that_a_job_asks_about(op: str, calls: Counter[Gemm], written: Written) -> None:
    (path,) = (path for path in written.experiments if path.stem == op)
    studies = plan(open_experiment(path), [Target(device=GPU)])
    assert [study.study.problem for study in studies] == [of(calls, op).problem]
    assert [study.study.weight for study in studies] == [2]
    for study in studies:
        assert study.default == LIBRARY
        assert LIBRARY not in study.candidates
        assert study.entrants == (*study.candidates, LIBRARY)
        assert len(study.candidates) > 100  # Inductor's own list has some twenty.


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("op", FORMS)
def test_kernels_compile_for_gpus_that_are_not_there(op: str, arch: int, written: Written) -> None:
    if op == "scaled_mm" and arch == 80:
        pytest.skip("sm_80 has no fp8")
    (path,) = (path for path in written.experiments if path.stem == op)
    experiment = open_experiment(path).experiment
    configs = tuple(config(BLOCK_K=depth) for depth in (32, 64))  # K = 544 fits the first only
    request = BuildRequest(
        ref=experiment.ref, variables=experiment.problems[0].variables, configs=configs, target=arch
    )  # fmt: skip
    for built in build(request):
        assert built.failure is None
        assert built.build is not None


def config(**params: Value) -> Config:
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}
    return Config(params=FrozenMap(tile | params), options=FrozenMap(num_warps=4, num_stages=3))


INTERPRETED = """\
import importlib, sys
import torch
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.verify import mismatch, poisoned, reference_outputs

sys.path.insert(0, ".")
SIZES = {"M": 40, "N": 24, "K": 34}
STRIDES = {
    "mm": {"stride_am": 1, "stride_ak": 40, "stride_bk": 24, "stride_bn": 1},
    "addmm": {"stride_am": 34, "stride_ak": 1, "stride_bk": 1, "stride_bn": 34, "stride_cm": 0, "stride_cn": 1},
    "bmm": {"BATCH": 3, "stride_aq": 1360, "stride_am": 34, "stride_ak": 1, "stride_bq": 816, "stride_bk": 24,
            "stride_bn": 1},
}
for op, strides in STRIDES.items():
    module = importlib.import_module(op)
    for depth in (16, 2):  # with a rest and without
        class Fixed:
            kernel = module.workload.kernel

            def __getitem__(self, grid):
                return lambda *a, **k: self.kernel[grid](
                    *a, BLOCK_M=16, BLOCK_N=16, BLOCK_K=depth, GROUP_M=2, **k
                )

        module.kernel = Fixed()
        inputs = make_inputs(module.workload, {**SIZES, **strides, "dtype": "fp32"}, "cpu")
        with poisoned():
            outputs = module.call(**inputs)
        expected = reference_outputs(module.workload, inputs)
        assert mismatch(outputs, expected) is None, (op, depth, mismatch(outputs, expected))
        assert mismatch(module.library(**inputs), expected) is None, op
        print(op, depth)
"""


def test_kernels_are_right_whatever_the_strides(tmp_path: Path) -> None:
    """Under Triton's interpreter; the library's call must be the same."""
    for op in ("mm", "addmm", "bmm"):
        (tmp_path / f"{op}.py").write_text(workload_text(op))
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=environment(tmp_path, TRITON_INTERPRET="1", PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


# ---- the library's call among the candidates ----

SPACE = {"BLOCK_M": [64, 128], "BLOCK_N": [64], "BLOCK_K": [32, 64], "num_warps": [4, 8], "GROUP_M": [8]}


def small(tmp_path: Path, calls: Counter[Gemm], best_ms: float, library_ms: float) -> Path:
    """An experiment of one mm over a small space, and a recording in which one candidate is the fastest."""
    (path,) = write_gemms(Counter({of(calls, "mm"): 1}), tmp_path, export="pack.json").experiments
    head = path.read_text().partition("\nspace:")[0]
    space = "".join(f"  {name}: {values}\n" for name, values in SPACE.items())
    devices = "devices:\n  - {arch: sm_90, landscape: mm.json.gz}\n"
    path.write_text(f"{head}\nspace:\n{space}\n{devices}\nexport: pack.json\n")
    resolved = open_experiment(path)
    (study,) = plan(resolved, [Target(device=GPU)])

    def entry(each: Config) -> Entry:
        is_best = each.params.get("BLOCK_M") == 128 and each.params.get("BLOCK_K") == 64
        time_ms = library_ms if each == LIBRARY else best_ms * (1 if is_best else 1.5)
        noise = random.Random(each.key)
        samples = tuple(time_ms * (1 + 0.002 * noise.random()) for _ in range(40))
        return Entry(config=each, outcome=Outcome.OK, warmup_ms=(time_ms,), samples_ms=samples)

    recorded = Recorded(problem=study.study.problem, entries=tuple(map(entry, study.entrants)))
    recording = Landscape(
        kernel="kernel", source_hash=source_hash(resolved.workload.kernel), device=GPU,
        toolchain=FrozenMap(torch=str(torch.__version__), triton="3.7.1"), problems=(recorded,),
    )  # fmt: skip
    landscape.save(recording, tmp_path / "mm.json.gz")
    return path


@pytest.mark.parametrize(
    ("library_ms", "wins"), [(0.02, True), (0.01001, True), (0.015, False)], ids=["faster", "tied", "slower"]
)
def test_the_librarys_call_is_the_default(
    tmp_path: Path, calls: Counter[Gemm], fleet: InlineFleet, store: Path, library_ms: float, wins: bool
) -> None:
    best_ms = 0.01 if library_ms != 0.02 else 0.03
    (result,) = play(small(tmp_path, calls, best_ms, library_ms), fleet, store).results
    assert result.status is Status.WINNER
    assert result.winner is not None
    assert result.winner.default == LIBRARY
    assert result.winner.default_ms == pytest.approx(library_ms, rel=0.01)
    assert (result.winner.config == LIBRARY) is wins
    assert result.num_candidates == 8
    (guest,) = (trial for trial in result.trials if trial.config == LIBRARY)
    assert guest.build is None
    assert len(guest.measurements) == 1  # in the finals, and nowhere else
    if not wins:
        assert result.winner.gain == pytest.approx(1.5, rel=0.01)
        assert math.isclose(float(result.winner.config.params["BLOCK_M"] or 0), 128)


def test_the_librarys_call_has_no_place_without_a_template(tmp_path: Path, calls: Counter[Gemm]) -> None:
    workload = open_experiment(small(tmp_path, calls, 1.0, 1.0)).workload
    with pytest.raises(SpecError, match="can only win where Inductor chooses"):
        replace(workload, template="")


def test_a_sweep_writes_rows_for_inductor(tmp_path: Path, calls: Counter[Gemm], store: Path) -> None:
    path = small(tmp_path, calls, 0.01, 0.015)
    done = tunefarm("sweep", path, "--tracking", "none", "--fleet", "inline", folder=tmp_path, store=store)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = load_pack(tmp_path / "pack.json").tables
    assert (table.kernel, table.layer) == ("mm", 2)
    assert table.source_hash == choosing.template_hash("mm")
    assert table.key_parts["torch"] == public(torch.__version__)
    (row,) = table.rows
    assert row.default == LIBRARY
    assert row.match.dims == of(calls, "mm").problem.dims
    checked = tunefarm("pack", "check", "pack.json", path.name, "--meter=replay", "--fleet=inline", folder=tmp_path,
                       store=store)  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == "pack.json: 1 row: 1 ok"
    assert "has changed" not in checked.stdout
    renewed = tunefarm("pack", "revalidate", "pack.json", path.name, "--meter=replay", "--fleet=inline",
                       folder=tmp_path, store=store)  # fmt: skip
    assert renewed.returncode == 1, renewed.stdout + renewed.stderr
    assert "left" in renewed.stdout
    assert "rows for Inductor are for one release of torch: sweep them again" in renewed.stdout


def test_a_product_that_a_job_missed_becomes_a_problem(
    tmp_path: Path, calls: Counter[Gemm], written: Written, store: Path
) -> None:
    activate(pack_of((of(calls, "mm"), LIBRARY)), device=H200)
    for _ in range(3):
        lower(aten.mm.default, ((64, 96), BF16), ((96, 32), BF16, (1, 96)))
    write_report(tmp_path / "reports")
    deactivate()
    (path,) = (path for path in written.experiments if path.stem == "mm")
    done = tunefarm("misses", "reports", "-e", path, "-o", "missed.yaml", folder=tmp_path, store=store)
    assert done.returncode == 0, done.stdout + done.stderr
    (problem,) = open_experiment(tmp_path / "missed.yaml").experiment.problems
    sizes = {"M": 64, "N": 32, "K": 96, "stride_am": 96, "stride_ak": 1, "stride_bk": 1, "stride_bn": 96}
    assert (dict(problem.variables), problem.weight) == ({**sizes, "dtype": "bf16"}, 3)


def test_a_latest_chooser_answers_and_leaves_the_word_to_the_one_before() -> None:
    def chooser(name: str) -> Chooser:
        return Chooser(answer=lambda gemm, index, counts: heard.append(name), identity=lambda: name)

    heard: list[str] = []
    end_first = choose(chooser("first"))
    end_second = choose(chooser("second"))
    lower(aten.mm.default, A, B)
    end_second()
    lower(aten.mm.default, A, B)
    end_first()
    end_first()
    lower(aten.mm.default, A, B)
    assert heard == ["second", "first"]
