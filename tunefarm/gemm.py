"""A matrix product as Inductor asks for it: the facts by which a farm tunes it and a job finds it again.

The names are those of the kernel that the farm makes of Inductor's template (`inductor.rendering`), so a problem
learned there and one read here from Inductor's own nodes are equal. Torch is imported where one of its objects is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.config import Config, Value
from tunefarm.frozen import FrozenMap
from tunefarm.limits import num_bits
from tunefarm.problem import Problem

TEMPLATES = {"mm": "mm", "addmm": "mm", "bmm": "bmm", "scaled_mm": "mm"}
"""By operation the name of Inductor's template for it. The operation is also the name under which packs keep rows."""

MAX_ELEMENTS = 2**31 - 1
"""Beyond, templates index with 64 bits: another kernel."""

_UNKNOWN: Mapping[str, Any] = FrozenMap()

_SPELLING = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A product.

    Attributes:
        op: the operation, one of `TEMPLATES`.
        problem: its dims (sizes, strides, and what else decides the kernel), dtypes, and which operands are aligned.
        refusal: why no row can be for it, for people; empty if one can.
    """

    op: str
    problem: Problem
    refusal: str = ""


def in_flight_bytes(config: Config, operands: Sequence[str], dims: Mapping[str, Any] = _UNKNOWN) -> int:
    """Bytes of shared memory for all but one stage of both operands: the least that a block of a template takes.

    One of which no four bytes lie together is not loaded ahead, and counts for nothing.

    Args:
        config: of the template, with its blocks.
        operands: their element types.
        dims: of the product; what they do not say is taken for loaded ahead.
    """
    values: Any = {"num_stages": 1, **config.flat}
    size = min(map(num_bits, operands)) // 8
    widths = (
        values[f"BLOCK_{free}"] for name, free in (("a", "M"), ("b", "N")) if _lies_together(dims, name, free, size)
    )
    return int(size * (values["num_stages"] - 1) * values["BLOCK_K"] * sum(widths))


def _lies_together(dims: Mapping[str, Any], name: str, free: str, size: int) -> bool:
    """Whether rows or columns of an operand are whole words of four bytes, each at the start of one.

    Also where their length alone is odd: the mask of the last one, or the index that wraps round, then parts words.
    """
    lengths: list[tuple[Any, Any]] = [
        (dims.get(axis), dims.get(f"stride_{name}{axis.lower()}")) for axis in (free, "K")
    ]
    if not all(type(number) is int for pair in lengths for number in pair):
        return True
    return any(
        stride == 1 and length * size % 4 == 0 and other * size % 4 == 0
        for (length, stride), (_, other) in (lengths, reversed(lengths))
    )


class Unfit(Exception):
    """A product that no row can be for."""


def gemm_of(inputs: Any, op: str, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Gemm:
    """The product that Inductor asks about.

    Args:
        inputs: Inductor's `KernelInputs`.
        op: the operation, one of `TEMPLATES`.
        overrides: what the lowering says of each template.
    """
    try:
        return Gemm(op=op, problem=_problem(inputs, op, overrides or {}))
    except Unfit as e:
        return Gemm(op=op, problem=Problem(), refusal=str(e))


def _problem(inputs: Any, op: str, overrides: Mapping[str, Mapping[str, Any]]) -> Problem:
    nodes = list(inputs.nodes())
    bias, scales = (nodes.pop(0) if op == "addmm" else None), nodes[2:]
    a, b = nodes[:2]
    (*batch, m, k), (*_, n) = _sizes(a), _sizes(b)
    if len(batch) != (op == "bmm") or 0 in (*batch, m, n, k):
        raise Unfit("it is empty, or has other dims than its template")
    dims: dict[str, Value] = {"M": m, "N": n, "K": k, **dict(zip(("BATCH",), batch, strict=False))}
    batch_strides = ["q"] * len(batch)
    dims |= zip([f"stride_a{x}" for x in (*batch_strides, "m", "k")], _strides(a), strict=True)
    dims |= zip([f"stride_b{x}" for x in (*batch_strides, "k", "n")], _strides(b), strict=True)
    tensors = {"arg_A": a, "arg_B": b}
    if bias is not None:
        if any(inputs.get_scalar(name) != 1 for name in ("alpha", "beta")):
            raise Unfit("it scales its product or its bias")
        dims |= zip(("stride_cm", "stride_cn"), _broadcast(bias, (m, n)), strict=True)
        tensors["bias"] = bias
    if op == "scaled_mm":
        dims |= _scaling(scales, (m, n), overrides)
        tensors |= {"scale_a": scales[0], "scale_b": scales[1]}
    dims["ALLOW_TF32"] = _dtype(a) == "fp32" and _allows_tf32()
    dtypes = {name: _dtype(node) for name, node in tensors.items()}
    dtypes["out"] = _spelt(inputs.out_dtype())
    facts = {name: "div16" for name, node in tensors.items() if _is_aligned(node)} | {"out": "div16"}
    return Problem(dims=FrozenMap(dims), dtypes=FrozenMap(dtypes), facts=FrozenMap(facts))


def _scaling(
    scales: Sequence[Any], size: tuple[int, int], overrides: Mapping[str, Mapping[str, Any]]
) -> dict[str, Value]:
    if len(scales) != 2:
        raise Unfit("it adds a bias")
    rows, columns = _sizes(scales[0]), _sizes(scales[1])
    one = all(n == 1 for n in (*rows, *columns))
    if not one and (rows, columns) != ((size[0], 1), (1, size[1])):
        raise Unfit("it is scaled neither as a whole nor by rows")
    told = {name.lower(): value for each in overrides.values() for name, value in each.items()}
    return {
        "stride_sm": 0 if one else _strides(scales[0])[0], "stride_sn": 0 if one else _strides(scales[1])[1],
        "USE_FAST_ACCUM": bool(told.get("use_fast_accum", False)),
    }  # fmt: skip


def _broadcast(node: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides as if the node had that size: Inductor shows a bias both as it is and expanded."""
    sizes, strides = _sizes(node), _strides(node)
    missing = len(size) - len(sizes)
    own = [0 if n == 1 else stride for n, stride in zip(sizes, strides, strict=True)]
    if missing < 0 or any(n not in (1, full) for n, full in zip(sizes, size[missing:], strict=True)):
        raise Unfit("its bias has another size")
    return (*[0] * missing, *own)


def _whole(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(v, int) or getattr(v, "is_Integer", False) for v in values):
        raise Unfit("its sizes or strides are not known when it is compiled (dynamic shapes)")
    return tuple(int(v) for v in values)


def _sizes(node: Any) -> tuple[int, ...]:
    return _whole(node.get_size())


def _strides(node: Any) -> tuple[int, ...]:
    sizes, strides = _sizes(node), _whole(node.get_stride())
    if sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True)) > MAX_ELEMENTS:
        raise Unfit("an operand is indexed with 64 bits")
    return strides


def _is_aligned(node: Any) -> bool:
    (offset,) = _whole([getattr(node.get_layout(), "offset", 0)])
    return offset * int(node.get_dtype().itemsize) % 16 == 0


def _dtype(node: Any) -> str:
    return _spelt(node.get_dtype())


def _spelt(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _SPELLING:
        raise Unfit(f"element type {name} has no template that is tuned")
    return _SPELLING[name]


def _allows_tf32() -> bool:
    import torch

    matmul = torch.backends.cuda.matmul
    # Of the two names the older raises once the newer was used.
    precision = getattr(matmul, "fp32_precision", None)
    return precision == "tf32" if isinstance(precision, str) else bool(matmul.allow_tf32)
