"""The landscape meter: answers from a recording instead of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunefarm.bench.meter import Answer, Candidate, Question
from tunefarm.config import Config
from tunefarm.landscape import Entry, Recorded
from tunefarm.landscape_reader import load_cached
from tunefarm.trial import FINAL, Failure, Measurement, Outcome

REPLAYED = "replayed"


class LandscapeMeter:
    """Replays a landscape: real samples, taken at another time.

    Each rung reads on where the one before stopped, so that later rungs bring news, and starts again at the first
    sample when the recording is used up. The same question always has the same answer.

    Attributes:
        reference_ms: time of the reference for the prepared problem, if it was recorded.
        notices: none.
    """

    def __init__(self) -> None:
        self.reference_ms: float | None = None
        self.notices: tuple[str, ...] = ()
        self._entries: dict[Config, Entry] = {}
        self._recorded: Recorded | None = None

    def prepare(self, question: Question) -> None:
        """Finds the problem in the recording.

        Raises:
            LandscapeError: it was not recorded.
        """
        recorded = load_cached(question.landscape).get(question.problem, question.landscape)
        if recorded is not self._recorded:
            self._recorded, self.reference_ms = recorded, recorded.reference_ms
            self._entries = {entry.config: entry for entry in recorded.entries}

    def measure(self, candidates: Sequence[Candidate], question: Question) -> Iterator[Answer]:
        """Answers from the recording; a config that was not recorded is `skipped`."""
        for candidate in candidates:
            entry = self._entries.get(candidate.config)
            if entry is not None and entry.outcome is not Outcome.OK:
                failure = entry.failure or _unknown(entry.outcome.value, "no reason was recorded")
                yield Answer(number=candidate.number, outcome=entry.outcome, failure=failure)
            elif entry is None or not entry.samples_ms:
                failure = _unknown("NotRecorded", "the landscape holds no samples of this config")
                yield Answer(number=candidate.number, outcome=Outcome.SKIPPED, failure=failure)
            else:
                yield Answer(number=candidate.number, measurement=_replay(entry, question))

    def close(self) -> None:
        """Nothing is held."""


def _unknown(kind: str, message: str) -> Failure:
    return Failure(stage="measure", kind=kind, message=message)


def _replay(entry: Entry, question: Question) -> Measurement:
    count = len(entry.samples_ms)
    # Finals start at the first: they need more samples than are left. What a sitting may go on to take is read as well:
    # of a recording that drifts the early samples are another truth than all of it.
    is_final = question.rung == FINAL
    first = 0 if is_final else 3 * question.rung
    wanted = max(question.num_samples, question.max_samples) if is_final else question.num_samples
    samples = tuple(entry.samples_ms[(first + i) % count] for i in range(min(wanted, count)))
    return Measurement(
        samples_ms=samples, timer=question.timer, rung=question.rung, source=REPLAYED, worker="landscape",
        busy_s=sum(samples) / 1000,
    )  # fmt: skip
