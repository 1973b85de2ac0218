"""The build board: what a sweep has compiled, is compiling, or finds in the store; shared by its studies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunefarm.bench.build import Artifact, build_key
from tunefarm.bench.launch import learn
from tunefarm.bench.store import BuildStore
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, Built, build
from tunefarm.config import LIBRARY, Config
from tunefarm.dispatch import Done
from tunefarm.errors import InfrastructureError, SpecError
from tunefarm.plan import Call
from tunefarm.schedule.events import OVERDUE, Job
from tunefarm.source import source_hash
from tunefarm.spec.experiment import Resolved
from tunefarm.spec.workload import Workload, WorkloadRef, load_workload
from tunefarm.trial import Build, Failure, Outcome

BUILD_S = 0.3
"""Expected seconds of one compilation, before the first is known."""

BUILD_TIMEOUT_S = 180.0
"""The longest a compilation may take."""

BUILD_FLOOR_S, HOPELESS = 30.0, 30.0
"""The least that one is waited for, and how many times as long as the slowest so far; on busy CPUs all are slow."""

START_S = 120.0
"""How much longer than its compilation a build job may take, with the start of its process."""


@dataclass(frozen=True, slots=True)
class BuildCall:
    """A build job, which knows what there is to know when a worker takes it: only then is it pickled."""

    board: BuildBoard
    request: BuildRequest

    def __call__(self) -> tuple[Built, ...]:
        """Does it here."""
        return build(dataclasses.replace(self.request, patience_s=self.board.patience_s))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (build, dataclasses.replace(self.request, patience_s=self.board.patience_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A config of a study on the board.

    Attributes:
        key: of its build; equal for studies that share the specialisation.
        grid: of its launch, which is the study's own.
        request: what to send to a build worker.
    """

    key: str
    grid: tuple[int, int, int]
    request: BuildRequest


class BuildBoard:
    """Every build of a sweep, or of several that go on side by side, once.

    Args:
        resolved: an experiment whose workload is built; others are loaded when something of theirs is.
        store: builds of earlier sweeps; what is built now is kept there.
    """

    def __init__(self, resolved: Resolved, store: BuildStore) -> None:
        self._store = store
        self._workloads: dict[WorkloadRef, tuple[Workload, str]] = {}
        if resolved.found is not None:
            self._meet(resolved.experiment.ref, resolved.found)
        self._slots: dict[tuple[Call, Config], Slot] = {}
        self._known: dict[str, tuple[Build, Artifact] | tuple[Outcome, Failure]] = {}
        self.num_compiled = 0
        self.build_s = 0.0
        self.num_from_store = 0
        self._slowest_s = 0.0
        self.notices: list[str] = []
        """What people should know: builds that could not be kept."""

    @property
    def patience_s(self) -> float:
        """How long a compilation may take, by what the others of this sweep took."""
        if not self._slowest_s:
            return BUILD_TIMEOUT_S
        return min(BUILD_TIMEOUT_S, max(BUILD_FLOOR_S, HOPELESS * self._slowest_s))

    def slot(self, call: Call, config: Config) -> Slot:
        """Where a config of a call stands, learned by following the production call once more."""
        place = (call, config)
        if place not in self._slots:
            key, grid = self._learn(call, config)
            request = BuildRequest(
                ref=call.ref, variables=call.variables, configs=(config,), target=call.device.target, keys=(key,)
            )
            self._slots[place] = Slot(key=key, grid=grid, request=request)
        return self._slots[place]

    def _meet(self, ref: WorkloadRef, workload: Workload) -> tuple[Workload, str]:
        return self._workloads.setdefault(ref, (workload, source_hash(workload.kernel)))

    def _learn(self, call: Call, config: Config) -> tuple[str, tuple[int, int, int]]:
        if config == LIBRARY:
            return "library", (1, 1, 1)
        workload, source = self._workloads.get(call.ref) or self._meet(call.ref, load_workload(call.ref))
        try:
            inputs = make_inputs(workload, call.variables, "meta")
            launch = learn(workload, inputs, config, call.device.target)
        except SpecError as e:
            # The plan has followed the call with the default config: what raises now is this config's own doing.
            key = f"refused {call.device.key} {call.problem.key} {call.changes} {config.key}"
            failure = Failure(stage="launch", kind="UserError", message=str(e.args[0])[:400], detail=e.hint)
            self._known[key] = Outcome.USER_ERROR, failure
            return key, (1, 1, 1)
        return build_key(source, launch, call.device.target), launch.grid

    def find(self, slot: Slot, config: Config) -> Built | None:
        """What is known of a slot, from this sweep or the store; None if it must be compiled."""
        if config == LIBRARY:
            return Built(config=config)
        if slot.key not in self._known:
            kept = self._store.get(slot.key)
            if kept is None:
                return None
            build, artifact = kept
            self._known[slot.key] = dataclasses.replace(build, build_s=0.0), artifact
            self.num_from_store += 1
        first, second = self._known[slot.key]
        if isinstance(first, Build) and isinstance(second, Artifact):
            return Built(config=config, build=dataclasses.replace(first, grid=slot.grid), artifact=second)
        assert isinstance(first, Outcome)
        assert isinstance(second, Failure)
        return Built(config=config, outcome=first, failure=second)

    def job(self, slot: Slot, *, priority: int = 0) -> tuple[Job, Callable[[], object]]:
        """The job that builds a slot, for the dispatch; its id is the same for slots that share a build."""
        # Whoever watches the process is the first to lose patience; the lease is for when nobody does.
        job = Job(
            id=f"build:{slot.key}", role="build", cost_s=BUILD_S, priority=priority,
            timeout_s=BUILD_TIMEOUT_S + START_S,
        )  # fmt: skip
        return job, BuildCall(self, slot.request)

    def take(self, done: Done) -> None:
        """Takes in a finished build job.

        Raises:
            InfrastructureError: it was given up through no fault of the candidate.
        """
        if done.given_up:
            raise InfrastructureError(f"a build was given up: {done.given_up}")
        key = done.job.removeprefix("build:")
        if done.condemned:
            timed_out = OVERDUE in done.condemned
            outcome = Outcome.COMPILE_TIMEOUT if timed_out else Outcome.CRASHED
            kind = "Timeout" if timed_out else "WorkerLost"
            failure = Failure(stage="build", kind=kind, message=done.condemned)
            self.put(key, Built(config=Config(), outcome=outcome, failure=failure))
        else:
            (built,) = done.value
            self.put(key, built)

    def put(self, key: str, built: Built) -> None:
        """Keeps what a build worker made, or how it failed."""
        if built.build is not None and built.artifact is not None:
            self._known[key] = built.build, built.artifact
            self.build_s += built.build.build_s
            self._slowest_s = max(self._slowest_s, built.build.build_s)
            self._keep(key, built.build, built.artifact)
        else:
            assert built.failure is not None
            self._known[key] = built.outcome, built.failure
        self.num_compiled += 1

    def _keep(self, key: str, build: Build, artifact: Artifact) -> None:
        """Keeps it for later sweeps; this one goes on without, as it has it in memory."""
        try:
            self._store.put(key, build, artifact)
        except OSError as e:
            notice = f"not all builds are kept in {self._store.folder}: {e.strerror or e}"
            if notice not in self.notices:
                self.notices.append(notice)
