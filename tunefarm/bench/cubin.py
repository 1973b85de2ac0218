"""What a kernel takes, and its code, read from its cubin.

A cubin is an ELF file; section `.nv.info` lists attributes of 4-byte words. Reading it takes some 60 us where the
vendor's `cuobjdump` takes milliseconds and must be installed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tunefarm.errors import InfrastructureError

_EIFMT_SVAL = 0x04
_NOBITS = 8
_UNSEEN = (".symtab", ".strtab", ".shstrtab", ".note")
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F


_RESERVED = ".nv.shared.reserved"
_RESERVES_WITHIN = 9
"""From this major of compute capability on, static shared memory begins with what the system takes of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a kernel takes, as `cuobjdump -res-usage` tells it.

    Attributes:
        registers: of a thread.
        stack_bytes: local memory of a thread: what is spilled lies there.
        static_bytes: shared memory of a block that the code itself declares; from sm_90 on with the KiB that the system
            takes of a block that has any.
        constant_bytes: of constant bank 0, which holds the arguments.
        barriers: of a block, by number.
    """

    registers: int
    stack_bytes: int
    static_bytes: int
    constant_bytes: int
    barriers: int

    def declared_bytes(self, major: int, reserved_bytes: int) -> int:
        """Static shared memory without what the system takes.

        Args:
            major: of the compute capability.
            reserved_bytes: what the system takes of a block.
        """
        return max(0, self.static_bytes - (reserved_bytes if major >= _RESERVES_WITHIN else 0))


def usage(cubin: bytes) -> Usage:
    """What the kernel in a cubin takes.

    Raises:
        InfrastructureError: as of `resources`.
    """
    registers, spills = resources(cubin)
    parts = list(_sections(cubin))

    def total(start: str) -> int:
        return sum(p.size for p in parts if p.name.startswith(start) and not p.name.startswith(_RESERVED))

    return Usage(
        registers=registers, stack_bytes=4 * spills, static_bytes=total(".nv.shared."),
        constant_bytes=total(".nv.constant0."),
        barriers=max((p.flags >> 20 & 0x7F for p in parts if p.name.startswith(".text.")), default=0),
    )  # fmt: skip


def resources(cubin: bytes) -> tuple[int, int]:
    """(registers per thread, 4-byte registers spilled per thread) of the first kernel in a cubin.

    Spills are counted as the driver does: bytes of the thread's local frame over 4.

    Raises:
        InfrastructureError: the bytes are no 64-bit ELF file with an `.nv.info` section.
    """
    found: dict[int, int] = {}
    for attribute, _symbol, value in _attributes(_section(cubin, ".nv.info")):
        found.setdefault(attribute, value)
    if _EIATTR_REGCOUNT not in found:
        raise InfrastructureError("the cubin names no register count", hint="built by an unknown ptxas")
    return found[_EIATTR_REGCOUNT], found.get(_EIATTR_FRAME_SIZE, 0) // 4


def code_hash(cubin: bytes) -> str:
    """SHA-256 of what a GPU gets of a cubin: code, constants and how much it needs, under their names.

    Files, lines and the assembler's input, which the cubin holds for debuggers, differ with every edit above the kernel
    and with the folder it lies in; tables of names and notes about tools do not reach the GPU either.

    Raises:
        InfrastructureError: the bytes are no 64-bit ELF file.
    """
    seen = hashlib.sha256()
    for section in sorted(_sections(cubin)):
        if section.name and "debug" not in section.name and not section.name.startswith(_UNSEEN):
            size = section.size if section.kind == _NOBITS else len(section.content)
            seen.update(f"{section.name} {section.kind} {size}\n".encode())
            seen.update(section.content)
    return seen.hexdigest()


class _Part(NamedTuple):
    name: str
    kind: int
    size: int
    flags: int
    content: bytes


def _sections(elf: bytes) -> Iterator[_Part]:
    try:
        if elf[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        offset = struct.unpack_from("<Q", elf, 0x28)[0]
        size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
        table = headers[names][4]
        for at, kind, flags, _address, start, length in headers:
            name = elf[table + at : elf.index(b"\0", table + at)].decode()
            yield _Part(name, kind, length, flags, b"" if kind == _NOBITS else elf[start : start + length])
    except (struct.error, ValueError, IndexError) as e:
        raise InfrastructureError(f"unreadable cubin: {e}") from None


def _section(elf: bytes, wanted: str) -> bytes:
    found = next((part.content for part in _sections(elf) if part.name == wanted), None)
    if found is None:
        raise InfrastructureError(f"the cubin has no section {wanted}")
    return found


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
