"""Occupancy by the documented limits, and what would allow one block more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.device import KIB, nominal
from tunefarm.errors import SpecError
from tunefarm.occupancy import occupancy, registers_for, resident, shared_for

A100, H100 = nominal("sm_80"), nominal("sm_90")


@pytest.mark.parametrize(
    ("device", "registers", "shared_bytes", "num_warps", "blocks", "limiters"),
    [
        (A100, 32, 0, 8, 8, ("registers", "warps")),
        (A100, 33, 0, 8, 6, ("registers",)),  # 40 a thread are taken: 12 warps a partition
        (A100, 16, 0, 1, 32, ("blocks",)),
        (A100, 24, 0, 32, 2, ("registers", "warps")),
        (A100, 255, 0, 4, 2, ("registers",)),
        (A100, 64, 0, 32, 1, ("registers",)),
        (A100, 65, 0, 32, 0, ("registers",)),
        (A100, 16, 163 * KIB, 4, 1, ("shared memory",)),
        (A100, 16, 81 * KIB, 4, 2, ("shared memory",)),
        (A100, 16, 81 * KIB + 1, 4, 1, ("shared memory",)),
        (H100, 16, 81 * KIB + 1, 4, 2, ("shared memory",)),
        (H100, 16, 227 * KIB, 4, 1, ("shared memory",)),
        (H100, 16, 228 * KIB, 4, 0, ("shared memory",)),
        (H100, 168, 0, 12, 1, ("registers",)),
        (H100, 16, 0, 64, 0, ("warps",)),  # 2048 threads are more than a block may have
        (replace(A100, arch="sm_86", shared_bytes=99 * KIB), 32, 0, 8, 6, ("warps",)),
        (replace(A100, arch="sm_89", shared_bytes=99 * KIB), 16, 0, 1, 24, ("blocks",)),
    ],
)
def test_what_an_sm_holds(device, registers, shared_bytes, num_warps, blocks, limiters):
    found = occupancy(device, registers=registers, shared_bytes=shared_bytes, num_warps=num_warps)
    assert (found.blocks, found.limiters) == (blocks, limiters)
    assert found.warps == blocks * num_warps <= found.max_warps
    assert found.share == found.warps / resident(device)[0]


@pytest.mark.parametrize("num_warps", [1, 2, 3, 4, 8, 12, 16, 32])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8])
def test_what_would_allow_so_many_blocks_is_exact(num_warps, blocks):
    most = registers_for(H100, blocks, num_warps)
    room = shared_for(H100, blocks)
    if most:
        assert occupancy(H100, registers=most, shared_bytes=0, num_warps=num_warps).limits["registers"] >= blocks
    if most < 255:
        assert occupancy(H100, registers=most + 1, shared_bytes=0, num_warps=num_warps).limits["registers"] < blocks
    assert occupancy(H100, registers=16, shared_bytes=room, num_warps=1).limits["shared memory"] >= blocks
    assert occupancy(H100, registers=16, shared_bytes=room + 1, num_warps=1).limits["shared memory"] < blocks


def test_an_arch_that_nobody_knows():
    with pytest.raises(SpecError, match="the limits of an SM are not known for gfx90a"):
        resident(replace(A100, arch="gfx90a", vendor="amd"))
