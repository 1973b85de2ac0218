"""Occupancy: how many blocks of a kernel an SM holds at a time, and which of its resources allows no more.

Rules and numbers are those of the CUDA programming guide (compute capabilities, technical specifications) and of the
occupancy calculator that comes with CUDA. What happens at run time, such as a grid too small for the GPU, is no part of
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.device import KIB, Device
from tunefarm.errors import SpecError
from tunefarm.frozen import FrozenMap

_RESIDENT = {
    (8, 0): (64, 32), (8, 6): (48, 16), (8, 7): (48, 16), (8, 9): (48, 24), (9, 0): (64, 32), (10, 0): (64, 32),
    (10, 3): (64, 32), (12, 0): (48, 24), (12, 1): (48, 24),
}  # fmt: skip
"""(warps, blocks) that an SM holds at most, by compute capability."""

RESERVED_BYTES = KIB
"""Shared memory that the system takes of each block, from sm_80 on."""

MAX_REGISTERS = 255
"""Of a thread."""

_PARTITIONS, _REGISTERS_AT_A_TIME, _SHARED_AT_A_TIME = 4, 256, 128
"""An SM is four partitions of equal size, each with registers and warps of its own; registers are given to a warp, and
bytes of shared memory to a block, in such portions."""


def resident(device: Device) -> tuple[int, int]:
    """(warps, blocks) that an SM of a device holds at most.

    Raises:
        SpecError: nothing is known of its arch.
    """
    try:
        return _RESIDENT[device.capability]
    except KeyError:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in _RESIDENT)
        raise SpecError(f"the limits of an SM are not known for {device.arch}", hint=f"known are {known}") from None


def sm_shared_bytes(device: Device) -> int:
    """Shared memory of an SM: what one block may have, and what the system takes of it."""
    return device.shared_bytes + RESERVED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What an SM holds of a kernel. That blocks of a cluster must find room together is not considered.

    Attributes:
        blocks: at a time; 0 if not even one fits.
        num_warps: of a block.
        max_warps: of an SM.
        limits: blocks that each resource would allow by itself: `registers`, `shared memory`, `warps`, `blocks`.
    """

    blocks: int
    num_warps: int
    max_warps: int
    limits: FrozenMap[int]

    @property
    def warps(self) -> int:
        """Of the kernel on an SM."""
        return self.blocks * self.num_warps

    @property
    def share(self) -> float:
        """Of the warps that an SM can hold, from 0 to 1."""
        return self.warps / self.max_warps

    @property
    def limiters(self) -> tuple[str, ...]:
        """The resources that allow no more."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(device: Device, *, registers: int, shared_bytes: int, num_warps: int) -> Occupancy:
    """What an SM of a device holds of a kernel.

    Args:
        device: which.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic, without what the system takes.
        num_warps: of a block.

    Raises:
        SpecError: nothing is known of the device's arch.
    """
    max_warps, max_blocks = resident(device)
    shared = _rounded(shared_bytes + RESERVED_BYTES, _SHARED_AT_A_TIME)
    limits = {
        "registers": _blocks_by_registers(device, registers, num_warps),
        "shared memory": sm_shared_bytes(device) // shared,
        "warps": max_warps // num_warps if num_warps * device.warp_size <= device.max_threads else 0,
        "blocks": max_blocks,
    }
    return Occupancy(blocks=min(limits.values()), num_warps=num_warps, max_warps=max_warps, limits=FrozenMap(limits))


def _blocks_by_registers(device: Device, registers: int, num_warps: int) -> int:
    portion = _rounded(max(registers, 1) * device.warp_size, _REGISTERS_AT_A_TIME)
    # A launch is refused as if every partition were given as many warps as the fullest.
    if portion * _rounded(num_warps, _PARTITIONS) > device.registers:
        return 0
    return device.registers // _PARTITIONS // portion * _PARTITIONS // num_warps


def registers_for(device: Device, blocks: int, num_warps: int) -> int:
    """The most registers that a thread may have if an SM is to hold so many blocks; 0 if it cannot hold them."""
    each = -(-blocks * num_warps // _PARTITIONS)
    portion = device.registers // _PARTITIONS // each // _REGISTERS_AT_A_TIME * _REGISTERS_AT_A_TIME
    return min(MAX_REGISTERS, portion // device.warp_size)


def shared_for(device: Device, blocks: int) -> int:
    """The most bytes of shared memory that a block may have if an SM is to hold so many of them."""
    each = sm_shared_bytes(device) // blocks // _SHARED_AT_A_TIME * _SHARED_AT_A_TIME
    return max(0, min(device.shared_bytes, each - RESERVED_BYTES))


def _rounded(number: int, portion: int) -> int:
    return -(-number // portion) * portion
