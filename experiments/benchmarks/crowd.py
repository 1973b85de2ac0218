"""A crowd of made-up studies: what a driver has to carry where thousands compete, without kernel and search.

Questions and answers are those of real sweeps in form and size, and go through turns, dispatch and schedule as theirs
do; what stands in the answers is made up.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tunefarm.bench.meter import Answer, Answers, Candidate, Question
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch, Done
from tunefarm.errands import measure_job
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.minutes import Minutes
from tunefarm.problem import Problem
from tunefarm.record.memo import Memo
from tunefarm.seams import Ledger
from tunefarm.spec.workload import WorkloadRef
from tunefarm.trial import Failure, Measurement, Outcome
from tunefarm.turns import Turns
from tunefarm.wants import lost_answer

NUM_SAMPLES = 5
DEVICE = Device(arch="sm_90", name="NVIDIA H100 80GB HBM3", num_sms=132, shared_bytes=232448)
CONFIGS = tuple(
    Config(
        params=FrozenMap(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8), options=FrozenMap(num_warps=w, num_stages=s)
    )
    for m, n, k, w, s in itertools.product((64, 128, 256), (64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4, 5, 6))
)  # fmt: skip


def answer(failing: float, question: Question) -> Answers:
    """What a worker brings back; so large a share of all candidates fails."""
    found = []
    for candidate in question.candidates:
        # The same candidate of the same problem always ends the same way.
        draw = zlib.crc32(f"{question.problem.dims['M']}/{candidate.number}".encode()) / 2**32
        if draw < failing:
            failure = Failure(stage="launch", kind="Simulated", message="failed, as simulated")
            found.append(Answer(number=candidate.number, outcome=Outcome.LAUNCH_ERROR, failure=failure))
        else:
            samples = tuple(round(0.02 * (1 + draw + 0.001 * i), 6) for i in range(NUM_SAMPLES))
            measurement = Measurement(samples_ms=samples, timer="cold", rung=question.rung, source="simulated")
            found.append(Answer(number=candidate.number, measurement=measurement))
    return Answers(answers=tuple(found), worker="simulated", busy_s=0.1 * len(found))


@dataclass(slots=True, eq=False)
class _Study:
    """One of the crowd.

    Attributes:
        minutes: where its answers are written.
        problem: what it is about.
        batches: what it has still to ask.
    """

    minutes: Minutes
    problem: Problem
    batches: deque[Sequence[int]]


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Studies that ask batch after batch, as contests do; the driver's whole work but for the search.

    Attributes:
        dispatch: who works.
        ledger: where answers are written.
        batch: candidates in a question.
        failing: share of candidates that fail.
        landscape: what is said to be replayed: such questions go to any worker.
        ended: trials by how they ended.
    """

    dispatch: Dispatch
    ledger: Ledger
    batch: int
    failing: float = 0.0
    landscape: str = ""
    ended: Counter[str] = field(default_factory=Counter)
    _asked: dict[str, tuple[_Study, Question]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def compete(self, studies: Sequence[tuple[str, int]]) -> Iterator[int]:
        """Lets studies, given by key and number of trials, ask until all have ended; yields how many trials have."""
        turns, memo = Turns(self.dispatch), Memo(())
        for number, (key, num_trials) in enumerate(studies):
            starts = range(0, num_trials, self.batch)
            batches = deque(range(start, min(start + self.batch, num_trials)) for start in starts)
            problem = Problem(dims=FrozenMap(M=number, N=4096, K=4096), dtypes=FrozenMap(a="bf16", b="bf16"))
            self._ask(turns, _Study(Minutes(study=key, ledger=self.ledger, memo=memo), problem, batches))
        num_ended = 0
        while self._asked:
            turns.serve()
            self.ledger.flush()
            for done in self.dispatch.wait():
                turns.end(done.job)
                num_ended += self._take(turns, done)
            yield num_ended

    def _ask(self, turns: Turns, study: _Study) -> None:
        if not study.batches:
            return
        question = Question(
            ref=WorkloadRef(call="mylib.ops:matmul", kernel="mylib.ops:matmul_kernel"), device=DEVICE,
            problem=study.problem, variables=study.problem.dims, rung=0, num_samples=NUM_SAMPLES,
            landscape=self.landscape,
            candidates=tuple(Candidate(number=n, config=CONFIGS[n]) for n in study.batches.popleft()),
        )  # fmt: skip
        job, _ = measure_job(f"measure:{next(self._numbers)}", question, self.dispatch)
        self._asked[job.id] = study, question
        turns.wait([(job, functools.partial(answer, self.failing, question))], 1.0)

    def _take(self, turns: Turns, done: Done) -> int:
        """Takes in a finished job; returns how many trials it ended."""
        study, question = self._asked.pop(done.job)
        if done.given_up or done.error is not None:
            raise InfrastructureError(f"a measurement was given up: {done.given_up or done.error}")
        numbers = [candidate.number for candidate in question.candidates]
        answers: Sequence[Answer] = ()
        if isinstance(done.value, Answers):
            answers = done.value.answers
        elif len(numbers) == 1:
            answers = [lost_answer(numbers[0], done.condemned)]
        else:  # Each of a lost batch is tried by itself, so that one candidate cannot cost the others.
            study.batches.extendleft([number] for number in numbers)
        study.minutes.answered((CONFIGS[a.number], question.rung, a) for a in answers)
        self.ended.update(a.outcome.value for a in answers)
        self._ask(turns, study)
        return len(answers)
