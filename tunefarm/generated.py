"""Kernels that Inductor generates: by what its look-up table of configs knows them.

Inductor's key of a kernel is the SHA-256 of its size hints and its text, without its name: the number at the end of the
name, which tells the place in one compilation, is nobody's business.
"""

from __future__ import annotations

import hashlib
import re

_HINTS = re.compile(r"size_hints=(\{.*?\})")
_NAME = re.compile(r"^def [^(]+\(")
_NUMBER = re.compile(r"_\d+$")
JIT = "@triton.jit\n"


def plain_name(name: str) -> str:
    """The name of a generated kernel without its number."""
    return _NUMBER.sub("", name)


def parts_of(source: str) -> tuple[str, str] | None:
    """The size hints and the kernel, as text, of a file that Inductor generates for one kernel.

    None if Inductor's key of it depends on where it is taken: of a file with several jitted functions the process that
    compiles hashes another one than the process that asks.
    """
    pieces = source.split(JIT)
    if len(pieces) != 2:
        return None
    found = _HINTS.search(pieces[0])
    return (found.group(1) if found else str(None)), pieces[1].strip()


def key_of(hints: str, kernel: str) -> str:
    """Inductor's key.

    Args:
        hints: the kernel's size hints, as text.
        kernel: its text, from `def` to its end.
    """
    return hashlib.sha256((hints + _NAME.sub("(", kernel.strip(), count=1)).encode()).hexdigest()


def public(version: str) -> str:
    """A version without what says how it was built (`2.11.0+cu130`): that changes nothing of what is generated."""
    return version.partition("+")[0]
