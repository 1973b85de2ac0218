"""The tensors a workload is called with: real ones on a device, or `meta` ones that hold no memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunefarm.config import Value
from tunefarm.errors import SpecError, TunefarmError
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
        with explained(f"inputs of {workload.name}"):
            made = workload.inputs(device=device, seed=seed, **variables)
        if not isinstance(made, Mapping):
            raise SpecError(f"inputs of {workload.name} returned {type(made).__name__}, not a mapping of arguments")
        return dict(made)
    inputs = {}
    for position, (name, spec) in enumerate(workload.inputs.items()):
        with explained(f"input {name} of {workload.name}"):
            inputs[name] = _make(spec, variables, device, seed + position)
    return inputs


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Makes one clear error of whatever torch or a user's function raises while it makes `what`.

    Raises:
        SpecError: what could not be made, and why.
    """
    try:
        yield
    except TunefarmError:
        raise
    except Exception as e:
        message = next((line.strip() for line in str(e).splitlines() if line.strip()), "")
        hint = "take a smaller problem or a larger GPU" if "memory" in message else "look at the workload's inputs"
        raise SpecError(f"{what} cannot be made: {type(e).__name__}: {message}", hint=hint) from None


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's bits as integers of the same size; wider elements are taken apart."""
    import torch

    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole.get(tensor.element_size(), torch.int8))


def checksums(inputs: Mapping[str, Any]) -> dict[str, int]:
    """A checksum of each dense tensor's bits and of their places, by name: it tells whether somebody wrote into it."""
    import torch

    return {
        name: _checksum(bits(value))
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.element_size() <= 8
    }


LONGEST = 1 << 20
"""Along a dim; longer ones are cut into such pieces, so that sums along a dim take little memory."""


def _checksum(pattern: torch.Tensor) -> int:
    """Sums along each dim, weighted by place: a swap, a sort or a reversal changes them, too."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=pattern.device)
    for piece in _pieces(pattern.reshape(1) if pattern.dim() == 0 else pattern):
        for dim, length in enumerate(piece.shape):
            others = [other for other in range(piece.dim()) if other != dim]
            sums = piece.sum(others, dtype=torch.int64) if others else piece.to(torch.int64)
            weights = torch.arange(1, length + 1, dtype=torch.int64, device=pattern.device)
            total = 1_000_003 * total + (sums * weights).sum()
    return int(total)


def _pieces(pattern: torch.Tensor) -> Iterator[torch.Tensor]:
    for dim, length in enumerate(pattern.shape):
        if length > LONGEST:
            whole = length // LONGEST * LONGEST
            cut = (*pattern.shape[:dim], whole // LONGEST, LONGEST, *pattern.shape[dim + 1 :])
            yield from _pieces(pattern.narrow(dim, 0, whole).view(cut))
            if whole < length:
                yield from _pieces(pattern.narrow(dim, whole, length - whole))
            return
    yield pattern


def _make(spec: TensorSpec | ScalarSpec, variables: Mapping[str, Value], device: str, seed: int) -> Any:

    if isinstance(spec, ScalarSpec):
        return spec.scalar(variables)
    shape = spec.sizes(variables)
    name = spec.dtype_for(variables)
    layout = spec.layout(variables)
    if layout is None:
        return _special(_filled(spec, shape, name, device, seed), spec)
    strides, offset = layout
    count = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    room = _filled(spec, (count if math.prod(shape) else offset,), name, device, seed)
    return _special(room.as_strided(shape, strides, offset), spec)


def _special(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor, if so wished with a NaN and an infinity of either sign in different places."""
    import torch

    if not spec.special or tensor.device.type == "meta" or not tensor.numel():
        return tensor
    # Narrow floats without infinities take what is nearest: their greatest value, or NaN.
    for share, value in ((1, math.inf), (2, -math.inf), (3, math.nan)):
        place = torch.unravel_index(torch.tensor(tensor.numel() * share // 4), tensor.shape)
        tensor[place] = torch.tensor(value, device=tensor.device).to(tensor.dtype)
    return tensor


def _filled(spec: TensorSpec, shape: tuple[int, ...], name: str, device: str, seed: int) -> torch.Tensor:
    import torch

    dtype = torch_dtype(name)
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    if spec.init == "zeros":
        return torch.zeros(shape, dtype=dtype, device=device)
    if spec.init == "ones":
        return torch.ones(shape, dtype=dtype, device=device)
    if spec.init == "arange":
        return torch.arange(math.prod(shape), device=device).reshape(shape).to(dtype)
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
