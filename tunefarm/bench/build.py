"""Builds: a config compiled for one arch and one specialisation, on a CPU, by the real compiler."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.bench.cubin import code_hash, resources
from tunefarm.bench.launch import Launch
from tunefarm.config import CODE_OPTIONS
from tunefarm.document import digest
from tunefarm.errors import InfrastructureError
from tunefarm.frozen import FrozenMap
from tunefarm.trial import Build, Failure, Outcome

_LAUNCH_ATTRIBUTES = (
    "num_warps", "num_ctas", "cluster_dims", "launch_cooperative_grid", "launch_pdl", "shared", "tmem_size",
    "global_scratch_size", "global_scratch_align", "profile_scratch_size",
)  # fmt: skip
MAX_MESSAGE = 400


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


TEXTS = ("ttir", "ttgir", "llir", "ptx")
"""What the compiler makes of a kernel on the way to machine code, in this order, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A compilation, with what was made on the way where it was kept.

    Attributes:
        build: what it gave.
        artifact: the machine code.
        texts: by stage, of `TEXTS`.
        seconds: of compiling, by stage; `cubin` is the assembler's.
        words: what the assembler said.
    """

    build: Build
    artifact: Artifact
    texts: FrozenMap[str] = field(default_factory=FrozenMap)
    seconds: FrozenMap[float] = field(default_factory=FrozenMap)
    words: str = ""


def triton_version() -> str:
    """Version of the installed Triton."""
    import triton

    return str(triton.__version__)


def launch_options(target: int = 90) -> frozenset[str]:
    """Names of the launch options that the installed Triton's NVIDIA backend declares and a user may tune."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    internal = {"arch", "backend_name", "debug", "instrumentation_mode", "warp_size"} | CODE_OPTIONS
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

    Raises:
        InfrastructureError: this machine cannot compile (no disk, no assembler), whatever the candidate.
    """
    made = compile_stages(launch, target)
    return made if isinstance(made, tuple) else (made.build, made.artifact)


def compile_stages(launch: Launch, target: int, *, keep: bool = False) -> Stages | tuple[Outcome, Failure]:
    """As `compile_launch`, with what the compiler made on the way.

    Args:
        launch: from `launch.learn`; its grid becomes the build's.
        target: arch, such as 90.
        keep: keep the texts, and the assembler's words.

    Raises:
        InfrastructureError: as of `compile_launch`.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    by_stage: dict[str, float] = {}
    started = time.perf_counter()
    try:
        with _private_cache(by_stage if keep else None) as words:
            compiled = triton.compile(
                source, target=GPUTarget("cuda", target, 32), options=dict(launch.options.__dict__)
            )
            cubin = bytes(compiled.asm["cubin"])
            metadata = _metadata(compiled)
            texts = {stage: str(compiled.asm[stage]) for stage in TEXTS if stage in compiled.asm}
    except OSError as e:  # Triton wraps what the kernel's own compile-time Python raises.
        raise InfrastructureError(f"cannot compile here: {type(e).__name__}: {e}") from None
    except (Exception, SystemExit, KeyboardInterrupt) as e:
        return _failure(e, [name for name, fact in launch.facts.items() if fact == "one"])
    seconds = time.perf_counter() - started
    binary = hashlib.sha256(cubin).hexdigest()
    facts = json.loads(metadata)
    registers, spills = resources(cubin)
    build = Build(
        binary=binary, registers=registers, spills=spills, shared_bytes=int(facts["shared"]), grid=launch.grid,
        build_s=seconds, launch=FrozenMap({n: _hashable(facts[n]) for n in _LAUNCH_ATTRIBUTES if n in facts}),
        code=code_hash(cubin),
    )  # fmt: skip
    artifact = Artifact(binary=binary, cubin=cubin, metadata=metadata, specialization=launch.specialization)
    return Stages(
        build=build, artifact=artifact, texts=FrozenMap(texts), seconds=FrozenMap(by_stage),
        words=words.getvalue(),
    )  # fmt: skip


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _metadata(compiled: Any) -> str:
    path = next(Path(p) for name, p in compiled.metadata_group.items() if name.endswith(".json"))
    return path.read_text()


@contextlib.contextmanager
def _private_cache(keep: dict[str, float] | None = None) -> Iterator[io.StringIO]:
    """What is printed meanwhile; with `keep` every stage is kept, its seconds there, and the assembler speaks."""
    # Triton's cache is a folder that grows with every losing candidate, and what the assembler refuses stays among the
    # temporary files and is printed. Each compile gets a folder of its own, gone with it: what is worth keeping goes
    # into the build store, and what was wrong into the failure.
    from triton import knobs

    folder = tempfile.mkdtemp(prefix="tunefarm-build-")
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        with contextlib.ExitStack() as stack:
            for group in (knobs.cache, knobs.compilation, *([knobs.nvidia] if keep is not None else [])):
                stack.enter_context(group.scope())
            knobs.cache.dir = folder
            knobs.compilation.store_binary_only = keep is None
            if keep is not None:
                knobs.compilation.listener, knobs.nvidia.dump_ptxas_log = _stopwatch(keep), True
            yield stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def _stopwatch(seconds: dict[str, float]) -> Callable[..., None]:
    def listen(*, times: Any, **_: Any) -> None:
        seconds["ast"] = times.ir_initialization / 1e6
        seconds.update((stage, microseconds / 1e6) for stage, microseconds in times.lowering_stages)

    return listen


def _failure(error: BaseException, ones: Sequence[str]) -> tuple[Outcome, Failure]:
    """How a compilation failed; `ones` are the arguments that are constants of the kernel because they equal 1."""
    from triton.compiler.errors import CompilationError

    kind = type(error).__name__
    text = str(error).strip() or kind
    if isinstance(error, CompilationError):
        message, text = _compiler_says(error)
    elif kind == "PTXASError":
        message = _assembler_says(text)
    else:
        message = next(line.strip() for line in text.splitlines() if line.strip())
    # The same kernel compiles for other values, so whoever reads this looks for the cause in vain.
    named = [name for name in ones if re.search(rf"\b{re.escape(name)}\b", message)]
    hint = "".join(f" (argument {name} == 1 is specialised: a plain number in the kernel)" for name in named)
    message = message[: MAX_MESSAGE - len(hint)] + hint
    outcome = Outcome.OUT_OF_RESOURCES if kind == "OutOfResources" else Outcome.COMPILE_ERROR
    return outcome, Failure(stage="build", kind=kind, message=message, detail=text[:4000])


def _compiler_says(error: Any) -> tuple[str, str]:
    """(`kernel line 12: y = root(x): root line 3: return tl.srt(x): what is wrong`, the compiler's own excerpt).

    An error inside a jitted function that the kernel calls is the cause of one without a message at the call. Lines
    count from the `def`.
    """
    places: list[str] = []
    while True:
        source, number = (error.src or "").splitlines(), getattr(error.node, "lineno", 0)
        name = re.match(r"def\s+(\w+)", error.src or "")
        line = source[number - 1].strip() if 1 <= number <= len(source) else ""
        places.append(f"{name[1] if name else '?'} line {number}: {line}")
        if not hasattr(error.__cause__, "error_message"):
            break
        error = error.__cause__
    what = " ".join((error.error_message or type(error.__cause__ or error).__name__).split())
    # Whatever must be cut, it is not what is wrong.
    return f"{': '.join(places)[: max(0, MAX_MESSAGE - 2 - len(what))]}: {what}", str(error)


def _assembler_says(text: str) -> str:
    # Without the temporary file's name, so that equal errors read alike.
    said = text.partition("stderr:")[2] or text
    errors = re.findall(r"(?:error|fatal)\s*:\s*(.+)", said, re.IGNORECASE)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return "ptxas: " + (errors or lines or [text])[0].strip()
