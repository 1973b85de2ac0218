"""Documents as a reader follows them: their files to save, their commands to give, and what these are said to print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from farm import environment

ROOT = Path(__file__).parents[1]
SAVED = re.compile(r"# ([\w./-]+\.(?:py|yaml))")
"""The first line of a block that a reader saves under that name."""

VARIES = (
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"digest [0-9a-f]{12}", "DIGEST"),  # a pack's holds the date of its sweep
    (r"\b[\d.]+ (CPU )?(s|min)\b", "SECONDS"),
    (r"\b\d+\.\d+\.\d+(\+\w+)?", "VERSION"),
    (r"(?<!\S)/\S+", "PATH"),
)
"""What of a documented line is the day's, the machine's or the releases'. Microseconds are a recording's, and stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a document.

    Attributes:
        language: as the fence says.
        line: number of its first line in the document.
        lines: what it holds.
    """

    language: str
    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a reader does next: saves a file, or gives a command.

    Attributes:
        place: document and line.
        command: in one line; empty where a file is saved.
        output: lines that it is said to print.
        path: of the file, relative to where the reader stands; empty where a command is given.
        text: what the file holds.
    """

    place: str
    command: str = ""
    output: tuple[str, ...] = ()
    path: str = ""
    text: str = ""


def documents() -> list[Path]:
    """Every Markdown file of the repository."""
    return sorted(path for path in tracked() if path.suffix == ".md")


def tracked() -> list[Path]:
    """The files that git tracks; of a copy without its history, all that it would not ignore."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    ignored = [line.strip() for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]
    return sorted(_walk(ROOT, [*ignored, ".git/"]))


def _walk(folder: Path, ignored: list[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        here = f"/{path.relative_to(ROOT)}"
        if not any(fnmatch(here if "/" in p.rstrip("/") else path.name, p.rstrip("/")) for p in ignored):
            yield from _walk(path, ignored) if path.is_dir() else (path,)


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found, language, start, inside = [], "", 0, list[str]()
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        if line.startswith("```") and not start:
            language, start, inside = line[3:].strip(), number + 1, []
        elif line.startswith("```"):
            found.append(Block(language=language, line=start, lines=tuple(inside)))
            start = 0
        elif start:
            inside.append(line)
    assert not start, f"{document}:{start}: a block that does not end"
    return found


def steps(document: Path) -> list[Step]:
    """What a reader of a document does, in order."""
    found: list[Step] = []
    for block in blocks(document):
        place = f"{document.relative_to(ROOT)}:{block.line}"
        saved = SAVED.fullmatch(block.lines[0]) if block.lines else None
        if block.language == "console":
            found += _commands(block, document)
        elif saved:
            found.append(Step(place=place, path=saved[1], text=block.text))
    return found


def _commands(block: Block, document: Path) -> Iterator[Step]:
    place, command, output, goes_on = "", "", list[str](), False
    for number, line in enumerate((*block.lines, "$ "), block.line):
        if line.startswith("$ "):
            if command:
                yield Step(place=place, command=command, output=tuple(output))
            place, command, output = f"{document.relative_to(ROOT)}:{number}", line[2:], []
        elif goes_on:
            command += line.strip()
        else:
            assert command, f"{document}:{number}: output of no command"
            output.append(line)
        goes_on = (line.startswith("$ ") or goes_on) and line.endswith("\\")
        command = command.removesuffix("\\")


def essence(line: str) -> str:
    """A line without what differs from day to day and from machine to machine."""
    for pattern, name in VARIES:
        line = re.sub(pattern, name, line)
    return " ".join(line.split()).strip("─ ")


def lacking(output: tuple[str, ...], printed: str) -> list[str]:
    """The documented lines, as they are compared, that were not printed; `...` stands for lines left out."""
    wanted = Counter(essence(line) for line in output if not line.startswith("..."))
    wanted.pop("", None)
    return list((wanted - Counter(map(essence, printed.splitlines()))).elements())


@dataclass(kw_only=True)
class Reader:
    """Somebody who follows documents literally, in a copy of what git tracks.

    Attributes:
        folder: where the reader stands.
        cache: the reader's build store.
        exits: exit codes other than 0 that documents speak of, by command.
        varying: commands whose output is this machine's, not compared.
        instead: what is done in place of a command, by its beginning.
        skipped: whether a command is left out.
        done: commands given.
    """

    folder: Path
    cache: Path
    exits: dict[str, int]
    varying: tuple[str, ...]
    instead: dict[str, Callable[[Reader, Step], None]]
    skipped: Callable[[str], bool]
    done: list[str] = field(default_factory=list)

    def unpack(self) -> None:
        """Makes the copy; a repository of its own, as a clone is."""
        for path in tracked():
            copy = self.folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        subprocess.run(["git", "init", "--quiet", str(self.folder)], timeout=60, check=False)

    @property
    def environment(self) -> dict[str, str]:
        """No GPU, this Python's commands, and the copy's package."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        return environment(self.cache, PATH=path, PYTHONPATH=str(self.folder), COLUMNS="100")

    def follow(self, document: Path) -> None:
        """Does what a document says, from its first line to its last.

        Raises:
            AssertionError: a command ends otherwise than documented, or does not print what it is said to.
        """
        for step in steps(document):
            if step.path:
                (self.folder / step.path).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / step.path).write_text(step.text)
            elif not self.skipped(step.command):
                self.give(step)

    def give(self, step: Step) -> None:
        """Gives one command, and looks at how it ends and what it prints."""
        self.done.append(step.command)
        for beginning, do in self.instead.items():
            if step.command.startswith(beginning):
                return do(self, step)
        done = subprocess.run(
            ["bash", "-c", step.command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        told = f"{step.place}: {step.command}\n{done.stdout[-6000:]}"
        assert done.returncode == self.exits.get(step.command, 0), told
        if step.command not in self.varying:
            assert lacking(step.output, done.stdout) == [], told
        return None
