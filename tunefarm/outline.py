"""The plan of an experiment as far as its file tells it: where the kernel cannot be imported, on a laptop say.

The space is the file's, less what its constraints and the limits of the device remove. Whatever the kernel says of
itself (its declared configs, its default, what it specialises on) is left out, so a study may have fewer candidates,
and one more: the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tunefarm.bench.legality import screen
from tunefarm.config import Value
from tunefarm.frozen import FrozenMap
from tunefarm.plan import Target, choose_targets
from tunefarm.spec.experiment import Experiment, check_expressions
from tunefarm.spec.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlinedStudy:
    """A study of which only the experiment's file is known.

    Attributes:
        variables: the experiment's names for its problem.
        target: on what, and how it would be measured.
        num_points: points of the space; 0 where the kernel's declared configs are the space.
        num_candidates: how many of them no rule removes.
        removed: how many each rule or constraint removed.
    """

    variables: FrozenMap[Value]
    target: Target
    num_points: int = 0
    num_candidates: int = 0
    removed: FrozenMap[int] = field(default_factory=FrozenMap)


def outline(experiment: Experiment) -> list[OutlinedStudy]:
    """The studies of an experiment, device by device; nothing is imported.

    Raises:
        SpecError: a name of a constraint is unknown, or the space is empty.
        LandscapeError: a landscape cannot be read.
    """
    space = SearchSpace(
        params=experiment.space, constraints=experiment.constraints, vars=experiment.vars, file=str(experiment.path)
    )
    if experiment.space:
        # The kernel's own names are unknown otherwise.
        check_expressions(experiment, space)
    return [
        _study(experiment, space, target, problem.variables)
        for target in choose_targets(experiment, [])
        for problem in experiment.problems
    ]


def _study(experiment: Experiment, space: SearchSpace, target: Target, variables: FrozenMap[Value]) -> OutlinedStudy:
    if not experiment.space:
        return OutlinedStudy(variables=variables, target=target)
    points = space.points(variables, target.device)
    candidates, broken = screen(points.configs, experiment.workload, target.device)
    return OutlinedStudy(
        variables=variables, target=target, num_points=points.total, num_candidates=len(candidates),
        removed=FrozenMap({**points.removed, **broken}),
    )  # fmt: skip
