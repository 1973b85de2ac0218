"""The experiments that come with tunefarm: they plan, their landscapes are fresh, and their replays find the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from farm import play

from tunefarm.bench.build import Artifact
from tunefarm.bench.worker import Built
from tunefarm.builds import BuildCall
from tunefarm.cli.opening import open_experiment
from tunefarm.config import Config, Value
from tunefarm.frozen import FrozenMap
from tunefarm.landscape import Recorded, load
from tunefarm.plan import Target, choose_targets, plan
from tunefarm.seams import Fleet, Worker
from tunefarm.spec.experiment import load_experiment
from tunefarm.study import Status
from tunefarm.trial import Outcome

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").glob("*.yaml"))
LANDSCAPES = sorted((Path(__file__).parents[1] / "experiments" / "landscapes").iterdir())
NAMES = [path.stem for path in EXPERIMENTS]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=NAMES)
def test_an_experiment_plans(path: Path) -> None:
    """Planning also checks that the landscapes record this very kernel and all the problems."""
    resolved = open_experiment(path)
    studies = plan(resolved, choose_targets(resolved.experiment, []))
    assert len(studies) == len(resolved.experiment.problems) * len(resolved.experiment.devices)
    assert not all(study.skipped for study in studies)
    for device in {study.study.device.key for study in studies}:
        mine = [set(study.unused) for study in studies if study.study.device.key == device and study.candidates]
        assert not mine or set.intersection(*mine) == set(), "values of the space that no study uses"
    for study in studies:
        if study.skipped:  # its arch lacks what the problem needs
            continue
        assert len(study.candidates) > 10
        assert study.default in study.candidates
        assert study.num_bytes > 0 or study.flops > 0


@pytest.mark.parametrize("path", LANDSCAPES, ids=[path.name for path in LANDSCAPES])
def test_a_landscape_is_small_and_somebody_s(path: Path) -> None:
    assert path.stat().st_size < 300_000
    used = [d.landscape.resolve() for e in EXPERIMENTS for d in load_experiment(e).devices if d.landscape]
    assert path.resolve() in used
    recording = load(path)
    assert recording.device.live
    assert recording.toolchain["triton"]
    for recorded in recording.problems:
        assert recorded.reference_ms is not None
        assert all(len(e.samples_ms) >= 20 for e in recorded.entries if e.outcome is Outcome.OK)


@dataclass(frozen=True)
class Remembering:
    """A fleet whose builders know what was built when the landscape was recorded: the search is what is tried here."""

    fleet: Fleet
    recorded: Mapping[FrozenMap[Value], Recorded]

    @property
    def workers(self) -> Sequence[Worker]:
        return self.fleet.workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        if not isinstance(job, BuildCall):
            return self.fleet.submit(job, where)
        request = job.request
        entries = {entry.config: entry for entry in self.recorded[request.variables].entries}
        done: Future[Any] = Future()
        done.set_result(tuple(self._built(config, entries) for config in request.configs))
        return done

    def _built(self, config: Config, entries: Mapping[Config, Any]) -> Built:
        entry = entries[config]
        if entry.build is None:
            return Built(config=config, outcome=entry.outcome, failure=entry.failure)
        artifact = Artifact(binary=entry.build.binary, cubin=b"", metadata="{}", specialization="")
        return Built(config=config, build=entry.build, artifact=artifact)

    def close(self) -> None:
        self.fleet.close()


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_a_replay_finds_the_best(tmp_path: Path, fleet: Fleet, name: str) -> None:
    """Within 3 % of the exhaustive best, in every study, having measured a fraction of a large space."""
    (path,) = [path for path in EXPERIMENTS if path.stem == name]
    resolved = open_experiment(path)
    (device,) = [d for d in resolved.experiment.devices if d.landscape is not None]
    recording = load(Path(str(device.landscape)))
    targets = [Target(device=recording.device, meter="replay", landscape=str(device.landscape))]
    recorded = {s.study.variables: recording.find(s.study.problem) for s in plan(resolved, targets)}
    played = play(path, Remembering(fleet, recorded), tmp_path, ledger=tmp_path / "ledger.jsonl", targets=targets)  # type: ignore[arg-type]
    assert len(played.results) == len(recorded) == 6
    for result in played.results:
        assert result.status is Status.WINNER
        assert result.winner is not None
        found = recorded[result.study.variables]
        assert found is not None
        medians = {e.config: median(e.samples_ms) for e in found.entries if e.samples_ms}
        assert medians[result.winner.config] <= 1.03 * min(medians.values()), result.study.label
        num_distinct = len({entry.build.binary for entry in found.entries if entry.build})
        assert result.num_measured <= 60
        if name == "rms_norm":  # softmax has two dozen candidates, and all of them are measured
            assert 0.6 * num_distinct > 60
        assert found.reference_ms is not None
        assert min(medians.values()) < found.reference_ms
