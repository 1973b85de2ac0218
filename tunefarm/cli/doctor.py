"""`tunefarm doctor`: what this machine can do, tried rather than guessed, and what to mend."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefarm.cli.check import Check
from tunefarm.cli.folders import MIN_FREE_BYTES, cache_folder
from tunefarm.cli.mounts import doubt
from tunefarm.cli.packages import OLDEST, remedy
from tunefarm.cli.trust import examine_trust
from tunefarm.config import counted
from tunefarm.fleet.cpus import available_cpus

ARCHS = {"sm_80": 80, "sm_90": 90}
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Says what this machine can do: build kernels, measure, replay, keep records; whom it trusts; and what to mend.

    Example: tunefarm doctor
    """
    checks: list[Check] = []
    for check in examine():
        checks.append(check)
        if not as_json:
            _print(check)
    can = abilities(checks)
    if as_json:
        typer.echo(json.dumps({"can": can, "checks": [asdict(c) for c in checks]}, indent=1))
    else:
        typer.echo("\n".join(["", *(f"{what}: {'yes' if able else 'no'}" for what, able in can.items())]))
    if not any(can.values()):
        raise typer.Exit(3)


def _print(check: Check) -> None:
    colour = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "missing": typer.colors.RED}[check.state]
    typer.echo(f"{typer.style(f'{check.state:8}', fg=colour)} {check.name:14} {check.found}")
    if check.remedy:
        typer.echo(f"{'':23} -> {check.remedy}")


def abilities(checks: list[Check]) -> dict[str, bool]:
    """What the machine can do, by what was found."""
    able = {c.name for c in checks if c.state != "missing"}
    files = {"pyyaml", "folder sweeps"} <= able
    plan = files and {"torch", "triton", "numpy"} <= able
    build = plan and any(f"build {arch}" in able for arch in ARCHS)
    search = build and "optuna" in able
    return {
        "read packs": files,
        "plan": plan,
        "build kernels": build,
        "sweep, replaying a landscape": search,
        "sweep, measuring on a GPU": search and "GPU" in able,
    }


def examine() -> Iterator[Check]:
    """Looks at one thing after the other; the slow ones last."""
    yield Check(name="Python", state="ok", found=f"{sys.version.split()[0]} at {sys.executable}")
    yield Check(name="CPUs", state="ok", found=f"{available_cpus()} to build on")
    folders = {"sweeps": Path("sweeps"), "cache": cache_folder(), "tmp": Path(tempfile.gettempdir())}
    for name, folder in folders.items():
        yield check_folder(name, folder)
    for name, oldest in OLDEST.items():
        check = check_package(name, oldest)
        yield check_torch(check) if name == "torch" else check
    yield from examine_trust()
    yield from _gpus()
    if importlib.util.find_spec("triton") is not None:
        for arch, target in ARCHS.items():
            yield check_build(arch, target)


def check_folder(name: str, folder: Path) -> Check:
    """Whether files can be made in a folder, or in the nearest parent that exists."""
    title = f"folder {name}"
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"tunefarm")
        free_bytes = shutil.disk_usage(place).free
    except OSError as e:
        remedy = "make it writable, or work in another folder"
        return Check(name=title, state="missing", found=f"{folder} cannot be written: {e.strerror}", remedy=remedy)
    found = f"{folder} ({free_bytes / (1 << 30):.1f} GiB free)"
    if free_bytes < MIN_FREE_BYTES:
        return Check(name=title, state="warn", found=found, remedy="free some space: a sweep keeps builds and records")
    if said := doubt(place):
        remedy = "keep ledgers and builds on a disk, or let one driver at a time go on with a sweep"
        return Check(name=title, state="warn", found=f"{found} on {said}", remedy=remedy)
    return Check(name=title, state="ok", found=found)


def check_package(name: str, oldest: str) -> Check:
    """Whether a package is installed, in a version that works."""
    install = remedy(name)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # Monitoring aside, each is needed for something; a sweep can do without this one.
        state = "warn" if name in ("nvidia-ml-py", "ray", "grpcio", "mlflow", "cmaes", "scipy") else "missing"
        return Check(name=name, state=state, found="not installed", remedy=install)
    if _numbers(version) < _numbers(oldest):
        return Check(
            name=name, state="warn", found=f"{version}, tested from {oldest} on", remedy=install + " --upgrade"
        )
    return Check(name=name, state="ok", found=version)


def check_torch(installed: Check) -> Check:
    """Whether the torch that is installed can be imported, and what it was built for."""
    if installed.state == "missing":
        return installed
    try:
        import torch

        built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    except Exception as e:  # ImportError or OSError, by which library is missing
        said = (str(e).strip().splitlines() or [type(e).__name__])[0]
        fit = "install a build of torch that fits this machine"
        return Check(name="torch", state="missing", found=f"{installed.found} does not load: {said}", remedy=fit)
    return replace(installed, found=f"{installed.found}, {built_for}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def _gpus() -> Iterator[Check]:
    """The GPUs that the driver reports, and whether torch can use them."""
    try:
        gpus = list(_ask_driver())
    except Exception as e:  # no library, no driver, no permission: each says so itself
        why = (
            f"the driver's library says: {e}" if importlib.util.find_spec("pynvml") else "nvidia-ml-py is not installed"
        )
        gpus = [Check(name=f"GPU {name}", state="ok", found=name) for name in _torch_devices()]
        if not gpus:
            yield Check(name="GPU", state="missing", found=f"none ({why})", remedy="replay a landscape, or use a farm")
            return
    yield from gpus
    if names := _torch_devices():
        yield Check(name="GPU", state="ok", found=f"torch can use {len(names)}: {', '.join(names)}")
    else:
        remedy = "install a CUDA build of torch that fits the driver"
        yield Check(name="GPU", state="missing", found="torch cannot use the GPUs that are here", remedy=remedy)


def _ask_driver() -> Iterator[Check]:
    import pynvml

    pynvml.nvmlInit()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu)
            found = f"{_text(pynvml.nvmlDeviceGetName(gpu))} sm_{major}{minor}"
            remedies = []
            with contextlib.suppress(pynvml.NVMLError):  # only some GPUs can be sliced
                if pynvml.nvmlDeviceGetMigMode(gpu)[0]:
                    found += ", MIG on"
                    remedies.append("a MIG slice is tuned as a device of its own")
            with contextlib.suppress(pynvml.NVMLError):
                others = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) if p.pid != os.getpid()]
                if others:
                    found += f", {counted(len(others), 'other process computes', 'other processes compute')} on it"
                    remedies.append("times taken beside other work are not worth keeping: wait, or use another GPU")
            state = "warn" if remedies else "ok"
            yield Check(name=f"GPU {index}", state=state, found=found, remedy="; ".join(remedies))
    finally:
        pynvml.nvmlShutdown()


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _torch_devices() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return []
    with contextlib.suppress(Exception):  # what keeps torch from loading is said by `check_torch`
        import torch

        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return []


def check_build(arch: str, target: int) -> Check:
    """Compiles a small kernel for an arch; needs no GPU."""
    name = f"build {arch}"
    begun_s = time.perf_counter()
    try:
        size = _compile(target)
    except Exception as e:
        said = (str(e).strip().splitlines() or [type(e).__name__])[0]
        remedy = "pip install --force-reinstall triton; its own ptxas must be able to run here"
        return Check(name=name, state="missing", found=f"a small kernel does not compile: {said}", remedy=remedy)
    return Check(name=name, state="ok", found=f"a small kernel in {time.perf_counter() - begun_s:.2f} s, {size} bytes")


def _compile(target: int) -> int:
    """Bytes of the binary."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder:
        # Triton reads a kernel's source from its file; a cache of its own keeps this from being answered from memory.
        path = Path(folder) / "kernel.py"
        path.write_text(KERNEL)
        spec = importlib.util.spec_from_file_location("tunefarm_doctor_kernel", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        source = ASTSource(
            fn=module.scale, signature={"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, constexprs={(2,): 128}
        )
        with triton.knobs.cache.scope():
            triton.knobs.cache.dir = folder
            compiled = triton.compile(source, target=GPUTarget("cuda", target, 32))
        return len(compiled.asm["cubin"])
