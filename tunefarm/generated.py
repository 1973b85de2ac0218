"""Kernels that Inductor generates: by what its look-up table of configs knows them.

Inductor's key of a kernel is the SHA-256 of its size hints and its text, without its name: the number at the end of the
name, which tells the place in one compilation, is nobody's business.

Mixed kernels (Inductor's mix-order reductions) reduce rows, and columns over `RSPLIT_SIZE` rows a program. The split is
in neither the key nor the text: generated host code fixes it with the grid and the workspace. So the configs of these
kernels name it, and a config for another split is none. The table holds blocks only, without `NUM_STAGES`: the head of
their text is rewritten instead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

SPLIT, STAGES = "RSPLIT_SIZE", "NUM_STAGES"
"""What configs of mixed kernels set besides blocks."""
_HINTS = re.compile(r"size_hints=(\{.*?\})")
_NAME = re.compile(r"^def [^(]+\(")
_NUMBER = re.compile(r"_\d+$")
_SPLIT = re.compile(rf"'{SPLIT}': (\d+)")
_HEURISTIC = re.compile(r"@triton_heuristics\.persistent_reduction\(\s*size_hints=\{[^{}]*\},\s*reduction_hint=[\w.]+,")
_LEAST = re.compile(r"'min_(x|r)block': (\d+)")
_LEAST_OF_TMA = re.compile(r"'tma_min_block_sizes': \{([^{}]*)\}")
_LEAST_OF_SCAN = re.compile(r"'min_split_scan_rblock': (\d+)")
_SCAN = "@triton_heuristics.split_scan("
_PAIR = re.compile(r"'(\w+)': (\d+)")
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


def least_blocks(told: str) -> dict[str, int]:
    """The least blocks that a kernel's text is right with, by name.

    Args:
        told: what Inductor says about the kernel, as text: the head of its file, or its `inductor_meta`.
    """
    found = [("XBLOCK" if axis == "x" else "R0_BLOCK", size) for axis, size in _LEAST.findall(told)]
    found += [pair for inside in _LEAST_OF_TMA.findall(told) for pair in _PAIR.findall(inside)]
    if _SCAN in told:  # whose host code has made room for no more programs
        found += [("R0_BLOCK", size) for size in _LEAST_OF_SCAN.findall(told)]
    least: dict[str, int] = {}
    for name, size in found:
        least[name] = max(int(size), least.get(name, 1))
    return least


def pinned(head: str, config: Mapping[str, int]) -> str | None:
    """What precedes a mixed kernel in its file, with the heuristic exchanged for one config, which Inductor then obeys.

    None if it precedes no mixed kernel, or one of another split.
    """
    split = _SPLIT.search(head)
    if split is None or int(split.group(1)) != config[SPLIT]:
        return None
    fixed, count = _HEURISTIC.subn(f"@triton_heuristics.fixed_config(\n    config={dict(config)},", head)
    return fixed if count == 1 else None


def public(version: str) -> str:
    """A version without what says how it was built (`2.11.0+cu130`): that changes nothing of what is generated."""
    return version.partition("+")[0]
