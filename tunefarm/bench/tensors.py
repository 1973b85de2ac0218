"""The tensors a workload is called with: real ones on a device, or `meta` ones that hold no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunefarm.config import Value
from tunefarm.errors import SpecError
from tunefarm.spec.inputs import FLOATS, ScalarSpec, TensorSpec
from tunefarm.spec.workload import Workload

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz", "fp8e5b16": "float8_e5m2fnuz", "i1": "bool", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of an element type in Triton's spelling.

    Raises:
        SpecError: torch has no such type.
    """
    import torch

    dtype = getattr(torch, _TORCH_NAMES.get(name, ""), None)
    if not isinstance(dtype, torch.dtype):
        raise SpecError(f"torch has no element type {name!r}", hint=f"known: {', '.join(_TORCH_NAMES)}")
    return dtype


def make_inputs(workload: Workload, variables: Mapping[str, Value], device: str, seed: int = 0) -> dict[str, Any]:
    """The arguments of the workload's call for one problem, by name.

    Args:
        workload: whose inputs.
        variables: the experiment's names for the problem.
        device: `meta`, `cpu` or a CUDA device.
        seed: of the random values; the same seed gives the same values on the same device type.

    Raises:
        SpecError: an input cannot be made.
    """
    if callable(workload.inputs):
        made = workload.inputs(device=device, seed=seed, **variables)
        if not isinstance(made, Mapping):
            raise SpecError(f"inputs of {workload.name} returned {type(made).__name__}, not a mapping of arguments")
        return dict(made)
    return {
        name: _make(spec, variables, device, seed + position)
        for position, (name, spec) in enumerate(workload.inputs.items())
    }


def _make(spec: TensorSpec | ScalarSpec, variables: Mapping[str, Value], device: str, seed: int) -> Any:
    import torch

    if isinstance(spec, ScalarSpec):
        return spec.scalar(variables)
    shape = spec.sizes(variables)
    name = spec.dtype_for(variables)
    dtype = torch_dtype(name)
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    if spec.init == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    if spec.init == "ones":
        return torch.ones(shape, dtype=dtype, device=device)
    count = 1
    for size in shape:
        count *= size
    if spec.init == "arange":
        return torch.arange(count, device=device).reshape(shape).to(dtype)
    generator = torch.Generator(device=device).manual_seed(seed)
    low = 0.0 if spec.low is None else spec.low
    if name not in FLOATS:
        high = 1 if spec.high is None else int(spec.high)
        return torch.randint(int(low), high, shape, generator=generator, device=device).to(dtype)
    # Narrow floats cannot be drawn directly; fp64 keeps its precision.
    wide = dtype if dtype is torch.float64 else torch.float32
    if spec.init == "uniform":
        span = (1.0 if spec.high is None else spec.high) - low
        return (torch.rand(shape, generator=generator, device=device, dtype=wide) * span + low).to(dtype)
    return torch.randn(shape, generator=generator, device=device, dtype=wide).to(dtype)
