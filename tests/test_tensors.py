"""Inputs: real tensors, or ones without memory, and one clear error where they cannot be made."""

from __future__ import annotations

from typing import Any

import bench_kernels as k
import pytest
import torch

from tunefarm.bench.tensors import checksums, make_inputs, torch_dtype
from tunefarm.errors import SpecError
from tunefarm.spec.inputs import DTYPES
from tunefarm.spec.workload import Workload

SIZES = {"N": 64, "dtype": "bf16"}


def make(inputs: Any, device: str = "cpu", seed: int = 0, **variables: Any) -> dict[str, Any]:
    work = Workload(call=lambda **_: None, kernel=k.scale_kernel, inputs=inputs, name="scaling")
    return make_inputs(work, {**SIZES, **variables}, device, seed)


def test_every_kind_of_filling():
    made = make(
        {
            "x": ["N", "N*2"],
            "u": {"shape": ["N"], "init": "uniform", "low": 2, "high": 3, "dtype": "fp32"},
            "ids": {"shape": [4096], "dtype": "i32", "init": "uniform", "low": 3, "high": 7},
            "z": {"shape": [3], "init": "zeros"},
            "o": {"shape": [3], "init": "ones", "dtype": "fp8e4nv"},
            "r": {"shape": [2, 3], "init": "arange", "dtype": "i64"},
            "d": {"shape": ["N"], "dtype": "fp64"},
            "n": {"value": "N"},
        }
    )
    assert list(made) == ["x", "u", "ids", "z", "o", "r", "d", "n"]
    assert made["x"].shape == (64, 128)
    assert made["x"].dtype is torch.bfloat16
    assert abs(float(made["x"].float().std()) - 1) < 0.1
    assert 2 <= float(made["u"].min()) <= float(made["u"].max()) < 3
    assert sorted(set(made["ids"].tolist())) == [3, 4, 5, 6]
    assert made["z"].tolist() == [0, 0, 0]
    assert made["o"].dtype is torch.float8_e4m3fn
    assert made["o"].float().tolist() == [1, 1, 1]
    assert made["r"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not torch.equal(made["d"], made["d"].float().double())
    assert made["n"] == 64


def test_the_seed_decides_and_inputs_differ():
    inputs = {"x": ["N"], "y": ["N"]}
    first, again, other = make(inputs), make(inputs), make(inputs, seed=5)
    assert torch.equal(first["x"], again["x"])
    assert not torch.equal(first["x"], other["x"])
    assert not torch.equal(first["x"], first["y"])


def test_meta_tensors_hold_no_memory():
    made = make({"x": [1 << 20, 1 << 20]}, "meta")
    assert made["x"].device.type == "meta"
    assert made["x"].shape == (1 << 20, 1 << 20)


def test_a_function_may_make_them():
    def inputs(device: str, seed: int, N: int, dtype: str) -> dict[str, Any]:
        return {"x": torch.full((N,), seed, device=device, dtype=torch_dtype(dtype))}

    assert make(inputs, seed=3)["x"].tolist() == [3] * 64
    assert make(inputs, "meta")["x"].device.type == "meta"


def test_what_cannot_be_made_is_named():
    def missing(device: str, seed: int, M: int) -> dict[str, Any]:
        return {}

    cases: list[tuple[Any, str]] = [
        (missing, r"inputs of scaling cannot be made: TypeError: .*'N'"),
        (lambda **_: [], "inputs of scaling returned list, not a mapping"),
        ({"x": [1 << 44]}, "input x of scaling cannot be made: RuntimeError: .*memory"),
        ({"x": {"shape": [4], "dtype": "fp8e4b15"}}, "torch has no element type 'fp8e4b15'"),
    ]
    for inputs, says in cases:
        with pytest.raises(SpecError, match=says) as caught:
            make(inputs)
        assert caught.value.__cause__ is None
    with pytest.raises(SpecError) as caught:
        make({"x": [1 << 44]})
    assert caught.value.hint == "take a smaller problem or a larger GPU"


def test_element_types_of_torch():
    missing = [name for name in DTYPES if name != "fp8e4b15" and torch_dtype(name) is None]
    assert missing == []
    assert torch_dtype("i1") is torch.bool


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp8e4b15"])
def test_checksums_see_what_was_written(name):
    x = torch.zeros(8, 6, dtype=torch_dtype(name)).t()
    before = checksums({"x": x, "n": 3})
    assert before == checksums({"x": x.clone(), "n": 3})
    assert list(before) == ["x"]
    x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])[2, 5] = 1
    assert checksums({"x": x}) != before


@pytest.mark.parametrize("shape", [(7,), (1,), (5, 6), (2, 3, 4), ((1 << 20) + 3,), (1, (2 << 20) + 3)])
def test_checksums_see_what_only_moved(shape):
    """In place, a sort or a reversal leaves all values there."""
    x = torch.randn(shape)
    first = checksums({"x": x})
    moved = [x.flip(dim) for dim in range(x.dim())] + [x.flatten().sort().values.view(shape)]
    for other in moved:
        assert (checksums({"x": other}) == first) == torch.equal(x, other)


def test_checksums_know_nan_and_take_views():
    x = torch.full((4,), float("nan"))
    assert checksums({"x": x}) == checksums({"x": x.clone()})
    assert checksums({"x": torch.ones(1).expand(64, 2)}) == checksums({"x": torch.ones(64, 2)})


def test_layouts_of_ones_own():
    """TF-044, TF-045, TF-046: strides (0 repeats an element), and an offset that no 16 bytes divide."""
    made = make(
        {
            "t": {"shape": ["N", 4], "strides": [1, "N"], "init": "arange", "dtype": "i32"},
            "g": {"shape": ["N", 2], "strides": [0, 0], "dtype": "fp32"},
            "v": {"shape": ["N"], "offset": 1},
        }
    )
    assert made["t"].stride() == (1, 64)
    assert made["t"][3].tolist() == [3, 67, 131, 195]
    assert made["g"].stride() == (0, 0)
    assert made["g"].untyped_storage().nbytes() == 4
    assert len(set(made["g"].flatten().tolist())) == 1
    assert made["v"].storage_offset() == 1
    assert made["v"].data_ptr() % 16 == 2
    meta = make({"v": {"shape": ["N"], "offset": 1}, "t": {"shape": ["N", 4], "strides": [1, "N"]}}, device="meta")
    assert meta["v"].data_ptr() % 16 == 2
    assert meta["t"].stride() == (1, 64)


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp8e4nv"])
def test_special_values_stand_here_and_there(dtype):
    x = make({"x": {"shape": ["N", "N"], "dtype": dtype, "special": True}})["x"].float()
    special = x.isnan() | x.isinf()
    assert int(x.isnan().sum()) >= 1
    # What has no infinities takes what torch makes of them.
    assert dtype == "fp8e4nv" or int(special.sum()) == int(special.any(1).sum()) == 3
