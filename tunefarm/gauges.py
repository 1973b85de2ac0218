"""Gauges: a sweep's metrics, read off what its driver knows anyway; once a second, and by the driver's own thread.

Nothing counts for them on the way: contests, dispatches and the build board are looked at when the pulse comes. A count
therefore includes what an earlier driver of the same ledger left, once this one has remembered it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tunefarm import exposition as metrics
from tunefarm.builds import BuildBoard
from tunefarm.contest import Contest
from tunefarm.device import Device
from tunefarm.dispatch import Dispatch
from tunefarm.exposition import Histogram, Metric, Sample, expose, sample
from tunefarm.record.metrics import Showcase
from tunefarm.seams import Tracker
from tunefarm.search.rungs import RUNGS
from tunefarm.study import Status, StudyResult
from tunefarm.trial import FAILURES, FINAL, Measurement, Outcome, Trial, median_interval

MAX_STUDIES = 50
"""Studies that have series of their own; all others are counted, and no more."""

SHARE = 0.02
"""Of the driver's time, at most: with many trials it tells less often than once a second."""

CAUSES = ("contended", "throttled", "drift")
"""First words of what disturbs a measurement."""

SEEN = (
    (metrics.CLOCK, "sm_mhz", 1e6), (metrics.TEMPERATURE, "temperature_c", 1.0), (metrics.DRIFT, "drift", 1.0),
    (metrics.CALIBRATION, "calibration", 1.0),
)  # fmt: skip
"""What measuring processes say of their GPUs: metric, its name in a measurement's telemetry, and that one's unit."""

SOURCES = {"gpu": "measured", "replay": "replayed"}
"""Of measurements, by the meter that gives them."""

Kind = tuple[str, str, str]
"""(device, source, rung) of measurements."""


@dataclass(slots=True)
class Quality:
    """How good the measurements were; each is looked at once.

    Attributes:
        noise: of their medians.
        disturbed: by device and cause.
        told: what measuring processes saw of their GPUs, by device and metric.
        seen: how many of each trial, by number of its study and its own.
    """

    noise: dict[Kind, Histogram] = field(default_factory=dict)
    disturbed: Counter[tuple[str, str]] = field(default_factory=Counter)
    told: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)

    def look(self, number: int, device: str, trials: Sequence[Trial]) -> None:
        """Takes in the measurements of a study that are new."""
        for trial in trials:
            for measurement in trial.measurements[self.seen[number, trial.number] :]:
                self._take(device, measurement)
            self.seen[number, trial.number] = len(trial.measurements)

    def expect(self, kind: Kind) -> Histogram:
        """Counts measurements of a kind, of which there may be none yet."""
        return self.noise.setdefault(kind, Histogram(bounds=metrics.NOISE.bounds))

    def expect_told(self, device: str, metric: Metric) -> Histogram:
        """Counts what is seen of a device's GPUs, of which nothing may have been yet."""
        return self.told.setdefault((device, metric.name), Histogram(bounds=metric.bounds))

    def _take(self, device: str, measurement: Measurement) -> None:
        low, high = median_interval(measurement.samples_ms)
        noise = (high - low) / 2 / measurement.median_ms if measurement.median_ms else 0.0
        self.expect((device, measurement.source, _rung(measurement.rung))).observe(noise)
        cause = str(measurement.telemetry.get("disturbed", "")).split(":")[0]
        if cause in CAUSES:
            self.disturbed[device, cause] += 1
        for metric, name, unit in SEEN:
            value = measurement.telemetry.get(name)
            if isinstance(value, int | float):
                self.expect_told(device, metric).observe(value * unit)


class Gauges:
    """A `sweep.Watcher` whose word is numbers.

    Args:
        showcases: where they are shown; without any, nothing is looked at.
    """

    def __init__(self, showcases: Sequence[Showcase] = ()) -> None:
        self._showcases = showcases
        self._contests: list[Contest] = []
        self._winners: dict[int, StudyResult] = {}
        self._dispatches: list[Dispatch] = []
        self._trackers: list[Tracker] = []
        self._board: BuildBoard | None = None
        self._quality = Quality()
        self._due_s = 0.0

    # ---- what it is told ----

    def follow(self, dispatch: Dispatch, board: BuildBoard) -> None:
        """From now on this dispatch works; what earlier ones have cost is kept."""
        self._dispatches.append(dispatch)
        self._board = board

    def mirrored(self, tracker: Tracker) -> None:
        """A sweep is mirrored there."""
        self._trackers.append(tracker)

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        """A sweep begins."""
        self._contests += contests
        self.publish()

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        """The pulse will see it."""

    def ended(self, result: StudyResult, experiment: str) -> None:
        """A study has ended."""
        self._winners[id(result.study)] = result

    def pulse(self) -> None:
        """Shows how things are, unless that would cost the driver more than a small share of its time."""
        began_s = time.monotonic()
        if began_s >= self._due_s:
            self.publish()
            self._due_s = time.monotonic() + (time.monotonic() - began_s) / SHARE

    def publish(self) -> None:
        """Shows how things are now."""
        if self._showcases:
            text = expose(self.samples())
            for showcase in self._showcases:
                showcase.show(text)

    # ---- what it says ----

    def samples(self) -> Iterator[Sample]:
        """Everything, as it is now."""
        for experiment in dict.fromkeys(contest.experiment.name for contest in self._contests):
            yield sample(metrics.SWEEP, 1, experiment=experiment)
        yield sample(metrics.HEARTBEAT, round(time.time(), 3))
        yield sample(metrics.SPOOL, sum(tracker.num_left for tracker in self._trackers))
        yield from self._fleet()
        yield from self._costs()
        yield from self._studies()
        yield from self._best()
        yield from self._measured()

    def _fleet(self) -> Iterator[Sample]:
        if not self._dispatches:
            return
        standing = self._dispatches[-1].standing
        workers: Counter[tuple[str, str, str]] = Counter()
        for (role, device, state), number in standing.workers.items():
            # A state that nobody is in is zero, not absent.
            workers.update({(role, _name(device), other): 0 for other in ("idle", "busy", "quarantined")})
            workers[role, _name(device), state] += number
        for (role, name, state), number in sorted(workers.items()):
            yield sample(metrics.WORKERS, number, role=role, device=name, state=state)
        names = {contest.planned.study.device.key: _name(contest.planned.study.device) for contest in self._contests}
        jobs: Counter[tuple[str, str, str]] = Counter()
        jobs.update({(role, "any", state): 0 for role in ("build", "measure") for state in ("waiting", "in_flight")})
        for ((role, where), state), number in standing.jobs.items():
            jobs[role, names.get(where, where) or "any", state] += number
        for (role, name, state), number in sorted(jobs.items()):
            yield sample(metrics.JOBS, number, role=role, device=name, state=state)
        yield sample(metrics.ATTEMPTS, sum(d.standing.num_attempts for d in self._dispatches))
        yield sample(metrics.LOST, sum(d.num_lost for d in self._dispatches))
        yield sample(metrics.QUARANTINES, sum(d.num_quarantines for d in self._dispatches))

    def _costs(self) -> Iterator[Sample]:
        measured = [contest for contest in self._contests if contest.tally.holds_gpu]
        held = dict.fromkeys((_name(contest.planned.study.device) for contest in self._contests), 0.0)
        busy, startup = held.copy(), held.copy()
        # A worker that replays may stand for a device; it holds none.
        real = {contest.planned.study.device.key for contest in measured}
        for dispatch in self._dispatches:
            for device, seconds in dispatch.held_by_device.items():
                if device.key in real:
                    held[_name(device)] += seconds
        for contest in measured:
            busy[_name(contest.planned.study.device)] += contest.tally.busy_s
            startup[_name(contest.planned.study.device)] += contest.tally.startup_s
        for metric, seconds_by_device in ((metrics.HELD, held), (metrics.STARTUP, startup), (metrics.BUSY, busy)):
            for name, seconds in sorted(seconds_by_device.items()):
                yield sample(metric, seconds, device=name)
        if self._board is not None:
            yield sample(metrics.BUILDS, self._board.num_compiled, origin="compiled")
            yield sample(metrics.BUILDS, self._board.num_from_store, origin="store")
            yield sample(metrics.BUILD_SECONDS, self._board.build_s)
        yield sample(metrics.STRAY_BUILDS, sum(contest.tally.num_compiled for contest in self._contests))

    def _studies(self) -> Iterator[Sample]:
        studies: Counter[tuple[str, str, str]] = Counter()
        candidates: Counter[tuple[str, str]] = Counter()
        trials: Counter[tuple[str, str, str]] = Counter()
        for contest in self._contests:
            place = contest.experiment.name, _name(contest.planned.study.device)
            studies.update({(*place, status): 0 for status in ("open", *Status)})
            result = self._winners.get(id(contest.planned.study))
            studies[(*place, "open" if result is None else result.status.value)] += 1
            candidates[place] += len(contest.planned.candidates)
            trials.update({(*place, outcome.value): 0 for outcome in Outcome})
            for trial in _trials(contest):
                if trial.measurements or trial.outcome is not Outcome.OK:
                    trials[(*place, trial.outcome.value)] += 1
        for (experiment, device, status), number in sorted(studies.items()):
            yield sample(metrics.STUDIES, number, experiment=experiment, device=device, status=status)
        for (experiment, device), number in sorted(candidates.items()):
            yield sample(metrics.CANDIDATES, number, experiment=experiment, device=device)
        for (experiment, device, outcome), number in sorted(trials.items()):
            yield sample(metrics.TRIALS, number, experiment=experiment, device=device, outcome=outcome)

    def _best(self) -> Iterator[Sample]:
        told: set[tuple[str, str, str]] = set()
        for contest in self._contests[:MAX_STUDIES]:
            study = contest.planned.study
            place = contest.experiment.name, study.label, _name(study.device)
            timed = [t for t in _trials(contest) if t.measurements and t.outcome not in FAILURES]
            if not timed or place in told:  # of problems that differ in their facts alone, the first
                continue
            told.add(place)
            result = self._winners.get(id(study))
            if result is not None and result.winner is not None:
                best_ms, gain = result.winner.median_ms, result.winner.gain
            else:
                best_ms = min(trial.measurements[-1].median_ms for trial in timed)
                default = [t.measurements[-1].median_ms for t in timed if t.config == contest.planned.default]
                gain = default[0] / best_ms if default and best_ms else None
            source = timed[0].measurements[-1].source
            labels = {"experiment": place[0], "study": place[1], "device": place[2], "source": source}
            yield sample(metrics.BEST, best_ms / 1e3, **labels)
            if gain is not None:
                yield sample(metrics.GAIN, gain, **labels)

    def _measured(self) -> Iterator[Sample]:
        for number, contest in enumerate(self._contests):
            device = _name(contest.planned.study.device)
            # Zero before the first, or nobody could tell how fast the first ones came.
            for fidelity in RUNGS if contest.planned.target.meter else ():
                self._quality.expect((device, SOURCES[contest.planned.target.meter], _rung(fidelity)))
            self._quality.look(number, device, _trials(contest))
        for (device, source, rung), noise in sorted(self._quality.noise.items()):
            place = {"device": device, "source": source, "rung": rung}
            yield sample(metrics.MEASUREMENTS, sum(noise.counts), **place)
            yield sample(metrics.NOISE, noise, **place)
        for name in sorted({_name(contest.planned.study.device) for contest in self._contests}):
            for cause in CAUSES:
                yield sample(metrics.DISTURBED, self._quality.disturbed[name, cause], device=name, cause=cause)
            for metric, *_ in SEEN:
                yield sample(metric, self._quality.expect_told(name, metric), device=name)


def _rung(number: int) -> str:
    return "final" if number == FINAL else str(number)


def _trials(contest: Contest) -> tuple[Trial, ...]:
    return contest.search.trials if contest.search is not None else ()


def _name(device: Device | None) -> str:
    return "cpu" if device is None else " ".join(part for part in (device.name, device.mig) if part)
