"""Builds: a config compiled for one arch and one specialisation, on a CPU, by the real compiler."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.bench.cubin import resources
from tunefarm.bench.launch import Launch
from tunefarm.document import digest
from tunefarm.frozen import FrozenMap
from tunefarm.trial import Build, Failure, Outcome

_LAUNCH_ATTRIBUTES = (
    "num_warps", "num_ctas", "cluster_dims", "launch_cooperative_grid", "launch_pdl", "shared", "tmem_size",
    "global_scratch_size", "global_scratch_align", "profile_scratch_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What a GPU worker needs to launch without compiling.

    Attributes:
        binary: SHA-256 of the cubin.
        cubin: the machine code.
        metadata: Triton's metadata as JSON text.
        specialization: of the launch it was compiled for; a launch that differs must not use it.
    """

    binary: str
    cubin: bytes
    metadata: str
    specialization: str


def triton_version() -> str:
    """Version of the installed Triton."""
    import triton

    return str(triton.__version__)


def launch_options(target: int = 90) -> frozenset[str]:
    """Names of the launch options that the installed Triton's NVIDIA backend declares and a user may tune."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    internal = {"arch", "backend_name", "debug", "extern_libs", "instrumentation_mode", "warp_size", "ir_override"}
    return frozenset(make_backend(GPUTarget("cuda", target, 32)).parse_options({}).__dict__) - internal


def build_key(source_hash: str, launch: Launch, target: int) -> str:
    """Where a build lies in the store: equal keys give equal binaries."""
    return digest([source_hash, launch.specialization, target, triton_version()])


def compile_launch(launch: Launch, target: int) -> tuple[Build, Artifact] | tuple[Outcome, Failure]:
    """Compiles what an intercepted launch would run.

    Args:
        launch: from `launch.learn`; its grid becomes the build's.
        target: arch, such as 90.

    Returns:
        The build and its artifact, or how and why it failed; any exception of the compiler is the candidate's.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    started = time.perf_counter()
    with _private_cache():
        try:
            compiled = triton.compile(
                source, target=GPUTarget("cuda", target, 32), options=dict(launch.options.__dict__)
            )
            cubin = bytes(compiled.asm["cubin"])
            metadata = _metadata(compiled)
        except Exception as e:
            return _failure(e, launch)
    seconds = time.perf_counter() - started
    binary = hashlib.sha256(cubin).hexdigest()
    facts = json.loads(metadata)
    registers, spills = resources(cubin)
    build = Build(
        binary=binary, registers=registers, spills=spills, shared_bytes=int(facts["shared"]), grid=launch.grid,
        build_s=seconds, launch=FrozenMap({n: _hashable(facts[n]) for n in _LAUNCH_ATTRIBUTES if n in facts}),
    )  # fmt: skip
    artifact = Artifact(binary=binary, cubin=cubin, metadata=metadata, specialization=launch.specialization)
    return build, artifact


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _metadata(compiled: Any) -> str:
    path = next(Path(p) for name, p in compiled.metadata_group.items() if name.endswith(".json"))
    return path.read_text()


@contextlib.contextmanager
def _private_cache() -> Iterator[None]:
    # Triton's cache is a folder that grows with every losing candidate. Each compile gets one of its own, gone with
    # it: what is worth keeping goes into the build store.
    from triton import knobs

    folder = tempfile.mkdtemp(prefix="tunefarm-build-")
    try:
        with knobs.cache.scope(), knobs.compilation.scope():
            knobs.cache.dir = folder
            knobs.compilation.store_binary_only = True
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failure(error: Exception, launch: Launch) -> tuple[Outcome, Failure]:
    kind = type(error).__name__
    text = str(error).strip() or kind
    lines = [line for line in text.splitlines() if line.strip()]
    if kind == "PTXASError" or "ptxas" in text:
        stage_lines = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
        message = "ptxas: " + (stage_lines or lines)[0].strip()
    elif kind == "CompilationError" and lines[0].startswith("at "):
        message = f"{launch.kernel.__name__} {_source_line(lines[0], launch)}: {lines[-1].strip()}"
    else:
        message = lines[0].strip()
    outcome = Outcome.OUT_OF_RESOURCES if kind == "OutOfResources" else Outcome.COMPILE_ERROR
    return outcome, Failure(stage="build", kind=kind, message=message[:400], detail=text[:4000])


def _source_line(place: str, launch: Launch) -> str:
    """`line 12: acc = tl.dot(a, b)` from the compiler's `at 12:8:` (counted from the `def`)."""
    number = place.removeprefix("at ").split(":")[0]
    source = launch.kernel.src.splitlines()
    text = source[int(number) - 1].strip() if number.isdigit() and int(number) <= len(source) else ""
    return f"line {number}" + (f": {text}" if text else "")
