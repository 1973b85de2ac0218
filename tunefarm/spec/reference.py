"""The reference of experiment files, `experiments/README.md`, made from the declarations that read them.

python -m tunefarm.spec.reference > experiments/README.md
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunefarm.spec.constraint import FACTS
from tunefarm.spec.experiment import NEEDED, Experiment
from tunefarm.spec.grammar import keys_of
from tunefarm.spec.inputs import DTYPES, TensorSpec
from tunefarm.spec.sections import Accept, Budget, DeviceSpec, Search, Tracking
from tunefarm.spec.workload import LandscapeSpec, WorkloadRef

WHOLE = """\
name: softmax
workload: kernels/softmax.py:workload
problems:
  - {n_rows: 4096, n_cols: [1024, 4096], dtype: bf16}
space:
  BLOCK_N: {pow2: [256, 32768]}
  num_warps: [1, 2, 4, 8]
constraints:
  - BLOCK_N / (32 * num_warps) <= 64
devices: [sm_90]
export: packs/softmax.json
"""
"""The example at the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A mapping of the file, and what people should know before its keys.

    Attributes:
        title: the key under which it stands.
        cls: the dataclass that it is read into.
        intro: a paragraph.
        examples: by key a line of YAML that sets it.
    """

    title: str
    cls: type[Any]
    intro: str
    examples: Mapping[str, str]


SECTIONS = (
    Section(
        title="the file", cls=Experiment,
        intro="Paths of what is read start at the file's folder, paths of what is written where you stand.",
        examples={
            "name": "name: softmax", "workload": "workload: kernels/softmax.py:workload",
            "problems": "problems: [{n_rows: 4096, n_cols: [1024, 4096], dtype: bf16, weight: 3}]",
            "devices": "devices: [sm_80, {arch: sm_90, landscape: landscapes/softmax_h200.json.gz}]",
            "project": "project: kernels", "inputs": "inputs: {x: [n_rows, n_cols], eps: {value: 1e-6}}",
            "vars": "vars: {REGISTERS: 64}",
            "space": "space: {BLOCK_N: {pow2: [256, 32768]}, ROWS: {range: [1, 4, 1]}, num_warps: [1, 2, 4]}",
            "constraints": "constraints: [BLOCK_N / (32 * num_warps) <= 64, BLOCK_N < 2 * n_cols or ROWS == 1]",
            "search": "search: {sampler: tpe, seed: 7}", "budget": "budget: {trials: 200, wall_s: 600}",
            "accept": "accept: {min_gain: 0.02}",
            "checks": "checks: [{n_rows: n_rows - 1}, {inputs: {x: {offset: 1}}}]", "timer": "timer: graph",
            "tracking": "tracking: {uri: 'http://mlflow:5000'}", "files": "files: [tokens.bin]",
            "export": "export: packs/softmax.json",
        },
    ),
    Section(
        title="workload", cls=WorkloadRef,
        intro="A `tunefarm.Workload` object of a module (`kernels/softmax.py:workload`), or its parts. What a kernel's "
        "`@triton.autotune` declares (configs, key, `restore_value`, `reset_to_zero`) is read from it.",
        examples={
            "call": "call: mylib.ops:matmul", "kernel": "kernel: mylib.ops:matmul_kernel",
            "reference": "reference: torch:matmul", "name": "name: matmul", "key": "key: [M, N, K]",
            "ranges": "ranges: [M]", "restore": "restore: [c_ptr]", "zero": "zero: [locks_ptr]", "atol": "atol: 1e-3",
            "rtol": "rtol: 0.01", "num_bytes": "num_bytes: 2 * (M * K + K * N + M * N)",
            "flops": "flops: 2 * M * N * K",
            "tiles": "tiles: [[BLOCK_M, BLOCK_N], [BLOCK_M, BLOCK_K]]", "dots": "dots: [[BLOCK_M, BLOCK_N, BLOCK_K]]",
            "default": "default: {BLOCK_M: 128, num_warps: 8}",
        },
    ),
    Section(
        title="workload.landscape", cls=LandscapeSpec,
        intro="In place of a kernel, recorded spaces: `workload: landscape:FILE`, or `{landscape: [...], default: "
        "{...}}` with files, patterns of files, or these keys. Results are tables, never packs.",
        examples={
            "file": "file: recordings/convolution_*.json.gz", "kernel": "kernel: convolution",
            "device": "device: RTX A6000",
        },
    ),
    Section(
        title="inputs", cls=TensorSpec,
        intro="By argument of the call a shape (`x: [M, K]`), these keys, or a scalar (`{value: 1e-6}`; a text is "
        "`{value: \"'relu'\"}`). Sizes are numbers or expressions over the problem's variables. Element types: "
        f"{', '.join(DTYPES)}.",
        examples={
            "shape": "shape: [M, K * 2]", "dtype": "dtype: fp8e4nv", "init": "init: uniform", "low": "low: 0",
            "high": "high: 64", "strides": "strides: [1, M]", "offset": "offset: 1", "special": "special: true",
        },
    ),
    Section(
        title="devices", cls=DeviceSpec, intro="An arch alone (`sm_90`), or these keys.",
        examples={"arch": "arch: sm_90", "landscape": "landscape: landscapes/softmax_h200.json.gz"},
    ),
    Section(
        title="search", cls=Search, intro="",
        examples={
            "sampler": "sampler: default", "seed": "seed: 7", "threshold": "threshold: 0.9", "batch": "batch: 4",
            "learn_from": "learn_from: [../sweeps/softmax/ledger.jsonl]",
        },
    ),
    Section(
        title="budget", cls=Budget, intro="Without one, a study ends when nothing open can plausibly save another 1 %.",
        examples={"trials": "trials: 200", "gpu_held_s": "gpu_held_s: 300", "wall_s": "wall_s: 600"},
    ),
    Section(
        title="accept", cls=Accept, intro="Without a tolerance it follows from the output's element type.",
        examples={
            "atol": "atol: 1e-5", "rtol": "rtol: 1e-3", "min_gain": "min_gain: 0.02", "same_bits": "same_bits: repeat",
            "one_config_over": "one_config_over: [n_rows]",
        },
    ),
    Section(
        title="tracking", cls=Tracking, intro="",
        examples={
            "uri": "uri: sqlite:///mlflow.db", "experiment": "experiment: kernels/softmax", "register": "register: on",
            "optuna_storage": "optuna_storage: journal:optuna.log",
        },
    ),
)  # fmt: skip

_HEAD = """\
# Experiments: every key

An experiment is one YAML file (YAML 1.2: `no` and `off` are text where text belongs). `tunefarm init` writes a first
one, `tunefarm plan` says what it means and what is wrong with it, with file, line, key and remedy. This page is made by
`python -m tunefarm.spec.reference` from the declarations that read the file; `python -m tunefarm.spec.schema` prints a
JSON Schema for editors.

```yaml
"""

_FORMS = f"""
Values of `problems` are numbers, texts, true or false, or lists of them, which expand to products; `dtype` is the
element type of inputs that name none, and `weight` (a number above 0, 1 if left out) says how much a problem matters.
Values of `space` are lists, `{{pow2: [first, last]}}` or `{{range: [first, last, step]}}`, both ends included; its
names are the kernel's constexprs and launch options. Constraints know arithmetic, comparisons, `and`, `or`, `not`,
`min`, `max`, `cdiv`, the names of space, problems and `vars`, and facts of the device ({", ".join(FACTS)}).
An entry of `checks` changes variables of the problem (text is an expression) and, under `inputs`, keys of tensors.
"""


def reference() -> str:
    """The reference as Markdown."""
    parts = [f"{_HEAD}{WHOLE}```\n{_FORMS}"]
    for section in SECTIONS:
        intro = f"{section.intro}\n\n" if section.intro else ""
        parts.append(
            f"\n## {section.title}\n\n{intro}| key | type | default | meaning | example |\n|---|---|---|---|---|\n"
        )
        parts += [_row(section, name) for name in keys_of(section.cls)]
    return "".join(parts)


def _row(section: Section, name: str) -> str:
    mark, needed = keys_of(section.cls)[name]
    default = "needed" if needed else _default(section.cls, name)
    if section.cls is Experiment and name in NEEDED:
        default = "needed, but for recordings"
    cells = (f"`{name}`", _type(mark.kind.schema), default, mark.doc, f"`{section.examples[name]}`")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(cls: type[Any], name: str) -> str:
    value = next(f.default for f in dataclasses.fields(cls) if f.name == name)
    if value in (None, "", ()) or value is dataclasses.MISSING:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON Schema in words."""
    if "enum" in schema:
        words = schema["enum"]
        return "true or false" if True in words else f"one of {', '.join(f'`{word}`' for word in words)}"
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of: {_type(schema['items'])}"
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "string":
        return "`FILE.py:OBJECT` or `PACKAGE.MODULE:OBJECT`" if ":[^:]" in schema.get("pattern", "") else "text"
    return "mapping" if kind == "object" else "number, text, true, false or null"


def _number(schema: Mapping[str, Any]) -> str:
    parts = ["whole number" if schema["type"] == "integer" else "number"]
    parts += [f"from {schema['minimum']}"] if "minimum" in schema else []
    parts += [f"above {schema['exclusiveMinimum']}"] if "exclusiveMinimum" in schema else []
    parts += [f"up to {schema['maximum']}"] if "maximum" in schema else []
    return " ".join(parts)


if __name__ == "__main__":
    print(reference(), end="")
