"""Control flow of a listing: its natural loops, told from code that was merely put out of line and jumps back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where an instruction may go.

    Attributes:
        targets: indices of instructions that it may jump to.
        falls: whether the next one may follow it.
    """

    targets: tuple[int, ...] = ()
    falls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """A loop.

    Attributes:
        head: index of its first instruction, by which alone it is entered.
        body: indices of all its instructions, those of inner loops included.
        own: those of no inner loop.
        depth: 0 for one that is in no other.
    """

    head: int
    body: frozenset[int]
    own: frozenset[int]
    depth: int


def loops(steps: Sequence[Step]) -> tuple[Natural, ...]:
    """The natural loops of a listing whose first instruction is its entry, in the order of their heads."""
    if not steps:
        return ()
    starts = _block_starts(steps)
    place = {start: number for number, start in enumerate(starts)}
    ends = [*starts[1:], len(steps)]
    after: list[list[int]] = []
    for end in ends:
        last = steps[end - 1]
        found = [place[target] for target in last.targets]
        after.append(found + ([place[end]] if last.falls and end < len(steps) else []))
    bodies: dict[int, set[int]] = {}
    dominators = _dominators(after)
    before = _reversed(after)
    for block, nexts in enumerate(after):
        for head in nexts:
            # A jump back to code that always came before it closes a loop. What nothing reaches is in none.
            if head in dominators[block]:
                bodies.setdefault(head, {head}).update(_reaching(block, head, before))
    natural = {h: frozenset(i for b in blocks for i in range(starts[b], ends[b])) for h, blocks in bodies.items()}
    return tuple(
        Natural(
            head=starts[head],
            body=body,
            own=body.difference(*(other for other in natural.values() if other < body)),
            depth=sum(body < other for other in natural.values()),
        )
        for head, body in sorted(natural.items())
    )


def _block_starts(steps: Sequence[Step]) -> list[int]:
    starts = {0}
    for index, step in enumerate(steps):
        starts.update(step.targets)
        if (step.targets or not step.falls) and index + 1 < len(steps):
            starts.add(index + 1)
    return sorted(starts)


def _dominators(after: Sequence[Sequence[int]]) -> list[set[int]]:
    """Of each block those through which every path from the entry to it goes; of an unreachable one none."""
    order = _reachable(after)
    before = _reversed(after)
    found: dict[int, set[int]] = {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [found[b] for b in before[block] if b in found]
            new = {block} | (set.intersection(*known) if known else set())
            if found.get(block) != new:
                found[block], changed = new, True
    return [found.get(block, set()) for block in range(len(after))]


def _reachable(after: Sequence[Sequence[int]]) -> list[int]:
    """Blocks that the entry reaches, each after all by which it is entered but for loops."""
    done: list[int] = []
    seen = {0}
    stack = [(0, iter(after[0]))]
    while stack:
        block, nexts = stack[-1]
        following = next((b for b in nexts if b not in seen), None)
        if following is None:
            done.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return done[::-1]


def _reaching(block: int, head: int, before: Sequence[Iterable[int]]) -> set[int]:
    """The blocks from which `block` is reached without passing `head`."""
    found, todo = {block}, [block]
    while todo:
        at = todo.pop()
        if at != head:
            new = [b for b in before[at] if b not in found]
            found.update(new)
            todo += new
    return found


def _reversed(after: Sequence[Sequence[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in after]
    for block, nexts in enumerate(after):
        for following in nexts:
            before[following].append(block)
    return before
