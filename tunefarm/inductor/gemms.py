"""The matrix products of a model as experiments: noted while torch.compile lowers it, written as files to sweep.

with recording_gemms() as calls:
    torch.compile(model)(*inputs)      # also with fake tensors of a GPU that is not there
write_gemms(calls, Path("gemms"))      # gemms/mm.py, gemms/mm.yaml, gemms/addmm.py, ...
"""

from __future__ import annotations

import contextlib
import json
import re
import textwrap
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.choosing import Chooser, choose, template_hash
from tunefarm.document import write_atomic
from tunefarm.gemm import Gemm
from tunefarm.inductor.rendering import FORMS, render, template_text
from tunefarm.limits import num_bits

MAX_BATCH = 65535


@contextlib.contextmanager
def recording_gemms() -> Iterator[Counter[Gemm]]:
    """Notes each product that Inductor is asked for meanwhile, in any thread, and how often.

    Products are lowered as in a job whose pack answers none of them: to the library's call. No cache answers for them.

    Raises:
        UserError: this torch cannot be listened to.
    """
    calls: Counter[Gemm] = Counter()

    def note(gemm: Gemm, index: int | None, counts: bool) -> None:
        calls[gemm] += counts

    name = uuid.uuid4().hex
    end = choose(Chooser(answer=note, identity=lambda: f"recording {name}"))
    try:
        yield calls
    finally:
        end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of it.

    Attributes:
        experiments: files to sweep, one for each operation.
        left_out: why products are in none of them, for people, with how often they were asked for.
    """

    experiments: tuple[Path, ...]
    left_out: Mapping[str, int]


def write_gemms(
    calls: Mapping[Gemm, int], folder: Path, *, archs: Sequence[str] = ("sm_90",), export: str = "packs/gemms.json"
) -> Written:
    """Writes products as experiments with the workloads that they tune.

    Args:
        calls: from `recording_gemms`.
        folder: where the files go; those of the same names are replaced.
        archs: to tune for.
        export: the pack that the experiments write, all of them the same.

    Raises:
        SpecError: the installed torch's templates cannot be made into kernels.
        OSError: the folder cannot be written to.
    """
    left_out: Counter[str] = Counter()
    by_op: dict[str, dict[Gemm, int]] = {}
    for gemm, count in calls.items():
        if reason := gemm.refusal or _unfit(gemm):
            left_out[f"{gemm.op}: {reason}"] += count
        elif count:
            by_op.setdefault(gemm.op, {})[gemm] = count
    folder.mkdir(parents=True, exist_ok=True)
    experiments = []
    for op, mine in sorted(by_op.items()):
        write_atomic(folder / f"{op}.py", workload_text(op).encode())
        experiments.append(folder / f"{op}.yaml")
        write_atomic(experiments[-1], _experiment(op, mine, archs, export, plain_name(folder)).encode())
    return Written(experiments=tuple(experiments), left_out=dict(left_out))


def plain_name(folder: Path) -> str:
    """A folder's name as part of an experiment's: those of several folders may be swept together."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name).strip("-.") or "harvest"


def _unfit(gemm: Gemm) -> str:
    """Why a product is not tuned; empty if it is."""
    dims, dtypes = gemm.problem.dims, gemm.problem.dtypes
    batch = dims.get("BATCH", 1)
    if dims["ALLOW_TF32"]:
        return "it may be rounded to TF32, for which there is no tolerance to check it by"
    if set(dtypes) != set(gemm.problem.facts):
        return "an operand does not start at a multiple of 16 bytes"
    if isinstance(batch, int) and batch > MAX_BATCH:
        return f"its batch is larger than {MAX_BATCH}"
    operands = {dtype for name, dtype in dtypes.items() if gemm.op != "scaled_mm" or name.startswith("arg_")}
    results = {dtypes["out"]} if gemm.op != "scaled_mm" else set()
    if len(operands | results) > 1:
        return f"its element types differ ({', '.join(sorted(operands | results))})"
    return ""


# ---- the workload ----

_HEAD = '''"""Inductor's template for {op}, torch {torch}, as a kernel of its own. Written by tunefarm."""

import torch
import triton
import triton.language as tl

from tunefarm import Config, Workload


'''

_TAIL = """

def call({inputs}):
    {size} = {of_size}
    out = torch.empty(({out}), dtype={dtype}, device=a.device)

    def grid(meta):
        tiles = triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])
        return {grid}

    kernel[grid](
        {arguments},
    )
    return out


def library({inputs}):
    return {library}


def reference({inputs}):
    return {reference}


def flops(M, N, K, **others):
    return 2.0 * M * N * K * others.get("BATCH", 1)


workload = Workload(
    name="{op}",
    call=call,
    kernel=kernel,
    library=library,
    reference=reference,
    flops=flops,
    inputs={{
        {specs},
    }},
    key=({key}),
    dots=(("BLOCK_M", "BLOCK_N", "BLOCK_K"),),
    default=Config(
        params={{"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}},
        options={{"num_warps": 4, "num_stages": 3}},
    ),
    template="{hash}",
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is an operation's own in its workload's text; inputs with their shapes and strides, then the code."""

    inputs: Mapping[str, str]
    library: str
    reference: str = ""
    size: str = "(M, K), N"
    of_size: str = "a.shape, b.shape[1]"
    out: str = "M, N"
    dtype: str = "a.dtype"
    grid: str = "(tiles,)"
    tensors: str = "a, b, out"
    rest: str = "ALLOW_TF32=False"


def _spec(shape: str, strides: str, more: str = "") -> str:
    def listed(names: str) -> str:
        return ", ".join(name if name.isdecimal() else f'"{name}"' for name in names.split())

    return f'{{"shape": [{listed(shape)}], "strides": [{listed(strides)}]{more}}}'


_A, _B = _spec("M K", "stride_am stride_ak"), _spec("K N", "stride_bk stride_bn")
_SCALE = ', "dtype": "fp32", "init": "uniform", "low": 0.5'
_PARTS = {
    "mm": _Parts(inputs={"a": _A, "b": _B}, library="torch.mm(a, b)"),
    "addmm": _Parts(
        inputs={"bias": _spec("M N", "stride_cm stride_cn"), "a": _A, "b": _B}, tensors="bias, a, b, out",
        # The library has a kernel of its own for a row, which Inductor hands it as one.
        library="torch.addmm(bias[0] if bias.stride(0) == 0 else bias, a, b)", reference="torch.addmm(bias, a, b)",
    ),
    "bmm": _Parts(
        inputs={"a": _spec("BATCH M K", "stride_aq stride_am stride_ak"),
                "b": _spec("BATCH K N", "stride_bq stride_bk stride_bn")},
        library="torch.bmm(a, b)", size="(BATCH, M, K), N", of_size="a.shape, b.shape[2]", out="BATCH, M, N",
        grid="(tiles, BATCH)",
    ),
    "scaled_mm": _Parts(
        inputs={
            "a": _A, "b": _B, "scale_a": _spec("M 1", "stride_sm 1", _SCALE),
            "scale_b": _spec("1 N", "1 stride_sn", _SCALE), "out_dtype": '{"value": "out_dtype"}',
            "fast": '{"value": "USE_FAST_ACCUM"}',
        },
        library="torch._scaled_mm(\n        a, b, _whole(scale_a), _whole(scale_b), out_dtype=_DTYPES[out_dtype], "
                "use_fast_accum=fast\n    )",
        reference="(a @ b) * scale_a * scale_b", dtype="_DTYPES[out_dtype]", tensors="a, b, scale_a, scale_b, out",
        rest="ALLOW_TF32=False, USE_FAST_ACCUM=fast",
    ),
}  # fmt: skip
_SCALES = '''
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _whole(scale):
    """One scale for all as the library wants it; one a row or column as it is."""
    return scale[0, 0] if 0 in scale.stride() else scale.contiguous()

'''


def workload_text(op: str) -> str:
    """The text of a module that holds an operation's workload for the installed torch.

    Raises:
        SpecError: its template cannot be made into a kernel.
    """
    import torch

    parts, form = _PARTS[op], FORMS[op]
    strides = [f"*{name}.stride()" for name in ("a", "b", "bias") if name in parts.inputs]
    strides += ["scale_a.stride(0)", "scale_b.stride(1)"] if op == "scaled_mm" else []
    sizes = "BATCH, M, N, K" if op == "bmm" else "M, N, K"
    tail = _TAIL.format(
        op=op, inputs=", ".join(parts.inputs), size=parts.size, of_size=parts.of_size, out=parts.out,
        dtype=parts.dtype, grid=parts.grid, arguments=", ".join((parts.tensors, sizes, *strides, parts.rest)),
        library=parts.library, reference=parts.reference or parts.library,
        specs=",\n        ".join(f'"{name}": {spec}' for name, spec in parts.inputs.items()),
        key=", ".join(f'"{name}"' for name in form.dims), hash=template_hash(op),
    )  # fmt: skip
    extra = _SCALES if op == "scaled_mm" else ""
    return _HEAD.format(op=op, torch=torch.__version__) + render(op, template_text(op)) + extra + tail


# ---- the experiment ----

_SPACE = """
space:
  BLOCK_M: {pow2: [16, 256]}
  BLOCK_N: {pow2: [16, 256]}
  BLOCK_K: {pow2: [32, 128]}
  GROUP_M: [8]
  num_warps: [4, 8]
  num_stages: [2, 3, 4, 5]

constraints:
  - %d * (num_stages - 1) * BLOCK_K * (BLOCK_M + BLOCK_N) <= shared_bytes # stages in flight of both operands
  - 8 <= BLOCK_M * BLOCK_N / (32 * num_warps) <= 128 # a thread's accumulators: more spill, and compile for 20 s
"""


def _experiment(op: str, calls: Mapping[Gemm, int], archs: Sequence[str], export: str, name: str) -> str:
    lines = [
        f"# The {op} products that torch.compile asks for, as Inductor's template and as the library's call.",
        f"name: {name}-{op}", f"workload: {op}.py:workload", "", "problems:",
        *sorted(f"  - {{{', '.join(f'{k}: {v}' for k, v in _variables(g).items())}, weight: {n}}}"
                for g, n in calls.items()),
    ]  # fmt: skip
    size = min(num_bits(gemm.problem.dtypes["arg_A"]) for gemm in calls) // 8
    tail = textwrap.dedent(_SPACE) % size
    devices = "\n".join(f"  - {arch}" for arch in archs)
    return "\n".join(lines) + f"\n{tail}\ndevices:\n{devices}\n\nexport: {json.dumps(export, ensure_ascii=False)}\n"


def _variables(gemm: Gemm) -> dict[str, object]:
    dims = {name: value for name, value in gemm.problem.dims.items() if name != "ALLOW_TF32"}
    variables: dict[str, object] = {**dims, "dtype": gemm.problem.dtypes["arg_A"]}
    if gemm.op == "scaled_mm":
        # A truth value is written as YAML has it.
        variables |= {"out_dtype": gemm.problem.dtypes["out"], "USE_FAST_ACCUM": str(dims["USE_FAST_ACCUM"]).lower()}
    return variables
