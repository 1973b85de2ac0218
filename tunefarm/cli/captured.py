"""Writes what was captured of a job as experiments."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tunefarm.captured import Argument, Captured, Kernel, calls_of, scalars_of
from tunefarm.config import Value
from tunefarm.device import Device, named, nominal
from tunefarm.document import write_atomic
from tunefarm.errors import SpecError, UserError
from tunefarm.frozen import FrozenMap
from tunefarm.missed import Found, Missed, Solver
from tunefarm.spec.draft import FILL_IN, Draft, draft

Calls = Mapping[FrozenMap[Argument] | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An experiment that was written.

    Attributes:
        experiment: the file.
        about: what of the job it is, for people.
        calls: how often the job made the calls in it.
        open_lines: lines of it that somebody must look at before it can be swept.
    """

    experiment: str
    about: str
    calls: int
    open_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What was captured and is in no experiment."""

    what: str
    reason: str
    calls: int


def write_experiments(found: Captured, out: Path, device: str, export: str) -> tuple[list[Written], list[Left]]:
    """Writes an experiment for each kernel, and each kind of product, and says what is in none.

    Args:
        found: what was captured.
        out: folder to write to; it is made.
        device: arch or name of the GPU to tune for; empty for the job's.
        export: pack that they write to.

    Raises:
        UserError: the device is not known.
        OSError: the folder cannot be written to.
    """
    where = named(device) if device else found.devices[0] if found.devices else nominal("sm_90")
    out.mkdir(parents=True, exist_ok=True)
    written, left = _write_inductor(found, out, where, export) if found.generated or found.products else ([], [])
    for kernel, calls in found.kernels.items():
        try:
            taken = {Path(each.experiment).stem for each in written}
            experiment, others = _write_kernel(kernel, calls, out, where.arch, export, taken)
        except SpecError as e:
            left.append(Left(what=kernel.name, reason=str(e), calls=sum(calls.values())))
        else:
            written.append(experiment)
            left += others
    return sorted(written, key=lambda each: -each.calls), sorted(left, key=lambda each: -each.calls)


def _write_inductor(found: Captured, out: Path, where: Device, export: str) -> tuple[list[Written], list[Left]]:
    import torch

    from tunefarm.inductor.gemms import write_gemms
    from tunefarm.inductor.harvest import read_kernels
    from tunefarm.inductor.standin import standing_in
    from tunefarm.inductor.writing import write

    with standing_in(where):
        kernels, others = read_kernels(found.generated)
    written = []
    for kernel, launches in kernels:
        path = write(
            kernel, out, arch=where.arch, torch=torch.__version__, export=export, launches=launches, by="capture"
        )
        written.append(Written(experiment=str(path), about=f"{kernel.heuristic} of Inductor's", calls=launches))
    products = write_gemms(found.products, out, archs=[where.arch], export=export)
    for path in products.experiments:
        number = sum(calls for gemm, calls in found.products.items() if gemm.op == path.stem)
        written.append(Written(experiment=str(path), about="matrix products", calls=number))
    left = [Left(what=name, reason=reason, calls=number) for (name, reason), number in others.items()]
    left += [Left(what="products", reason=reason, calls=number) for reason, number in products.left_out.items()]
    return written, left


def _write_kernel(
    kernel: Kernel, calls: Calls, out: Path, arch: str, export: str, taken: Collection[str]
) -> tuple[Written, list[Left]]:
    """The experiment of a kernel of the host's.

    Raises:
        SpecError: none can be drafted.
    """
    if kernel.module == "__main__" and not _is_guarded(kernel.file):
        raise SpecError(
            "it is defined in the script that was run, and importing that would run it again", file=kernel.file,
            hint="move it into a module, or what the script does below `if __name__ == \"__main__\":`",
        )  # fmt: skip
    made = draft(kernel.target, out, arch=arch, export=export, seen=scalars_of(calls), taken=taken)
    path = out / f"{made.name}.yaml"
    about = f"{kernel.name} of {os.path.relpath(kernel.file)}"
    problems, left = _problems(path, made, kernel, calls)
    if problems:
        text = made.with_problems(problems, "what the job ran, weighted with its calls")
    else:
        seen = "".join(f"#   {each.what}, {each.calls} times\n" for each in left)
        text = f"{made.text}# What the job ran; `tunefarm capture` could not say it by the variables above:\n{seen}"
    write_atomic(path, text.encode())
    todo = sum(f"# {FILL_IN}: " in line for line in text.splitlines())
    number = sum(calls.values()) - sum(each.calls for each in left if problems)
    return Written(experiment=str(path), about=about, calls=number, open_lines=todo), left if problems else []


def _is_guarded(file: str) -> bool:
    """Whether a script does what it does below `if __name__ == "__main__":`."""
    try:
        body = ast.parse(Path(file).read_text("utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in body)


def _problems(path: Path, made: Draft, kernel: Kernel, calls: Calls) -> tuple[list[dict[str, Value]], list[Left]]:
    """What was called by the draft's variables, and what cannot be said by them."""
    from tunefarm.cli.opening import open_experiment

    try:
        resolved = open_experiment(path, made.text)
    except UserError as e:
        told = calls_of(calls, kernel.name, key=None, constexprs=(), tuned=frozenset())
        return [], [Left(what=_said(missed), reason=str(e), calls=missed.launches) for missed in told]
    signature = resolved.workload.signature
    names = {*resolved.space.domain, *(resolved.workload.default.params if resolved.workload.default else ())}
    asked = calls_of(
        calls, kernel.name, key=resolved.workload.key, constexprs=signature.constexprs,
        tuned=frozenset({*names, *signature.computed}),
    )  # fmt: skip
    weights: Counter[FrozenMap[Value]] = Counter()
    left, solver = [], Solver(resolved)
    for missed in asked:
        answer = solver.solve(missed)
        if isinstance(answer, Found):
            weights[answer.variables] += missed.launches
        else:
            left.append(Left(what=_said(missed), reason=answer, calls=missed.launches))
    return [{**variables, "weight": weight} for variables, weight in weights.most_common()], left


def _said(missed: Missed) -> str:
    if missed.problem is None:
        return f"{missed.kernel}, other calls"
    shapes = " ".join(f"{name}={list(shape)}" for name, shape in missed.shapes.items())
    return f"{missed.kernel}: {missed.problem.key}; shapes {shapes}"
