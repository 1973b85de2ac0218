"""Finals: the last candidates of a study must be right on every check, then compete in one sitting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.bench.meter import Answer, Candidate, Question, answer_from_json, answer_to_json
from tunefarm.bench.worker import Built
from tunefarm.config import Config
from tunefarm.minutes import Minutes
from tunefarm.plan import Call
from tunefarm.replication import EVENT, pair, second, upheld
from tunefarm.search.search import StudySearch
from tunefarm.tally import Tally
from tunefarm.trial import FAILURES, FINAL, Failure, Measurement, Outcome, Winner
from tunefarm.wants import Got, Steps, Want, lost_answer

MAX_REFUSED = 24
"""After so many finalists that failed a check, only those compete that have passed: the default, if any."""

Answering: TypeAlias = Generator[Want, Got, dict[int, Answer]]


@dataclass(slots=True, kw_only=True)
class Finals:
    """The end of a study.

    Attributes:
        search: whose finalists compete.
        minutes: where it is recorded, and what an earlier driver found out.
        tally: what it costs.
        build: compiles finalists for the study's own call, as far as they are not.
        candidate: a finalist as the study's own call needs it.
        question: makes a question about candidates: of a check, with the default built for it, or of the study's call.
        checks: further calls that they must get right; empty where nothing can be launched.
        seed: of the bootstrap that says what is better.
    """

    search: StudySearch
    minutes: Minutes
    tally: Tally
    build: Callable[[Sequence[int]], Steps]
    candidate: Callable[[int], Candidate]
    question: Callable[[Sequence[Candidate], Call | None, Candidate | None], Question]
    checks: tuple[Call, ...] = ()
    seed: int = 0
    _passed: set[int] = field(default_factory=set)
    _place: str = ""
    _present: tuple[str, ...] = ()

    def run_through(self) -> Generator[Want, Got, Winner | None]:
        """Who wins, or None when no finalist is left. Those that fail a check give their place to the next ones."""
        num_refused = 0
        while numbers := self.search.finalists():
            if refused := self._remembered(numbers):
                self.search.take(refused)
                num_refused += len(refused)
                continue
            if num_refused >= MAX_REFUSED:
                numbers = [number for number in numbers if self._has_passed(number)]
            if failed := (yield from self._check(numbers)):
                trials = self.search.trials
                self.minutes.answered((trials[number].config, FINAL, a) for number, a in sorted(failed.items()))
                self.search.take({number: (answer.outcome, answer.why) for number, answer in failed.items()})
                num_refused += len(failed)
                continue
            told = yield from self._sitting(numbers, "finals")
            winner = self.search.crown({a.number: a.measurement or (a.outcome, a.why) for a in told})
            if winner is not None:
                return (yield from self._replicate(winner, told))
            if not numbers:
                return None
        return None

    def _replicate(self, winner: Winner, told: Sequence[Answer]) -> Generator[Want, Got, Winner]:
        """The winner as a second GPU upholds it, where there is one."""
        by_config = {trial.config: trial.number for trial in self.search.trials}
        numbers = [by_config[config] for config in pair(winner)]
        keys = [self.search.trials[number].config.key for number in numbers]
        known = self.minutes.memo.sitting(self.minutes.study, EVENT, keys)
        if known is None and not self._present:  # An earlier driver held the finals: who is there now?
            self._present = (yield Want()).present
        elsewhere = second(self._present, self._place) if self.tally.holds_gpu else ""
        if not numbers or not (known or elsewhere):
            return winner
        if known is None:
            found = yield from self._sit([self._by_turns(numbers)], on=elsewhere)
            if len(found) < len(numbers):
                return winner  # That GPU has gone.
            answers = [found[number] for number in numbers]
            self.minutes.note(
                EVENT, configs=keys, worker=elsewhere, measurements=[answer_to_json(a) for a in answers],
                **self.tally.memory,
            )  # fmt: skip
        else:
            answers = [answer_from_json(n, data) for n, data in zip(numbers, known["measurements"], strict=True)]
        return upheld(winner, self._measured(told), self._measured(answers), self.seed)

    def _measured(self, answers: Sequence[Answer]) -> dict[Config, Measurement]:
        trials = self.search.trials
        return {trials[a.number].config: a.measurement for a in answers if a.measurement is not None}

    def sit(self, configs: Sequence[Config], event: str) -> Generator[Want, Got, dict[Config, Measurement]]:
        """A further sitting, of given candidates.

        Args:
            configs: who sits, as far as they are candidates and get the checks right.
            event: under which it is recorded.

        Returns:
            Samples by config; those that are not fit are left out.
        """
        by_config = {trial.config: trial.number for trial in self.search.trials}
        numbers = sorted(by_config[config] for config in configs if config in by_config)
        yield from self.build(numbers)
        numbers = [number for number in numbers if self.search.trials[number].outcome not in FAILURES]
        failed = yield from self._check(numbers)
        told = yield from self._sitting([number for number in numbers if number not in failed], event)
        self.search.take({a.number: a.measurement for a in told if a.measurement is not None})
        return self._measured(told)

    def _sitting(self, numbers: Sequence[int], event: str) -> Generator[Want, Got, list[Answer]]:
        """What came of a sitting: from the ledger if it was held before, else it is held and recorded."""
        configs = [self.search.trials[number].config.key for number in numbers]
        known = self.minutes.memo.sitting(self.minutes.study, event, configs)
        if known is not None:
            self.tally.recall(known)
            self._place = known.get("worker", "")
            return [answer_from_json(n, data) for n, data in zip(numbers, known["measurements"], strict=True)]
        yield from self.build(numbers)
        told = yield from self._hold(numbers)
        self.minutes.note(
            event, configs=configs, worker=self._place, measurements=[answer_to_json(a) for a in told],
            **self.tally.memory,
        )  # fmt: skip
        return told

    def _remembered(self, numbers: Sequence[int]) -> dict[int, tuple[Outcome, Failure]]:
        """Finalists of which the ledger says that they failed a check."""
        found = {n: self.minutes.remember(n, self.search.trials[n].config, FINAL) for n in numbers}
        return {n: (answer.outcome, answer.why) for n, answer in found.items() if answer is not None}

    def _has_passed(self, number: int) -> bool:
        key = self.search.trials[number].config.key
        return number in self._passed or self.minutes.memo.passed(self.minutes.study, key)

    # ---- checks ----

    def _check(self, numbers: Sequence[int]) -> Answering:
        """Those that get a check wrong, each with the first it failed; who has passed once is not asked again."""
        configs = {n: self.search.trials[n].config for n in numbers if not self._has_passed(n)}
        if not configs or not self.checks:
            return {}
        default = self.search.default
        wanted = dict.fromkeys([*configs.values(), *([default] if default is not None else [])])
        pairs = tuple((call, config) for call in self.checks for config in wanted)
        got = yield Want(builds=pairs, essential=True)
        built = {(c, config): each.judged(c.device) for (c, config), each in zip(pairs, got.built, strict=True)}
        failed: dict[int, Answer] = {}
        for call in self.checks:
            left = {n: built[call, config] for n, config in configs.items() if n not in failed}
            baseline = built[call, default] if default is not None else None
            wrong = yield from self._check_call(call, left, baseline)
            failed |= {number: _on(call, answer) for number, answer in wrong.items()}
        if passed := configs.keys() - failed.keys():
            self._passed |= passed
            self.minutes.note("passed", configs=[configs[number].key for number in sorted(passed)])
        return failed

    def _check_call(self, call: Call, built: Mapping[int, Built], default: Built | None) -> Answering:
        """Those that get one check wrong: they cannot be built for it, or their outputs are not right."""
        wrong = {
            number: Answer(number=number, outcome=each.outcome, failure=each.failure)
            for number, each in built.items()
            if each.failure is not None
        }
        ready = {number: each.candidate(number) for number, each in built.items() if number not in wrong}
        baseline = default.candidate(-1) if default is not None and default.failure is None else None
        answered: dict[int, Answer] = {}
        while left := [number for number in ready if number not in answered]:
            found = yield from self._sit([self.question([ready[n] for n in left], call, baseline)])
            if not found:
                alone = [self.question([ready[number]], call, baseline) for number in left]
                found = yield from self._sit(alone)
            answered |= found
        return wrong | {number: answer for number, answer in answered.items() if answer.failure is not None}

    # ---- the sitting ----

    def _hold(self, numbers: Sequence[int]) -> Generator[Want, Got, list[Answer]]:
        """A sitting, held again without those that break it: only times of one sitting can be compared."""
        told: dict[int, Answer] = {}
        num_riddles = 0
        while left := [number for number in numbers if number not in told]:
            found = yield from self._sit([self._by_turns(left)])
            if len(found) == len(left):
                return [(told | found)[number] for number in numbers]
            if not found:
                # The process died, of whom nobody knows: each sits alone, and who does not survive that is out.
                found = yield from self._sit([self._by_turns([number]) for number in left])
            broken = {number: answer for number, answer in found.items() if answer.measurement is None}
            told |= broken
            num_riddles += not broken
            if num_riddles > 1:
                reason = "the process of the finals died twice, though each finalist survives by itself"
                told |= {number: lost_answer(number, reason) for number in left if number not in told}
        return [told[number] for number in numbers]

    def _by_turns(self, numbers: Sequence[int]) -> Question:
        return self.question([self.candidate(number) for number in numbers], None, None)

    def _sit(self, questions: Sequence[Question], on: str = "") -> Answering:
        got = yield Want(questions=tuple(questions), on=on)
        self._place, self._present = next(iter(got.workers), ""), got.present
        found: dict[int, Answer] = {}
        for question, result in zip(questions, got.answers, strict=True):
            if not isinstance(result, str):
                self.tally.count(result)
                found |= {answer.number: answer for answer in result.answers}
            elif len(question.candidates) == 1 and not on:
                number = question.candidates[0].number
                found[number] = lost_answer(number, result)
        return found


def _on(call: Call, answer: Answer) -> Answer:
    """The answer with the check that it is about."""
    failure = answer.why
    message = f"check {call.changes}: {failure.message}"
    return dataclasses.replace(answer, failure=dataclasses.replace(failure, message=message))
