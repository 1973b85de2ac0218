"""A listing of instructions, of the virtual machine (PTX) or of the real one (SASS), with its loops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunefarm.bench.flow import Natural, Step, loops
from tunefarm.errors import InfrastructureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the kernel, or of what it calls."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One of a listing.

    Attributes:
        opcode: with its modifiers, such as `LDG.E.128` or `ld.global.v4.b32`.
        place: where in the source it comes from, as far as that is known.
    """

    opcode: str
    place: Place | None = None

    @property
    def parts(self) -> list[str]:
        """The opcode and its modifiers."""
        return re.split(r"[.:]+", self.opcode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is run, in the order of its text.

    Attributes:
        instructions: without what only fills up.
        loops: natural ones, by indices of instructions.
    """

    instructions: tuple[Instruction, ...]
    loops: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class _Jump:
    labels: tuple[str, ...]
    falls: bool


def parse_sass(text: str) -> Listing:
    """Reads what `nvdisasm -c -g` prints.

    Raises:
        InfrastructureError: it holds no instruction.
    """
    reader = _Reader()
    for line in text.splitlines():
        if found := _SASS.match(line):
            predicate, opcode, operands = found[1] or "", found[2], found[3]
            root = opcode.partition(".")[0]
            if root in _SASS_FILLERS:
                continue
            labels = tuple(re.findall(r"`\(([^)]+)\)", operands)) if root in _SASS_JUMPS else ()
            # A condition among the operands (`BRA P0, ...`, `EXIT P0`) is one as good as a predicate.
            sure = not predicate and not re.match(r"!?U?P\d", operands.strip()) and root != "BSSY"
            ends = root in _SASS_ENDS or (root in _SASS_JUMPS and "DIV" not in opcode)
            reader.add(opcode, _Jump(labels, falls=not (sure and ends)))
        elif found := _SASS_PLACE.match(line):
            reader.place = Place(file=found[1], line=int(found[2]))
        elif found := _SASS_LABEL.match(line):
            reader.label(found[1])
    return reader.listing("SASS")


_SASS = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_SASS_PLACE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_SASS_LABEL = re.compile(r"\s*([.$\w]+):\s*$")
_SASS_FILLERS = {"NOP"}
_SASS_JUMPS = {"BRA", "BRX", "JMP", "JMX", "BRXU", "JMXU"}
_SASS_ENDS = {"EXIT", "RET", "KILL", "BPT"}


def parse_ptx(text: str) -> Listing:
    """Reads the PTX of a kernel.

    Raises:
        InfrastructureError: it holds no instruction.
    """
    files: dict[str, str] = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE))
    reader = _Reader()
    for line in text.splitlines():
        line = line.partition("//")[0].strip()
        if line.startswith(".section"):
            break  # Tables for debuggers.
        if found := _PTX_PLACE.match(line):
            reader.place = Place(file=files.get(found[1], ""), line=int(found[2]))
        elif found := _PTX_LABEL.match(line):
            reader.label(found[1])
        elif found := _PTX.match(line):
            opcode, operands = found[2], found[3]
            root = opcode.partition(".")[0]
            labels = tuple(re.findall(r"\$\w+", operands)) if root in ("bra", "brx") else ()
            reader.add(opcode, _Jump(labels, falls=bool(found[1]) or root not in ("bra", "brx", "ret", "exit", "trap")))
    return reader.listing("PTX")


_PTX = re.compile(r"(@!?%\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)\b\s*([^;]*)")
_PTX_PLACE = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_PTX_LABEL = re.compile(r"(\$\w+):\s*$")


class _Reader:
    def __init__(self) -> None:
        self.place: Place | None = None
        self._instructions: list[Instruction] = []
        self._jumps: list[_Jump] = []
        self._labels: dict[str, int] = {}

    def add(self, opcode: str, jump: _Jump) -> None:
        place = self.place if self.place is None or self.place.line else None  # line 0 is nowhere
        self._instructions.append(Instruction(opcode=opcode, place=place))
        self._jumps.append(jump)

    def label(self, name: str) -> None:
        self._labels[name] = len(self._instructions)

    def listing(self, what: str) -> Listing:
        if not self._instructions:
            raise InfrastructureError(f"the listing holds no {what} instruction", hint="written by an unknown tool")
        found = loops(_steps(self._jumps, self._labels))
        return Listing(instructions=tuple(self._instructions), loops=found)


def _steps(jumps: Sequence[_Jump], labels: Mapping[str, int]) -> list[Step]:
    known = {name: index for name, index in labels.items() if index < len(jumps)}
    return [Step(targets=tuple(known[n] for n in jump.labels if n in known), falls=jump.falls) for jump in jumps]
