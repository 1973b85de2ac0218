"""Findings about a compiled config: what is seen in it, and what is worth a try for that. Nothing here was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunefarm.bench import sass
from tunefarm.bench.inspection import Inspection
from tunefarm.bench.listing import Instruction, Listing
from tunefarm.config import counted
from tunefarm.device import Device
from tunefarm.occupancy import MAX_REGISTERS, registers_for, shared_for

LOW_SHARE = 0.25
"""Of an SM's warps; a kernel that holds no more of them is said to have low occupancy."""

_NARROW_BYTES = 4
"""A warp that moves fewer bytes a thread asks for less than a cache line of 128 bytes at a time."""

_MOST_PLACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something worth a look.

    Attributes:
        kind: what it is about, in a word or two.
        evidence: what was seen, and where; figures that the listing bears out.
        advice: what may help, to be measured.
    """

    kind: str
    evidence: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What findings are drawn from.

    Attributes:
        inspection: the figures.
        code: the machine code.
        texts: of the compiler's stages, by stage, as far as they are known.
        doubts: arguments by which an address may be such that elements are moved one by one, and why.
    """

    inspection: Inspection
    code: Listing
    texts: Mapping[str, str]
    doubts: Mapping[str, str]


def findings(seen: Seen) -> tuple[Finding, ...]:
    """What is worth a look in a compiled config."""
    return tuple(found for rule in _RULES for found in rule(seen))


def doubts(signature: Mapping[str, object], facts: Mapping[str, str], device: Device) -> dict[str, str]:
    """Arguments by which an address may be such that elements are moved one by one, and why.

    Args:
        signature: Triton type of each argument.
        facts: what each is specialised on.
        device: for which the kernel is compiled.
    """
    found = {}
    for name, kind in signature.items():
        if not isinstance(kind, str) or name in facts:
            continue
        if kind.startswith("tensordesc"):
            if device.capability < (9, 0):
                found[name] = f"a descriptor, which becomes pointers on {device.arch}"
        elif kind.startswith("*"):
            found[name] = "its address is not known to be a multiple of 16"
        elif re.fullmatch(r"[iu](?:32|64)", kind):
            found[name] = "its value is not known to be a multiple of 16"
    return found


def _spills(seen: Seen) -> Iterator[Finding]:
    it = seen.inspection
    if not it.spill_store_bytes + it.spill_load_bytes:
        return
    local = _of_kinds(seen.code.instructions, sass.LOCAL_LOAD, sass.LOCAL_STORE)
    inside = frozenset(i for loop in seen.code.loops for i in loop.body)
    within = _of_kinds([seen.code.instructions[i] for i in sorted(inside)], sass.LOCAL_LOAD, sass.LOCAL_STORE)
    most = min(MAX_REGISTERS, registers_for(it.device, 1, it.num_warps))
    asked = it.config.options.get("maxnreg")
    why = f"maxnreg={asked}" if asked else f"a block of {counted(it.num_warps, 'warp')} leaves a thread {most}"
    yield Finding(
        kind="spills",
        evidence=(
            f"a thread writes {it.spill_store_bytes} B to local memory and reads {it.spill_load_bytes} B, each "
            f"instruction counted once; {it.usage.registers} registers ({why})",
            f"{len(within)} of the {len(local)} instructions are in loops; most at {_where(local)}",
        ),
        advice="leave maxnreg out, or raise it" if asked else
        "a smaller block or more warps: a thread has fewer values to hold then",
    )  # fmt: skip


def _low_occupancy(seen: Seen) -> Iterator[Finding]:
    it = seen.inspection
    held = it.occupancy
    if held.share > LOW_SHARE:
        return
    evidence = [f"an SM holds {counted(held.blocks, 'block')}, {held.warps} of {held.max_warps} warps"]
    tries = []
    for limiter in held.limiters:
        if limiter == "registers":
            least = registers_for(it.device, held.blocks + 1, it.num_warps)
            evidence.append(f"registers limit it: {it.usage.registers} a thread; one block more needs {least} or fewer")
            tries.append("for fewer registers a smaller block, or maxnreg")
        elif limiter == "shared memory":
            room = shared_for(it.device, held.blocks + 1)
            evidence.append(
                f"shared memory limits it: {it.shared_bytes} B a block; one block more needs {room} or less"
            )
            tries.append("for less shared memory fewer stages, or a smaller block")
        else:
            evidence.append(
                f"{limiter} limit it: {it.num_warps} a block, and an SM holds {held.limits[limiter]} blocks"
            )
            tries.append("more warps a block" if limiter == "blocks" else "fewer warps a block")
    also = "; with copies in flight, as here, few warps may do" if it.copies or it.tma else ""
    kind = "low occupancy" if held.blocks else "cannot be launched"
    yield Finding(kind=kind, evidence=tuple(evidence), advice=f"{'; '.join(tries)}{also}")


def _narrow(seen: Seen) -> Iterator[Finding]:
    it = seen.inspection
    for kind, widths, others in (
        (sass.GLOBAL_LOAD, it.loads, it.copies),
        (sass.GLOBAL_STORE, it.stores, {}),
    ):
        narrow = {int(width): number for width, number in widths.items() if int(width) < _NARROW_BYTES}
        total = sum(widths.values()) + sum(others.values())
        if 2 * sum(narrow.values()) <= total:
            continue
        found = [i for i in _of_kinds(seen.code.instructions, kind) if sass.thread_bytes(i) < _NARROW_BYTES]
        sizes = " and ".join(f"{number} move {width} B" for width, number in sorted(narrow.items()))
        evidence = [f"of {total} {kind} {sizes} a thread, {max(narrow) * 32} B a warp or less, at {_where(found)}"]
        advice = "more elements side by side in a thread: a larger block or fewer warps"
        if seen.doubts:
            evidence += [f"{name}: {why}" for name, why in seen.doubts.items()]
            advice = "if such arguments make up the address: pad or align them to multiples of 16"
        yield Finding(kind=f"narrow {kind}", evidence=tuple(evidence), advice=advice)


def _no_tensor_cores(seen: Seen) -> Iterator[Finding]:
    it, ttir = seen.inspection, seen.texts.get("ttir", "")
    dots = re.findall(r"\btt\.dot(?:_scaled)?\b[^\n]*", ttir)
    if not dots:
        return
    if not it.tensor:
        precise = sum("inputPrecision" not in dot for dot in dots)
        yield Finding(
            kind="no tensor cores",
            evidence=(
                f"{len(dots)} tt.dot in the Triton IR, {precise} of them in IEEE precision, and no instruction of the "
                "tensor cores in the machine code",
            ),
            advice="bf16, fp16 or fp8 operands, or input_precision='tf32' where that is precise enough",
        )  # fmt: skip
    elif it.device.capability[0] == 9 and not any(name.partition(".")[0].endswith("GMMA") for name in it.tensor):
        yield Finding(
            kind="older tensor instructions",
            evidence=(f"{', '.join(it.tensor)} on {it.device.arch}, which has HGMMA; {it.num_warps} warps a block",),
            advice="HGMMA (wgmma) needs a tile of 64 rows or more and 4 warps or more",
        )


def _not_pipelined(seen: Seen) -> Iterator[Finding]:
    stages = seen.inspection.config.options.get("num_stages")
    for loop in seen.inspection.loops:
        kinds = loop.kinds
        moves = kinds.get(sass.GLOBAL_LOAD, 0)
        if kinds.get(sass.TENSOR) and moves and not (kinds.get(sass.ASYNC_COPY) or kinds.get(sass.TMA)):
            lines = f"{loop.lines[0]}-{loop.lines[-1].line}" if loop.lines else "of unknown lines"
            yield Finding(
                kind="no copies ahead",
                evidence=(
                    f"the loop {lines} feeds {kinds[sass.TENSOR]} tensor instructions by {moves} global loads, and "
                    f"copies nothing ahead; num_stages={stages}",
                ),
                advice="num_stages of 2 or more where it is 1; else see in --stage ttgir why the loop is not pipelined",
            )  # fmt: skip


def _few_programs(seen: Seen) -> Iterator[Finding]:
    it = seen.inspection
    if 0 < it.num_programs < it.device.num_sms:
        yield Finding(
            kind="few programs",
            evidence=(f"{it.num_programs} programs for the {it.device.num_sms} SMs of {it.device.name}",),
            advice="a smaller block, or the work of one program split among several",
        )


def _assembler(seen: Seen) -> Iterator[Finding]:
    for words in seen.inspection.warnings:
        yield Finding(kind="the assembler says", evidence=(words,), advice="its lines are those of --stage ptx")


_RULES: Sequence[Callable[[Seen], Iterator[Finding]]] = (
    _spills, _low_occupancy, _narrow, _no_tensor_cores, _not_pipelined, _few_programs, _assembler,
)  # fmt: skip


def _of_kinds(instructions: Sequence[Instruction], *kinds: str) -> list[Instruction]:
    return [i for i in instructions if sass.kind(i) in kinds]


def _where(instructions: Sequence[Instruction]) -> str:
    """The lines of most of them."""
    places = Counter(str(i.place) for i in instructions if i.place is not None).most_common()
    if not places:
        return "unknown lines"
    shown = ", ".join(f"{place} ({number})" for place, number in places[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    return f"{shown} and {more} lines more" if more > 0 else shown
