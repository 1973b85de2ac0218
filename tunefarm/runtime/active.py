"""What is active in this process: packs, adopted kernels, and what has been used. Standard library only."""

from __future__ import annotations

import atexit
import logging
import threading
from dataclasses import dataclass, field

from tunefarm.problem import Problem
from tunefarm.runtime.lookup import Activation, Offer

MAX_MISSES = 1000
"""Sequence lengths may all differ, and a report of more helps nobody."""

log = logging.getLogger("tunefarm.runtime")


@dataclass(slots=True)
class Tally:
    """How often something was used.

    Attributes:
        launches: eager launches.
        graphs: traces by torch.compile.
    """

    launches: int = 0
    graphs: int = 0


@dataclass(slots=True, kw_only=True)
class Active:
    """The state of one process.

    Attributes:
        activations: packs in use, oldest first.
        generation: raised whenever they change; kernels compare it with the one they were tied to.
        hits: by kernel and offer.
        misses: by kernel, call and reason.
        refused: tables that could not be used, and why, by kernel.
        asked: tables that some kernel asked.
    """

    activations: list[Activation] = field(default_factory=list)
    generation: int = 0
    hits: dict[tuple[str, Offer], Tally] = field(default_factory=dict)
    misses: dict[tuple[str, Problem | None, str], Tally] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: set[tuple[str, str]] = field(default_factory=set)
    _warned: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, activation: Activation) -> None:
        """Puts a pack into use for all adopted kernels, those to come included."""
        with self._lock:
            if not self.activations:
                atexit.unregister(self._warn_unused)
                atexit.register(self._warn_unused)
            self.activations.append(activation)
            self.generation += 1

    def clear(self) -> None:
        """Takes all packs out of use and forgets what was counted."""
        with self._lock:
            for part in (self.activations, self.hits, self.misses, self.refused, self.asked, self._warned):
                part.clear()
            self.generation += 1

    def miss(self, kernel: str, problem: Problem, reason: str) -> Tally:
        """The tally of a call that no row answers."""
        if len(self.misses) >= MAX_MISSES and (kernel, problem, reason) not in self.misses:
            return self.misses.setdefault((kernel, None, ""), Tally())
        return self.misses.setdefault((kernel, problem, reason), Tally())

    @property
    def names_device(self) -> bool:
        """Whether every pack in use is for a device that was named, so that none of this process's is asked for."""
        return all(activation.device is not None for activation in self.activations)

    @property
    def is_strict(self) -> bool:
        """Whether a call that no row answers is an error."""
        terms = self.terms
        return terms is not None and (terms.strict or terms.on_miss == "error")

    @property
    def terms(self) -> Activation | None:
        """The latest activation: its word on misses counts."""
        return self.activations[-1] if self.activations else None

    def warn_once(self, message: str) -> None:
        """Logs a warning, the first time only."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)

    def _warn_unused(self) -> None:
        used = {id(offer.activation) for (_, offer), tally in list(self.hits.items()) if tally.launches or tally.graphs}
        for activation in self.activations:
            if id(activation) not in used:
                log.warning("pack %s was active, and none of its rows was used", activation.label)


ACTIVE = Active()
