"""Recording: a whole space measured on one device, into a landscape."""

from __future__ import annotations

import datetime
import functools
import random
from collections.abc import Callable, Iterable, Sequence

from tunefarm.bench.faults import CEILING_S
from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.worker import Built, measure
from tunefarm.builds import BuildBoard
from tunefarm.config import Config
from tunefarm.dispatch import MEASURE_TIMEOUT_S, Dispatch, Done
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Entry, Landscape, Recorded
from tunefarm.plan import PlannedStudy, located
from tunefarm.schedule.events import Job
from tunefarm.source import source_hash
from tunefarm.spec.experiment import Resolved
from tunefarm.trial import Outcome
from tunefarm.wants import lost_answer

NUM_SAMPLES = 20
BATCH = 16
RUNG = 0

Advance = Callable[[str, int], None]
"""Told of progress: what (`built` or `measured`), and how many more."""


def record(
    resolved: Resolved,
    planned: Sequence[PlannedStudy],
    dispatch: Dispatch,
    board: BuildBoard,
    advance: Advance,
    num_samples: int = NUM_SAMPLES,
) -> Landscape:
    """Compiles and measures every candidate of every study.

    Args:
        resolved: the experiment.
        planned: its studies on one live device.
        dispatch: who works.
        board: what is built.
        advance: told of progress.
        num_samples: of each config.

    Returns:
        The landscape. Configs are measured in a random order, so that drift does not look like a property of the
        space; failures are recorded as what they are.

    Raises:
        UserError: the workload cannot serve a problem.
        InfrastructureError: no worker could do what must be done.
    """
    _build_all(resolved, planned, dispatch, board, advance)
    toolchain: FrozenMap[str] = FrozenMap()
    problems = []
    notices: dict[str, None] = {}
    for study in planned:
        if study.skipped:
            continue
        answers, results = _measure_all(resolved, study, dispatch, board, advance, num_samples)
        toolchain = results[-1].toolchain if results else toolchain
        notices.update(dict.fromkeys(notice for result in results for notice in result.notices))
        problems.append(
            Recorded(
                problem=study.study.problem,
                entries=tuple(
                    _entry(study, board, config, answers.get(n)) for n, config in enumerate(study.candidates)
                ),
                reference_ms=next((r.reference_ms for r in results if r.reference_ms is not None), None),
                num_bytes=study.num_bytes,
                flops=study.flops,
            )
        )
    return Landscape(
        kernel=resolved.workload.signature.kernel,
        source_hash=source_hash(resolved.workload.kernel),
        device=planned[0].study.device,
        toolchain=toolchain,
        timer=resolved.experiment.timer,
        date=datetime.date.today().isoformat(),
        problems=tuple(problems),
        notices=tuple(notices),
    )


def _build_all(
    resolved: Resolved, planned: Sequence[PlannedStudy], dispatch: Dispatch, board: BuildBoard, advance: Advance
) -> None:
    jobs = {}
    for study in planned:
        for config in study.candidates:
            slot = board.slot(study.call, config)
            if board.find(slot, config) is None:
                job, call = board.job(slot)
                jobs[job.id] = job, call
    for done in _all(resolved, dispatch, jobs.values()):
        board.take(done)
        advance("built", 1)


def _all(resolved: Resolved, dispatch: Dispatch, jobs: Iterable[tuple[Job, Callable[[], object]]]) -> Iterable[Done]:
    taken = list(jobs)
    dispatch.submit(taken)
    left = len(taken)
    while left:
        done = dispatch.wait()
        if not done:
            raise InfrastructureError("recording waits for nothing", hint="please report this")
        for each in done:
            if each.error is not None:
                raise located(each.error, resolved.experiment)
            if each.given_up:
                raise InfrastructureError(f"recording gave up a job: {each.given_up}")
            left -= 1
            yield each


def _measure_all(
    resolved: Resolved,
    study: PlannedStudy,
    dispatch: Dispatch,
    board: BuildBoard,
    advance: Advance,
    num_samples: int,
) -> tuple[dict[int, Answer], list[Answers]]:
    """Answers by candidate, and what the measuring processes said of themselves."""
    ready = [n for n, config in enumerate(study.candidates) if _built(study, board, config).outcome is Outcome.OK]
    random.Random(resolved.experiment.search.seed).shuffle(ready)
    batches = [tuple(ready[start : start + BATCH]) for start in range(0, len(ready), BATCH)]
    answers: dict[int, Answer] = {}
    results: list[Answers] = []
    while batches:
        jobs = {}
        for numbers in batches:
            question = _question(resolved, study, board, numbers, num_samples)
            name = f"measure:{study.study.key}:{len(numbers)}:{numbers[0]}"
            timeout_s = MEASURE_TIMEOUT_S + CEILING_S * len(numbers)
            job = Job(id=name, role="measure", where=study.study.device.key, timeout_s=timeout_s)
            jobs[name] = (job, functools.partial(measure, question)), numbers
        batches = []
        for done in _all(resolved, dispatch, [call for call, _ in jobs.values()]):
            numbers = jobs[done.job][1]
            if isinstance(done.value, Answers):
                results.append(done.value)
                answers |= {answer.number: answer for answer in done.value.answers}
            elif len(numbers) == 1:
                answers[numbers[0]] = lost_answer(numbers[0], done.condemned)
            # What a lost or poisoned process left unanswered is tried one by one.
            batches += [(number,) for number in numbers if number not in answers]
            advance("measured", sum(number in answers for number in numbers))
    return answers, results


def _built(study: PlannedStudy, board: BuildBoard, config: Config) -> Built:
    built = board.find(board.slot(study.call, config), config)
    assert built is not None
    return built.judged(study.study.device)


def _question(
    resolved: Resolved, study: PlannedStudy, board: BuildBoard, numbers: Sequence[int], num_samples: int
) -> Question:
    experiment = resolved.experiment
    candidates = []
    for number in numbers:
        built = _built(study, board, study.candidates[number])
        candidates.append(
            Candidate(number=number, config=built.config, build=built.build, artifact=built.artifact)
        )  # fmt: skip
    return Question(
        ref=experiment.ref,
        device=study.study.device,
        problem=study.study.problem,
        variables=study.study.variables,
        candidates=tuple(candidates),
        rung=RUNG,
        num_samples=num_samples,
        timer=experiment.timer,
        atol=experiment.accept.atol,
        rtol=experiment.accept.rtol,
        seed=experiment.search.seed,
    )


def _entry(study: PlannedStudy, board: BuildBoard, config: Config, answer: Answer | None) -> Entry:
    built = _built(study, board, config)
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
