"""Registers and stack frame of a kernel, read from its cubin.

A cubin is an ELF file; section `.nv.info` lists attributes of 4-byte words. Reading it takes some 60 us where the
vendor's `cuobjdump` takes milliseconds and must be installed.
"""

from __future__ import annotations

import struct

from tunefarm.errors import InfrastructureError

_EIFMT_SVAL = 0x04
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers per thread, 4-byte registers spilled per thread) of the first kernel in a cubin.

    Spills are counted as the driver does: bytes of the thread's local frame over 4.

    Raises:
        InfrastructureError: the bytes are no 64-bit ELF file with an `.nv.info` section.
    """
    found: dict[int, int] = {}
    for attribute, _symbol, value in _attributes(_section(cubin, b".nv.info")):
        found.setdefault(attribute, value)
    if _EIATTR_REGCOUNT not in found:
        raise InfrastructureError("the cubin names no register count", hint="built by an unknown ptxas")
    return found[_EIATTR_REGCOUNT], found.get(_EIATTR_FRAME_SIZE, 0) // 4


def _section(elf: bytes, wanted: bytes) -> bytes:
    try:
        if elf[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        offset = struct.unpack_from("<Q", elf, 0x28)[0]
        size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
        table = headers[names][4]
        for name, _type, _flags, _address, start, length in headers:
            end = elf.index(b"\0", table + name)
            if elf[table + name : end] == wanted:
                return elf[start : start + length]
    except (struct.error, ValueError, IndexError) as e:
        raise InfrastructureError(f"unreadable cubin: {e}") from None
    raise InfrastructureError(f"the cubin has no section {wanted.decode()}")


def _attributes(section: bytes) -> list[tuple[int, int, int]]:
    found = []
    at = 0
    while at + 4 <= len(section):
        kind, attribute, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if kind == _EIFMT_SVAL:
            if size == 8:
                found.append((attribute, *struct.unpack_from("<II", section, at)))
            at += size
    return found
