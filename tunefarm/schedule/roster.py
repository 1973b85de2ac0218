"""The workers a schedule knows, and which of them have room."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tunefarm.schedule.queue import Lane
from tunefarm.seams import Worker


@dataclass(slots=True)
class Member:
    """One worker, as the schedule sees it.

    Attributes:
        worker: who.
        depth: jobs it may have in flight.
        lanes: where its jobs may wait.
        in_flight: attempts given to it, oldest first; the first is the one it works on.
        lost: jobs it lost since it last finished one.
        active: gets new jobs; False in quarantine.
        used: has had a job, so that its process exists.
    """

    worker: Worker
    depth: int
    lanes: tuple[Lane, ...] = field(init=False)
    in_flight: list[int] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    active: bool = True
    used: bool = False

    def __post_init__(self) -> None:
        device = self.worker.device
        places = ("",) if device is None else ("", device.arch, device.key)
        self.lanes = (*((self.worker.role, place) for place in places), self.own_lane)

    @property
    def own_lane(self) -> Lane:
        """Where jobs wait that nobody else may do."""
        return self.worker.role, self.worker.name

    @property
    def has_room(self) -> bool:
        """Whether it may be given another job."""
        return self.active and len(self.in_flight) < self.depth

    @property
    def holds_gpu(self) -> bool:
        """Whether its seconds count as GPU-held."""
        return self.used and self.worker.device is not None


class Roster:
    """Members by name; those with room, by lane and load."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._open: dict[Lane, dict[int, dict[str, None]]] = {}
        self._sizes: dict[Lane, int] = {}
        self.num_holding = 0

    def get(self, name: str) -> Member | None:
        """The member of this name, if it is there."""
        return self._members.get(name)

    @property
    def members(self) -> Collection[Member]:
        """All of them, those in quarantine too."""
        return self._members.values()

    def join(self, member: Member) -> None:
        """Adds a member."""
        self._members[member.worker.name] = member
        for lane in member.lanes:
            self._sizes[lane] = self._sizes.get(lane, 0) + 1
        self._enter(member)

    def leave(self, name: str) -> Member | None:
        """Removes and returns a member, if it is there."""
        member = self._members.get(name)
        if member is not None:
            self.suspend(member)
            self.num_holding -= member.holds_gpu
            del self._members[name]
        return member

    def suspend(self, member: Member) -> None:
        """Gives a member no more jobs."""
        if member.active:
            self._exit(member)
            member.active = False
            for lane in member.lanes:
                self._sizes[lane] -= 1

    def load(self, member: Member, attempt: int) -> None:
        """Puts an attempt behind what a member already has."""
        self._exit(member)
        self.num_holding += not member.used and member.worker.device is not None
        member.used = True
        member.in_flight.append(attempt)
        self._enter(member)

    def unload(self, member: Member, attempt: int) -> None:
        """Takes an attempt off a member."""
        self._exit(member)
        member.in_flight.remove(attempt)
        self._enter(member)

    def size(self, lane: Lane) -> int:
        """Active members that serve a lane, busy or not."""
        return self._sizes.get(lane, 0)

    def names(self, lane: Lane) -> list[str]:
        """Active members that serve a lane."""
        return [name for name, member in self._members.items() if member.active and lane in member.lanes]

    def serves(self, name: str, lane: Lane) -> bool:
        """Whether an active member of this name serves a lane."""
        member = self._members.get(name)
        return member is not None and member.active and lane in member.lanes

    def idlest(self, lane: Lane, without: Collection[str] = ()) -> Member | None:
        """The member with room in a lane that has the least in flight, or None."""
        loads = self._open.get(lane, {})
        for load in sorted(loads):
            for name in loads[load]:
                if name not in without:
                    return self._members[name]
        return None

    def open(self) -> list[Member]:
        """All members with room."""
        return [member for member in self._members.values() if member.has_room]

    def _enter(self, member: Member) -> None:
        if member.has_room:
            for lane in member.lanes:
                self._open.setdefault(lane, {}).setdefault(len(member.in_flight), {})[member.worker.name] = None

    def _exit(self, member: Member) -> None:
        if member.has_room:
            for lane in member.lanes:
                del self._open[lane][len(member.in_flight)][member.worker.name]
