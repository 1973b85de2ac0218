"""Registers, stack frame and code of a kernel, read from its cubin.

A cubin is an ELF file; section `.nv.info` lists attributes of 4-byte words. Reading it takes some 60 us where the
vendor's `cuobjdump` takes milliseconds and must be installed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tunefarm.errors import InfrastructureError

_EIFMT_SVAL = 0x04
_NOBITS = 8
_UNSEEN = (".symtab", ".strtab", ".shstrtab", ".note")
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F


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
    content: bytes


def _sections(elf: bytes) -> Iterator[_Part]:
    try:
        if elf[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        offset = struct.unpack_from("<Q", elf, 0x28)[0]
        size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
        table = headers[names][4]
        for at, kind, _flags, _address, start, length in headers:
            name = elf[table + at : elf.index(b"\0", table + at)].decode()
            yield _Part(name, kind, length, b"" if kind == _NOBITS else elf[start : start + length])
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
