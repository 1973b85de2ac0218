"""The plan: targets, studies, candidates, and what removed the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm import GPU, KERNEL, write_experiment, write_landscape

from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config
from tunefarm.device import Device, nominal
from tunefarm.errors import LandscapeError, SpecError
from tunefarm.plan import PlannedStudy, Target, choose_targets, plan, require_meter

A100 = replace(nominal("sm_80"), live=True)


def plan_for(folder: Path, *devices: Device, kernel: str = KERNEL, **sections: Any) -> list[PlannedStudy]:
    resolved = open_experiment(write_experiment(folder, kernel, **sections))
    return plan(resolved, [Target(device=device) for device in devices or (GPU,)])


def counted(study: PlannedStudy) -> int:
    """Points of the space that the plan accounts for; the default may be no point of it."""
    return len(study.candidates) + sum(study.removed.values())


# ---- what times come from ----


def test_a_gpu_is_preferred_to_a_recording_that_is_not_even_read(tmp_path: Path) -> None:
    (tmp_path / "recording.json.gz").write_bytes(b"damaged")
    experiment = open_experiment(write_experiment(tmp_path)).experiment
    assert choose_targets(experiment, [GPU, GPU, A100]) == [Target(device=GPU, meter="gpu")]
    for meter in ("auto", "replay"):
        with pytest.raises(LandscapeError):
            choose_targets(experiment, [GPU] if meter == "replay" else [A100], meter)


def test_a_recording_stands_for_its_device(tmp_path: Path) -> None:
    devices = [{"arch": "sm_90", "landscape": "recording.json.gz"}, "sm_80"]
    path = write_experiment(tmp_path, devices=devices)
    recording = write_landscape(path)
    experiment = open_experiment(path).experiment
    replayed = Target(device=GPU, meter="replay", landscape=str(recording))
    assert choose_targets(experiment, []) == [replayed, Target(device=nominal("sm_80"))]
    assert choose_targets(experiment, [A100]) == [replayed, Target(device=A100, meter="gpu")]
    assert choose_targets(experiment, [], "gpu") == [Target(device=nominal(a)) for a in ("sm_90", "sm_80")]
    assert choose_targets(experiment, [A100], "replay") == [replayed, Target(device=nominal("sm_80"))]


def test_two_kinds_of_one_arch_are_two_devices(tmp_path: Path) -> None:
    other = replace(GPU, name="Other GPU")
    experiment = open_experiment(write_experiment(tmp_path, devices=["sm_90"])).experiment
    assert [t.device for t in choose_targets(experiment, [GPU, other, GPU])] == [GPU, other]


def test_a_recording_of_another_arch_is_refused(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    write_landscape(path, device=A100)
    with pytest.raises(SpecError, match=r"devices\[0\].landscape: .*recorded on sm_80, not sm_90"):
        choose_targets(open_experiment(path).experiment, [])


def test_something_must_be_measurable(tmp_path: Path) -> None:
    experiment = open_experiment(write_experiment(tmp_path, devices=["sm_80", "sm_90"])).experiment
    require_meter(experiment, [Target(device=A100), Target(device=GPU, meter="gpu")])
    with pytest.raises(SpecError, match="no GPU of sm_80, sm_90 here, and no landscape"):
        require_meter(experiment, [Target(device=A100), Target(device=GPU)])


@pytest.mark.parametrize(
    ("change", "says"),
    [({"kernel": KERNEL.replace("MARK, mask", "MARK + 1, mask")}, "the kernel has changed since"),
     ({"problems": [{"n": 48, "dtype": "fp32"}]}, "does not hold problem .*it holds ")],
)  # fmt: skip
def test_a_recording_must_be_of_this_kernel_and_these_problems(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    recording = write_landscape(write_experiment(tmp_path))
    resolved = open_experiment(write_experiment(tmp_path, **change))
    with pytest.raises(LandscapeError, match=says):
        plan(resolved, [Target(device=GPU, meter="replay", landscape=str(recording))])


def test_a_comment_in_the_kernel_makes_no_recording_stale(tmp_path: Path) -> None:
    recording = write_landscape(write_experiment(tmp_path))
    moved = KERNEL.replace("    tl.store", "\n    # A word.\n    tl.store")
    resolved = open_experiment(write_experiment(tmp_path, moved))
    assert plan(resolved, [Target(device=GPU, meter="replay", landscape=str(recording))])


# ---- candidates ----


def test_studies_come_device_by_device_in_the_order_of_the_problems(tmp_path: Path) -> None:
    problems = [{"n": [4096, 1000], "dtype": "fp32"}, {"n": 17, "dtype": "bf16", "weight": 3}]
    studies = plan_for(tmp_path, GPU, A100, problems=problems)
    assert [s.study.label for s in studies] == [
        f"fill {arch} {tail}" for arch in ("sm_90", "sm_80") for tail in ("4096 fp32", "1000 fp32", "17 bf16")
    ]
    assert [s.study.weight for s in studies[:3]] == [1.0, 1.0, 3.0]
    assert dict(studies[0].study.problem.dims) == {"n": 4096}
    assert studies[0].study.problem.facts["n"] == "div16"
    assert "n" not in studies[1].study.problem.facts
    assert studies[0].num_bytes == 4 * 4096


def test_the_default_is_a_candidate_though_no_point_of_the_space(tmp_path: Path) -> None:
    (study,) = plan_for(tmp_path, space={"BLOCK": [128], "MARK": [0], "num_warps": [1, 2]})
    default = Config(params={"BLOCK": 64, "MARK": 0}, options={"num_warps": 4})
    assert study.default == default
    assert study.candidates[0] == default
    assert (study.num_points, counted(study)) == (2, 3)
    assert study.unused == ()


def test_a_default_that_the_device_forbids_is_no_candidate(tmp_path: Path) -> None:
    kernel = KERNEL.replace('{"num_warps": 4}', '{"num_warps": 64}')
    (study,) = plan_for(tmp_path, kernel=kernel)
    assert study.default is None
    assert all(config.options["num_warps"] != 64 for config in study.candidates)


def test_without_a_declared_default_the_call_itself_tells(tmp_path: Path) -> None:
    words = KERNEL[KERNEL.index("    default=") : KERNEL.rindex("\n)")]
    kernel = KERNEL.replace(words, "").replace(
        "(y, n)\n    return", "(y, n, BLOCK=128, MARK=1, num_warps=2)\n    return"
    )
    (study,) = plan_for(tmp_path, kernel=kernel)
    assert study.default == Config(params={"BLOCK": 128, "MARK": 1}, options={"num_warps": 2})
    (study,) = plan_for(tmp_path, kernel=kernel.replace(", num_warps=2", ""))
    assert study.default is not None
    assert dict(study.default.options) == {"num_warps": 4}, "what the compiler takes where nobody says"


def test_a_default_that_leaves_out_a_tuned_option_is_completed(tmp_path: Path) -> None:
    (study,) = plan_for(tmp_path, space={"BLOCK": [128], "MARK": [0], "num_warps": [1, 2], "num_stages": [1, 2]})
    assert study.default is not None
    assert study.default.options["num_stages"] == 3
    assert {frozenset(config.flat) for config in study.candidates} == {frozenset(study.default.flat)}


def test_problems_that_the_kernel_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    kernel = KERNEL.replace('key=("n",)', "key=()").replace('ranges=("n",)', "ranges=()")
    with pytest.raises(SpecError, match="are one problem to the kernel"):
        plan_for(tmp_path, kernel=kernel, problems=[{"n": [1024, 2048], "dtype": "fp32"}])


def test_an_empty_problem_is_skipped(tmp_path: Path) -> None:
    """TF-041: nothing is divided by its size."""
    empty, other = plan_for(tmp_path, problems=[{"n": [0, 30], "dtype": "fp32"}])
    assert empty.skipped == "empty problem: input y has shape [0]"
    assert empty.candidates == ()
    assert other.candidates


# ---- what removes points ----


def test_counts_add_up_and_unused_values_are_named(tmp_path: Path) -> None:
    """TF-028: two sensible rules that together drop every value of one kind."""
    (study,) = plan_for(
        tmp_path,
        space={"BLOCK": [64], "MARK": [1, 8], "num_warps": [1, 2]},
        constraints=["MARK % num_warps == 0", "n < 10 or MARK == 1"],
    )
    assert dict(study.removed) == {"MARK % num_warps == 0": 1, "n < 10 or MARK == 1": 2}
    assert study.unused == (("MARK", 8), ("num_warps", 2))
    assert counted(study) == study.num_points + 1  # the default


def test_constraints_speak_of_space_problem_vars_and_device(tmp_path: Path) -> None:
    """TF-026: brackets and boolean forms mean what they mean in Python."""
    constraints = ["(BLOCK*MARK) % (32*num_warps) == 0", "n % BLOCK == 0 or BLOCK <= LEAST", "num_sms > 1"]
    space = {"BLOCK": [32, 64, 128], "MARK": [1, 2, 3], "num_warps": [1, 2, 4]}
    (study,) = plan_for(tmp_path, space=space, constraints=constraints, vars={"LEAST": 64})
    expected = {
        (b, m, w) for b in (32, 64, 128) for m in (1, 2, 3) for w in (1, 2, 4)
        if (b * m) % (32 * w) == 0 and (1000 % b == 0 or b <= 64)
    }  # fmt: skip
    default = (64, 0, 4)
    assert {tuple(c.flat[n] for n in ("BLOCK", "MARK", "num_warps")) for c in study.candidates} == {*expected, default}


def test_more_threads_than_a_block_may_have(tmp_path: Path) -> None:
    """TF-016: with warps of 32, and with warps of 64."""
    space = {"BLOCK": [64], "MARK": [0], "num_warps": [4, 8, 16, 32, 64]}
    wide = replace(GPU, name="Wide GPU", warp_size=64)
    for device, allowed in ((GPU, [4, 8, 16, 32]), (wide, [4, 8, 16])):
        (study,) = plan_for(tmp_path, device, space=space)
        assert [config.options["num_warps"] for config in study.candidates] == allowed
        assert dict(study.removed) == {"threads per block <= 1024": 5 - len(allowed)}


TILED = KERNEL.replace("    ranges=", '    tiles=[("BLOCK", "MARK")],\n    ranges=').replace('"MARK": 0}', '"MARK": 1}')


def test_tiles_of_a_declared_group_are_powers_of_two(tmp_path: Path) -> None:
    """TF-014."""
    (study,) = plan_for(
        tmp_path, kernel=TILED, space={"BLOCK": {"range": [32, 320, 32]}, "MARK": [1], "num_warps": [4]}
    )
    assert sorted(int(str(config.params["BLOCK"])) for config in study.candidates) == [32, 64, 128, 256]
    assert dict(study.removed) == {"tile sizes are powers of two": 6}


def test_a_tile_with_more_elements_than_the_compiler_allows(tmp_path: Path) -> None:
    """TF-018: one point, and the limit is named."""
    space = {"BLOCK": [1024, 2048], "MARK": [512, 1024], "num_warps": [4]}
    kernel = TILED.replace('{"BLOCK": 64, "MARK": 1}', '{"BLOCK": 1024, "MARK": 512}')
    (study,) = plan_for(tmp_path, kernel=kernel, space=space)
    assert dict(study.removed) == {"tensor elements <= 1048576": 1}
    assert len(study.candidates) == 3


def test_a_dot_that_is_not_deep_enough(tmp_path: Path) -> None:
    """TF-017: K counts, and the dtype decides how; M and N may be small."""
    kernel = KERNEL.replace("    ranges=", '    dots=[("MARK", "MARK", "BLOCK")],\n    ranges=')
    space = {"BLOCK": [8, 16, 32], "MARK": [8, 16, 32], "num_warps": [4]}
    for dtype, least in (("bf16", 16), ("i8", 32)):
        inputs = '{"y": {"shape": ["n"], "dtype": "dtype", "init": "zeros"}, "n": {"value": "n"}}'
        made = kernel.replace('{"y": ["n"], "n": {"value": "n"}}', inputs)
        (study,) = plan_for(tmp_path / dtype, kernel=made, space=space, problems=[{"n": 8, "dtype": dtype}])
        depths = {int(str(c.params["BLOCK"])) for c in study.candidates if c != study.default}
        assert depths == {k for k in (8, 16, 32) if k >= least}
        assert dict(study.removed) == {f"tl.dot K >= {least}": 9 - 3 * len(depths)}


def test_clusters_are_for_devices_that_have_them(tmp_path: Path) -> None:
    space = {"BLOCK": [64], "MARK": [0], "num_ctas": [1, 2]}
    on_hopper, on_ampere = plan_for(tmp_path, GPU, A100, space=space)
    assert dict(on_hopper.removed) == {}
    assert dict(on_ampere.removed) == {"clusters need sm_90": 1}
    assert on_ampere.unused == (("num_ctas", 2),)


def test_the_pruning_that_a_kernel_declares_is_a_rule_like_others(tmp_path: Path) -> None:
    decorator = """
def early(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= named_args["n"] // 10]


@triton.autotune([triton.Config({"BLOCK": b, "MARK": 0}) for b in (64, 128, 256)], key=["n"],
                 prune_configs_by={"early_config_prune": early})
@triton.jit
def fill_kernel"""
    kernel = KERNEL.replace("\n@triton.jit\ndef fill_kernel", decorator)
    words = kernel[kernel.index("    default=") : kernel.rindex("\n)")]
    (study,) = plan_for(tmp_path, kernel=kernel.replace(words, ""), space=None)
    assert [config.params["BLOCK"] for config in study.candidates] == [64]
    assert dict(study.removed) == {"early_config_prune of the kernel": 2}
    assert study.default is not None
    assert dict(study.default.params) == {"BLOCK": 64, "MARK": 0}


def test_tf_081_a_dtype_that_an_arch_lacks_is_skipped_once_with_the_reason(tmp_path: Path) -> None:
    """Of the grid device x dtype one cell is empty, and nothing is compiled to find that out."""
    problems = [{"n": 1000, "dtype": ["fp16", "bf16", "fp8e4nv"]}]
    planned = plan_for(tmp_path, nominal("sm_80"), GPU, problems=problems, kernel=KERNEL.replace("4 * n", "n"))
    grid = {(s.study.device.arch, s.study.variables["dtype"]): s.skipped for s in planned}
    assert len(grid) == len(planned) == 6
    assert {cell: reason for cell, reason in grid.items() if reason} == {
        ("sm_80", "fp8e4nv"): "sm_80 cannot do fp8e4nv, which needs sm_89"
    }
    assert [bool(s.candidates) for s in planned] == [not s.skipped for s in planned]


def test_tf_078_a_key_argument_that_the_kernel_makes_no_use_of_is_named(tmp_path: Path) -> None:
    kernel = KERNEL.replace("def fill_kernel(y_ptr, n,", "def fill_kernel(y_ptr, n, length,").replace(
        "(y_ptr=y, n=n)", "(y_ptr=y, n=n, length=n)").replace("](y, n)", "](y, n, 8001)").replace(
        'key=("n",)', 'key=("n", "length")')  # fmt: skip
    (study,) = plan_for(tmp_path, kernel=kernel)
    assert dict(study.study.problem.dims) == {"n": 1000, "length": 8001}
    assert study.idle == ("length",)
