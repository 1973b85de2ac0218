"""Missed: calls that a job made, and that no row of a pack answered, as problems of an experiment.

A report names a call by the kernel's arguments; an experiment names it by its own variables. What leads from one
to the other is the production call, so variables are found by trying: what the missed dims hold is put in for each, the
call is followed, and what the kernel is given there must be what was missed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.bench.launch import Launch, learn
from tunefarm.bench.tensors import make_inputs
from tunefarm.config import Value, counted
from tunefarm.device import nominal
from tunefarm.document import parse_json, read_text
from tunefarm.errors import DocumentError, SpecError
from tunefarm.frozen import FrozenMap
from tunefarm.plan import empty_reason
from tunefarm.problem import Problem
from tunefarm.runtime.reporting import FORMAT, VERSION
from tunefarm.spec.experiment import Resolved

MAX_TRIES = 3000
"""Assignments of variables that are tried for one missed call; each takes a millisecond or two."""

MARK = "# Calls that a job missed"
"""How an experiment made of them begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A call that was missed.

    Attributes:
        kernel: that was launched.
        problem: facts of the call, as far as rows name them; None for what came after too many others.
        launches: eager launches, of all processes.
        graphs: traces by torch.compile, of all processes.
        shapes: of its tensors, by argument, as far as they are known.
        given: likewise constexprs that the host passes.
        scalars: arguments that are no tensors.
        sizes: numbers that its variables may be, by where they were seen, besides its dims.
    """

    kernel: str
    problem: Problem | None
    launches: int = 0
    graphs: int = 0
    shapes: FrozenMap[tuple[int, ...]] = field(default_factory=FrozenMap)
    given: FrozenMap[Value] = field(default_factory=FrozenMap)
    scalars: frozenset[str] = frozenset()
    sizes: FrozenMap[Value] = field(default_factory=FrozenMap)

    @property
    def weight(self) -> int:
        """How often it was missed."""
        return self.launches + self.graphs

    @property
    def label(self) -> str:
        """For people."""
        call = self.problem.key if self.problem is not None else "other calls"
        return f"{self.kernel}: {call} ({self.weight}x)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A missed call by an experiment's own names.

    Attributes:
        missed: the call.
        variables: of the problem that is the call.
        problem: what the kernel is given there.
        assumed: variables of which the report says nothing; they are as in a problem of the experiment.
    """

    missed: Missed
    variables: FrozenMap[Value]
    problem: Problem
    assumed: tuple[str, ...] = ()


def read_misses(folder: Path) -> tuple[list[Missed], int]:
    """What the processes of a job missed, most often first, and how many reports there are.

    Raises:
        DocumentError: there is no report, or one cannot be read.
    """
    sums: dict[tuple[str, Problem | None], list[int]] = {}
    files = sorted(folder.glob("*.json"))
    for file in files:
        data = parse_json(read_text(file), where=str(file))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DocumentError("is no report of packs", file=str(file), hint="name the folder of TUNEFARM_REPORT")
        if data.get("version") != VERSION:
            raise DocumentError(
                f"is a report of version {data.get('version')}, this release reads {VERSION}", file=str(file),
                hint="read it with the release that wrote it",
            )  # fmt: skip
        try:
            for miss in data["misses"]:
                problem = None if miss["problem"] is None else Problem.from_json(miss["problem"])
                tally = sums.setdefault((str(miss["kernel"]), problem), [0, 0])
                for place, word in enumerate(("launches", "graphs")):
                    if type(miss[word]) is not int or miss[word] < 0:
                        raise ValueError(f"{word} is {miss[word]!r}")
                    tally[place] += miss[word]
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise DocumentError(f"is damaged: {e!r}", file=str(file), hint="leave it out") from None
    if files and not any(map(sum, sums.values())):
        told = counted(len(files), "report")
        raise DocumentError(f"tells of no missed call in {told}", file=str(folder), hint="there is nothing to sweep")
    if not files:
        raise DocumentError("holds no reports", file=str(folder), hint="run the job with TUNEFARM_REPORT set to it")
    missed = [Missed(kernel=k, problem=p, launches=n, graphs=m) for (k, p), (n, m) in sums.items() if n + m]
    return sorted(missed, key=lambda miss: (-miss.weight, miss.label)), len(files)


def differs(problem: Problem, missed: Problem) -> str:
    """In what a problem is not a call that was missed; empty if it is. What the report does not name is no matter."""
    for word, mine, theirs in (("dims", problem.dims, missed.dims), ("dtypes", problem.dtypes, missed.dtypes)):
        for name, value in theirs.items():
            if mine.get(name) != value:
                return f"{word}: {name} is {mine.get(name)}, and {value} was missed"
    # What the compiler knows of a number follows from the number.
    named = {*missed.dtypes} | {n for n, fact in missed.facts.items() if fact == "none"}
    for name in sorted(named):
        if problem.facts.get(name) != missed.facts.get(name):
            told = [facts.get(name, "nothing") for facts in (problem.facts, missed.facts)]
            return f"facts: of {name} the compiler knows {told[0]}, and {told[1]} where it was missed"
    return ""


@dataclass(slots=True)
class Solver:
    """Finds an experiment's variables for calls of its kernel.

    Attributes:
        resolved: the experiment.
    """

    resolved: Resolved
    _sources: tuple[str, ...] = ()

    def solve(self, missed: Missed) -> Found | str:
        """The missed call by the experiment's names, or why it cannot be said by them."""
        if missed.problem is None:
            return "the report does not say which calls they were"
        if not missed.problem.dims and not missed.problem.dtypes:
            return "the report names no dims: torch.compile traces with symbols, or no table was there to ask for any"
        nearest = ""
        for num_tried, (variables, sources) in enumerate(self._assignments(missed)):
            if num_tried == MAX_TRIES:
                nearest += f"; gave up after {MAX_TRIES} assignments"
                break
            launch = self._learn(variables)
            if isinstance(launch, str):
                nearest = nearest or launch
                continue
            problem = launch.problem(self.resolved.workload.key)
            reason = differs(problem, missed.problem) or _differs_besides(launch, missed)
            if not reason:
                self._sources = sources
                assumed = tuple(n for n, source in zip(variables, sources, strict=True) if not source)
                return Found(missed=missed, variables=variables, problem=problem, assumed=assumed)
            nearest = nearest or reason
        return f"no values of {', '.join(self.resolved.experiment.problems[0].variables)} give this call: {nearest}"

    def _assignments(self, missed: Missed) -> Iterator[tuple[FrozenMap[Value], tuple[str, ...]]]:
        """Variables to try, likeliest first, each with the dim that its value is of (empty: the experiment's own)."""
        seen: set[FrozenMap[Value]] = set()
        for template in dict.fromkeys(spec.variables for spec in self.resolved.experiment.problems):
            axes = [self._axis(i, name, value, missed) for i, (name, value) in enumerate(template.items())]
            ranks: Iterator[tuple[int, ...]] = itertools.product(*(range(len(axis)) for axis in axes))
            if math.prod(map(len, axes)) <= 4 * MAX_TRIES:
                ranks = iter(sorted(ranks, key=sum))
            for rank in ranks:
                chosen = [axis[place] for axis, place in zip(axes, rank, strict=True)]
                variables = FrozenMap(zip(template, (value for _, value in chosen), strict=True))
                if variables not in seen:
                    seen.add(variables)
                    yield variables, tuple(source for source, _ in chosen)

    def _axis(self, index: int, name: str, value: Value, missed: Missed) -> Sequence[tuple[str, Value]]:
        """(dim, value) to try for one variable: of its own name, as it was solved last, its own value, the rest."""
        problem = missed.problem or Problem()
        if name == "dtype":
            return [(name, dtype) for dtype in dict.fromkeys([*problem.dtypes.values(), value])]
        known = {**missed.sizes, **missed.given, **problem.dims}
        if name in known:
            return [(name, known[name])]
        offers = {source: v for source, v in known.items() if type(v) is type(value)}
        if missed.sizes:  # All that it may be: one number is tried once, under the first name it was seen by.
            offers = {source: v for v, source in {v: source for source, v in reversed(offers.items())}.items()}
        last = self._sources[index] if self._sources else ""
        first = [(last, offers.pop(last))] if last in offers else []
        return [*first, ("", value), *offers.items()]

    def _learn(self, variables: FrozenMap[Value]) -> Launch | str:
        workload = self.resolved.workload
        target = nominal(self.resolved.experiment.devices[0].arch).target
        try:
            if empty := empty_reason(workload, variables):
                return empty
            return learn(workload, make_inputs(workload, variables, "meta"), workload.default, target)
        except SpecError as e:
            return str(e.args[0])


def _differs_besides(launch: Launch, missed: Missed) -> str:
    """In what else a launch is not the call, as far as that is known of it."""
    for name, shape in missed.shapes.items():
        mine = tuple(getattr(launch.arguments.get(name), "shape", ()))
        if mine != shape:
            return f"{name} has the shape {mine}, and {shape} in the job"
    for name in missed.scalars:
        if hasattr(launch.arguments.get(name), "shape"):
            return f"{name} is a tensor, and none in the job"
    for name, value in missed.given.items():
        if launch.arguments.get(name) != value:
            return f"{name} is {launch.arguments.get(name)}, and {value} in the job"
    return ""


def rewrite(
    document: Mapping[str, Any], found: Sequence[Found], *, source: Path, folder: Path, keep_landscapes: bool
) -> str:
    """The text of an experiment that is another one with these problems.

    Args:
        document: the other, as it is written.
        found: its problems; those that are one call to the kernel become one.
        source: folder of the other.
        folder: where the new one will lie.
        keep_landscapes: leave them in `devices`.
    """
    weights: dict[str, int] = {}
    for each in found:
        weights[each.problem.key] = weights.get(each.problem.key, 0) + each.missed.weight
    by_key = {each.problem.key: each for each in reversed(found)}
    problems = [{**dict(by_key[key].variables), "weight": weight} for key, weight in weights.items()]

    def moved(path: str) -> str:
        return Path(os.path.relpath(source / path, folder)).as_posix()

    def reference(value: Any) -> Any:
        if isinstance(value, dict):
            parts = ("call", "kernel", "reference")
            return {k: reference(v) if k in parts else v for k, v in value.items()}
        file, colon, name = str(value).rpartition(":")
        return f"{moved(file)}{colon}{name}" if file.endswith(".py") or "/" in file else value

    def device(value: Any) -> Any:
        if not isinstance(value, dict) or "landscape" not in value:
            return value
        rest = {k: v for k, v in value.items() if k != "landscape"}
        return {**rest, "landscape": moved(value["landscape"])} if keep_landscapes else rest

    changed = {**document, "name": f"{document['name']}-misses", "workload": reference(document["workload"])}
    changed["devices"] = [device(entry) for entry in document["devices"]]
    if known := document.get("search", {}).get("learn_from"):
        changed["search"] = {**document["search"], "learn_from": [moved(path) for path in known]}
    return _dump(changed, problems)


def _dump(document: Mapping[str, Any], problems: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{MARK}, each weighted with how often; from the experiment {document['name'][:-7]}."]
    for key, value in document.items():
        if key == "problems":
            lines += ["problems:", *(f"  - {json.dumps(problem)}" for problem in problems)]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"
