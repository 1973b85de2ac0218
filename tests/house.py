"""The one ordered table of modules, which `test_architecture` holds the source to."""

from __future__ import annotations

# Every module, lowest first: a module imports only what stands above it in this list. Beside it, the guests
# (third-party packages) that it may import; with a star, at module level.
HOUSE = """
    errors
    bundle
    will
    address                 sqlalchemy
    frozen
    config
    problem
    device
    peaks
    trial
    limits
    occupancy
    study
    document
    exposition
    source
    landscape
    landscape_reader
    gemm                    torch
    settings                torch
    choosing                torch
    seams
    generated
    pack
    pack_reader
    pack_schema
    pack_diff
    pack_compare
    ranges
    export
    pack_merge
    pack_bisect

    spec
    spec.grammar
    spec.constraint
    spec.importing
    spec.space
    spec.inputs
    spec.autotuned
    spec.workload
    spec.sections
    spec.tree               yaml*
    spec.experiment
    spec.recorded
    spec.bundling
    spec.schema
    spec.reference
    spec.belongings
    spec.callers
    spec.draft

    bench
    bench.legality
    bench.tensors           torch
    bench.launch            triton
    bench.cubin
    bench.flow
    bench.listing
    bench.sass
    bench.toolkit           triton
    bench.build             triton
    bench.store
    bench.inspection
    bench.findings
    bench.verify            torch
    bench.cuda
    bench.telemetry         torch pynvml
    bench.meter
    bench.replay
    bench.faults            torch
    bench.loaded            torch triton
    bench.sampling          torch
    bench.steady            torch
    bench.gpu               torch
    bench.worker            triton
    bench.preload           torch triton

    search
    search.features         numpy*
    search.prior            numpy*
    search.surrogate        numpy*
    search.buckets          numpy*
    search.outlook          numpy*
    search.polish
    search.rungs
    search.pruner           optuna*
    search.hints            numpy* optuna* torch
    search.sampler          numpy* optuna*
    search.stopping
    search.decisions
    search.crown            numpy*
    search.transfer         numpy*
    search.storage          optuna* sqlalchemy
    search.mirror           optuna*
    search.search

    schedule
    schedule.events
    schedule.queue
    schedule.roster
    schedule.state
    schedule.standing
    schedule.machine

    fleet
    fleet.cpus
    fleet.parcel
    fleet.process
    fleet.relay
    fleet.post
    fleet.inline
    fleet.virtual
    fleet.simulated
    fleet.trust             grpc
    fleet.cluster           ray
    fleet.ray               ray
    fleet.submission
    fleet.kubernetes        yaml

    record
    record.memo
    record.scan
    record.ledger
    record.account
    record.reading
    record.following
    record.markup
    record.figures
    record.clocks
    record.sheet
    record.study_report
    record.report
    record.style
    record.page
    record.markdown
    record.standalone
    record.finalists
    record.card
    record.parquet          pyarrow
    record.metrics
    record.store            mlflow
    record.registry         mlflow
    record.runs             mlflow
    record.tracking

    runtime
    runtime.lookup
    runtime.active
    runtime.choice
    runtime.ranks           torch
    runtime.kernels         torch triton
    runtime.tracing         torch
    runtime.which
    runtime.quick           torch triton
    runtime.binding
    runtime.autotuner       triton
    runtime.plain           torch triton
    runtime.environment
    runtime.registry        mlflow
    runtime.sources
    runtime.reporting
    runtime.templates       torch
    runtime.generated       torch
    runtime.activation
    runtime.loading
    runtime.unmodified
    runtime.noted
    runtime.capturing
    runtime.__main__
    runtime.site.sitecustomize

    interop
    interop.foreign
    interop.moe
    interop.autotune

    inductor
    inductor.rendering      torch
    inductor.gemms          torch
    inductor.standin        torch
    inductor.kernel
    inductor.harvest        torch
    inductor.breaks         torch
    inductor.dissection     torch
    inductor.writing
    inductor.caches         torch triton

    .

    plan                    torch
    outline
    replaying
    shards
    missed
    captured
    repro_script
    repro
    inspecting
    dispatch
    turns
    builds
    stocking
    pasts
    minutes
    wants
    tally
    calibration
    replication
    finals
    contest
    unify
    crossover
    errands
    desks
    sweep
    gauges
    recording
    noise
    audit
    checkup
    renewal

    cli
    cli.mounts
    cli.folders
    cli.deadline
    cli.surroundings
    cli.packages
    cli.tables              rich
    cli.ledgers
    cli.live
    cli.bars                rich* IPython
    cli.terminal            rich
    cli.opening             torch
    cli.exposing            typer*
    cli.order
    cli.check
    cli.trust
    cli.doctor              typer* torch triton pynvml
    cli.aa                  typer* rich
    cli.build               typer*
    cli.caches              typer*
    cli.pack_verify         typer* rich
    cli.pack_which          typer*
    cli.pack_diff           typer*
    cli.compare             typer* rich
    cli.promote             typer*
    cli.pack_merge          typer*
    cli.pack_bisect         typer*
    cli.pack_check          typer* rich
    cli.pack_revalidate     typer*
    cli.pack_interop        typer*
    cli.pack                typer* rich
    cli.init                typer* torch
    cli.plan                typer*
    cli.captured            torch
    cli.capture             typer*
    cli.misses              typer*
    cli.repro               typer*
    cli.report              typer*
    cli.inspect_card        rich
    cli.inspect_model       typer*
    cli.inspect             typer*
    cli.record              typer*
    cli.exporting
    cli.closing             typer*
    cli.sweeping
    cli.harvest             typer* torch
    cli.standing            typer*
    cli.submit              typer*
    cli.sweep               typer*
    cli.app                 typer*
    cli.__main__
    api
    testing
"""
