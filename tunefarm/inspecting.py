"""Inspecting: which study and config somebody means, and a look inside what that compiles to. No GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm.bench.build import TEXTS, Artifact, Stages, compile_stages, launch_options, triton_version
from tunefarm.bench.cubin import resources
from tunefarm.bench.findings import Finding, Seen, doubts, findings
from tunefarm.bench.inspection import Inspection, inspect
from tunefarm.bench.launch import learn
from tunefarm.bench.listing import parse_sass
from tunefarm.bench.telemetry import toolchain
from tunefarm.bench.tensors import make_inputs
from tunefarm.bench.toolkit import disassemble
from tunefarm.config import LIBRARY, Config, Value, read_value
from tunefarm.device import Device, nominal
from tunefarm.document import parse_json, read_bytes, read_text
from tunefarm.errors import UserError
from tunefarm.frozen import FrozenMap
from tunefarm.pack_reader import load_pack
from tunefarm.plan import PlannedStudy
from tunefarm.record.ledger import read_events
from tunefarm.runtime.kernels import signature_of
from tunefarm.runtime.lookup import Activation, explain, find, shortlist
from tunefarm.spec.experiment import Resolved
from tunefarm.spec.grammar import nearest
from tunefarm.spec.workload import Workload
from tunefarm.trial import Build, describe

SASS = "sass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen of one config.

    Attributes:
        inspection: its figures.
        findings: what is worth a look.
        texts: of the compiler's stages and of the machine code, by stage, in the order in which they are made.
        cubin: the machine code itself.
    """

    inspection: Inspection
    findings: tuple[Finding, ...]
    texts: FrozenMap[str]
    cubin: bytes


def choose(planned: Sequence[PlannedStudy], name: str, file: str) -> PlannedStudy:
    """The study that somebody means: the first that is not skipped if nothing is named.

    Args:
        planned: of one device.
        name: its number from 1, its label, or some of its variables (`n_cols=4096 dtype=bf16`).
        file: of the experiment, for people.

    Raises:
        UserError: there is none, or several.
    """
    pairs = dict(word.partition("=")[::2] for word in name.replace(",", " ").split() if "=" in word)
    labels = [f"{number}: {study.study.label}" for number, study in enumerate(planned, 1)]
    found = [study for study in planned if not study.skipped] or list(planned)
    if name.isdecimal():
        found = [planned[int(name) - 1]] if 0 < int(name) <= len(planned) else []
    elif pairs:
        found = [s for s in planned if all(str(s.study.variables.get(k)) == v for k, v in pairs.items())]
    elif name:
        found = [s for s in planned if name in (s.study.label, s.study.key)]
    if not found or (name and len(found) > 1):
        what = f"{len(found)} studies are {name!r}" if found else f"no study is {name!r}"
        raise UserError(what, file=file, hint=f"--study may be {'; '.join(labels)}")
    if found[0].skipped:
        raise UserError(f"{found[0].study.label} is skipped: {found[0].skipped}", file=file, hint="name another study")
    return found[0]


def default_config(study: PlannedStudy) -> Config:
    """The config that is used without tuning.

    Raises:
        UserError: it is not known, or no config of the kernel.
    """
    if study.default is None:
        raise UserError(
            f"what {study.study.label} uses without tuning is not known, or cannot run here",
            hint="name a config: --config 'BLOCK=1024 num_warps=4'",
        )
    return _of_kernel(study.default, study)


def _of_kernel(config: Config, study: PlannedStudy) -> Config:
    if config == LIBRARY:
        raise UserError(
            f"{study.study.label} is answered by the library's call, of which there is no Triton kernel to inspect",
            hint="name a config of the kernel: --config 'BLOCK=1024 num_warps=4'",
        )
    return config


def written_config(study: PlannedStudy, resolved: Resolved, text: str) -> Config:
    """A config as people write it; what it leaves out is as in the default.

    Raises:
        UserError: it names what the kernel does not have, or leaves out what nobody knows.
    """
    names = resolved.space.domain
    known = {*names, *resolved.workload.signature.tunable, *launch_options(study.study.device.target)}
    default = study.default if study.default != LIBRARY else None
    flat: dict[str, Value] = dict(default.flat) if default else {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals or not value:
            hint = "write default, winner, or name=value pairs, such as 'BLOCK=1024 num_warps=4'"
            raise UserError(f"{word!r} is no part of a config", hint=hint)
        if name not in known:
            raise UserError(
                f"{name!r} is neither tuned nor a parameter of the kernel", hint=nearest(name, sorted(known))
            )
        flat[name] = read_value(value)
    if missing := [name for name in names if name not in flat]:
        raise UserError(f"{text!r} leaves out {', '.join(missing)}", hint="there is no default to take them from")
    return resolved.workload.signature.config(flat)


def swept_config(study: PlannedStudy, ledger: Path) -> Config:
    """The config that won a study in a sweep, on any device of its arch.

    Raises:
        LedgerError: the ledger cannot be read.
        UserError: it tells of no winner.
    """
    keys: set[str] = set()
    winner: Config | None = None
    for event in read_events(ledger):
        data = event["data"]
        if event["event"] == "study":
            device = Device.from_json(data["device"])
            if device.arch == study.study.device.arch:
                keys.add(replace(study.study, device=device).key)
        elif event["event"] == "winner" and data["study"] in keys:
            winner = Config.from_json(data["winner"]["config"])
    if winner is None:
        raise UserError(
            f"tells of no winner of {study.study.label}", file=str(ledger),
            hint="name its sweep with --sweep, a pack with --pack, or another --config",
        )  # fmt: skip
    return _of_kernel(winner, study)


def packed_config(study: PlannedStudy, workload: Workload, pack: Path) -> Config:
    """The config with which a pack answers the call of a study.

    Raises:
        PackError: the pack cannot be read.
        UserError: none of its rows answers.
    """
    kernel, source, layer = workload.packed_as
    activation = Activation(pack=load_pack(pack), label=str(pack), allow_replayed=True)
    listed = shortlist(
        [activation], kernel, source, study.study.device, triton_version(), layer=layer, torch=toolchain()["torch"]
    )
    specialised = signature_of(workload.kernel).specialised
    offer = find(listed.offers, study.study.problem, specialised)
    if offer is None:
        why = explain(listed.offers, listed.refused, study.study.problem, specialised).strip()
        raise UserError(f"has no row for {study.study.label}: {why}", file=str(pack), hint="name another --config")
    return _of_kernel(offer.row.config, study)


def look(resolved: Resolved, study: PlannedStudy, config: Config) -> Look:
    """Compiles a config for a study's problem and device, and looks inside.

    Raises:
        UserError: it does not compile.
        InfrastructureError: this machine cannot compile, or has no disassembler.
    """
    device = study.study.device
    inputs = make_inputs(resolved.workload, study.study.variables, "meta")
    launch = learn(resolved.workload, inputs, config, device.target)
    made = compile_stages(launch, device.target, keep=True)
    if isinstance(made, tuple):
        raise UserError(
            f"{config} does not compile for {study.study.label}: {describe(made[1])}",
            file=str(resolved.experiment.path), hint="name another --config",
        )  # fmt: skip
    return _look(made, device, config, launch.grid, doubts(launch.signature, launch.facts, device))


def look_at_cubin(file: Path, device: Device | None) -> Look:
    """Looks inside what Triton compiled elsewhere: a cubin, with what its cache keeps beside it.

    Args:
        file: the cubin; its metadata is the `.json` beside it, and other stages are read as far as they are there.
        device: whose limits are meant; the nominal one of its arch if None.

    Raises:
        UserError: a file is missing, or is not what it should be.
    """
    cubin, beside = read_bytes(file), file.with_suffix(".json")
    if not beside.is_file():
        hint = "Triton's cache keeps it beside the cubin: warps and shared memory are known from nowhere else"
        raise UserError(f"its metadata, {beside.name}, is not beside it", file=str(file), hint=hint)
    facts: dict[str, Any] = parse_json(read_text(beside), where=str(beside))
    try:
        arch = f"sm_{facts['target']['arch']}"
        warps, shared, _ = int(facts["num_warps"]), int(facts["shared"]), str(facts["name"])
    except (KeyError, TypeError, ValueError):
        raise UserError("is no metadata of a kernel", file=str(beside), hint="Triton's cache writes it") from None
    if device is not None and device.arch != arch:
        raise UserError(f"was compiled for {arch}, not {device.arch}", file=str(file), hint="leave --device out")
    registers, spills = resources(cubin)
    binary = hashlib.sha256(cubin).hexdigest()
    names = [stage for stage in TEXTS if file.with_suffix(f".{stage}").is_file()]
    stages = Stages(
        build=Build(binary=binary, registers=registers, spills=spills, shared_bytes=shared),
        artifact=Artifact(binary=binary, cubin=cubin, metadata=json.dumps(facts), specialization=""),
        texts=FrozenMap({stage: read_text(file.with_suffix(f".{stage}")) for stage in names}),
    )
    options = FrozenMap({"num_warps": warps, **{n: facts[n] for n in ("num_stages", "maxnreg") if facts.get(n)}})
    return _look(stages, device or nominal(arch), Config(options=options), (), {})


def _look(stages: Stages, device: Device, config: Config, grid: tuple[int, ...], doubtful: dict[str, str]) -> Look:
    sass = disassemble(stages.artifact.cubin)
    code = parse_sass(sass)
    inspection = inspect(stages, code, device, config, grid)
    seen = Seen(inspection=inspection, code=code, texts=stages.texts, doubts=doubtful)
    return Look(
        inspection=inspection,
        findings=findings(seen),
        texts=FrozenMap(stages.texts, **{SASS: sass}),
        cubin=stages.artifact.cubin,
    )
