"""Ranks: all processes of a job take the same pack, or none of them starts.

Ranks that choose different configs may differ in results, or wait for each other for ever in a later collective. So
they compare, once and before anything is launched, the digests of what they have read. What travels between them is
text: a word of each rank, and where all take rank 0's pack that pack as the JSON that a file would hold, which is
parsed and checked as a file's is. torch.distributed is imported here, and only when there is a group to ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from tunefarm.errors import InfrastructureError, PackError, UserError
from tunefarm.pack import Pack, dumps
from tunefarm.pack_reader import parse_pack
from tunefarm.runtime.active import ACTIVE

NONE = "none"
"""The digest of a rank that has no pack."""

DISAGREEMENTS = ("error", "rank0")
MAX_SHOWN = 8
"""Kinds of ranks that a message tells of; where each has a reason of its own, a few are enough."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one rank says of itself.

    Attributes:
        digest: of its pack; `none` if it has none.
        label: of its pack.
        reason: why it has none, or empty.
        stops: it would not go on without a pack.
        policy: what it would do about a disagreement.
        terms: on which it would use a pack.
    """

    digest: str
    label: str
    reason: str
    stops: bool
    policy: str
    terms: str


def settle(
    found: Pack | UserError, label: str, group: Any, policy: str = "error", *, stops: bool = False, terms: str = ""
) -> tuple[Pack | UserError, str]:
    """The pack that all ranks of a group use from now on. All of them must call this, in the same order.

    A rank without a pack takes part, so that nobody waits for it. Every error but that of a broken connection is raised
    by all ranks, in the same words.

    Args:
        found: the sealed pack that this rank has read, or why it has none.
        label: of that pack.
        group: a process group of torch.distributed, or True for the default one.
        policy: `error` (ranks that differ all raise) or `rank0` (all take rank 0's pack, or go without if it has none).
        stops: without a pack this rank would raise `found`.
        terms: on which it would use one, for people: from one pack other terms make other choices.

    Returns:
        The pack, or why all go without; and its label.

    Raises:
        UserError: the ranks differ; `policy` is none of the two; it or `terms` are not the same everywhere; there is no
            such group.
        PackError: the ranks are to go without a pack, and one of them does not; one cannot read what rank 0 sent.
        InfrastructureError: a rank could not be reached.
    """
    if policy not in DISAGREEMENTS:
        raise UserError(f"on_disagreement is {policy!r}", hint=f"it is one of {', '.join(DISAGREEMENTS)}")
    group = _opened(group)
    mine = replace(_word(found, label, policy, stops=stops), terms=terms)
    words = [Word(**json.loads(text)) for text in _said_by_all(json.dumps(asdict(mine)), group)]
    for what, said in (("on_disagreement", [w.policy for w in words]), ("their terms", [w.terms for w in words])):
        if len(set(said)) > 1:
            raise UserError(f"ranks differ in {what}: {_by_rank(said)}", hint="give all of them the same")
    first = words[0]
    differ = len({word.digest for word in words}) > 1
    if differ and policy == "error":
        raise UserError(
            f"ranks disagree on the pack: {_packs_of(words)}",
            hint='give all of them the same file, or on_disagreement="rank0"',
        )
    if first.digest == NONE:
        return _without(first if differ else None, words), label
    if not differ:
        return found, label
    if mine.digest != first.digest or mine == first:
        ACTIVE.warn_once(f"ranks disagree on the pack, and all take rank 0's: {_packs_of(words)}")
    pack = _pack_of_first(found, first, group)
    return pack, label if mine.digest == first.digest else f"{first.label} of rank 0"


def _word(found: Pack | UserError, label: str, policy: str, *, stops: bool) -> Word:
    if isinstance(found, UserError):
        return Word(digest=NONE, label=label, reason=str(found), stops=stops, policy=policy, terms="")
    return Word(digest=found.digest, label=label, reason="", stops=False, policy=policy, terms="")


def _without(leader: Word | None, words: Sequence[Word]) -> PackError:
    """Why all go without a pack: the leader has none, or nobody. Raised where one that decides would stop."""
    if leader is not None:
        error, stops = PackError(f"rank 0 has no pack for the others: {leader.reason}"), leader.stops
    else:
        error = PackError(f"no rank has a pack: {_by_rank(word.reason for word in words)}")
        stops = any(word.stops for word in words)
    if stops:
        raise error
    return error


def _pack_of_first(found: Pack | UserError, first: Word, group: Any) -> Pack:
    """Rank 0's pack, sent to all of them; those that cannot read it stop the others."""
    text = _sent_by_first(dumps(found) if isinstance(found, Pack) else "", group)
    pack, problem = found, ""
    if isinstance(found, UserError) or found.digest != first.digest:
        pack = _parsed(text, first)
        problem = str(pack) if isinstance(pack, UserError) else ""
    problems = _said_by_all(problem, group)
    if any(problems) or isinstance(pack, UserError):
        told = _by_rank(problem or "fine" for problem in problems)
        raise PackError(f"rank 0's pack cannot be taken by all ranks: {told}", hint="install one tunefarm on all ranks")
    return pack


def _parsed(text: str, first: Word) -> Pack | PackError:
    where = f"{first.label} of rank 0"
    try:
        pack = parse_pack(text, where=where)
    except PackError as e:
        return e
    if pack.digest != first.digest:
        return PackError(f"arrived with digest {pack.digest[:12]}, sent was {first.digest[:12]}", file=where)
    return pack


def _packs_of(words: Sequence[Word]) -> str:
    # Equal packs may lie under another path on each node: one of them says which is meant.
    labels = {word.digest: word.label for word in reversed(words)}
    return _by_rank(
        f"none ({word.reason})" if word.digest == NONE else f"{labels[word.digest]} (digest {word.digest[:12]})"
        for word in words
    )


def _by_rank(texts: Iterable[str]) -> str:
    """`rank 0: A; ranks 1-3, 5: B`: equal texts are said once."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    parts = [f"rank{'s' * (len(who) > 1)} {_spans(who)}: {text}" for text, who in list(ranks.items())[:MAX_SHOWN]]
    return "; ".join(parts + [f"{len(ranks) - MAX_SHOWN} other answers"] * (len(ranks) > MAX_SHOWN))


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _opened(group: Any) -> Any:
    """The process group that is meant.

    Raises:
        UserError: there is none, or this process is not in it.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UserError(
            "group is given, and torch.distributed is not initialised",
            hint="call torch.distributed.init_process_group before tunefarm.activate",
        )
    if group is True:
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UserError("this process is not in the group", hint="activate with a group on its members only")
    if not isinstance(group, dist.ProcessGroup):
        raise UserError(f"group is {group!r}", hint="give a torch.distributed process group, or True for the default")
    return group


def _said_by_all(text: str, group: Any) -> list[str]:
    """A text of each rank, by rank in the group."""
    import torch.distributed as dist

    texts: list[Any] = [None] * dist.get_world_size(group)
    _reached(lambda: dist.all_gather_object(texts, text, group=group))
    return texts


def _sent_by_first(text: str, group: Any) -> str:
    """The text of the group's rank 0."""
    import torch.distributed as dist

    texts: list[Any] = [text]
    _reached(lambda: dist.broadcast_object_list(texts, src=dist.get_global_rank(group, 0), group=group))
    return str(texts[0])


def _reached(collective: Callable[[], T]) -> T:
    try:
        return collective()
    except RuntimeError as e:  # torch's own errors of lost peers and time-outs among them
        message = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise InfrastructureError(
            f"a rank could not be asked for its pack: {message}",
            hint="every rank of the group must call tunefarm.activate with it, also one without a pack",
        ) from None
