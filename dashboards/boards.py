"""What the dashboards show: a table of boards, rows and panels, without a word of Grafana's format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Query:
    """One expression of a panel.

    Attributes:
        expr: PromQL; `$name` and `$__rate_interval` are Grafana's.
        legend: of its series.
    """

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture.

    Attributes:
        title: what.
        says: how to read it, in a sentence.
        queries: what is drawn.
        unit: Grafana's word for it.
        kind: `timeseries`, `stat` or `bargauge`.
        span: of 24 columns.
        stacked: whether series add up.
    """

    title: str
    says: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    span: int = 12
    stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: never changes: people and other dashboards link to it.
        title: in lists.
        says: what it is for.
        variables: name and the query for its values.
        rows: panels under headings.
    """

    uid: str
    title: str
    says: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def one(title: str, says: str, expr: str, legend: str, **more: object) -> Panel:
    """A panel of one query."""
    return Panel(title=title, says=says, queries=(Query(expr=expr, legend=legend),), **more)  # type: ignore[arg-type]


INSTANCE = ("instance", "label_values(tunefarm_driver_heartbeat_timestamp_seconds, instance)")
EXPERIMENT = ("experiment", "label_values(tunefarm_sweep_info, experiment)")

HELD = 'rate(tunefarm_gpu_held_seconds_total{instance=~"$instance"}[$__rate_interval])'
STARTUP = 'rate(tunefarm_gpu_startup_seconds_total{instance=~"$instance"}[$__rate_interval])'
BUSY = 'rate(tunefarm_gpu_busy_seconds_total{instance=~"$instance"}[$__rate_interval])'

FLEET = Board(
    uid="tunefarm-fleet", title="tunefarm / fleet", variables=(INSTANCE,),
    says="Who works, who waits, and whether GPUs are busy while they are held.",
    rows=(
        ("GPUs", (
            one("GPUs held", "How many are held at a time, by device; a replay holds none.",
                f"sum by (device) ({HELD})", "{{device}}"),
            one("Busy while held", "Share of held time, start-up apart, spent launching and timing: low if GPUs wait.",
                f"sum by (device) ({BUSY}) / (sum by (device) ({HELD}) - sum by (device) ({STARTUP}))", "{{device}}",
                unit="percentunit"),
            one("GPU time held", "So far, start-up included.",
                'sum by (device) (tunefarm_gpu_held_seconds_total{instance=~"$instance"})', "{{device}}",
                unit="s", kind="stat"),
            one("Start-up", "GPU seconds that measuring processes took to start.",
                'sum by (device) (tunefarm_gpu_startup_seconds_total{instance=~"$instance"})', "{{device}}",
                unit="s", kind="stat"),
        )),
        ("Workers and jobs", (
            one("Workers", "By role, device and state; one in quarantine lost too many jobs in a row.",
                'sum by (role, device, state) (tunefarm_workers{instance=~"$instance"})',
                "{{role}} {{device}} {{state}}", stacked=True),
            one("Jobs", "Waiting for a worker, and in flight; a measuring worker has two, so that it never waits.",
                'sum by (role, device, state) (tunefarm_jobs{instance=~"$instance"})',
                "{{role}} {{device}} {{state}}"),
            Panel(title="Attempts", says="Jobs sent to workers in a second, and those of them that were lost.",
                  unit="ops", queries=(
                Query(expr='sum(rate(tunefarm_attempts_total{instance=~"$instance"}[$__rate_interval]))',
                      legend="sent"),
                Query(expr='sum(rate(tunefarm_attempts_lost_total{instance=~"$instance"}[$__rate_interval]))',
                      legend="lost"),
            )),
            one("Quarantines", "Times a worker was given no more work.",
                'sum(tunefarm_worker_quarantines_total{instance=~"$instance"})', "quarantines", kind="stat", span=6),
            one("Last sign of life", "Seconds since the driver told its metrics.",
                'time() - max by (instance) (tunefarm_driver_heartbeat_timestamp_seconds{instance=~"$instance"})',
                "{{instance}}", unit="s", kind="stat", span=6),
        )),
        ("Builds", (
            one("Builds", "In a second, compiled now or found in the store.",
                'sum by (origin) (rate(tunefarm_builds_total{instance=~"$instance"}[$__rate_interval]))', "{{origin}}",
                unit="ops", stacked=True),
            one("CPUs compiling", "CPU seconds of compiling in a second.",
                'sum(rate(tunefarm_build_seconds_total{instance=~"$instance"}[$__rate_interval]))', "CPUs"),
            one("Compiled by measuring processes", "Must be zero: a GPU never waits for a compiler.",
                'sum(tunefarm_stray_builds_total{instance=~"$instance"})', "kernels", kind="stat"),
        )),
    ),
)  # fmt: skip

SWEEP = Board(
    uid="tunefarm-sweep", title="tunefarm / sweep", variables=(EXPERIMENT,),
    says="How far an experiment has come, what it found, and how its candidates ended.",
    rows=(
        ("Progress", (
            one("Studies", "By how they ended.",
                'sum by (status) (tunefarm_studies{experiment=~"$experiment"})', "{{status}}", kind="bargauge"),
            one("Candidates tried", "Share of all candidates; the search leaves most of a large space out.",
                'sum by (experiment, device) (tunefarm_trials{experiment=~"$experiment"}) '
                '/ sum by (experiment, device) (tunefarm_candidates{experiment=~"$experiment"})',
                "{{experiment}} {{device}}", unit="percentunit"),
            one("Trials by outcome", "How candidates that were tried stand now.",
                'sum by (outcome) (tunefarm_trials{experiment=~"$experiment"})', "{{outcome}}", stacked=True),
            one("Failed trials", "Share of those tried that compile, launch or results ruled out.",
                'sum by (experiment, device) (tunefarm_trials{experiment=~"$experiment",'
                'outcome!~"ok|pruned|merged|skipped|illegal"}) '
                '/ sum by (experiment, device) (tunefarm_trials{experiment=~"$experiment"})',
                "{{experiment}} {{device}}", unit="percentunit"),
        )),
        ("What was found", (
            one("Best-so-far gain", "The default's time over the best time so far; `replayed` times a landscape.",
                'max by (experiment, study, device, source) (tunefarm_study_gain_ratio{experiment=~"$experiment"})',
                "{{study}} {{device}} ({{source}})"),
            one("Best-so-far time", "Median of the best config so far.",
                'min by (experiment, study, device, source) (tunefarm_study_best_seconds{experiment=~"$experiment"})',
                "{{study}} {{device}} ({{source}})", unit="s"),
            one("Not in MLflow yet", "Studies that have ended and wait to be written; the ledger has them.",
                "sum(tunefarm_tracking_spool_studies)", "studies", kind="stat"),
            one("Experiments", "That are being swept.",
                'count by (experiment) (tunefarm_sweep_info{experiment=~"$experiment"})', "{{experiment}}",
                kind="stat"),
        )),
    ),
)  # fmt: skip

QUALITY = Board(
    uid="tunefarm-quality", title="tunefarm / measurement quality", variables=(),
    says="Whether times can be trusted: noise, what disturbed them, and what the GPUs did meanwhile.",
    rows=(
        ("Measurements", (
            one("Measurements", "In a second, by device and rung; `replayed` ones time nothing.",
                "sum by (device, source, rung) (rate(tunefarm_measurements_total[$__rate_interval]))",
                "{{device}} rung {{rung}} ({{source}})", unit="ops", stacked=True),
            one("Noise", "Nine tenths of the medians have a narrower interval: half of it, over the median.",
                "histogram_quantile(0.9, sum by (device, source, rung, le) "
                "(rate(tunefarm_measurement_noise_ratio_bucket[$__rate_interval])))",
                "{{device}} rung {{rung}} ({{source}})", unit="percentunit"),
            one("Disturbed", "Measurements that stayed disturbed after they were taken again.",
                "sum by (device, cause) (tunefarm_measurements_disturbed_total)", "{{device}} {{cause}}"),
        )),
        ("GPUs, as those who measured saw them", (
            one("Clock while measuring", "Half of the measurements ended at a higher SM clock.",
                "histogram_quantile(0.5, sum by (device, le) "
                "(rate(tunefarm_measurement_clock_hertz_bucket[$__rate_interval])))", "{{device}}", unit="hertz"),
            one("Temperature while measuring", "Nine tenths of the measurements ended at a lower one.",
                "histogram_quantile(0.9, sum by (device, le) "
                "(rate(tunefarm_measurement_temperature_celsius_bucket[$__rate_interval])))", "{{device}}",
                unit="celsius"),
            one("Drift", "Nine times in ten a fixed piece of work took no longer than this, beyond its best time.",
                "histogram_quantile(0.9, sum by (device, le) "
                "(rate(tunefarm_measurement_drift_ratio_bucket[$__rate_interval])))", "{{device}}",
                unit="percentunit"),
            one("GPUs of one kind", "What times were multiplied by to be those of a study's first GPU, at the median.",
                "histogram_quantile(0.5, sum by (device, le) "
                "(rate(tunefarm_measurement_calibration_ratio_bucket[$__rate_interval])))", "{{device}}"),
        )),
        ("GPUs, by dcgm-exporter", (
            one("SM clock", "Unlocked clocks wander, and times with them.",
                "avg by (Hostname, gpu) (DCGM_FI_DEV_SM_CLOCK) * 1e6", "{{Hostname}} GPU {{gpu}}", unit="hertz"),
            one("Temperature", "GPUs throttle somewhere above 80 degrees.",
                "max by (Hostname, gpu) (DCGM_FI_DEV_GPU_TEMP)", "{{Hostname}} GPU {{gpu}}", unit="celsius"),
            one("Power", "At its cap, a GPU slows down.",
                "sum by (Hostname, gpu) (DCGM_FI_DEV_POWER_USAGE)", "{{Hostname}} GPU {{gpu}}", unit="watt"),
            Panel(title="Slowed down", says="Rises while heat or the power cap slows a GPU.", queries=(
                Query(expr="sum by (Hostname, gpu) (rate(DCGM_FI_DEV_THERMAL_VIOLATION[$__rate_interval]))",
                      legend="{{Hostname}} GPU {{gpu}} heat"),
                Query(expr="sum by (Hostname, gpu) (rate(DCGM_FI_DEV_POWER_VIOLATION[$__rate_interval]))",
                      legend="{{Hostname}} GPU {{gpu}} power"),
            )),
        )),
    ),
)  # fmt: skip

PACKS = Board(
    uid="tunefarm-packs", title="tunefarm / packs", variables=(("job", "label_values(tunefarm_pack_info, job)"),),
    says="What jobs make of the packs they load: hits, misses, and whether all ranks hold the same.",
    rows=(
        ("Packs", (
            one("Packs in use", "Processes by digest of all their packs; two digests in one job are a mistake.",
                'count by (job, digest, packs) (tunefarm_pack_info{job=~"$job"})', "{{packs}} {{digest}}",
                kind="stat", span=24),
        )),
        ("Look-ups", (
            one("Hits", "Share of launches and traces that a row answered, by kernel.",
                'sum by (kernel) (tunefarm_pack_hits_total{job=~"$job"}) / sum by (kernel) '
                '({__name__=~"tunefarm_pack_hits_total|tunefarm_pack_misses_total", job=~"$job"})', "{{kernel}}",
                unit="percentunit"),
            one("Hits by device match", "`same device` is best; another step uses another GPU's rows.",
                'sum by (kernel, step) (tunefarm_pack_hits_total{job=~"$job"})', "{{kernel}} {{step}}"),
            one("Misses", "Launches and traces that no row answered.",
                'sum by (kernel, kind) (tunefarm_pack_misses_total{job=~"$job"})', "{{kernel}} {{kind}}"),
            one("Tables never asked", "Tables whose kernel was never launched: the wrong pack, or another name.",
                'sum(tunefarm_pack_tables_never_asked{job=~"$job"})', "tables", kind="stat"),
        )),
    ),
)  # fmt: skip

BOARDS = {"fleet": FLEET, "sweep": SWEEP, "quality": QUALITY, "packs": PACKS}
"""By the name of their file."""
