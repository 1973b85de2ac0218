"""Device: the structured identity of a GPU, and the kinds that can be named without having one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tunefarm.errors import SpecError, UserError

_FORM = re.compile(r"NVIDIA|AMD|SXM[0-9]*|PCI-?E|HBM[0-9]e?|[0-9]+GB", re.IGNORECASE)
"""Words of a device's name that say who made it and in which form it comes."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What decides whether two GPUs may share a config.

    Attributes:
        vendor: `nvidia` (or `amd`, in landscapes recorded by others).
        arch: the capability, such as `sm_90`.
        name: the marketing name that the driver reports. Brittle (OEM renames), so it is never matched alone.
        num_sms: streaming multiprocessors.
        shared_bytes: shared memory one block may use (opt-in limit).
        l2_bytes: L2 cache.
        memory_bytes: device memory.
        bandwidth_gbps: peak memory bandwidth in GB/s, 0 where unknown.
        registers: 32-bit registers one block may use.
        warp_size: threads in a warp.
        max_threads: threads one block may have.
        mig: the MIG profile (`1g.10gb`), or empty for a whole GPU. A slice is another device than its GPU.
        live: whether a driver reported it; False for the nominal devices of `NOMINAL`.
    """

    vendor: str = "nvidia"
    arch: str
    name: str
    num_sms: int
    shared_bytes: int
    l2_bytes: int = 0
    memory_bytes: int = 0
    bandwidth_gbps: float = 0.0
    registers: int = 65536
    warp_size: int = 32
    max_threads: int = 1024
    mig: str = ""
    live: bool = False

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor) of an NVIDIA arch; (0, 0) for others."""
        digits = self.arch.removeprefix("sm_").rstrip("af")
        return (int(digits[:-1]), int(digits[-1])) if self.arch.startswith("sm_") and digits.isdigit() else (0, 0)

    @property
    def target(self) -> int:
        """The arch as Triton's `GPUTarget` takes it: 90 for sm_90."""
        major, minor = self.capability
        return 10 * major + minor

    @property
    def short_name(self) -> str:
        """The name without vendor and form: `H100` for `NVIDIA H100 80GB HBM3`; `H200 NVL` stays, another device."""
        words = re.split(r"[ _]|-(?=SXM|PCI|[0-9]+GB)", self.name)
        return " ".join(word for word in words if not _FORM.fullmatch(word))

    @property
    def key(self) -> str:
        """Identity for matching: everything but memory size, bandwidth and whether it was live."""
        return f"{self.vendor}/{self.arch}/{self.name}/{self.num_sms}" + (f"/{self.mig}" if self.mig else "")

    @classmethod
    def of_driver(cls, properties: Any, *, is_amd: bool) -> Device:
        """The identity of a live GPU.

        Args:
            properties: what `torch.cuda.get_device_properties` says of it.
            is_amd: whether this torch drives AMD GPUs; they go by another name there.
        """
        p = properties
        mig = re.search(r"MIG (\S+)", p.name)
        # Drivers that no longer tell give 0, and 0 is never taken for equal.
        clock_khz, bus_bits = getattr(p, "memory_clock_rate", 0), getattr(p, "memory_bus_width", 0)
        return cls(
            vendor="amd" if is_amd else "nvidia",
            arch=p.gcnArchName if is_amd else f"sm_{p.major}{p.minor}",
            name=p.name,
            num_sms=p.multi_processor_count,
            shared_bytes=int(getattr(p, "shared_memory_per_block_optin", 0) or p.shared_memory_per_block),
            l2_bytes=int(p.L2_cache_size),
            memory_bytes=int(p.total_memory),
            # Double data rate: two transfers a clock.
            bandwidth_gbps=round(2 * clock_khz * bus_bits / 8 / 1e6, 1),
            registers=int(getattr(p, "regs_per_multiprocessor", 65536)),
            warp_size=int(p.warp_size),
            max_threads=int(getattr(p, "max_threads_per_block", 1024)),
            mig=mig.group(1) if mig else "",
            live=True,
        )

    def to_json(self) -> dict[str, Any]:
        """The form that files hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """Reads what `to_json` wrote; unknown fields of newer releases are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in data.items() if k in known})


NOMINAL: dict[str, Device] = {
    device.arch: device
    for device in (
        # Shared memory per block (opt-in) from the CUDA programming guide, table of technical specifications.
        Device(arch="sm_80", name="NVIDIA A100-SXM4-80GB", num_sms=108, shared_bytes=163 * KIB, l2_bytes=40 * MIB,
               memory_bytes=80 * GIB, bandwidth_gbps=2039.0),
        Device(arch="sm_90", name="NVIDIA H100 80GB HBM3", num_sms=132, shared_bytes=227 * KIB, l2_bytes=50 * MIB,
               memory_bytes=80 * GIB, bandwidth_gbps=3352.0),
    )
}  # fmt: skip
"""The device an arch stands for where none of that arch is at hand: enough to compile and to judge legality."""


RECORDED: dict[str, Device] = {
    device.name: device
    for device in (
        # Shared memory per block from the vendors' programming guides, the rest from their data sheets; of the MI250X
        # one of its two dies, which is what a process gets.
        Device(arch="sm_80", name="A100-PCIE-40GB", num_sms=108, shared_bytes=163 * KIB, l2_bytes=40 * MIB,
               memory_bytes=40 * GIB, bandwidth_gbps=1555.0),
        Device(arch="sm_75", name="RTX 2080 Ti", num_sms=68, shared_bytes=64 * KIB, l2_bytes=5632 * KIB,
               memory_bytes=11 * GIB, bandwidth_gbps=616.0),
        Device(arch="sm_86", name="RTX 3090", num_sms=82, shared_bytes=99 * KIB, l2_bytes=6 * MIB,
               memory_bytes=24 * GIB, bandwidth_gbps=936.0),
        Device(arch="sm_86", name="RTX A4000", num_sms=48, shared_bytes=99 * KIB, l2_bytes=4 * MIB,
               memory_bytes=16 * GIB, bandwidth_gbps=448.0),
        Device(arch="sm_86", name="RTX A6000", num_sms=84, shared_bytes=99 * KIB, l2_bytes=6 * MIB,
               memory_bytes=48 * GIB, bandwidth_gbps=768.0),
        Device(vendor="amd", arch="gfx90a", name="MI250X", num_sms=110, shared_bytes=64 * KIB, l2_bytes=8 * MIB,
               memory_bytes=64 * GIB, bandwidth_gbps=1638.0, warp_size=64),
        Device(vendor="amd", arch="gfx1032", name="W6600", num_sms=28, shared_bytes=64 * KIB, l2_bytes=2 * MIB,
               memory_bytes=8 * GIB, bandwidth_gbps=224.0),
        Device(vendor="amd", arch="gfx1100", name="W7800", num_sms=70, shared_bytes=64 * KIB, l2_bytes=6 * MIB,
               memory_bytes=32 * GIB, bandwidth_gbps=576.0),
    )
}  # fmt: skip
"""Devices of which others have published recordings, which name no more than the name. They are replayed; nothing is
compiled for their archs."""


def recorded(name: str) -> Device | None:
    """The device that a recording of another tool names, under that name; None if no more is known of it.

    Args:
        name: as its driver says it: `NVIDIA RTX A4000` is an `RTX A4000`, and no `A4000 Ti` is.
    """
    said = f" {_plain(name).strip()}"
    for device in (*RECORDED.values(), *NOMINAL.values()):
        if said.endswith(f" {_plain(device.name).strip()}"):
            return replace(device, name=name)
    return None


def nominal(arch: str) -> Device:
    """The nominal device of an arch.

    Raises:
        SpecError: no nominal device is known for it.
    """
    try:
        return NOMINAL[arch]
    except KeyError:
        raise SpecError(
            f"unknown device arch {arch!r}", hint=f"builds can be made for {', '.join(sorted(NOMINAL))}"
        ) from None


def named(text: str, known: Sequence[Device] = ()) -> Device:
    """The device that somebody means.

    Args:
        text: its name, its name without vendor and form (`H100`), its key, or an arch, which stands for the nominal
            device of that arch. No name is cut short: `H20` is no `H200`.
        known: devices of which more is known than of the nominal ones.

    Raises:
        UserError: there is none, or more than one.
    """
    devices = {device.key: device for device in (*NOMINAL.values(), *known)}
    if text in NOMINAL:
        return devices[NOMINAL[text].key]
    wanted = _plain(text)
    for spelling in ("key", "name", "short_name"):
        found = [device for device in devices.values() if _plain(getattr(device, spelling)) == wanted]
        if len(found) > 1:
            keys = ", ".join(repr(device.key) for device in found)
            raise UserError(f"device {text!r} is more than one: {keys}", hint="name one of them so")
        if found:
            return found[0]
    names = ", ".join(sorted({repr(device.name) for device in devices.values()} | {repr(arch) for arch in NOMINAL}))
    raise UserError(f"device {text!r} is not known", hint=f"known are {names}")


def _plain(name: str) -> str:
    # Tools that make file names of devices replace what is no letter or digit.
    return re.sub(r"[^0-9a-z]+", " ", name.casefold())
