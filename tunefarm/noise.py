"""Noise: a config timed against itself, to show what a difference must exceed on a machine to mean anything."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefarm.bench.meter import Answers
from tunefarm.config import Config
from tunefarm.errands import Errands
from tunefarm.errors import UserError
from tunefarm.plan import PlannedStudy
from tunefarm.search.crown import CONFIDENCE, is_better, ratio_interval
from tunefarm.search.rungs import FINALS
from tunefarm.study import Study
from tunefarm.wants import question

PLANTED = 1.03
"""Factor by which the samples of one side are multiplied, to see whether such a slowdown is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two equal contestants of one sitting.

    Attributes:
        ratio: second median over first.
        interval: of the ratio, at the confidence at which better is claimed.
        claimed: one was called better than the other: falsely, for they are equal.
        found: with the second side's samples multiplied by `PLANTED`, the first was called better: rightly.
        median_ms: of both together.
    """

    ratio: float
    interval: tuple[float, float]
    claimed: bool
    found: bool
    median_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What one study's comparisons showed.

    Attributes:
        study: whose problem.
        config: what was compared with itself.
        comparisons: in the order taken.
        notices: what the meter wants known.
    """

    study: Study
    config: Config
    comparisons: tuple[Comparison, ...]
    notices: tuple[str, ...] = ()

    @property
    def num_claimed(self) -> int:
        """How often equal contestants were called different."""
        return sum(comparison.claimed for comparison in self.comparisons)

    @property
    def num_found(self) -> int:
        """How often the planted slowdown was found."""
        return sum(comparison.found for comparison in self.comparisons)

    @property
    def floor(self) -> float:
        """Half the typical interval of the ratio: a smaller difference is not told from none."""
        return statistics.median((high - low) / 2 for low, high in (c.interval for c in self.comparisons))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A study whose default config could not be compared with itself.

    Attributes:
        study: whose problem.
        error: why.
    """

    study: Study
    error: UserError


def measure_noise(errands: Errands, planned: Sequence[PlannedStudy], num: int) -> Iterator[Noise | Unmeasured]:
    """Compares the default config of each study with itself.

    As in finals, both are timed by turns in an order drawn anew each round and in every comparison, they write to the
    same memory, rounds are taken until the medians are known, and the process measures nothing but this.
    Unlike there, they are two, and only the study's own call is launched, none of the experiment's checks. The planted
    slowdown is arithmetic: the second side's samples, multiplied.

    Args:
        errands: who works.
        planned: studies on live devices; those that are skipped are left out.
        num: comparisons of each study.

    Raises:
        UserError: the workload cannot serve a problem at all.
        InfrastructureError: no worker could do what must be done.
    """
    studies = [study for study in planned if not study.skipped]
    errands.build((study.call, study.default) for study in studies if study.default is not None)
    for study in studies:
        try:
            yield _noise(errands, study, num)
        except UserError as e:
            yield Unmeasured(study=study.study, error=e)


def _noise(errands: Errands, study: PlannedStudy, num: int) -> Noise:
    config, call = study.default, study.call
    if config is None:
        raise UserError(f"{study.study.label} has no default config", hint="give the workload a default")
    if failure := errands.built(call, config).failure:
        raise UserError(f"the default config of {study.study.label} cannot be built: {failure.message}")
    seed = errands.resolved.experiment.search.seed
    twins = [errands.candidate(call, number, config) for number in range(2)]
    ask = question(
        errands.resolved.experiment, call, twins, rung=FINALS.number, num_samples=FINALS.num_samples,
        max_samples=FINALS.max_samples, precision=FINALS.precision, interleaved=True, fresh=True,
        baseline=errands.baseline(study),
    )  # fmt: skip
    comparisons = []
    notices: dict[str, None] = {}
    for number in range(num):
        # One at a time: what cannot be measured is not asked again, and leaves no job behind.
        ((_, result),) = errands.ask([dataclasses.replace(ask, order_seed=number)])
        comparisons.append(_compare(study, result, seed + number))
        assert not isinstance(result, str)
        notices.update(dict.fromkeys(result.notices))
        errands.advance("measured", 1)
    return Noise(study=study.study, config=config, comparisons=tuple(comparisons), notices=tuple(notices))


def _compare(study: PlannedStudy, result: Answers | str, seed: int) -> Comparison:
    answers = () if isinstance(result, str) else result.answers
    samples = [answer.measurement.samples_ms for answer in answers if answer.measurement is not None]
    if len(samples) != 2:
        reason = result if isinstance(result, str) else "; ".join(a.why.message for a in answers if a.failure)
        raise UserError(f"the default config of {study.study.label} cannot be measured: {reason}")
    first, second = samples
    slowed = [PLANTED * sample_ms for sample_ms in second]
    return Comparison(
        ratio=statistics.median(second) / statistics.median(first),
        interval=ratio_interval(second, first, CONFIDENCE, seed),
        claimed=is_better(first, second, seed=seed) or is_better(second, first, seed=seed),
        found=is_better(first, slowed, seed=seed),
        median_ms=statistics.median((*first, *second)),
    )
