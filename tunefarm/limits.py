"""Limits: what Triton never compiles, and no device of a kind launches, whatever the kernel.

Limits of the programming model come from the CUDA programming guide; those of Triton from its own sources, with the
release named. Each rule answers with a failure, or None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.trial import Failure

MAX_TENSOR_ELEMENTS = 1 << 20
"""`tl.TRITON_MAX_TENSOR_NUMEL`, Triton 3.6 to 3.9."""
MIN_DOT_K = {8: 32, 16: 16, 32: 16, 64: 16}
"""Least K of `tl.dot` by bits of its operands; M and N may be 1 (`min_dot_size`, Triton 3.6 to 3.9)."""
_BITS = {"fp8e4nv": 8, "fp8e5": 8, "fp8e4b8": 8, "fp8e5b16": 8, "i8": 8, "u8": 8, "bf16": 16, "fp16": 16}


def num_bits(dtype: str) -> int:
    """Of an element, by Triton's spelling of its type; 32 for what is no narrower, or unknown."""
    return _BITS.get(dtype, 32)


def too_many_threads(config: Config, device: Device) -> Failure | None:
    """Of a block, or a number of warps that Triton takes for none (`num_warps` of its options, Triton 3.6 to 3.9)."""
    warps = config.options.get("num_warps", 4)
    if not isinstance(warps, int):
        return None
    if warps < 1 or warps & (warps - 1):
        kind = "num_warps is a power of two"
        return Failure(stage="legality", kind=kind, message=f"num_warps={warps} is no power of two")
    threads = warps * device.warp_size
    if threads <= device.max_threads:
        return None
    limit = f"{device.max_threads // device.warp_size} warps of {device.warp_size}"
    return Failure(
        stage="legality", kind=f"threads per block <= {device.max_threads}",
        message=f"threads per block {threads} > {device.max_threads} ({limit})",
    )  # fmt: skip


def no_tile(config: Config, group: Iterable[str]) -> Failure | None:
    """Params that together are the sizes of a tensor in the kernel."""
    sizes = {name: config.params.get(name) for name in group}
    shown = " x ".join(f"{name}={size}" for name, size in sizes.items())
    numbers = [size for size in sizes.values() if isinstance(size, int)]
    if any(size < 1 or size & (size - 1) for size in numbers):
        return Failure(
            stage="legality", kind="tile sizes are powers of two",
            message=f"tile {shown}: tl.arange needs powers of two",
        )  # fmt: skip
    if math.prod(numbers) > MAX_TENSOR_ELEMENTS:
        return Failure(
            stage="legality", kind=f"tensor elements <= {MAX_TENSOR_ELEMENTS}",
            message=f"tile {shown} has {math.prod(numbers)} elements, Triton allows {MAX_TENSOR_ELEMENTS}",
        )  # fmt: skip
    return None


def too_shallow(config: Config, depth: str, dtypes: Iterable[str]) -> Failure | None:
    """A param that is the K of a `tl.dot`.

    Args:
        config: the config.
        depth: the param's name.
        dtypes: of what may meet in the dot, in Triton's spelling; the widest decides.
    """
    # Int8 weights may be widened before the dot and an int8 mask never meets one: only what is sure is ruled out.
    widest = max(map(num_bits, dtypes), default=32)
    least, size = MIN_DOT_K[widest], config.params.get(depth)
    if not isinstance(size, int) or size >= least:
        return None
    return Failure(
        stage="legality", kind=f"tl.dot K >= {least}",
        message=f"{depth}={size}: tl.dot of {widest}-bit operands needs K >= {least}",
    )  # fmt: skip
