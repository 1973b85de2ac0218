"""Audit: whether the rows of a pack fit the kernels as they are now. On CPUs, for GPUs that are not here.

A row says which config answers which calls, not how its kernel is launched: grid, further arguments and constexprs come
from production code. So an audit follows the calls of experiments, and compiles a row for the problem at which it was
measured, which it finds among the experiment's problems by what the kernel is given there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefarm.bench.launch import learn
from tunefarm.bench.legality import illegal, unsupported
from tunefarm.bench.store import BuildStore
from tunefarm.bench.tensors import make_inputs
from tunefarm.builds import BuildBoard
from tunefarm.config import LAUNCH_OPTIONS, LIBRARY, Config
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch
from tunefarm.errands import Errands
from tunefarm.errors import SpecError
from tunefarm.export import is_of
from tunefarm.pack import Row, Table
from tunefarm.plan import Call, empty_reason, located
from tunefarm.spec.experiment import Resolved
from tunefarm.spec.workload import Workload
from tunefarm.trial import Build, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an audit says of a row, or of a table none of whose rows was looked at.

    Attributes:
        table: where the row stands.
        row: the row; None for the whole table.
        build: what its config compiles to; None if it does not, or was not compiled.
        reason: why it does not fit; empty if it does.
    """

    table: Table
    row: Row | None = None
    build: Build | None = None
    reason: str = ""

    @property
    def label(self) -> str:
        """Table and row, for people."""
        place = f"{self.table.kernel} on {self.table.device.name}"
        return place if self.row is None else f"{place}, {self.row.match.label}: {self.row.config}"


def audit(
    tables: Sequence[Table], experiments: Sequence[Resolved], dispatch: Dispatch, store: BuildStore
) -> list[Finding]:
    """Compares tables with the kernels that experiments launch, and compiles each row for its device.

    Args:
        tables: of a pack.
        experiments: whose calls launch the kernels; of several that launch one, the first that has a row's problem
            compiles it.
        dispatch: who builds.
        store: builds of earlier sweeps and audits; what is built now is kept there.

    Returns:
        A finding for each row, in order; one for a table whose kernel is missing or has changed.

    Raises:
        UserError: a call cannot be followed with the config used without tuning.
        InfrastructureError: no worker could build.
    """
    errands = [
        Errands(resolved=r, dispatch=dispatch, board=BuildBoard(r, store), advance=lambda *_: None) for r in experiments
    ]
    found = [finding for table in tables for finding in _looked_up(table, errands)]
    for errand in errands:
        errand.build((pending.call, pending.row.config) for pending in found
                     if isinstance(pending, _Pending) and pending.errands is errand)  # fmt: skip
    return [finding.compiled() if isinstance(finding, _Pending) else finding for finding in found]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pending:
    """A row that is to be compiled, by whom and for which call."""

    table: Table
    row: Row
    call: Call
    errands: Errands

    def compiled(self) -> Finding:
        built = self.errands.built(self.call, self.row.config)
        reason = "" if built.failure is None else describe(built.failure)
        return Finding(table=self.table, row=self.row, build=built.build, reason=reason)


def _looked_up(table: Table, errands: Sequence[Errands]) -> Iterator[Finding | _Pending]:
    """The rows of a table that can be compiled, and findings about what cannot."""
    known = [(e, *e.resolved.workload.packed_as) for e in errands]
    named = [e for e, name, _, layer in known if (name, layer) == (table.kernel, table.layer)]
    hashes = [source for _, name, source, layer in known if (name, layer) == (table.kernel, table.layer)]
    if not named:
        others = sorted({name for _, name, *_ in known})
        yield Finding(table=table, reason=f"no experiment given launches this kernel; they launch {', '.join(others)}")
    elif table.source_hash not in hashes:
        # Of several experiments with one source the first is named.
        sources = {
            source: e.resolved.experiment.path for source, e in zip(reversed(hashes), reversed(named), strict=True)
        }
        here = ", ".join(f"{source[:12]} ({path})" for source, path in sources.items())
        yield Finding(
            table=table,
            reason=f"the kernel's source has changed: tuned {table.source_hash[:12]}, here is {here}; sweep it again",
        )
    elif table.device.vendor != "nvidia" or not table.device.target:
        yield Finding(table=table, reason=f"builds are made for NVIDIA's archs only, not for {table.device.arch}")
    else:
        same = [e for e, source in zip(named, hashes, strict=True) if source == table.source_hash]
        calls = [(call, e) for e in same for call in _calls(e.resolved, table.device)]
        yield from (_row(table, row, calls) for row in table.rows)


def _row(table: Table, row: Row, calls: Sequence[tuple[Call, Errands]]) -> Finding | _Pending:
    for call, errands in calls:
        if not is_of(row, call.problem):
            continue
        dtypes = tuple(call.problem.dtypes.values())
        if reason := unsupported(table.device, dtypes):
            return Finding(table=table, row=row, reason=reason)
        workload = errands.resolved.workload
        if names := _of_the_call(row, workload):
            return Finding(table=table, row=row, reason=f"names {', '.join(names)}, which is for the caller to say")
        if row.config != LIBRARY and (failure := illegal(row.config, workload, table.device, dtypes)):
            return Finding(table=table, row=row, reason=describe(failure))
        return _Pending(table=table, row=row, call=call, errands=errands)
    files = ", ".join(dict.fromkeys(str(errands.resolved.experiment.path) for _, errands in calls))
    point = " ".join(f"{name}={value}" for name, value in row.measured_at.items())
    return Finding(
        table=table, row=row,
        reason=f"not compiled: no problem of {files or 'the experiments'} is the one it was measured at ({point}); "
               "add that problem, or sweep again without this row",
    )  # fmt: skip


def _of_the_call(row: Row, workload: Workload) -> list[str]:
    """Arguments that a config names though no config of the workload may; a job would not use such a row."""
    theirs = {*LAUNCH_OPTIONS, *workload.signature.constexprs, *(workload.default or Config()).flat}
    return sorted(row.config.flat.keys() & {*workload.signature.arguments} - theirs)


def _calls(resolved: Resolved, device: Device) -> Iterator[Call]:
    """The experiment's calls on a device, as the kernel sees them; those without elements launch nothing."""
    workload = resolved.workload
    for spec in resolved.experiment.problems:
        try:
            if empty_reason(workload, spec.variables):
                continue
            launch = learn(workload, make_inputs(workload, spec.variables, "meta"), workload.default, device.target)
        except SpecError as e:
            raise located(e, resolved.experiment) from None
        problem = launch.problem(workload.key)
        yield Call(ref=resolved.experiment.ref, device=device, variables=spec.variables, problem=problem)
