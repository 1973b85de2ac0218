"""Which rows of a pack break something: delta debugging over rows.

A set of rows is judged as a pack that holds these rows alone. Halves are tried, then what is left without each, then
quarters, and so on (ddmin), so that rows are found, too, that do harm only together.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tunefarm.errors import UserError
from tunefarm.pack import Pack, Row, Table, seal

Rows: TypeAlias = tuple[int, ...]
"""Numbers of rows, in the order of the pack, from 0."""


class Verdict(enum.StrEnum):
    """What came of a try."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"
    """Nothing can be told: no word for or against these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a bisection found.

    Attributes:
        culprits: sets of rows, each bad by itself and, as far as could be told, good without any one of its rows.
        num_tries: how often was tried.
        num_skipped: of those, how often nothing could be told.
        is_clean: without all culprits it is good; if not, nothing could be told of that.
    """

    culprits: tuple[Rows, ...]
    num_tries: int
    num_skipped: int
    is_clean: bool

    @property
    def rows(self) -> Rows:
        """All culprits."""
        return tuple(sorted(row for rows in self.culprits for row in rows))


def all_rows(pack: Pack) -> list[tuple[Table, Row]]:
    """Every row with its table, in the order by which they are numbered."""
    return [(table, row) for table in pack.tables for row in table.rows]


def reduced(pack: Pack, rows: Sequence[int]) -> Pack:
    """The pack with these rows only; tables without any go."""
    wanted, number, tables = set(rows), 0, []
    for table in pack.tables:
        kept = tuple(row for at, row in enumerate(table.rows, number) if at in wanted)
        number += len(table.rows)
        if kept:
            tables.append(replace(table, rows=kept))
    return seal(Pack(tables=tuple(tables)))


def bisect(num_rows: int, judge: Callable[[Rows], Verdict]) -> Found:
    """The rows that break something.

    Args:
        num_rows: of the pack.
        judge: tries some rows; asked once about each set, and once more about those that the answer rests on.

    Raises:
        UserError: all rows together do no harm, or no row does it; nothing can be told of either; or a set of rows is
            judged in two ways.
    """
    tries = _Tries(judge)
    everything = tuple(range(num_rows))
    _check_ends(tries, everything)
    culprits: list[Rows] = []
    rest = everything
    while (verdict := tries(rest)) is Verdict.BAD:
        culprits.append(_minimal(rest, tries))
        rest = tuple(row for row in rest if row not in culprits[-1])
    for rows in (*culprits, rest):
        tries.again(rows)
    return Found(
        culprits=tuple(culprits), num_tries=tries.num, num_skipped=tries.num_skipped, is_clean=verdict is Verdict.GOOD
    )


@dataclass(slots=True)
class _Tries:
    """Asks once about each set of rows."""

    judge: Callable[[Rows], Verdict]
    known: dict[Rows, Verdict] = field(default_factory=dict)
    num: int = 0
    num_skipped: int = 0

    def __call__(self, rows: Rows) -> Verdict:
        if rows not in self.known:
            self.known[rows] = self._ask(rows)
        return self.known[rows]

    def again(self, rows: Rows) -> None:
        before, now = self.known[rows], self._ask(rows)
        if before is not now:
            raise UserError(
                f"the same pack ({numbers(rows)}) was {before} and is {now} now: the command is not steady",
                hint="make it give one answer for one pack, such as by a seed or by repeating what is rare",
            )

    def _ask(self, rows: Rows) -> Verdict:
        verdict = self.judge(rows)
        self.num += 1
        self.num_skipped += verdict is Verdict.SKIP
        return verdict


def _check_ends(tries: _Tries, everything: Rows) -> None:
    whole = tries(everything)
    if whole is Verdict.GOOD:
        raise UserError(
            "the command is good with the whole pack: there is nothing to find",
            hint="does it load the pack? It is told by TUNEFARM_PACK, and by {pack} among its arguments",
        )
    none = tries(())
    if Verdict.SKIP in (whole, none):
        which = "the whole pack" if whole is Verdict.SKIP else "an empty pack"
        raise UserError(f"the command says nothing about {which} (exit code 125)", hint="it must be good or bad there")
    if none is Verdict.BAD:
        raise UserError(
            "the command is bad with an empty pack, too: not the pack's fault",
            hint="look at the command without packs, or say --timeout if it only takes long",
        )


def _minimal(rows: Rows, tries: _Tries) -> Rows:
    """Rows of a bad set that are bad, and not so without any one of them."""
    num_parts = 2
    while len(rows) > 1:
        parts = _parts(rows, num_parts)
        others = [tuple(row for row in rows if row not in part) for part in parts]
        smaller = next((part for part in parts if tries(part) is Verdict.BAD), None)
        if smaller is not None:
            rows, num_parts = smaller, 2
            continue
        smaller = next((left for left in others if tries(left) is Verdict.BAD), None)
        if smaller is not None:
            rows, num_parts = smaller, max(2, num_parts - 1)
        elif num_parts == len(rows):
            break
        else:
            num_parts = min(len(rows), 2 * num_parts)
    return rows


def _parts(rows: Rows, num: int) -> list[Rows]:
    bounds = [len(rows) * at // num for at in range(num + 1)]
    return [rows[low:high] for low, high in itertools.pairwise(bounds)]


def numbers(rows: Sequence[int]) -> str:
    """Rows for people, counted from 1: `rows 1-3, 5`."""
    spans: list[list[int]] = []
    for row in rows:
        if spans and spans[-1][1] == row:
            spans[-1][1] = row + 1
        else:
            spans.append([row + 1, row + 1])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"row{'s' if len(rows) > 1 else ''} {shown}" if rows else "no row"
