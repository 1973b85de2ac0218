"""The plan of the house, read from the source with `ast`: who stands above whom, and through which door guests come."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tunefarm"

# Every module, lowest first: a module imports only what stands above it in this list. Beside it, the guests
# (third-party packages) that it may import; with a star, at module level.
HOUSE = """
    errors
    will
    address                 sqlalchemy
    frozen
    config
    problem
    device
    trial
    study
    document
    source
    landscape
    seams
    pack
    pack_schema
    pack_diff
    export
    pack_merge

    spec
    spec.grammar
    spec.constraint
    spec.importing
    spec.space
    spec.inputs
    spec.autotuned
    spec.workload
    spec.sections
    spec.tree               yaml*
    spec.experiment
    spec.schema

    bench
    bench.legality
    bench.tensors           torch
    bench.launch            triton
    bench.cubin
    bench.build             triton
    bench.store
    bench.verify            torch
    bench.driver
    bench.telemetry         torch pynvml
    bench.meter
    bench.replay
    bench.faults            torch
    bench.loaded            torch triton
    bench.sampling          torch
    bench.steady            torch
    bench.gpu               torch
    bench.worker            triton
    bench.preload           torch triton

    search
    search.features         numpy*
    search.prior            numpy*
    search.surrogate        numpy*
    search.buckets          numpy*
    search.outlook          numpy*
    search.polish
    search.rungs
    search.pruner           optuna*
    search.hints            numpy* optuna* torch
    search.sampler          numpy* optuna*
    search.stopping
    search.decisions
    search.crown            numpy*
    search.transfer         numpy*
    search.storage          optuna* sqlalchemy
    search.mirror           optuna*
    search.search

    schedule
    schedule.events
    schedule.queue
    schedule.roster
    schedule.state
    schedule.machine

    fleet
    fleet.cpus
    fleet.parcel
    fleet.process
    fleet.relay
    fleet.post
    fleet.inline
    fleet.ray               ray

    record
    record.memo
    record.ledger
    record.card
    record.tracking         mlflow

    runtime
    runtime.lookup
    runtime.active
    runtime.kernels         torch triton
    runtime.tracing         torch
    runtime.which
    runtime.binding
    runtime.autotuner       triton
    runtime.activation

    interop
    interop.foreign
    interop.moe
    interop.autotune

    .

    plan                    torch
    dispatch
    turns
    builds
    pasts
    minutes
    wants
    tally
    finals
    contest
    unify
    errands
    sweep
    recording
    noise

    cli
    cli.folders
    cli.terminal            rich
    cli.opening             torch triton
    cli.doctor              typer* torch triton pynvml
    cli.aa                  typer* rich
    cli.pack_which          typer*
    cli.pack_diff           typer*
    cli.pack_merge          typer*
    cli.pack_interop        typer*
    cli.pack                typer* rich
    cli.plan                typer*
    cli.record              typer*
    cli.sweep               typer*
    cli.app                 typer*
    cli.__main__
"""
WINGS = ("spec", "bench", "search", "schedule", "fleet", "record", "runtime", "inductor", "interop", "profile")
# The story, listed after the wings: it knows them all.
EVERYONE = (*(line.split()[0] for line in HOUSE.split("\n    .\n")[1].splitlines() if line.strip()), ".")
OPEN = "spec"  # the wing that others may see
HEAVY = {
    "torch", "triton", "ray", "optuna", "mlflow", "rich", "pynvml", "pyarrow", "matplotlib", "sklearn", "kubernetes",
}  # fmt: skip
READS_ENVIRONMENT = ("cli", "runtime.__main__")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

DOORS = {
    name: guests.split() for name, _, guests in (row.strip().partition(" ") for row in HOUSE.split("\n") if row.strip())
}
ORDER = list(DOORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One name that a module imports.

    Attributes:
        target: full dotted name of the module.
        late: inside a function, or for the type checker only.
        line: where.
    """

    target: str
    late: bool
    line: int

    @property
    def guest(self) -> str:
        """The third-party package, or empty."""
        root = self.target.split(".")[0]
        return "" if root in sys.stdlib_module_names or root == "tunefarm" else root

    @property
    def ours(self) -> str:
        """The module of the house, as the table names it, or empty."""
        if self.target == "tunefarm":
            return "."
        return self.target.removeprefix("tunefarm.") if self.target.startswith("tunefarm.") else ""


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "."


@cache
def modules() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text("utf-8"), str(path)) for path in sorted(PACKAGE.rglob("*.py"))}


def wing(name: str) -> str:
    return name.split(".")[0] if name != "." else "."


@cache
def imports(name: str) -> tuple[Import, ...]:
    return tuple(dict.fromkeys(_imports(modules()[name], late=False)))


def _imports(node: ast.AST, *, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(target=alias.name, late=late, line=child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: a relative import"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                known = inner.removeprefix("tunefarm.") in modules() and inner.startswith("tunefarm.")
                yield Import(target=inner if known else str(child.module), late=late, line=child.lineno)
        else:
            checker = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, late=late or inside or checker)


@cache
def loads(name: str) -> frozenset[str]:
    """Heavy guests that importing a module brings along."""
    found = {i.guest for i in imports(name) if i.guest in HEAVY and not i.late}
    for i in imports(name):
        if i.ours and not i.late and i.ours != name and i.ours in modules():
            found |= loads(i.ours)
    return frozenset(found)


def faults(name: str, seen: Iterator[str]) -> None:
    found = list(seen)
    assert not found, f"tunefarm.{name}: " + "; ".join(found)


def test_every_module_has_its_place_in_the_table() -> None:
    here, listed = set(modules()), set(ORDER)
    assert len(ORDER) == len(listed)
    assert not here - listed, f"give these a place in HOUSE: {sorted(here - listed)}"
    assert not listed - here, f"in HOUSE, but gone: {sorted(listed - here)}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_down_only(name: str) -> None:
    rank = {module: place for place, module in enumerate(ORDER)}
    assert name in rank
    faults(
        name,
        (
            f"line {i.line}: {i.ours} does not stand below"
            for i in imports(name)
            if i.ours and rank.get(i.ours, len(rank)) >= rank[name]
        ),
    )


@pytest.mark.parametrize("name", sorted(modules()))
def test_wings_are_strangers(name: str) -> None:
    if wing(name) in EVERYONE:
        return
    allowed = {wing(name), OPEN} if wing(name) in WINGS else set()
    faults(
        name,
        (
            f"line {i.line}: {i.ours} is another wing's"
            for i in imports(name)
            if i.ours and wing(i.ours) in (*WINGS, *EVERYONE) and wing(i.ours) not in allowed
        ),
    )


def test_every_folder_is_a_wing() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders <= {*WINGS, "cli"}


@pytest.mark.parametrize("name", sorted(modules()))
def test_guests_come_through_their_doors(name: str) -> None:
    assert name in DOORS
    doors = {guest.rstrip("*"): guest.endswith("*") for guest in DOORS[name]}
    guests = [i for i in imports(name) if i.guest]
    faults(name, (f"line {i.line}: no door for {i.guest}" for i in guests if i.guest not in doors))
    early = (i for i in guests if not i.late and not doors[i.guest])
    faults(name, (f"line {i.line}: import {i.guest} inside the function that needs it" for i in early))
    unused = doors.keys() - {i.guest for i in guests}
    assert not unused, f"tunefarm.{name} has doors that nobody uses: {sorted(unused)}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_heavy_guests_are_not_brought_along(name: str) -> None:
    """A module that needs one as it loads is imported late by everyone outside its wing."""
    faults(
        name,
        (
            f"line {i.line}: {i.ours} loads {', '.join(sorted(loads(i.ours)))}: import it inside a function"
            for i in imports(name)
            if i.ours in modules() and not i.late and wing(i.ours) != wing(name) and loads(i.ours)
        ),
    )


def environment_reads(tree: ast.Module) -> Iterator[int]:
    written = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            written.add(id(node.value))
        if isinstance(node, ast.Attribute) and node.attr in ("update", "pop"):
            written.add(id(node.value))
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("environ", "environb", "getenv")
            and id(node) not in written
        ):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in ("environ", "environb", "getenv"))


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_environment_is_read_by_the_cli_only(name: str) -> None:
    if name.startswith(READS_ENVIRONMENT):
        return
    faults(name, (f"line {line}: reads the environment" for line in environment_reads(modules()[name])))


def test_environment_reads_are_told_from_writes() -> None:
    def lines(code: str) -> list[int]:
        return list(environment_reads(ast.parse(code)))

    for code in ("os.environ['A'] = '1'", "os.environ.update(A='1')", "del os.environ['A']"):
        assert lines(code) == [], code
    for code in (
        "os.environ['A']", "os.getenv('A')", "os.environ.get('A')", "from os import environ", "dict(os.environ)",
    ):  # fmt: skip
        assert lines(code) == [1], code


SOURCES = sorted(p for folder in ("tunefarm", "tests", "experiments") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_long(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES, "split the file where its story has a break"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def loaded_by(code: str) -> list[str]:
    script = (
        f"import json, sys; before = set(sys.modules); {code}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return [str(name) for name in json.loads(done.stdout)]


def test_importing_tunefarm_loads_the_standard_library_only() -> None:
    loaded = loaded_by("import tunefarm")
    others = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names - {"tunefarm"}
    assert not others
    wings = [name for name in loaded if name.startswith("tunefarm.") and wing(name.removeprefix("tunefarm.")) in WINGS]
    assert not wings, "a training job reads the words only, until it asks for more"


def test_the_tree_in_the_readme_names_every_folder() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    trees = [block for block in re.findall(r"```[a-z]*\n(.*?)```", readme, re.S) if "tunefarm/" in block]
    assert trees, "README shows no tree of the house"
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    missing = {folder for folder in folders if not any(re.search(rf"\b{folder}/", tree) for tree in trees)}
    assert not missing, f"README's tree lacks {sorted(missing)}"
