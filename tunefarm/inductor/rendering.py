"""Inductor's GEMM templates as kernels of their own: the installed torch's own text, with what a job's Inductor writes
into it (sizes, strides, block sizes) as constexprs. Measured here, a config does in a job what it did.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.choosing import template_of
from tunefarm.errors import SpecError

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_CONTROL = re.compile(r"^([ \t]*)\{%-?\s*(if|elif|else|endif)\b(.*?)-?%\}\s*$")
_COMMENT = re.compile(r"^[ \t]*\{#.*?#\}[ \t]*\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is an operation's own in the kernel made of its template.

    Attributes:
        tensors: pointer arguments, in order, the output last.
        dims: constexpr arguments that identify a problem.
        epilogue: lines that make `result` of the accumulator `acc`; indices are `idx_m` and `idx_n`.
        output: index of an element of the output.
        constants: constexprs that have one value.
    """

    tensors: tuple[str, ...]
    dims: tuple[str, ...]
    epilogue: tuple[str, ...] = ("result = acc",)
    output: str = "idx_n + N * idx_m"
    constants: tuple[str, ...] = ("USE_FAST_ACCUM: tl.constexpr = False",)


def _load(name: str, index: str) -> str:
    place = f"tl.broadcast_to({index}, [BLOCK_M, BLOCK_N])"
    return f"tl.load({name} + ({place}), mask, eviction_policy='evict_last').to(tl.float32)"


_PLAIN = ("M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn")
FORMS = {
    "mm": Form(tensors=("arg_A", "arg_B", "out"), dims=(*_PLAIN, "ALLOW_TF32")),
    "addmm": Form(
        tensors=("bias", "arg_A", "arg_B", "out"), dims=(*_PLAIN, "stride_cm", "stride_cn", "ALLOW_TF32"),
        epilogue=(f"result = acc + {_load('bias', 'stride_cm * idx_m + stride_cn * idx_n')}",),
    ),
    "bmm": Form(
        tensors=("arg_A", "arg_B", "out"),
        dims=("BATCH", "M", "N", "K", "stride_aq", "stride_am", "stride_ak", "stride_bq", "stride_bk", "stride_bn",
              "ALLOW_TF32"),
        output="idx_n + N * idx_m + M * N * idx_q",
    ),
    "scaled_mm": Form(
        tensors=("arg_A", "arg_B", "scale_a", "scale_b", "out"),
        dims=(*_PLAIN, "stride_sm", "stride_sn", "ALLOW_TF32", "USE_FAST_ACCUM"), constants=(),
        epilogue=(
            f"scale = {_load('scale_a', 'stride_sm * idx_m')} * {_load('scale_b', 'stride_sn * idx_n')}",
            "result = acc * scale",
        ),
    ),
}  # fmt: skip
"""By operation."""


def template_text(op: str) -> str:
    """The text of Inductor's template for an operation.

    Raises:
        SpecError: the installed torch has it in no file of its own.
    """
    import torch
    from torch._inductor import kernel

    wanted = getattr(template_of(op), "src_hash", None)
    folder = Path(str(kernel.__file__)).parent / "templates"
    for path in sorted(folder.glob("*.jinja")):
        text = path.read_text()
        if hashlib.sha256(text.encode()).hexdigest() == wanted:
            return text
    raise SpecError(
        f"torch {torch.__version__} has the text of its {op} template in no file of {folder}",
        hint="use another release of torch",
    )


def render(op: str, text: str) -> str:
    """The kernel, named `kernel`, as Python source.

    Args:
        op: an operation of `FORMS`.
        text: of its template.

    Raises:
        SpecError: the template asks for something that is not known here.
    """
    hooks = _hooks(op)
    plain = _COMMENT.sub("", text)
    filled = _EXPRESSION.sub(lambda match: _fill(op, match, hooks), plain)
    return "\n".join(_indented(filled, op)).rstrip() + "\n"


def _fill(op: str, match: re.Match[str], hooks: dict[str, Callable[..., str]]) -> str:
    """An expression's text. One that depends on EVEN_K is written both ways, and the kernel decides."""
    even, uneven = (_value(op, match[1], {**hooks, "EVEN_K": flag}) for flag in (True, False))
    if even == uneven:
        return even
    start = match.string.rfind("\n", 0, match.start()) + 1
    indent = match.string[start : match.start()]
    return f"{{% if EVEN_K %}}\n{indent}{even}\n{indent}{{% else %}}\n{indent}{uneven}\n{indent}{{% endif %}}"


def _value(op: str, expression: str, names: dict[str, Any]) -> str:
    try:
        # Torch's own text, which a job runs as well.
        return str(eval(expression.strip(), {"__builtins__": {}}, names))
    except Exception as e:
        raise SpecError(
            f"Inductor's template for {op} asks for {' '.join(expression.split())!r}, which is not known: {e}",
            hint="use another release of torch",
        ) from None


def _indented(text: str, op: str) -> Iterator[str]:
    """The lines with the template's conditions as the kernel's own, which Triton decides when it compiles."""
    depth = 0
    for line in text.splitlines():
        control = _CONTROL.match(line)
        if control is None:
            if "{%" in line:
                raise SpecError(f"Inductor's template for {op} has a line {line.strip()!r} that is not known",
                                hint="use another release of torch")  # fmt: skip
            yield f"{'    ' * depth}{line}".rstrip()
            continue
        indent, word, condition = control.groups()
        depth -= word != "if"
        if word != "endif":
            yield f"{'    ' * depth}{indent}{word}{' ' if condition.strip() else ''}{condition.strip()}:"
            depth += 1


def _hooks(op: str) -> dict[str, Callable[..., str]]:
    form = FORMS[op]
    names = {"A": ("m", "k"), "B": ("k", "n")}

    def stride(name: str, index: int) -> str:
        axes = ("q", *names[name]) if op == "bmm" else names[name]
        return f"stride_{name.lower()}{axes[index]}"

    def size(name: str, index: int) -> str:
        axes = ("BATCH", *names[name]) if op == "bmm" else names[name]
        return axes[index].upper()

    def def_kernel(*inputs: str) -> str:
        constexprs = [f"{n}: tl.constexpr" for n in (*form.dims, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "EVEN_K")]
        lines = [
            '@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})', "@triton.jit",
            "def kernel(", *(f"    {name}," for name in (*form.tensors, *constexprs)), "):",
            *(f"    {c}" for c in form.constants), "    ACC_TYPE: tl.constexpr = tl.float32",
            "    INDEX_DTYPE: tl.constexpr = tl.int32", *(f"    {name} = arg_{name}" for name in inputs),
        ]  # fmt: skip
        return "\n".join(lines)

    def load_input(
        name: str, out: str, indices: tuple[str, str], mask: str | None = None, other: float = 0.0, **_: Any
    ) -> str:
        place = f"{stride(name, 0)} * {indices[0]} + {stride(name, 1)} * {indices[1]}"
        return f"{out} = tl.load({name} + ({place}){f', mask={mask}, other={other}' if mask else ''})"

    def store_output(indices: tuple[str, ...], value: str, mask: str, indent_width: int = 4, **_: Any) -> str:
        if value != "acc" or mask != "mask" or not set(indices) <= {"idx_q", "idx_m", "idx_n"}:
            raise SpecError(f"it stores {value} at {indices} under {mask}")
        store = f"tl.store(out + (tl.broadcast_to({form.output}, [BLOCK_M, BLOCK_N])), result, mask)"
        return f"\n{' ' * indent_width}".join((*form.epilogue, store))

    return {
        "stride": stride, "size": size, "def_kernel": def_kernel, "load_input": load_input,
        "store_output": store_output,
    }  # fmt: skip
