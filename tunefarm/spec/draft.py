"""A first experiment for a kernel that is there: what can be read is read, what nobody can know is marked FILL IN."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tunefarm.config import Value, counted
from tunefarm.device import NOMINAL
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.source import python_function
from tunefarm.spec.autotuned import Autotuned, Signature, read_autotuned, signature_of
from tunefarm.spec.callers import Argument, Caller, find_callers
from tunefarm.spec.constraint import Expression
from tunefarm.spec.importing import UNFILLED, import_object
from tunefarm.spec.inputs import DTYPES, InputSpec, TensorSpec
from tunefarm.spec.sections import RESERVED
from tunefarm.spec.workload import Workload

FILL_IN = "FILL IN"
"""How a line begins its comment that somebody must look at."""

_GUESSED = "its shape; this is a guess"
_SIZES = {0: 4096, 1: 1 << 20, 2: 4096, 3: 256, 4: 64}
"""What a dim is taken to be, by the rank of the tensors that have it."""

_PLAIN = {"num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3)}
_BLOCKS = (64, 128, 256)
_WARPS, _STAGES = 32, 8
_WORDS = ("true", "false", "null", "on", "off", "yes", "no")
"""What readers of YAML may take for something else than text."""

_NOTHING: Mapping[str, str] = FrozenMap()

_REFERENCES = ("reference", "{}_reference", "{}_ref", "reference_{}", "ref_{}", "torch_{}", "{}_torch", "naive_{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What `tunefarm init` found out about a kernel.

    Attributes:
        name: of the experiment.
        kernel: its kernel.
        text: the experiment file.
        facts: what was found, by the word that people know it by.
    """

    name: str
    kernel: str
    text: str
    facts: FrozenMap[str] = field(default_factory=FrozenMap)

    @property
    def open_lines(self) -> tuple[tuple[int, str], ...]:
        """Lines that somebody must look at: their number, and what to do."""
        lines = enumerate(self.text.splitlines(), 1)
        return tuple((n, line.partition(f"# {FILL_IN}: ")[2]) for n, line in lines if f"# {FILL_IN}: " in line)

    def with_problems(self, problems: Sequence[Mapping[str, Value]], note: str) -> str:
        """Its text with these problems in place of those made up; they bear out what was guessed of shapes."""
        lines = self.text.replace(f"# {FILL_IN}: {_GUESSED}", "# a guess, which the problems bear out").splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("problems:"))
        lines[start : start + 2] = [f"problems: # {note}", *map(_problem_line, problems)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The kernel, where it was found, and how an experiment of a folder names what lies beside it."""

    kernel: Any
    path: str
    source: str
    module: Mapping[str, Any]
    text: str

    @property
    def signature(self) -> Signature:
        return signature_of(self.kernel)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.module.items() if self.is_it(value)) or (self.path,)

    @property
    def workload(self) -> str:
        """Name of a Workload of the kernel that is there already, or empty."""
        there = [(name, value) for name, value in self.module.items() if isinstance(value, Workload)]
        return next((name for name, value in there if self.is_it(value.kernel) and name[0] != "_"), "")

    def is_it(self, value: Any) -> bool:
        if value is self.kernel:
            return True
        try:
            return hasattr(value, "fn") and python_function(value) is python_function(self.kernel)
        except SpecError:
            return False


def draft(
    target: str, folder: Path, *, arch: str = "", export: str = "", seen: Mapping[str, str] = _NOTHING,
    taken: Collection[str] = (),
) -> Draft:  # fmt: skip
    """Drafts the experiment of a kernel.

    Args:
        target: `file.py:kernel`, relative to the current directory, or `package.module:kernel`.
        folder: where the experiment is going to lie.
        arch: of a GPU here, if there is one.
        export: the pack that its winners are to go to; default: packs/NAME.json.
        seen: `int`, `float`, `bool` or `str` by argument of the kernel, as far as a job was seen to pass such.
        taken: names of other experiments.

    Raises:
        SpecError: there is no such kernel, or none that an experiment could name.
    """
    found = _find(target, folder)
    signature, autotuned = found.signature, read_autotuned(found.kernel)
    callers = [
        replace(
            c,
            arguments=tuple(replace(a, scalar=seen.get(a.name, a.scalar)) if a.is_guessed else a for a in c.arguments),
        )
        for c in find_callers(found.text, found.names, signature)
    ]
    name = _free(signature.kernel.strip("_").removesuffix("_kernel") or "kernel", taken)
    facts = {"kernel": _described(signature, autotuned)}
    if own := found.workload:
        described: Workload = found.module[own]
        call = getattr(described.call, "__name__", "")
        space = _space(signature, autotuned, next((c.given for c in callers if c.name == call), None))
        name, variables = _free(described.name, taken), _variables_of(described)
        head = [f"workload: {found.source}:{own} # how the kernel is called, and what is right"]
        facts["workload"] = f"{own}, which is there already"
    else:
        space = _space(signature, autotuned, callers[0].given if callers else frozenset())
        head, variables = _workload_lines(found, name, callers, autotuned, space)
        facts["call"] = f"{callers[0].name}, which launches it" if callers else "no function found that launches it"
    facts["space"] = space.told
    here = arch if arch in NOMINAL else "sm_90"
    others = ", ".join(sorted(NOMINAL.keys() - {here}))
    lines = [
        f"# {signature.kernel} of {found.source}, drafted by `tunefarm init`; lines that say {FILL_IN} hold guesses.",
        f"name: {name}", *head, *_problem_lines(variables), *space.lines,
        f"devices: [{here}] # or {others}; {{arch: {here}, landscape: FILE}} replays a recording where there is no GPU",
        f"export: {_shown(export or f'packs/{name}.json')}",
    ]  # fmt: skip
    return Draft(name=name, kernel=signature.kernel, text="\n".join(lines) + "\n", facts=FrozenMap(facts))


def _free(name: str, taken: Collection[str]) -> str:
    return next(n for n in (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))) if n not in taken)


def _find(target: str, folder: Path) -> _Target:
    source, _, path = target.rpartition(":")
    is_file = source.endswith(".py") or "/" in source
    file = Path(os.path.abspath(source))
    if is_file:
        if not file.is_file():
            raise SpecError(f"{source} is not there", hint="write FILE.py:KERNEL, from where you stand")
        source = Path(os.path.relpath(file, os.path.abspath(folder))).as_posix()
    kernel = import_object(f"{file}:{path}" if is_file else target, str(folder))
    signature_of(kernel)
    if is_file:
        module = next(m for m in list(sys.modules.values()) if _file_of(m) == str(file.resolve()))
    else:
        module = sys.modules[source]
    text = Path(_file_of(module)).read_text("utf-8") if _file_of(module).endswith(".py") else ""
    return _Target(kernel=kernel, path=path, source=source, module=vars(module), text=text)


def _file_of(module: Any) -> str:
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _described(signature: Signature, autotuned: Autotuned | None) -> str:
    if autotuned is None:
        return f"{signature.kernel}, @triton.jit"
    key = f"key {', '.join(autotuned.key)}" if autotuned.key else "no key"
    return f"{signature.kernel}, {counted(len(autotuned.configs), 'declared config')}, {key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """What may be tuned.

    Attributes:
        values: by name; none where the declared configs themselves are the space.
        note: the comment on it.
        told: what it is, in words.
        open: constexprs that neither the launch nor a declared config gives.
    """

    note: str
    told: str
    values: Mapping[str, Sequence[Value]] = field(default_factory=FrozenMap)
    open: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """It as written."""
        if not self.values:
            return [f"# {self.note}"]
        own = {name: ", ".join(map(_shown, _ordered(values))) for name, values in self.values.items()}
        return [f"space: # {self.note}", *(f"  {name}: [{values}]" for name, values in own.items())]


# ---- workload and inputs ----


def _workload_lines(
    found: _Target, name: str, callers: Sequence[Caller], autotuned: Autotuned | None, space: _Space
) -> tuple[list[str], dict[str, Value]]:
    """The workload by its parts, its inputs, and values of the variables that these have."""
    caller = callers[0] if callers else None
    others = ", ".join(c.name for c in callers[1:4])
    # What MLflow and its registry know it by, too.
    own = [f"  name: {name}"] if name != found.signature.kernel else []
    note = f" # {others} {'launches' if len(callers) == 2 else 'launch'} it, too" if others else ""
    if caller is None:
        note = f" # {FILL_IN}: the function of production that launches the kernel"
    lines = ["workload:", *own, f"  call: {found.source}:{caller.name if caller else UNFILLED}{note}"]
    lines.append(f"  kernel: {found.source}:{found.path}")
    lines.append(_reference_line(found, caller))
    if autotuned is not None:
        words = {"key": autotuned.key, "restore": autotuned.restore, "zero": autotuned.zero}
        said = {"key": "key", "restore": "restore_value", "zero": "reset_to_zero"}
        lines += [
            f"  {word}: [{', '.join(names)}] # as @triton.autotune's {said[word]}"
            for word, names in words.items()
            if names
        ]
    if space.open:
        default = ", ".join(f"{name}: {_shown(_BLOCKS[1])}" for name in space.open)
        lines.append(f"  default: {{{default}}} # {FILL_IN}: what production uses")
    left = f"; not given: {', '.join(caller.left)}" if caller and caller.left else ""
    lines.append(f"inputs: # of the call, by name: a shape, {{shape, dtype, init, low, high}} or {{value}}{left}")
    if caller is None:
        return [*lines, f"  {UNFILLED}: [N] # {FILL_IN}: its arguments and their shapes"], {
            "N": _SIZES[1],
            "dtype": "bf16",
        }
    ranks: dict[str, int] = {}
    taken = frozenset({*space.values, *RESERVED, "dtype", "weight"})
    for argument in caller.arguments:
        lines.append(f"  {argument.name}: {_input(argument, taken, ranks)}")
    if not caller.arguments:
        lines[-1] = f"inputs: {{{UNFILLED}: [N]}} # {FILL_IN}: {caller.name} can be called without arguments; name some"
        ranks = {"N": 1}
    return lines, {**{name: _SIZES.get(rank, 16) for name, rank in ranks.items()}, "dtype": "bf16"}


def _input(argument: Argument, taken: frozenset[str], ranks: dict[str, int]) -> str:
    if argument.scalar == "int":
        name = _variable(argument.name, taken)
        ranks.setdefault(name, 0)
        return f"{{value: {name}}}" + (f" # {FILL_IN}: a number?" if argument.is_guessed else "")
    if argument.scalar:
        value = {"float": "1.0", "bool": "false", "str": "\"''\""}[argument.scalar]
        return f"{{value: {value}}} # {FILL_IN}: a {argument.scalar}"
    shape = [_variable(dim, taken) for dim in argument.shape]
    for dim in shape:
        ranks[dim] = max(ranks.get(dim, 0), len(shape))
    return f"[{', '.join(shape)}]" + (f" # {FILL_IN}: {_GUESSED}" if argument.is_guessed else "")


def _variable(name: str, taken: frozenset[str]) -> str:
    return f"{name}_size" if name in taken else name


def _reference_line(found: _Target, caller: Caller | None) -> str:
    said = "the same in PyTorch"
    if caller is not None:
        for name in [pattern.format(caller.name) for pattern in _REFERENCES]:
            if inspect.isfunction(found.module.get(name)):
                return f"  reference: {found.source}:{name} # {FILL_IN}: is it {said}?"
    return f"  # reference: {found.source}:FUNCTION # {FILL_IN}: {said}; without one no output is checked"


def _variables_of(workload: Workload) -> dict[str, Value]:
    """Variables that a workload's inputs have, with values."""
    if callable(workload.inputs):
        parameters = list(inspect.signature(workload.inputs).parameters.values())[2:]
        return {
            p.name: _SIZES[3]
            for p in parameters
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.default is p.empty
        } | {p.name: "bf16" for p in parameters if p.name == "dtype"}
    ranks: dict[str, int] = {}
    for spec in (workload.specs or {}).values():
        rank = len(spec.shape) if isinstance(spec, TensorSpec) else 0
        for name in _in_order(spec):
            ranks[name] = max(rank, ranks.get(name, 0))
        if isinstance(spec, TensorSpec) and spec.dtype not in DTYPES:
            ranks[spec.dtype or "dtype"] = -1
    return {
        name: "bf16" if rank < 0 else _SIZES.get(rank, 16) for name, rank in sorted(ranks.items(), key=_sizes_first)
    }


def _sizes_first(variable: tuple[str, int]) -> bool:
    return variable[1] < 0


def _in_order(spec: InputSpec) -> list[str]:
    sizes = spec.shape if isinstance(spec, TensorSpec) else (spec.value,)
    texts = [size.text for size in sizes if isinstance(size, Expression)]
    first = {name: at for at, text in enumerate(reversed(texts)) for name in Expression(text).names}
    return sorted(spec.names, key=lambda name: (-first.get(name, -1), name))


def _problem_lines(variables: Mapping[str, Value]) -> list[str]:
    return [
        f"problems: # {FILL_IN}: what your job runs, an entry each; lists expand to products",
        _problem_line(variables),
    ]


def _problem_line(variables: Mapping[str, Value]) -> str:
    return f"  - {{{', '.join(f'{name}: {_shown(value)}' for name, value in variables.items())}}}"


# ---- space ----


def _space(signature: Signature, autotuned: Autotuned | None, given: frozenset[str] | None) -> _Space:
    """The space of a kernel whose launch gives the arguments `given`; None if that is not known."""
    configs = autotuned.configs if autotuned is not None else ()
    if not any(config.flat for config in configs):
        return _plain_space(signature, given)
    number = counted(len(configs), "declared config")
    if len({frozenset(config.flat) for config in configs}) > 1:
        note = f"no space: the {number} are tried as they are, because they do not all name the same params"
        return _Space(note=note, told=f"the {number}, as they are")
    values = {name: tuple(dict.fromkeys(config.flat[name] for config in configs)) for name in configs[0].flat}
    note = f"values of the {number}, in all combinations; without `space`, these configs alone"
    if len(configs) == 1:
        values = {name: _around(name, value) for name, (value,) in values.items()}
        note = f"{FILL_IN}: what is worth trying; this is a step to either side of the one declared config"
    them = f"the {number}" if len(configs) > 1 else "the declared config"
    return _Space(values=values, note=note, told=f"{_size(values)}, {them} among them")


def _plain_space(signature: Signature, given: frozenset[str] | None) -> _Space:
    """Launch options, and constexprs that the launch leaves to a config."""
    open_ = tuple(name for name in signature.tunable if given is not None and name not in given)
    closed = [name for name in signature.tunable if name not in open_]
    values: dict[str, tuple[Value, ...]] = {**dict.fromkeys(open_, _BLOCKS), **_PLAIN}
    note = f"{FILL_IN}: what is worth trying" + (f"; {', '.join(closed)}: as the call passes it" if closed else "")
    return _Space(values=values, note=note, told=f"{_size(values)}, a small one to start with", open=open_)


def _size(values: Mapping[str, Sequence[Value]]) -> str:
    return counted(math.prod(len(own) for own in values.values()), "point")


def _ordered(values: Sequence[Value]) -> Sequence[Value]:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return sorted(numbers) if len(numbers) == len(values) else values


def _around(name: str, value: Value) -> tuple[Value, ...]:
    """A value, and those a step away that may be better."""
    if isinstance(value, bool):
        return (False, True)
    if not isinstance(value, int) or value < 1:
        return (value,)
    if name == "num_stages":
        return tuple(range(max(1, value - 1), min(_STAGES, value + 1) + 1))
    if value & (value - 1) or name == "num_ctas":
        return (value,)
    around = [value // 2, value, value * 2]
    return tuple(v for v in around if v >= 1 and (name != "num_warps" or v <= _WARPS))


def _shown(value: Value) -> str:
    """A scalar of YAML 1.2."""
    plain = isinstance(value, str) and value.isidentifier() and value.casefold() not in _WORDS
    return str(value) if plain else json.dumps(value)
