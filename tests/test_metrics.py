"""Metrics: their registry, their text, where they are shown, and that a sweep's agree with its ledger."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import farm
import pytest
import scraped
from farm import GPU, Warm, events, running, wait_until, write_experiment, write_landscape
from scraped import free_port, read, scrape, total

from tunefarm import exposition
from tunefarm.config import Config
from tunefarm.dispatch import Dispatch
from tunefarm.exposition import METRICS, Histogram, Kind, expose, sample
from tunefarm.fleet.inline import InlineFleet
from tunefarm.frozen import FrozenMap
from tunefarm.gauges import Gauges, Quality
from tunefarm.record.metrics import MetricsFile, MetricsServer
from tunefarm.schedule.events import Job
from tunefarm.trial import FINAL, Measurement, Trial

SWEEP = ("sweep", "experiment.yaml", "--fleet", "inline", "--tracking", "none", "--json")
LEDGER = "sweeps/fill/ledger.jsonl"

BOUNDED = {
    "experiment", "study", "device", "role", "state", "status", "outcome", "origin", "source", "rung", "cause",
    "rank", "digest", "packs", "kernel", "step", "kind",
}  # fmt: skip
"""Labels whose values are few: no config, trial, process, sweep or host is one."""


# ---- the registry ----


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_named_as_prometheus_wants_it(name: str) -> None:
    metric = METRICS[name]
    assert re.fullmatch(r"tunefarm(_[a-z]+)+", name)
    assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert name.removesuffix("_total").endswith(f"_{metric.unit}" if metric.unit else "")
    assert not re.search(r"_(ms|milliseconds|us|percent|kib|gib)(_|$)", name), "base units"
    assert set(metric.labels) <= BOUNDED
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert list(metric.bounds) == sorted(set(metric.bounds))
    assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)


# ---- the text ----


def test_text_is_in_the_order_of_the_registry_and_escaped() -> None:
    text = expose([sample(exposition.LOST, 2), sample(exposition.SWEEP, 1, experiment='a "b"\\\n')])
    assert text.splitlines() == [
        "# HELP tunefarm_sweep_info Experiments of the running sweep; always 1.",
        "# TYPE tunefarm_sweep_info gauge",
        r'tunefarm_sweep_info{experiment="a \"b\"\\\n"} 1',
        "# HELP tunefarm_attempts_lost_total Attempts lost with their worker, network or node.",
        "# TYPE tunefarm_attempts_lost_total counter",
        "tunefarm_attempts_lost_total 2",
    ]
    assert len(read(text)) == 2


def test_a_histogram_counts_upwards() -> None:
    noise = Histogram(bounds=exposition.NOISE.bounds)
    for value in (0.001, 0.0011, 0.3, 7.0):
        noise.observe(value)
    series = read(expose([sample(exposition.NOISE, noise, device="d", source="measured", rung="0")]))
    buckets = [s.value for s in series if s.name.endswith("_bucket")]
    assert buckets == [1, 2, 2, 2, 2, 2, 2, 2, 3, 4]
    assert series[-3].labels["le"] == "+Inf"
    assert [s.value for s in series[-2:]] == [pytest.approx(7.3021), 4]


def test_labels_and_kinds_are_those_of_the_registry() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        sample(exposition.LOST, 1, config="x")
    with pytest.raises(ValueError, match="is a histogram"):
        sample(exposition.NOISE, 1, device="d", source="measured", rung="0")


def test_prometheus_itself_reads_it(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    every = [
        sample(m, Histogram(bounds=m.bounds) if m.bounds else 1.5, **dict.fromkeys(m.labels, 'x "y"\\'))
        for m in METRICS.values()
    ]
    done = subprocess.run([promtool, "check", "metrics"], input=expose(every), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- where they are shown ----


def test_the_server_answers_for_metrics_alone_until_it_is_closed() -> None:
    server = MetricsServer("127.0.0.1", 0)
    try:
        server.show("tunefarm_attempts_total 1\n")
        assert scrape(server.url) == "tunefarm_attempts_total 1\n"
        server.show("tunefarm_attempts_total 2\n")
        assert scrape(server.url) == "tunefarm_attempts_total 2\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(server.url.replace("metrics", "anything"), timeout=10)
        refused.value.close()
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        scrape(server.url)


def test_the_file_is_whole_and_ends_with_what_was_shown_last(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sweep.prom"
    shown = MetricsFile(path)
    assert path.read_text() == ""
    for number in range(3):
        shown.show(f"tunefarm_attempts_total {number}\n")
    assert path.read_text() == "tunefarm_attempts_total 0\n"  # written a moment ago
    shown.close()
    assert path.read_text() == "tunefarm_attempts_total 2\n"
    assert [p.name for p in path.parent.iterdir()] == ["sweep.prom"]


def test_a_file_that_can_no_longer_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "there" / "sweep.prom"
    shown = MetricsFile(path)
    shutil.rmtree(path.parent)
    path.parent.write_text("a file now")
    shown.show("tunefarm_attempts_total 1\n")
    shown.close()
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--metrics-port", "{taken}"), r"--metrics-port: 127\.0\.0\.1:\d+: Address already in use \(name a free port"),
        (("--metrics-address", "0.0.0.0"), r"--metrics-address: .*\(add --metrics-port\)"),
        (("--metrics-address", "203.0.113.7", "--metrics-port", "9400"), r"--metrics-address: .*\(name an address of"),
        (("--metrics-file", "kernels.py/x.prom"), r"--metrics-file: kernels\.py/x\.prom cannot be written: .*\(name a"),
        (("--metrics-file", "x.txt"), r"--metrics-file: x\.txt: collectors read .*\(name it x\.prom\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_one_error_before_the_sweep(
    options: tuple[str, ...], says: str, tmp_path: Path, store: Path, warm: Warm
) -> None:
    write_landscape(write_experiment(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [word.format(taken=taken.getsockname()[1]) for word in options]
        done = warm(*SWEEP, *words, folder=tmp_path, store=store)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: {says}.*\n", done.stderr), done.stderr
    assert done.stdout == ""
    assert not (tmp_path / LEDGER).exists()


# ---- a dispatch's part ----


def die() -> None:
    os._exit(3)


def test_the_fleet_is_counted_as_it_stands() -> None:
    """Real processes, one of which is told to hold a GPU, and dies of a job twice."""
    fleet = InlineFleet([GPU, None], num_builders=1)
    pulses: list[None] = []
    dispatch = Dispatch(fleet, pulse=lambda: pulses.append(None))
    try:
        dispatch.submit([(Job(id="dies", role="measure", where=GPU.key), die)])
        standing = dispatch.standing
        assert standing.workers == {
            ("measure", GPU, "busy"): 1, ("measure", None, "idle"): 1, ("build", None, "idle"): 1
        }  # fmt: skip
        assert standing.jobs == {(("measure", GPU.key), "in_flight"): 1}
        while not dispatch.wait():
            pass
        dispatch.submit([(Job(id="lasts", role="build"), partial(time.sleep, 1.5))])
        dispatch.wait()
        assert dispatch.num_lost == 2
        assert dispatch.standing.num_attempts == 3
        assert dispatch.standing.jobs == {}
        assert dispatch.held_by_device == {GPU: pytest.approx(dispatch.held_s)}
        assert dispatch.held_s > 0
        assert pulses
    finally:
        fleet.close()


def test_each_measurement_is_weighed_once() -> None:
    def measured(rung: int, disturbed: str = "") -> Measurement:
        seen = FrozenMap(sm_mhz=1410, temperature_c=61, drift=0.004, calibration=0.985)
        telemetry = FrozenMap(seen, disturbed=disturbed) if disturbed else FrozenMap()
        return Measurement(
            samples_ms=(0.9, 1.0, 1.1), timer="cold", rung=rung, source="measured", telemetry=telemetry
        )  # fmt: skip

    quality = Quality()
    first = Trial(number=0, config=Config(), measurements=(measured(0, "throttled: sw_thermal at 900 MHz"),))
    quality.look(0, "d", [first])
    quality.look(0, "d", [first])
    both = Trial(number=0, config=Config(), measurements=(*first.measurements, measured(FINAL)))
    quality.look(0, "d", [both])
    quality.look(1, "d", [first])
    assert {kind: sum(noise.counts) for kind, noise in quality.noise.items()} == {
        ("d", "measured", "0"): 2, ("d", "measured", "final"): 1
    }  # fmt: skip
    assert quality.noise["d", "measured", "0"].sum == pytest.approx(0.2)  # half of 1.1 - 0.9, over 1.0, twice
    assert quality.disturbed == {("d", "throttled"): 2}
    # What a process could not see is not told; the four it saw are, in base units.
    assert {name: (sum(told.counts), told.sum) for (_, name), told in quality.told.items()} == {
        "tunefarm_measurement_clock_hertz": (2, 2.82e9), "tunefarm_measurement_temperature_celsius": (2, 122.0),
        "tunefarm_measurement_drift_ratio": (2, 0.008), "tunefarm_measurement_calibration_ratio": (2, 1.97),
    }  # fmt: skip


# ---- sweeps ----


def agree(series: list[scraped.Scraped], ledger: Path, results: list[dict[str, object]]) -> None:
    """Metrics say what the ledger and the sweep's own document say."""
    rungs = Counter(str(e["rung"]) for e in events(ledger, "measured"))
    rungs["final"] = sum("measurement" in told for e in events(ledger, "finals") for told in e["measurements"])
    assert set(rungs) <= {s.labels["rung"] for s in series if s.name == "tunefarm_measurements_total"}
    for rung, number in rungs.items():
        assert total(series, "tunefarm_measurements_total", rung=rung, source="replayed") == number
        assert total(series, "tunefarm_measurement_noise_ratio_count", rung=rung) == number
    assert total(series, "tunefarm_measurements_total") == sum(rungs.values())
    told: Counter[str] = Counter()
    for result in results:
        told.update(result["outcomes"])  # type: ignore[call-overload]
    for outcome, number in told.items():
        assert total(series, "tunefarm_trials", outcome=outcome) == number
    assert total(series, "tunefarm_trials") == sum(told.values())
    assert total(series, "tunefarm_studies") == len(results)
    assert total(series, "tunefarm_studies", status="winner") == len(events(ledger, "winner"))
    assert total(series, "tunefarm_studies", status="open") == 0
    for event in events(ledger, "winner"):
        label = next(e["label"] for e in events(ledger, "study") if e["study"] == event["study"])
        assert total(series, "tunefarm_study_gain_ratio", study=label) == pytest.approx(event["winner"]["gain"])
        best_s = total(series, "tunefarm_study_best_seconds", study=label)
        assert best_s == pytest.approx(event["winner"]["median_ms"] / 1e3)
    assert total(series, "tunefarm_gpu_held_seconds_total") == 0  # a replay holds none


def test_a_sweep_is_scraped_as_it_goes_and_its_last_word_agrees_with_its_ledger(tmp_path: Path, store: Path) -> None:
    write_landscape(write_experiment(tmp_path, problems=farm.THREE, devices=farm.BOTH))
    port = free_port()
    seen: list[str] = []

    def look() -> bool:
        try:
            seen.append(scrape(f"http://127.0.0.1:{port}/metrics"))
        except OSError:  # not there yet, or no more
            return process.poll() is not None
        return False

    options = ("--metrics-port", str(port), "--metrics-file", "sweep.prom")
    with running(*SWEEP, *options, folder=tmp_path, store=store) as process:
        assert wait_until(look, 120)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    while_it_ran = [read(text) for text in seen if text]
    assert while_it_ran
    for series in while_it_ran:
        assert total(series, "tunefarm_sweep_info", experiment="fill") == 1
        assert total(series, "tunefarm_candidates") > 0
        assert total(series, "tunefarm_workers", role="build") == len(os.sched_getaffinity(0))
    said = json.loads(out)
    last = read((tmp_path / "sweep.prom").read_text())
    agree(last, tmp_path / LEDGER, said["studies"])
    assert total(last, "tunefarm_builds_total", origin="compiled") == said["compiled"]
    assert total(last, "tunefarm_builds_total", origin="store") == said["from_store"]
    assert total(last, "tunefarm_attempts_lost_total") == 0
    assert {s.name for s in last if s.labels.get("source") == "measured"} == set()


def test_a_resumed_sweep_counts_what_the_ledger_remembers(tmp_path: Path, store: Path) -> None:
    write_landscape(write_experiment(tmp_path))
    for _ in range(2):
        done = farm.tunefarm(*SWEEP, "--metrics-file", "sweep.prom", folder=tmp_path, store=store)
        assert done.returncode == 0, done.stderr
        agree(read((tmp_path / "sweep.prom").read_text()), tmp_path / LEDGER, json.loads(done.stdout)["studies"])


def test_nothing_is_looked_at_where_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges = Gauges()
    monkeypatch.setattr(gauges, "samples", lambda: pytest.fail("looked"))
    gauges.publish()
    gauges.pulse()


def test_telling_costs_the_driver_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a look takes, it waits 50 times as long before the next."""
    now_s, told = 0.0, 0

    def publish() -> None:
        nonlocal now_s, told
        now_s, told = now_s + 0.3, told + 1

    gauges = Gauges()
    monkeypatch.setattr("tunefarm.gauges.time.monotonic", lambda: now_s)
    monkeypatch.setattr(gauges, "publish", publish)
    for _ in range(100):
        gauges.pulse()
        now_s += 1.0
    assert told == 7  # at 0 s, and each 15.3 s after, as far as pulses come each second
