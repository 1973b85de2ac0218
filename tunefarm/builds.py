"""The build board: what a sweep has compiled, is compiling, or finds in the store; shared by its studies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tunefarm.bench.build import Artifact, build_key
from tunefarm.bench.launch import Launch, learn
from tunefarm.bench.store import BuildStore
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.worker import BuildRequest, Built
from tunefarm.config import Config, Value
from tunefarm.frozen import FrozenMap
from tunefarm.plan import PlannedStudy
from tunefarm.source import source_hash
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Build, Failure, Outcome


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
    """Every build of a sweep, once.

    Args:
        resolved: whose workload is built.
        store: builds of earlier sweeps; what is built now is kept there.
    """

    def __init__(self, resolved: Resolved, store: BuildStore) -> None:
        self._resolved, self._store = resolved, store
        self._source = source_hash(resolved.workload.kernel)
        self._slots: dict[tuple[FrozenMap[Value], int, Config], Slot] = {}
        self._known: dict[str, tuple[Build, Artifact] | tuple[Outcome, Failure]] = {}
        self.num_compiled = 0
        self.build_s = 0.0
        self.num_from_store = 0

    def slot(self, planned: PlannedStudy, config: Config) -> Slot:
        """Where a study's config stands, learned by following the production call once more."""
        study = planned.study
        place = (study.variables, study.device.target, config)
        if place not in self._slots:
            workload = self._resolved.workload
            launch: Launch = learn(
                workload, make_inputs(workload, study.variables, "meta"), config, study.device.target
            )
            self._slots[place] = Slot(
                key=build_key(self._source, launch, study.device.target),
                grid=launch.grid,
                request=BuildRequest(
                    ref=self._resolved.experiment.ref, variables=study.variables, configs=(config,),
                    target=study.device.target,
                ),
            )  # fmt: skip
        return self._slots[place]

    def find(self, slot: Slot, config: Config) -> Built | None:
        """What is known of a slot, from this sweep or the store; None if it must be compiled."""
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

    def put(self, key: str, built: Built) -> None:
        """Keeps what a build worker made, or how it failed."""
        if built.build is not None and built.artifact is not None:
            self._known[key] = built.build, built.artifact
            self.build_s += built.build.build_s
            self._store.put(key, built.build, built.artifact)
        else:
            assert built.failure is not None
            self._known[key] = built.outcome, built.failure
        self.num_compiled += 1
