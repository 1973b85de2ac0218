"""Legality: what a device can never run, known before anything is compiled, or from the compiler's word.

Tile and dot rules apply only to tiles that the workload declares: a param may mean anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefarm.config import Config
from tunefarm.device import KIB, Device
from tunefarm.frozen import FrozenMap
from tunefarm.limits import no_tile, too_many_threads, too_shallow
from tunefarm.spec.workload import Workload, WorkloadRef
from tunefarm.trial import Build, Failure

MAX_GRID = (2**31 - 1, 65535, 65535)

LEAST_CAPABILITY = {"bf16": (8, 0), "fp8e4nv": (8, 9)}
"""Compute capability from which NVIDIA's units convert an element type (`supported_fp8_dtypes`, Triton 3.6 to 3.9)."""


def unsupported(device: Device, dtypes: Iterable[str]) -> str:
    """Why a device cannot run a problem at all, whatever the config; empty if it can.

    Args:
        device: where it would run.
        dtypes: element types of the problem's tensors in Triton's spelling.
    """
    for dtype in sorted(set(dtypes)):
        least = LEAST_CAPABILITY.get(dtype)
        if device.vendor == "nvidia" and least is not None and device.capability < least:
            return f"{device.arch} cannot do {dtype}, which needs sm_{least[0]}{least[1]}"
    return ""


def illegal(
    config: Config, workload: Workload | WorkloadRef, device: Device, dtypes: Iterable[str] = ()
) -> Failure | None:
    """The first rule that forbids a config on a device, or None.

    Args:
        config: the config.
        workload: for its declared tiles and dots.
        device: where it would run.
        dtypes: element types of the problem's tensors in Triton's spelling. Which of them meet in a dot is not known,
            so the widest decides the least K.
    """
    for rule in (too_many_threads, _cluster, _maxnreg):
        if failure := rule(config, device):
            return failure
    for group in workload.tiles:
        if failure := no_tile(config, group):
            return failure
    for dot in workload.dots:
        if failure := too_shallow(config, dot[2], dtypes):
            return failure
    return None


def screen(
    configs: Sequence[Config], workload: Workload | WorkloadRef, device: Device, dtypes: Iterable[str] = ()
) -> tuple[tuple[Config, ...], FrozenMap[int]]:
    """The legal ones of `configs`, and how many each rule removed, by the rule's name and limit."""
    kept = []
    removed: dict[str, int] = {}
    names = tuple(dtypes)
    for config in configs:
        failure = illegal(config, workload, device, names)
        if failure is None:
            kept.append(config)
        else:
            removed[failure.kind] = removed.get(failure.kind, 0) + 1
    return tuple(kept), FrozenMap(removed)


def unfit(build: Build, device: Device) -> Failure | None:
    """Why a compiled config cannot be launched on a device, or None."""
    if build.shared_bytes > device.shared_bytes:
        return Failure(
            stage="build", kind="OutOfResources",
            message=f"shared memory: required {build.shared_bytes} bytes ({build.shared_bytes / KIB:.0f} KiB), "
                    f"limit {device.shared_bytes} bytes ({device.shared_bytes / KIB:.0f} KiB) a block on {device.name}",
        )  # fmt: skip
    threads = int(build.launch.get("num_warps", 1)) * device.warp_size
    if build.registers * threads > device.registers:
        return Failure(
            stage="build", kind="OutOfResources",
            message=f"registers: required {build.registers} x {threads} threads, limit {device.registers} a block",
        )  # fmt: skip
    for axis, count, limit in zip("xyz", build.grid, MAX_GRID, strict=True):
        if count > limit:
            return Failure(stage="build", kind="GridTooLarge", message=f"grid {axis}: {count} programs, limit {limit}")
    return None


def _cluster(config: Config, device: Device) -> Failure | None:
    ctas = config.options.get("num_ctas") or 1
    if not isinstance(ctas, int) or ctas == 1:
        return None
    if device.vendor == "nvidia" and device.capability < (9, 0):
        return Failure(
            stage="legality", kind="clusters need sm_90",
            message=f"num_ctas={ctas} needs block clusters, which {device.arch} does not have",
        )  # fmt: skip
    return None


def _maxnreg(config: Config, device: Device) -> Failure | None:
    limit = config.options.get("maxnreg")
    if limit is None or (isinstance(limit, int) and 1 <= limit <= 255):
        return None
    return Failure(
        stage="legality", kind="maxnreg in 1..255", message=f"maxnreg={limit}: a thread has at most 255 registers"
    )
