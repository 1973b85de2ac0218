"""What people see while a sweep goes on, and at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tunefarm.cli.live import SAID_S, View
from tunefarm.cli.tables import time_text
from tunefarm.config import counted
from tunefarm.study import Left, Status, StudyResult
from tunefarm.trial import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tunefarm.builds import BuildBoard
    from tunefarm.contest import Contest


WIDE = 110
"""Columns of a terminal from which the closing table shows all it has, and those of a notebook."""


def console(*, stderr: bool = False) -> Console:
    """A terminal that is plain where it must be, and prints every text as it stands, brackets included."""
    from rich.console import Console

    # A notebook takes lines as text; as markup of its own each would be an output of the cell.
    return Console(
        stderr=stderr, highlight=False, soft_wrap=True, emoji=False, markup=False, force_jupyter=False,
        width=WIDE if in_notebook() else None,
    )  # fmt: skip


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    from rich.console import Console

    return Console().is_jupyter


def study_line(result: StudyResult) -> str:
    """A study in one line, as in a log."""
    head = f"{result.study.label}: "
    counts = [counted(result.num_candidates, "candidate")]
    if merged := sum(t.merged_into is not None for t in result.trials):
        counts.append(f"{merged} merged")
    counts.append(counted(result.num_buckets, "bucket"))
    if not result.recording:
        counts.append(f"{result.num_built} built")
    counts.append(f"{result.num_measured} {_verb(result)}")
    if result.closed:
        counts.append(f"{counted(len(result.closed), 'bucket')} closed")
    if result.winner is not None and (failures := result.failures):
        first, _ = failures[0]
        counts.append(f"{sum(count for _, count in failures)} failed, most by {first.stage}: {_cut(first.message)}")
    body = ", ".join(counts)
    if result.status in (Status.SKIPPED, Status.NOT_MEASURED):
        return f"{head}{result.reason}"
    if result.left is not None and result.left.is_worthwhile:
        body += f", {_left_text(result.left)}"
    source = f"  {replayed_from(result)}" if result.recording else ""
    if result.winner is None:
        return f"{head}{body}; NO WINNER: {result.reason}{_histogram(result)}{source}"
    winner = result.winner
    parts = [f"best {winner.config}", time_text(winner.median_ms)]
    if winner.gain is not None:
        parts.append(f"{winner.gain:.2f}x default")
    elif failure := result.default_failure:
        parts.append(f"gain n/a: the default {winner.default} fails: {describe(failure)}")
    rates = result.rate(winner.median_ms)
    if "tbps" in rates:
        parts.append(f"{rates['tbps']:.2f} TB/s")
    if "tflops" in rates:
        parts.append(f"{rates['tflops']:.0f} TFLOP/s")
    if winner.reason != "faster":
        parts.append(f"({winner.reason})")
    return f"{head}{body}; {'  '.join(parts)}{source}"


def replayed_from(result: StudyResult) -> str:
    """Whose times those of a recording are, and where they were read."""
    return f"REPLAYED: {result.study.device.name}, from {result.recording}"


def left_line(results: Sequence[StudyResult]) -> str:
    """What the studies of a sweep left on the table, as a line of its end; empty if nothing that matters."""
    rich = [(r, r.left) for r in results if r.left is not None and r.left.is_worthwhile]
    if not rich:
        return ""
    result, left = max(rich, key=lambda pair: 1.0 if pair[1].plausible_gain is None else pair[1].plausible_gain)
    others = f" ({len(rich)} studies; of this one most is plausible)" if len(rich) > 1 else ""
    return f"left     {result.study.label}: {_left_text(left)}{others}"


def _left_text(left: Left) -> str:
    what = f"{left.num} left unmeasured by the budget of {left.limit}"
    if left.expected_gain is None or left.plausible_gain is None:
        return what
    return (
        f"{what}, the best of which is expected to save {left.expected_gain:.1%} and may save {left.plausible_gain:.0%}"
    )


def _cut(message: str, length: int = 80) -> str:
    return message if len(message) <= length else f"{message[: length - 3]}..."


def _verb(result: StudyResult) -> str:
    return "replayed" if result.source == "replayed" else "measured"


def _histogram(result: StudyResult) -> str:
    told = [(f, count) for f, count in result.failures[:5] if f.message not in result.reason]
    return "".join(f"\n    {count}x {f.stage}: {f.kind}: {f.message}" for f, count in told)


def closing_tables(results: Sequence[StudyResult], width: int = WIDE, experiments: Sequence[str] = ()) -> list[Table]:
    """Studies that were measured, a row each: one table of all, and one for each recording that was replayed.

    Args:
        results: of the studies.
        width: columns of the terminal.
        experiments: by study, whose it is; none where there is one experiment.
    """
    groups: dict[str, list[int]] = {}
    for number, result in enumerate(results):
        groups.setdefault(result.recording, []).append(number)
    tables = []
    for recording, numbers in groups.items():
        mine = [results[number] for number in numbers]
        tables.append(closing_table(mine, width, [experiments[number] for number in numbers] if experiments else ()))
        if recording:
            tables[-1].title, tables[-1].title_justify = replayed_from(mine[0]), "left"
    return tables


def closing_table(results: Sequence[StudyResult], width: int = WIDE, experiments: Sequence[str] = ()) -> Table:
    """Studies that were measured, a row each.

    Args:
        results: of a sweep.
        width: of the terminal; a narrow one leaves out what the gain says already.
        experiments: names of those that the results are of, if they are several: two may tune one workload.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ["time", "default", "gain", "reference", "rate"] if width >= WIDE else ["time", "gain", "rate"]
    table.add_column("study", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("winner")
    workloads = {result.study.workload for result in results}
    for number, result in enumerate(results):
        if result.status in (Status.WINNER, Status.NO_WINNER):
            label = result.study.label
            if len(workloads) == 1 or experiments:  # One workload's name need not stand in every row.
                label = label.removeprefix(f"{result.study.workload} ")
            label = f"{experiments[number]} {label}" if experiments else label
            cells = _cells(result)
            table.add_row(label, *(cells.get(name, "") for name in names), cells["winner"])
    return table


def _cells(result: StudyResult) -> dict[str, str]:
    winner = result.winner
    if winner is None:
        return {"winner": "NO WINNER"}
    rates = result.rate(winner.median_ms)
    rate = f"{rates['tbps']:.2f} TB/s" if "tbps" in rates else ""
    return {
        "time": time_text(winner.median_ms),
        "default": time_text(winner.default_ms),
        "gain": f"{winner.gain:.2f}x" if winner.gain is not None else "n/a",
        "reference": time_text(result.reference_ms) if result.reference_ms is not None else "",
        "rate": f"{rates['tflops']:.0f} TFLOP/s" if "tflops" in rates else rate,
        "winner": str(winner.config),
    }


@contextlib.contextmanager
def counting(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """One live bar on a terminal, nothing elsewhere; what it gives is told how many of how many are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    to = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=to, disable=quiet or not to.is_terminal or to.is_dumb_terminal) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, all_: bars.update(bar, completed=done, total=all_)


MOST_LINES = 12
"""Of the live view."""


class Progress:
    """Bars and how studies stand on a terminal or in a notebook; elsewhere a line a study, and one a minute.

    A `sweep.Watcher`.

    Args:
        quiet: show nothing.
        named: say of which experiment something is said.
        view: what is seen of a sweep.
    """

    def __init__(self, *, quiet: bool = False, named: bool = False, view: View | None = None) -> None:
        self.view = view or View()
        self._is_notebook = in_notebook()
        self._console = console(stderr=not self._is_notebook)  # a notebook shows errors on red
        self._is_live = self._is_notebook or (self._console.is_terminal and not self._console.is_dumb_terminal)
        self._quiet, self._named = quiet, named
        self._num_builds = self._num_studies = 0
        self._is_open_ended = False
        self._bars: Any = None
        self._builds: Any = None
        self._studies: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

            from tunefarm.cli.bars import Bars, NotebookBars

            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
            )  # fmt: skip
            if self._is_notebook:
                self._bars = NotebookBars(*columns, width=WIDE)
            else:
                self._bars = Bars(*columns, console=self._console, disable=not self._is_live)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            # The last look is how it ended, not how it went half a second before.
            self._bars.below = (self.view.summary(),) if self._bars.below else ()
            self._bars.stop()

    def began(self, contests: Sequence[Contest], num_builds: int) -> None:
        """Shows what is ahead, of this experiment and those before it."""
        self.view.began(contests)
        if self._bars is not None:
            if self._builds is None:
                self._builds = self._bars.add_task("compiled", note="")
                self._studies = self._bars.add_task("studies", note="")
            self._num_builds, self._num_studies = self._num_builds + num_builds, self._num_studies + len(contests)
            self._is_open_ended = self._is_open_ended or not num_builds
            self._bars.update(self._builds, total=None if self._is_open_ended else self._num_builds)
            self._bars.update(self._studies, total=self._num_studies)
            how = "compiling all of them first" if num_builds else "compiling what the search asks for, and ahead of it"
            if contests and all(contest.planned.is_recorded for contest in contests):
                how = "REPLAYED from recordings, so nothing is compiled"
            candidates = counted(sum(len(c.planned.candidates) for c in contests), "candidate")
            name = f"{contests[0].experiment.name}: " if self._named and contests else ""
            self.say(f"{name}{candidates} in {counted(len(contests), 'study', 'studies')}; {how}")

    def moved(self, board: BuildBoard, contests: Sequence[Contest]) -> None:
        """Moves the bars, and shows how the studies stand."""
        if self._bars is None:
            return
        self._bars.update(self._builds, completed=board.num_compiled)
        if not self._is_live:
            if self.view.is_due(SAID_S):
                self.say(self.view.summary())
        elif self.view.is_due():
            room = min(MOST_LINES, self._console.height - 8)
            # In a narrow terminal each takes two or three.
            room = max(1, room if self._console.width >= WIDE else room // 3 if self._console.width < 60 else room // 2)
            self._bars.below = tuple(self.view.lines(room))
            if self._is_notebook:  # which nothing else writes anew
                self._bars.refresh()

    def advance(self, what: str, count: int) -> None:
        """Moves a bar of a recording, `built` or `measured`."""
        if self._bars is not None:
            task = self._builds if what == "built" else self._studies
            self._bars.update(task, advance=count)

    def begin(self, num_builds: int, num_configs: int) -> None:
        """Shows what a recording is up to."""
        if self._bars is not None:
            self._builds = self._bars.add_task("compiled", total=num_builds, note="")
            self._studies = self._bars.add_task("measured", total=num_configs, note="")

    def ended(self, result: StudyResult, experiment: str) -> None:
        """One line for a study."""
        self.view.ended(result)
        if self._bars is not None:
            self._bars.update(self._studies, advance=1)
        name = f"{experiment}: " if self._named else ""
        self.say(f"{name}{study_line(result)}")

    def say(self, text: str) -> None:
        """A line above the bars."""
        if not self._quiet:
            self._console.print(text, markup=False)
