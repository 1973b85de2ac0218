"""Rigged fleets: processes die when they should, and a GPU that is made up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from farm import TOOLCHAIN, smooth

from tunefarm.bench import faults, worker
from tunefarm.bench.faults import failed, preparing
from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.bench.worker import measure
from tunefarm.config import Config
from tunefarm.frozen import FrozenMap
from tunefarm.seams import Fleet, Retire, Worker
from tunefarm.trial import Failure, Measurement, Outcome


@dataclass(frozen=True)
class Deadly:
    """A fleet whose measuring processes die of certain configs, as a GPU's may of a kernel."""

    fleet: Fleet
    configs: tuple[Config, ...]

    @property
    def workers(self) -> Sequence[Worker]:
        return self.fleet.workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        return self.fleet.submit(partial(die_of, self.configs, job), where)

    def close(self) -> None:
        self.fleet.close()


def die_of(configs: tuple[Config, ...], job: partial[Any]) -> Any:
    """Does a job, unless it measures one of the configs."""
    for question in job.args:
        if isinstance(question, Question) and any(c.config in configs for c in question.candidates):
            os.kill(os.getpid(), signal.SIGKILL)
    return job()


# ---- a GPU that is made up ----

DEADLY = Config(params={"BLOCK": 256, "MARK": 1}, options={"num_warps": 2})
UNSTEADY = Config(params={"BLOCK": 128, "MARK": 0}, options={"num_warps": 2})
POISON = Config(params={"BLOCK": 128, "MARK": 1}, options={"num_warps": 1})


@dataclass(frozen=True)
class Pretended:
    """A fleet whose measuring worker makes its times up."""

    fleet: Fleet
    answer: Callable[[Question], Any]

    @property
    def workers(self) -> Sequence[Worker]:
        return self.fleet.workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        if isinstance(job, partial) and job.func is measure and not job.args[0].landscape:
            job = partial(self.answer, *job.args)
        return self.fleet.submit(job, where)

    def close(self) -> None:
        self.fleet.close()


def answer_smoothly(question: Question, spare: bool = False) -> Any:
    """Times of a bowl; one config kills the process, another makes it untrustworthy, unless spared."""
    answers = []
    assert all(c.artifact is not None and c.build is not None for c in question.candidates)
    for candidate in question.candidates:
        if candidate.config == DEADLY and not spare:
            os.kill(os.getpid(), signal.SIGKILL)
        if candidate.config == POISON and not spare:
            failure = Failure(stage="launch", kind="RuntimeError", message="illegal memory access")
            answers.append(Answer(number=candidate.number, outcome=Outcome.ILLEGAL_ACCESS, failure=failure))
            return Retire(Answers(answers=tuple(answers), toolchain=TOOLCHAIN))
        time_ms = smooth(candidate.config, question.variables)
        measurement = Measurement(
            samples_ms=(time_ms,) * question.num_samples, warmup_ms=(1.0,), timer=question.timer, rung=question.rung,
            source="measured",
        )  # fmt: skip
        answers.append(Answer(number=candidate.number, measurement=measurement))
    return Answers(answers=tuple(answers), toolchain=TOOLCHAIN, reference_ms=0.05, busy_s=0.5, notices=("no check",))


def break_finals(how: str, question: Question) -> Any:
    """Times of a bowl until the finals; there one config breaks the sitting: it `kills` or `poisons` the process."""
    answers: Answers = answer_smoothly(question, spare=True)
    guilty = [c.number for c in question.candidates if c.config == UNSTEADY and question.interleaved]
    if guilty and how == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    if guilty:
        failure = Failure(stage="launch", kind="RuntimeError", message="illegal memory access")
        answer = Answer(number=guilty[0], outcome=Outcome.ILLEGAL_ACCESS, failure=failure)
        return Retire(Answers(answers=(answer,), toolchain=TOOLCHAIN))
    return answers


# ---- a GPU that is made up, and candidates that do real harm ----

Deed = Callable[[], Any]
"""What a candidate does before it is timed; a failure that it returns says that its outputs are wrong."""
ILLEGAL = "CUDA error: an illegal memory access was encountered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"


class Perilous:
    """A meter with times of a bowl. Some problems do something first, and some candidates, on a rung or with an n."""

    reference_ms: float | None = 0.05
    notices: tuple[str, ...] = ()

    def __init__(self, deeds: Mapping[Any, Deed]) -> None:
        self._deeds = deeds

    def prepare(self, question: Question) -> None:
        with preparing("input y of fill_kernel", [candidate.number for candidate in question.candidates]):
            self._deeds.get(question.variables["n"], lambda: None)()

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        for candidate in candidates if question.interleaved else ():  # by turns: no answer before the last
            self._deeds.get((question.rung, candidate.config), lambda: None)()
        for candidate in candidates:
            try:
                here = self._deeds.get((candidate.config, question.variables["n"]), lambda: None)
                wrong = self._deeds.get(candidate.config, here)()
            except Exception as e:
                yield failed(candidate.number, e)
                continue
            if isinstance(wrong, Failure):
                yield Answer(number=candidate.number, outcome=Outcome.WRONG_RESULT, failure=wrong)
                continue
            if not question.num_samples:
                yield Answer(number=candidate.number)
                continue
            time_ms = smooth(candidate.config, question.variables)
            measurement = Measurement(
                samples_ms=(time_ms,) * question.num_samples, warmup_ms=(1.0,), timer=question.timer,
                rung=question.rung, source="measured",
            )  # fmt: skip
            yield Answer(number=candidate.number, measurement=measurement)

    def close(self) -> None:
        pass


class Asleep:
    """A watch over no GPU."""

    def begin(self) -> None:
        pass

    def look(self) -> FrozenMap[Any]:
        return FrozenMap()

    def end(self, *, lost: bool = False) -> FrozenMap[Any]:
        return FrozenMap()


def measure_perilously(deeds: Mapping[Any, Deed], roll: Path, question: Question) -> Any:
    """What a measuring worker does, with that meter and little patience; writes itself into the roll."""
    with roll.open("a") as file:
        file.write(f"{os.getpid()}\n")
    faults.FIRST_S = faults.FLOOR_S = 1.0
    worker._watch = Asleep()  # type: ignore[assignment]
    worker._meters.setdefault("gpu", Perilous(deeds))
    return measure(question)


class Disturbed(Asleep):
    """A GPU that is made up and disturbed a number of times.

    Attributes:
        left: how often it will yet be.
    """

    def __init__(self, reason: str, times: int) -> None:
        self._reason, self.left = reason, times

    def look(self) -> FrozenMap[Any]:
        return FrozenMap(disturbed=self._reason) if self.left > 0 else FrozenMap()

    def end(self, *, lost: bool = False) -> FrozenMap[Any]:
        seen = self.look()
        self.left -= 1
        return seen


class Sitting(Perilous):
    """Writes down each sitting, by what it is about."""

    def __init__(self, roll: Path) -> None:
        super().__init__({})
        self._roll = roll

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        with self._roll.open("a") as file:
            file.write(f"{question.rung}:{','.join(str(candidate.number) for candidate in candidates)}\n")
        yield from super().measure(candidates, question)


def measure_disturbed(reason: str, times: int, roll: Path, question: Question) -> Any:
    """What a measuring worker does on a GPU that is disturbed in its first sittings."""
    worker._meters.setdefault("gpu", Sitting(roll))
    if not isinstance(worker._watch, Disturbed):
        worker._watch = Disturbed(reason, times)  # type: ignore[assignment]
    return measure(question)
