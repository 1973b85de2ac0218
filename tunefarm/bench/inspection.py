"""A look inside one compiled config: what it takes, what its code does, and how much of it an SM holds. No GPU."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.bench import sass
from tunefarm.bench.build import TEXTS, Stages
from tunefarm.bench.cubin import Usage, usage
from tunefarm.bench.listing import Instruction, Listing, Place, parse_ptx
from tunefarm.config import Config
from tunefarm.device import Device
from tunefarm.frozen import FrozenMap
from tunefarm.occupancy import RESERVED_BYTES, Occupancy, occupancy

_MARKS = {
    "ld.global": sass.GLOBAL_LOAD, "st.global": sass.GLOBAL_STORE, "cp.async.ca": sass.ASYNC_COPY,
    "cp.async.cg": sass.ASYNC_COPY, "mma.sync": sass.TENSOR, "wgmma.mma_async": sass.TENSOR,
}  # fmt: skip
"""PTX instructions of which the assembler makes one each, and their kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop of the machine code.

    Attributes:
        lines: first and last line of the kernel's own file in it, as far as they are known.
        depth: 0 for one that is in no other.
        num_instructions: of one turn, inner loops included.
        kinds: how many of its own instructions, those of inner loops left out, are of which kind.
        copies: of the body of the PTX loop, which the assembler has unrolled so many times; 0 where nothing tells.
    """

    lines: tuple[Place, ...]
    depth: int
    num_instructions: int
    kinds: FrozenMap[int]
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a config compiles to.

    Attributes:
        kernel: its name.
        device: whose limits are meant.
        config: params and options.
        grid: programs along x, y, z; empty where it is not known.
        num_warps: of a block, those that Triton added to specialise some included.
        num_ctas: blocks of a cluster.
        usage: what the cubin says that it takes.
        shared_bytes: shared memory of a block, static and dynamic, without what the system takes.
        occupancy: what an SM holds of it.
        num_instructions: of the machine code, without those that only fill up.
        kinds: how many of them are of which kind, the most frequent first.
        loads: how many global loads move so many bytes a thread, by bytes.
        stores: the same of global stores.
        copies: the same of asynchronous copies to shared memory.
        tensor: how many instructions of the tensor cores, by opcode.
        tma: how many instructions of the tensor memory accelerator, by opcode.
        spill_store_bytes: written to local memory by a thread that runs every instruction once.
        spill_load_bytes: read from it.
        num_loops: how many loops the kernel has, by stage; stages without text are left out.
        loops: of the machine code.
        stage_bytes: length of each stage's text or code.
        stage_s: seconds of compiling; none where it was not compiled here.
        warnings: what the assembler has to say.
    """

    kernel: str
    device: Device
    config: Config
    grid: tuple[int, ...]
    num_warps: int
    num_ctas: int
    usage: Usage
    shared_bytes: int
    occupancy: Occupancy
    num_instructions: int
    kinds: FrozenMap[int]
    loads: FrozenMap[int]
    stores: FrozenMap[int]
    copies: FrozenMap[int]
    tensor: FrozenMap[int]
    tma: FrozenMap[int]
    spill_store_bytes: int
    spill_load_bytes: int
    num_loops: FrozenMap[int]
    loops: tuple[Loop, ...]
    stage_bytes: FrozenMap[int]
    stage_s: FrozenMap[float]
    warnings: tuple[str, ...]

    @property
    def num_programs(self) -> int:
        """Of a launch; 0 where it is not known."""
        x, y, z = (*self.grid, 1, 1, 1)[:3] if self.grid else (0, 0, 0)
        return x * y * z

    @property
    def waves(self) -> float:
        """How often the GPU is filled by a launch; 0 where that is not known."""
        return self.num_programs / max(1, self.occupancy.blocks * self.device.num_sms)


def inspect(stages: Stages, code: Listing, device: Device, config: Config, grid: tuple[int, ...] = ()) -> Inspection:
    """What a compilation gave, counted.

    Args:
        stages: with their texts, as far as there are any.
        code: what its cubin says, disassembled.
        device: whose limits are meant.
        config: what was compiled.
        grid: programs along x, y, z; empty where it is not known.

    Raises:
        InfrastructureError: a text or the cubin cannot be read.
        SpecError: nothing is known of the device's arch.
    """
    facts = json.loads(stages.artifact.metadata)
    takes = usage(stages.artifact.cubin)
    shared = int(facts["shared"]) + takes.declared_bytes(device.capability[0], RESERVED_BYTES)
    kinds = Counter(sass.kind(i) for i in code.instructions)
    texts = {stage: stages.texts[stage] for stage in TEXTS if stage in stages.texts}
    warps = int(facts["num_warps"])
    return Inspection(
        kernel=str(facts["name"]), device=device, config=config, grid=grid, num_warps=warps,
        num_ctas=int(facts.get("num_ctas") or 1), usage=takes, shared_bytes=shared,
        occupancy=occupancy(device, registers=takes.registers, shared_bytes=shared, num_warps=warps),
        num_instructions=len(code.instructions), kinds=FrozenMap(kinds.most_common()),
        loads=_widths(code, sass.GLOBAL_LOAD), stores=_widths(code, sass.GLOBAL_STORE),
        copies=_widths(code, sass.ASYNC_COPY), tensor=_opcodes(code, sass.TENSOR), tma=_opcodes(code, sass.TMA),
        spill_store_bytes=_moved(code, sass.LOCAL_STORE), spill_load_bytes=_moved(code, sass.LOCAL_LOAD),
        num_loops=FrozenMap(_num_loops(texts) | {"sass": len(code.loops)}),
        loops=_loops(code, parse_ptx(texts["ptx"]) if "ptx" in texts else None),
        stage_bytes=FrozenMap({stage: len(text) for stage, text in texts.items()} | {
            "cubin": len(stages.artifact.cubin)}),
        stage_s=stages.seconds, warnings=_warnings(stages.words),
    )  # fmt: skip


def _widths(code: Listing, kind: str) -> FrozenMap[int]:
    found = Counter(sass.thread_bytes(i) for i in code.instructions if sass.kind(i) == kind)
    return FrozenMap({str(width): found[width] for width in sorted(found, reverse=True)})


def _opcodes(code: Listing, kind: str) -> FrozenMap[int]:
    return FrozenMap(Counter(i.opcode for i in code.instructions if sass.kind(i) == kind).most_common())


def _moved(code: Listing, kind: str) -> int:
    return sum(sass.thread_bytes(i) for i in code.instructions if sass.kind(i) == kind)


def _num_loops(texts: Mapping[str, str]) -> dict[str, int]:
    found = {
        stage: len(re.findall(r"\bscf\.(?:for|while)\b", texts[stage])) for stage in ("ttir", "ttgir") if stage in texts
    }
    return found | ({"ptx": len(parse_ptx(texts["ptx"]).loops)} if "ptx" in texts else {})


def _loops(code: Listing, ptx: Listing | None) -> tuple[Loop, ...]:
    found = []
    bodies = _ptx_marks(ptx) if ptx is not None else []
    for loop in code.loops:
        own = [code.instructions[i] for i in sorted(loop.own)]
        places = [i.place for i in own if i.place is not None]
        file = Counter(place.file for place in places).most_common(1)[0][0] if places else ""
        lines = sorted((place for place in set(places) if place.file == file), key=lambda place: place.line)
        marks = Counter((sass.kind(i), i.place) for i in own if sass.kind(i) in _MARKS.values())
        found.append(
            Loop(
                lines=(lines[0], lines[-1]) if lines else (), depth=loop.depth, num_instructions=len(loop.body),
                kinds=FrozenMap(Counter(sass.kind(i) for i in own).most_common()), copies=_copies(marks, bodies),
            )
        )  # fmt: skip
    return tuple(found)


def _ptx_marks(ptx: Listing) -> list[Counter[tuple[str, Place | None]]]:
    """How many instructions each PTX loop has of a kind and place, inner loops left out."""
    found = []
    for loop in ptx.loops:
        own = (ptx.instructions[i] for i in loop.own)
        found.append(Counter((kind, i.place) for i in own if (kind := _mark(i)) is not None))
    return found


def _mark(instruction: Instruction) -> str | None:
    return next((kind for start, kind in _MARKS.items() if instruction.opcode.startswith(start)), None)


def _copies(marks: Counter[tuple[str, Place | None]], bodies: list[Counter[tuple[str, Place | None]]]) -> int:
    """How many bodies of a PTX loop a loop of the machine code holds, if one whole number fits all its marks."""
    for body in bodies:
        ratios = {count / body[mark] if body[mark] else 0.0 for mark, count in marks.items()}
        if len(ratios) == 1 and (ratio := ratios.pop()) >= 1 and ratio.is_integer():
            return int(ratio)
    return 0


def _warnings(words: str) -> tuple[str, ...]:
    """What the assembler says besides its figures, each once."""
    found = re.findall(
        r"^ptxas (?:info|warning)\s*:\s*(\(C\d+\).*|.*Potential Performance Loss.*)", words, re.MULTILINE
    )
    found += re.findall(r"^ptxas warning\s*:\s*(?!\(C)(?!.*Potential Performance Loss)(.*)", words, re.MULTILINE)
    return tuple(dict.fromkeys(" ".join(line.split()) for line in found))
