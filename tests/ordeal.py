"""A sweep under a seeded schedule of faults, and what is demanded of its end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm import events, wait_until
from site_of_chaos import DEVICES, LIMIT_S, Driver, Site

from tunefarm import landscape as landscapes
from tunefarm.config import Config
from tunefarm.record.ledger import read_events

KINDS = (
    "driver killed", "worker killed", "results twice", "MLflow away", "raylet killed", "second driver", "slow node",
    "driver terminated", "node removed", "late results", "driver taken over",
)  # fmt: skip
PER_SEED = 3
COVERING = 4
"""So many seeds in a row meet every kind of fault."""
PAUSE_S = 0.6


def faults(seed: int) -> list[str]:
    """The kinds that strike, in order: some by turns, and one by chance."""
    chance = random.Random(seed)
    chosen = [KINDS[(PER_SEED * seed + i) % len(KINDS)] for i in range(PER_SEED)]
    chosen.append(chance.choice(KINDS))
    chance.shuffle(chosen)
    return chosen


@dataclass(kw_only=True)
class Ordeal:
    """A sweep under a seeded schedule of faults.

    Attributes:
        site: where.
        seed: of the schedule.
        struck: faults that struck, in order.
        stop_s: how long drivers that were asked to end took to do so.
    """

    site: Site
    seed: int
    struck: list[str] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    num_drivers: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(1000 + self.seed)
        self.sampler = "exhaustive" if self.seed % 2 == 0 else "default"
        self.folder = self.site.lay_out(self.sampler)
        self.sweeps = f"seed{self.seed}"
        self.kinds = faults(self.seed)
        self._mending: list[tuple[float, Callable[[], None]]] = []
        self._how: dict[str, Any] = {"pause_s": PAUSE_S}
        if "results twice" in self.kinds:
            self._how["twice"] = 4
        if "late results" in self.kinds:
            self._how |= {"late": [self.chance.randrange(8, 14), self.chance.randrange(14, 20)], "lease_s": 5.0}

    def go_through(self) -> None:
        """Sweeps to the end, whatever strikes; afterwards everything is mended."""
        began_s = time.monotonic()
        total = len(events(self.site.calm[self.sampler][0], "measured"))
        strikes = [kind for kind in self.kinds if kind not in ("results twice", "late results")]
        moments = sorted(self.chance.uniform(0.08, 0.75) * total for _ in strikes)
        self.driver = self._start()
        try:
            for moment, kind in zip(moments, strikes, strict=True):
                if not self._wait(lambda: self._num_measured() >= moment):  # noqa: B023
                    break
                self._strike(kind)
                self.struck.append(kind)
            self._wait(lambda: False)
        finally:
            if self.driver.process.poll() is None:
                self.driver.process.kill()
            self.driver.process.wait()
            for _, mend in self._mending:
                mend()
        told = self.driver.told()
        self.struck += ["results twice"] * told["twice"] + ["late results"] * told["late"]
        self.wall_s = time.monotonic() - began_s
        assert self.driver.process.returncode == 0, f"{self}: {self.driver.err}"

    @property
    def ledger(self) -> Path:
        return self.driver.ledger

    def _start(self) -> Driver:
        self.num_drivers += 1
        return Driver(self.site, self.folder, self.sweeps, number=self.num_drivers, **self._how)

    def _num_measured(self) -> int:
        return self.driver.ledger.read_bytes().count(b'"event":"measured"') if self.driver.ledger.exists() else 0

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Whether it came true before the driver ended; mends in the meantime what is due."""
        end_s = time.monotonic() + LIMIT_S
        while self.driver.process.poll() is None:
            if condition():
                return True
            assert time.monotonic() < end_s, f"{self} does not end: {self.driver.err}"
            due = [entry for entry in self._mending if entry[0] <= time.monotonic()]
            self._mending = [entry for entry in self._mending if entry not in due]
            for _, mend in due:
                mend()
            time.sleep(0.05)
        return False

    def _later(self, mend: Callable[[], None]) -> None:
        self._mending.append((time.monotonic() + self.chance.uniform(1.0, 4.0), mend))

    def _strike(self, kind: str) -> None:
        nodes, server = self.site.nodes, self.site.server
        node = self.chance.choice(nodes.measuring)
        if kind == "worker killed":
            _signal([self.chance.choice(self._at_work())], signal.SIGKILL)
        elif kind == "slow node":
            pids = self._at_work()
            _signal(pids, signal.SIGSTOP)
            self._later(lambda: _signal(pids, signal.SIGCONT))
        elif kind in ("raylet killed", "node removed"):
            nodes.remove(node, raylet_only=kind == "raylet killed")
            self._later(lambda: nodes.bring_back(node))
        elif kind == "MLflow away":
            server.stop()
            self._later(server.start)
        elif kind == "driver killed":
            self.driver.process.kill()
            self.driver.process.wait()
            self.driver = self._start()
        elif kind == "driver terminated":
            self._terminate()
        elif kind == "second driver":
            self._refuse()
        elif kind == "driver taken over":
            self._take_over()
        else:
            raise ValueError(kind)

    def _at_work(self) -> list[int]:
        """The processes of a node that measures: not all may have begun when a fault is due."""
        found: list[list[int]] = []

        def look() -> bool:
            found[:] = [pids for node in self.site.nodes.measuring if (pids := self.site.nodes.workers(node))]
            return bool(found)

        assert self._wait(look), "the sweep ended without workers"
        return self.chance.choice(found)

    def _terminate(self) -> None:
        began_s = time.monotonic()
        self.driver.process.terminate()
        code = self.driver.process.wait(LIMIT_S)
        self.stop_s.append(time.monotonic() - began_s)
        assert code == 130, self.driver.err
        assert "the same command goes on from there" in self.driver.err
        self.driver = self._start()

    def _refuse(self) -> None:
        """A second driver meets a first that holds the lock; it is held still so as not to be done before."""
        self.driver.process.send_signal(signal.SIGSTOP)
        second = self._start()
        code = second.process.wait(LIMIT_S)
        self.driver.process.send_signal(signal.SIGCONT)
        assert code == 2, second.err
        assert f"is being written by pid {self.driver.process.pid} " in second.err

    def _take_over(self) -> None:
        """A driver that was away for a while finds, where locks do not hold, that another has gone on."""
        before = self.driver.ledger.read_bytes().count(b'"event":"epoch"')
        self.driver.process.send_signal(signal.SIGSTOP)
        self.driver.ledger.with_name("ledger.jsonl.lock").unlink()
        stale, self.driver = self.driver, self._start()
        assert wait_until(lambda: self.ledger.read_bytes().count(b'"event":"epoch"') > before, LIMIT_S), self.driver.err
        stale.process.send_signal(signal.SIGCONT)
        code = stale.process.wait(LIMIT_S)
        assert code == 3, stale.err
        assert f"has been taken over by pid {self.driver.process.pid} " in stale.err


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


# ---- what came of it ----


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is checked of an ordeal and shown of it."""

    trials: int
    outcomes: Counter[str]
    drivers: int
    regret: float
    is_replayed: bool


def judge(ordeal: Ordeal) -> Verdict:
    """Holds the end of an ordeal to what was promised.

    Raises:
        AssertionError: something was lost, doubled or decided otherwise.
    """
    report = ordeal.driver.report
    trials = _count(ordeal.ledger, report)
    calm_ledger, calm = ordeal.site.calm[ordeal.sampler]
    if ordeal.sampler == "exhaustive":
        assert _told(ordeal.ledger) == _told(calm_ledger)
        assert _studies(report) == _studies(calm)
    regret = max(_regret(ordeal, study) for study in report["studies"])
    assert regret <= 0.02
    _check_mirror(ordeal, report)
    return Verdict(
        trials=sum(trials.values()), outcomes=trials, drivers=ordeal.num_drivers, regret=regret,
        is_replayed=_replay(ordeal, report),
    )  # fmt: skip


def _studies(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    told = ("study", "status", "candidates", "measured", "winner", "outcomes", "failures")
    return [{name: study[name] for name in told} for study in report["studies"]]


def _told(ledger: Path) -> dict[tuple[Any, ...], Any]:
    """By what was asked or decided, the answer; drivers that go on may decide the same again, and nothing else."""
    found: dict[tuple[Any, ...], Any] = {}
    for event in ("measured", "failed", "pruned", "merged", "promoted", "bucket_closed", "winner", "no_winner"):
        for data in events(ledger, event):
            data.pop("epoch")
            key = event, data["study"], data.get("config", data.get("bucket")), data.get("rung")
            assert found.setdefault(key, data) == data, "decided once more, and otherwise"
    return found


def _count(ledger: Path, report: Mapping[str, Any]) -> Counter[str]:
    """How many trials ended how: each that was asked has one end, and the report counts the same."""
    asked = [(e["study"], e["config"], e["rung"]) for e in [*events(ledger, "measured"), *events(ledger, "failed")]]
    assert len(asked) == len(set(asked)), "an answer was accepted twice"
    ends: dict[tuple[str, str], set[str]] = {(study, config): set() for study, config, _ in asked}
    for event in ("failed", "pruned", "merged"):
        for data in events(ledger, event):
            ends.setdefault((data["study"], data["config"]), set()).add(data.get("outcome", event))
    assert all(len(end) <= 1 for end in ends.values()), ends
    counted = Counter(next(iter(end), "ok") for end in ends.values())
    told: Counter[str] = Counter()
    for study in report["studies"]:
        told.update(study["outcomes"])
    assert counted == told
    assert "condemned" not in counted, "no config is to blame for what strikes from outside"
    return counted


def _regret(ordeal: Ordeal, study: Mapping[str, Any]) -> float:
    """How much slower a study's winner is than the best of the recording."""
    arch = next(arch for arch, device in DEVICES.items() if device.name == study["device"])
    recording = landscapes.load(ordeal.folder / f"{arch}.json.gz")
    (recorded,) = [p for p in recording.problems if f" {p.problem.dims['n']} " in study["study"]]
    medians = {e.config: sorted(e.samples_ms)[len(e.samples_ms) // 2] for e in recorded.entries if e.samples_ms}
    return medians[Config.from_json(study["winner"]["config"])] / min(medians.values()) - 1


def _check_mirror(ordeal: Ordeal, report: Mapping[str, Any]) -> None:
    """MLflow holds the sweep once and each of its studies once, with all its points."""
    server = ordeal.site.server
    assert wait_until(server.answers, 120)
    sweep_id = next(e["sweep_id"] for e in events(ordeal.ledger, "epoch"))
    runs = server.runs(sweep_id)
    (parent,) = [run for run in runs if run.data.tags["tunefarm.kind"] == "sweep"]
    assert parent.info.status == "FINISHED"
    mirrored = [run for run in runs if run.data.tags["tunefarm.kind"] == "study"]
    finalists = [run for run in runs if run is not parent and run not in mirrored]
    places = [(run.data.tags["mlflow.parentRunId"], run.data.metrics["place"]) for run in finalists]
    assert len(set(places)) == len(places), "none is written twice"
    assert {study for study, _ in places} <= {run.info.run_id for run in mirrored}
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in mirrored)
    studies = {e["study"] for e in events(ordeal.ledger, "study")}
    assert sorted(run.data.tags["tunefarm.study_key"] for run in mirrored) == sorted(studies)
    assert sorted(int(run.data.metrics["measured"]) for run in mirrored) == sorted(
        study["measured"] for study in report["studies"]
    )
    assert parent.data.metrics["studies"] == len(studies)


def _replay(ordeal: Ordeal, report: Mapping[str, Any]) -> bool:
    """The same command on a copy of the ledger, without a cluster: it asks nothing, and decides the same."""
    copy = ordeal.folder / f"again{ordeal.seed}"
    shutil.copytree(ordeal.ledger.parents[1], copy)
    again = Driver(ordeal.site, ordeal.folder, copy.name, inline=True)
    assert again.process.wait(LIMIT_S) == 0, again.err
    assert again.told()["job"] == 0, "a worker was asked"
    assert _studies(again.report) == _studies(report)
    return _unopened(again.ledger) == _unopened(ordeal.ledger)


def _unopened(ledger: Path) -> list[tuple[str, Any]]:
    """What a ledger says, save that drivers opened it."""
    return [(e["event"], e["data"]) for e in read_events(ledger) if e["event"] != "epoch"]
