"""Stocking: a store filled with what a sweep will need, so that no GPU is held while CPUs compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tunefarm.builds import BuildBoard, Slot
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch
from tunefarm.frozen import FrozenMap
from tunefarm.plan import PlannedStudy
from tunefarm.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What is in the store for an experiment.

    Attributes:
        num_candidates: of all studies.
        num_builds: distinct ones that they and the checks of their finalists may need.
        num_compiled: of those, compiled now; the others were in the store.
        failures: candidates that cannot be built for their device or cannot run on it, by outcome and kind. A failed
            build is not kept in the store: whoever needs it tries again.
    """

    num_candidates: int
    num_builds: int
    num_compiled: int
    failures: FrozenMap[int] = field(default_factory=FrozenMap)


def fill(
    studies: Sequence[PlannedStudy],
    board: BuildBoard,
    dispatch: Dispatch,
    *,
    checks: bool = True,
    moved: Callable[[int, int], None] = lambda done, all_: None,
) -> Stock:
    """Compiles whatever the studies may need and the store has not.

    Args:
        studies: of one experiment.
        board: what is built, over the store.
        dispatch: who compiles.
        checks: also what the checks of finalists launch: any candidate may become one.
        moved: told after each build how many of how many are done.

    Raises:
        UserError: the workload cannot be followed or built on a worker.
        InfrastructureError: no worker could do it.
    """
    wanted = list(_wanted(studies, board, checks=checks))
    slots = {slot.key: (slot, config) for _, config, slot in wanted}
    missing = {key for key, (slot, config) in slots.items() if board.find(slot, config) is None}
    dispatch.submit(board.job(slots[key][0]) for key in slots if key in missing)
    num_done = 0
    while num_done < len(missing):
        for done in dispatch.wait():
            if done.error is not None:
                raise done.error
            board.take(done)
            num_done += 1
            moved(num_done, len(missing))
    failures: Counter[str] = Counter()
    for device, config, slot in wanted[: sum(len(study.candidates) for study in studies)]:
        built = board.find(slot, config)
        assert built is not None
        judged = built.judged(device)
        if judged.outcome is not Outcome.OK:
            failures[f"{judged.outcome}: {judged.failure.kind if judged.failure else 'unexplained'}"] += 1
    return Stock(
        num_candidates=sum(len(study.candidates) for study in studies), num_builds=len(slots),
        num_compiled=len(missing), failures=FrozenMap(failures),
    )  # fmt: skip


def _wanted(
    studies: Sequence[PlannedStudy], board: BuildBoard, *, checks: bool
) -> Iterator[tuple[Device, Config, Slot]]:
    """Every candidate of every study first, then each again for every check."""
    for study in studies:
        for config in study.candidates:
            yield study.study.device, config, board.slot(study.call, config)
    for study in studies if checks else ():
        for call in study.checks:
            for config in study.candidates:
                yield study.study.device, config, board.slot(call, config)
