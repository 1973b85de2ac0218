"""The fleet of this machine: processes, without Ray."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from tunefarm.device import Device
from tunefarm.fleet.cpus import available_cpus
from tunefarm.fleet.parcel import pack, pack_spare
from tunefarm.fleet.post import Post, close_all
from tunefarm.fleet.process import LocalProcess
from tunefarm.fleet.relay import Relay
from tunefarm.seams import Worker


class InlineFleet:
    """One long-lived process per worker, started with its first job.

    A measuring worker sees its own GPU and no other; build workers and workers that replay see none. What jobs
    print is kept only to be shown as the last words of a process that dies.

    Args:
        devices: per measuring worker, the GPU it holds; None for one that replays.
        visible: per measuring worker that holds a GPU, how the driver calls it (`0`, `GPU-5a3e...`, `MIG-...`): an
            entry of `CUDA_VISIBLE_DEVICES`. Counted from 0 if left out.
        num_builders: build workers; as many as there are CPUs to use if left out.
        warm: per role, what is run on each worker as soon as it is there, and on a spare beside each measuring
            worker: what loads there need not be waited for later.
        supply: gives a worker what a job raises `Lacking` for; it returns what people should know of that, or empty.
    """

    def __init__(
        self,
        devices: Sequence[Device | None] = (),
        *,
        visible: Sequence[str] | None = None,
        num_builders: int | None = None,
        warm: Mapping[str, Callable[[], None]] | None = None,
        supply: Callable[[], str] | None = None,
    ) -> None:
        self._warm = warm or {}
        self._supply = supply
        self._packed = None if supply is None else pack(supply)
        gpus = iter(visible if visible is not None else map(str, range(len(devices))))
        node = socket.gethostname()
        self._workers: list[Worker] = []
        self._posts: dict[str, Post] = {}
        for number, device in enumerate(devices):
            worker = Worker(name=f"measure-{number}", role="measure", device=device, node=node)
            self._add(worker, "" if device is None else next(gpus))
        for number in range(available_cpus() if num_builders is None else num_builders):
            self._add(Worker(name=f"build-{number}", role="build", node=node), "")

    def _add(self, worker: Worker, gpu: str) -> None:
        start = partial(LocalProcess, worker.name, {"CUDA_VISIBLE_DEVICES": gpu})
        warm = self._warm.get(worker.role)
        spare = pack_spare(self._supply, warm) if warm is not None and worker.role == "measure" else None
        self._workers.append(worker)
        self._posts[worker.name] = Post(worker.name, partial(Relay, start, spare), self._packed)
        if warm is not None:
            self.submit(warm, worker.name)

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers there are: measuring workers first."""
        return tuple(self._workers)

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        """Runs `job` on the worker named `where`, after what it already has; see `tunefarm.seams.Fleet`.

        Raises:
            InfrastructureError: the job cannot be pickled, or the fleet is closed.
        """
        return self._posts[where].submit(job)

    def close(self) -> None:
        """Kills all processes; running and waiting jobs are lost. May be called twice."""
        close_all(self._posts.values())
