"""Recording: a whole space measured on one device, into a landscape."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from tunefarm.bench.meter import Answer, Answers
from tunefarm.config import Config
from tunefarm.errands import Errands
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.plan import PlannedStudy
from tunefarm.source import source_hash
from tunefarm.trial import Outcome
from tunefarm.wants import lost_answer, question

NUM_SAMPLES = 20
BATCH = 16
RUNG = 0


def record(errands: Errands, planned: Sequence[PlannedStudy], num_samples: int = NUM_SAMPLES) -> Landscape:
    """Compiles and measures every candidate of every study.

    Args:
        errands: who works.
        planned: studies on one live device.
        num_samples: of each config.

    Returns:
        The landscape. Configs are measured in a random order, so that drift does not look like a property of the
        space; failures are recorded as what they are.

    Raises:
        UserError: the workload cannot serve a problem.
        InfrastructureError: no worker could do what must be done.
    """
    errands.build((study.call, config) for study in planned for config in study.entrants)
    workload = errands.resolved.workload
    toolchain: FrozenMap[str] = FrozenMap()
    problems = []
    notices: dict[str, None] = {}
    for study in planned:
        if study.skipped:
            continue
        answers, results = _measure_all(errands, study, num_samples)
        toolchain = results[-1].toolchain if results else toolchain
        notices.update(dict.fromkeys(notice for result in results for notice in result.notices))
        problems.append(
            Recorded(
                problem=study.study.problem,
                entries=tuple(
                    _entry(errands, study, config, answers.get(n)) for n, config in enumerate(study.entrants)
                ),
                reference_ms=next((r.reference_ms for r in results if r.reference_ms is not None), None),
                num_bytes=study.num_bytes,
                flops=study.flops,
                variables=study.study.variables,
            )
        )
    return Landscape(
        kernel=workload.signature.kernel,
        source_hash=source_hash(workload.kernel),
        device=planned[0].study.device,
        toolchain=toolchain,
        timer=errands.resolved.experiment.timer,
        date=datetime.date.today().isoformat(),
        problems=tuple(problems),
        notices=tuple(notices),
    )


def _measure_all(errands: Errands, study: PlannedStudy, num_samples: int) -> tuple[dict[int, Answer], list[Answers]]:
    """Answers by candidate, and what the measuring processes said of themselves."""
    experiment, call = errands.resolved.experiment, study.call
    ready = [n for n, config in enumerate(study.entrants) if errands.built(call, config).outcome is Outcome.OK]
    random.Random(experiment.search.seed).shuffle(ready)
    batches = [ready[start : start + BATCH] for start in range(0, len(ready), BATCH)]
    answers: dict[int, Answer] = {}
    results: list[Answers] = []
    while batches:
        questions = [
            question(
                experiment, call, (errands.candidate(call, n, study.entrants[n]) for n in numbers), rung=RUNG,
                num_samples=num_samples, baseline=errands.baseline(study),
            )
            for numbers in batches
        ]  # fmt: skip
        batches = []
        for asked, result in errands.ask(questions):
            numbers = [candidate.number for candidate in asked.candidates]
            if not isinstance(result, str):
                results.append(result)
                answers |= {answer.number: answer for answer in result.answers}
            elif len(numbers) == 1:
                answers[numbers[0]] = lost_answer(numbers[0], result)
            # What a lost or poisoned process left unanswered is tried one by one.
            batches += [[number] for number in numbers if number not in answers]
            errands.advance("measured", sum(number in answers for number in numbers))
    return answers, results


def _entry(errands: Errands, study: PlannedStudy, config: Config, answer: Answer | None) -> Entry:
    built = errands.built(study.call, config)
    if answer is None:
        return Entry(config=config, outcome=built.outcome, failure=built.failure, build=built.build)
    measurement = answer.measurement
    return Entry(
        config=config,
        outcome=answer.outcome,
        failure=answer.failure,
        build=built.build,
        warmup_ms=measurement.warmup_ms if measurement else (),
        samples_ms=measurement.samples_ms if measurement else (),
    )
