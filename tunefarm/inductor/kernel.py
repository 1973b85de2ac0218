"""A kernel that Inductor generated, read from its file: what it takes, how it is launched, what may be tuned."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefarm.frozen import FrozenMap
from tunefarm.generated import SPLIT, STAGES, key_of, parts_of, plain_name

MIXED = "MixOrderReductionGrid"
GRIDS = {"Grid1D": "x", "Grid2D": "xy", "Grid2DWithYZOverflow": "xy", "Grid3D": "xyz", MIXED: "x"}
"""Grids whose sizes are those of the blocks (of a mixed kernel the split's), by the axes they have."""
HEURISTICS = ("pointwise", "reduction", "persistent_reduction")
DTYPES = {
    "bool": "i1", "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
    "uint8": "u8", **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Element types in Triton's spelling, by torch's."""
MAX_BLOCK = {"X": 4096, "Y": 1024, "Z": 1024, "R0_": 65536, "R1_": 32768}
"""Inductor's greatest blocks, where it does not say."""
MARK = "_fused_"
"""In the text of every kernel that Inductor looks up."""
WORKSPACE = "ws_ptr"
MAX_NAME = 150
"""Characters of a kernel's name, which tells all that is fused in it, in the names of its files."""
_BOUND = re.compile(r"tl\.device_assert\(.*?< (\d+)\b")


class Untunable(Exception):
    """A kernel that cannot be tuned, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor that a kernel takes.

    Attributes:
        sizes: of its dims.
        strides: of its dims, in elements.
        dtype: in torch's spelling, such as `bfloat16`.
        is_aligned: starts at a multiple of 16 bytes.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    is_aligned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A kernel that Inductor generated.

    Attributes:
        name: without its number.
        key: Inductor's.
        heuristic: which of Inductor's heuristics chooses its configs.
        text: of its function, under its own name.
        buffers: tensors it takes, by argument name, in its order.
        scalars: numbers it takes, sizes for the most part, in its order.
        blocks: params that the config sets, less those of mixed kernels only.
        split: rows a program of a mixed kernel goes over; 0 of other kernels.
        numels: elements along each axis (`x`, `r0_`).
        mutated: arguments that it works on in place.
        grid: one of `GRIDS`.
        meta: what Inductor knows about it.
        max_block: the greatest block along each axis (`X`, `R0_`).
        configs: what Inductor would try, the first first.
        bound: what indices read from memory must be below; 0 if unknown.
        num_bytes: that it moves, at least.
    """

    name: str
    key: str
    heuristic: str
    text: str
    buffers: FrozenMap[Buffer]
    scalars: FrozenMap[int]
    blocks: tuple[str, ...]
    numels: FrozenMap[int]
    mutated: tuple[str, ...]
    grid: str
    meta: Mapping[str, Any] = field(repr=False, compare=False)
    max_block: Mapping[str, int] = field(repr=False, compare=False)
    split: int = 0
    configs: tuple[Mapping[str, int], ...] = ()
    bound: int = 0
    num_bytes: int = 0

    @property
    def module(self) -> str:
        """Name of the files it is written to: kernels of one name are told apart by their key."""
        return f"{self.name[:MAX_NAME]}_{self.key[:8]}"

    @property
    def params(self) -> tuple[str, ...]:
        """What the config sets."""
        return (*self.blocks, SPLIT, STAGES) if self.split else self.blocks

    @property
    def outputs(self) -> tuple[str, ...]:
        """Buffers that it only writes. A mixed kernel's workspace is one: it fills it, for others to sum up."""
        return tuple(n for n in self.buffers if n.startswith(("out_ptr", WORKSPACE)) and n not in self.mutated)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Buffers that it reads."""
        return tuple(name for name in self.buffers if name not in self.outputs)


def read_generated(source: str, hints: Mapping[str, Any]) -> Generated:
    """A kernel from the file that Inductor generates for it, with `benchmark_kernel` on.

    Args:
        source: text of the file.
        hints: what its decorator refers to, by name (`ReductionHint`, `DeviceProperties`).

    Raises:
        Untunable: Inductor would not look it up, or its launch cannot be written down.
    """
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    jitted = [f for f in functions.values() if any(ast.unparse(d) == "triton.jit" for d in f.decorator_list)]
    if len(jitted) != 1 or (parts := parts_of(source)) is None:
        raise Untunable("it has functions of its own, and Inductor takes its key of the first of them")
    (kernel,) = jitted
    decorator = kernel.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    heuristic = ast.unparse(decorator.func).rpartition(".")[2]
    if heuristic not in HEURISTICS:
        raise Untunable(f"kernels of Inductor's kind {heuristic} have no blocks that its table could set")
    meta = {k.arg: _value(k.value, hints) for k in decorator.keywords if k.arg and k.arg != "filename"}
    inner, outer = meta["inductor_meta"], meta["triton_meta"]
    lines = source.splitlines()
    text = "\n".join(lines[kernel.lineno - 1 : kernel.end_lineno])
    if MARK not in text:
        raise Untunable(f"Inductor looks up only kernels with {MARK} in their text")
    names = [argument.arg for argument in kernel.args.args]
    params = tuple(n for n in names if outer["signature"].get(n) == "constexpr")
    split = int(inner.get(SPLIT) or 0)
    blocks = tuple(n for n in params if not (split and n in (SPLIT, STAGES)))
    _check(inner, blocks, split)
    buffers, scalars = _arguments(functions["get_args"], names, outer, split)
    prefixes = [str(prefix) for prefix in meta["size_hints"]]
    return Generated(
        name=plain_name(kernel.name), key=key_of(parts[0], text), heuristic=heuristic, text=text, buffers=buffers,
        scalars=scalars, blocks=blocks, mutated=tuple(n for n in inner.get("mutated_arg_names", ()) if n in names),
        numels=FrozenMap((p, scalars.get(f"{p}numel", meta["size_hints"][p])) for p in prefixes),
        grid=inner["grid_type"], split=split, meta=meta, max_block=hints.get("TRITON_MAX_BLOCK", MAX_BLOCK),
        bound=min(map(int, _BOUND.findall(text)), default=0),
        num_bytes=round(1e9 * inner.get("kernel_num_gb", 0)),
    )  # fmt: skip


def _value(node: ast.expr, hints: Mapping[str, Any]) -> Any:
    # Inductor's own literals, of a file it would itself execute.
    return eval(compile(ast.Expression(node), "<inductor>", "eval"), {"__builtins__": {"set": set}}, dict(hints))


def _check(inner: Mapping[str, Any], blocks: tuple[str, ...], split: int) -> None:
    others = [name for name in blocks if not name.endswith("BLOCK")]
    if others:
        raise Untunable(f"its config sets {', '.join(others)}, which Inductor's table cannot hold")
    if inner["grid_type"] not in GRIDS or bool(split) != (inner["grid_type"] == MIXED):
        raise Untunable(f"its grid is a {inner['grid_type']}")
    if inner.get("no_x_dim"):
        raise Untunable("its XBLOCK is fixed, and the processes that compile do not agree on its key")
    if inner.get("combo_grid_meta"):
        raise Untunable("it is several kernels in one")


def _arguments(
    made: ast.FunctionDef, names: list[str], outer: Mapping[str, Any], split: int
) -> tuple[FrozenMap[Buffer], FrozenMap[int]]:
    """Buffers and scalars, from the function that Inductor writes to make them for a benchmark."""
    values: dict[str, Any] = {}
    for statement in made.body:
        if isinstance(statement, ast.Assign):
            values[ast.unparse(statement.targets[0])] = statement.value
    last = made.body[-1]
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.Tuple)
    found = [values.get(ast.unparse(item), item) for item in last.value.elts]
    aligned = {names[position[0]] for config in outer.get("configs", ()) for position in config}
    buffers, scalars = {}, {}
    for name, value in zip(names, found, strict=False):
        if isinstance(value, ast.Call):
            workspace = bool(split) and name == WORKSPACE
            buffers[name] = _buffer(value, name, is_aligned=name in aligned, is_workspace=workspace)
        else:
            scalars[name] = int(ast.literal_eval(value))
    return FrozenMap(buffers), FrozenMap(scalars)


def _buffer(call: ast.Call, name: str, *, is_aligned: bool, is_workspace: bool) -> Buffer:
    keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
    made = ast.unparse(call.func).rpartition(".")[2]
    if made == "rand_strided":
        sizes, strides = (tuple(map(int, ast.literal_eval(part))) for part in call.args)
    elif made == "zeros" and is_workspace:
        sizes, strides = (int(ast.literal_eval(call.args[0])),), (1,)
    else:
        raise Untunable(f"it takes workspace ({name})")
    if "cuda" not in keywords["device"]:
        raise Untunable(f"{name} lies on the CPU")
    dtype = keywords["dtype"].removeprefix("torch.")
    if dtype not in DTYPES:
        raise Untunable(f"{name} is of {dtype}, which no experiment can make")
    return Buffer(sizes=sizes, strides=strides, dtype=dtype, is_aligned=is_aligned)
