"""The seams of the house: what a chapter may expect of the next one, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunefarm.device import Device
from tunefarm.study import Study, StudyResult
from tunefarm.trial import Trial, Winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of a fleet.

    Attributes:
        name: unique in the fleet and stable over restarts of the process.
        role: `build` (a CPU) or `measure` (a GPU, or a CPU that replays).
        device: the GPU it holds; None for a CPU.
        node: host name.
    """

    name: str
    role: str
    device: Device | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Retire:
    """A job may return this: its process cannot be trusted any more and is replaced before the next job.

    Attributes:
        value: what the job really returns.
        again: nothing yet: the job wants a fresh process, and is done there instead.
    """

    value: Any = None
    again: bool = False


class Fleet(Protocol):
    """Runs picklable zero-argument jobs on its workers, one at a time on each; knows nothing of kernels."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers there are now."""
        ...

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        """Runs `job` on the worker named `where`, after what it already has.

        The future gives what the job returned or raises what it raised. It raises `WorkerLost` when the process
        died or was killed; the worker is then, or soon, there again under its name. `Future.cancel` on a running
        job kills the process.

        Raises:
            InfrastructureError: the job cannot be pickled, the worker is not there, or the fleet is closed.
        """
        ...

    def close(self) -> None:
        """Ends all workers; running jobs are lost. May be called twice."""
        ...


class Sampler(Protocol):
    """Decides which candidates to measure next."""

    def ask(self, num: int) -> list[int]:
        """Numbers of up to `num` candidates, best first, none asked before; empty when the search is done."""
        ...

    def tell(self, trial: Trial) -> None:
        """Learns how an asked candidate stands; a later word on the same candidate replaces the earlier one."""
        ...


class Mirror(Protocol):
    """Shows studies to people as they go on; never raises because of the place where it does."""

    def show(self, study: Study, trials: Sequence[Trial], winner: Winner | None = None) -> None:
        """Shows how a study stands, and returns at once: all its trials by number, and in the end its winner."""
        ...

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """Writes what is left, in so many seconds at most; returns what people should know of what was not."""
        ...


class NullMirror:
    """Shows nothing: for sweeps that nobody follows in an Optuna storage."""

    def show(self, study: Study, trials: Sequence[Trial], winner: Winner | None = None) -> None:
        """See `Mirror`."""

    def close(self, timeout_s: float = 30.0) -> list[str]:
        """See `Mirror`."""
        return []


class Tracker(Protocol):
    """Shows studies that have ended to people; returns at once and never raises for want of a server."""

    @property
    def num_left(self) -> int:
        """Studies handed over and not written yet."""
        ...

    def start(self) -> None:
        """Begins to set up the mirror, in the background."""
        ...

    def study(self, result: StudyResult, best_ms: Sequence[float] = (), spent_s: Sequence[float] = ()) -> None:
        """Mirrors a study that has ended; a second word on a study replaces the first.

        Args:
            result: how it ended.
            best_ms: best median known after the first, second, ... measured candidate, in ms.
            spent_s: GPU seconds spent until then.
        """
        ...

    def close(self, *, status: str = "FINISHED", timeout_s: float = 60.0, pack: Path | None = None) -> list[str]:
        """Writes what is left.

        Args:
            status: how the sweep ended, in MLflow's words: `FINISHED`, `FAILED` or `KILLED`; empty if another driver
                goes on with it, whose business its run is now.
            timeout_s: longest wait in seconds.
            pack: the pack that holds the sweep's winners now.

        Returns:
            Labels of what could not be written; also said once as a warning.
        """
        ...


class NullTracker:
    """Shows nothing: for sweeps that nobody follows in MLflow."""

    num_left = 0

    def start(self) -> None:
        """Does nothing."""

    def study(self, result: StudyResult, best_ms: Sequence[float] = (), spent_s: Sequence[float] = ()) -> None:
        """Does nothing."""

    def close(self, *, status: str = "FINISHED", timeout_s: float = 60.0, pack: Path | None = None) -> list[str]:
        """Nothing is left behind."""
        return []


class Ledger(Protocol):
    """The append-only record of a sweep."""

    def append(self, event: str, data: Mapping[str, Any]) -> None:
        """Writes one event; see `extend`."""
        ...

    def extend(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Writes events; durable, should the machine fail, once `flush` returns.

        Raises:
            Fenced: a newer driver has opened this ledger.
        """
        ...

    def flush(self) -> None:
        """Makes durable all that was written."""
        ...

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Every event so far, oldest first; each has `event`, `epoch`, `at_s` and its data."""
        ...


class NullLedger:
    """Keeps nothing: for sweeps that are held once and not gone on with."""

    def append(self, event: str, data: Mapping[str, Any]) -> None:
        """See `Ledger`."""

    def extend(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """See `Ledger`."""

    def flush(self) -> None:
        """See `Ledger`."""

    def events(self) -> Iterator[Mapping[str, Any]]:
        """See `Ledger`."""
        return iter(())


class Clock(Protocol):
    """Time as the schedule sees it: real, or virtual in simulations."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class Inbox(Protocol):
    """Where what workers bring back waits for the driver: a `queue.SimpleQueue`, or one on a virtual clock."""

    def put(self, item: Any) -> None:
        """Adds something, from any thread."""
        ...

    def get(self, *, timeout: float | None) -> Any:
        """Removes and returns what came first; waits for it, so many seconds at most.

        Raises:
            queue.Empty: nothing came in that time.
        """
        ...

    def empty(self) -> bool:
        """Whether nothing is there now."""
        ...
