"""The fleet of a Ray cluster: one of this machine that lives as long as the fleet, or one that is there already."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, SpecError, WorkerLost
from tunefarm.fleet.cluster import LABEL, Node, connect, describe, label_of, nodes, settled, usable_cpus
from tunefarm.fleet.parcel import Reply, pack, pack_spare
from tunefarm.fleet.post import Post, close_all, heard
from tunefarm.fleet.process import LocalProcess, die_with_parent
from tunefarm.fleet.relay import Relay
from tunefarm.seams import Worker

logger = logging.getLogger(__name__)

_FOLLOW_S = 2.0
_CLOSE_S = 10.0
_FATE_S = 30.0
_POLL_S = 0.2


class Actor:
    """Holds a worker's place on the cluster; the jobs are done by a process of its own beside it.

    Ray says of a dead actor that it is dead. The actor outlives its process, and so can say how that ended, what its
    last words were and what its job left behind, as on one machine. If the actor dies its process dies with it.

    Args:
        name: the worker's.
        environment: variables to set before the first job is loaded.
        path: the driver's module search path; what is not there is no harm.
        spare: what a spare process loads, packed; see `Relay`.
    """

    def __init__(self, name: str, environment: Mapping[str, str], path: Sequence[str], spare: bytes | None) -> None:
        die_with_parent()  # Ray leaves actors running where its node process was killed, with the GPU in their hands.
        os.environ.update(environment)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        self._relay = Relay(partial(LocalProcess, name, environment), spare)

    def ready(self) -> None:
        """Answering at all says that there is a place."""

    def exchange(self, payload: bytes) -> Reply | InfrastructureError:
        """Does a packed job. A lost process is an answer too: as an exception Ray would wrap it."""
        try:
            return self._relay.exchange(payload)
        except InfrastructureError as error:
            return error


class RayProcess:
    """One actor. It is never restarted by Ray: a lost one is replaced, so no answer can come from an earlier life.

    Args:
        name: the worker's.
        options: Ray's options of the actor: what it takes up of the cluster.
        environment: variables set before its first job.
        startup_s: how long it may take to come up.
        spare: what a spare process beside it loads, packed; None for no spare.
        lost: called when the cluster has lost it, before anybody hears of that.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        startup_s: float,
        spare: bytes | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        import ray

        self._name = name
        self._options = options
        self._startup_s = startup_s
        self._lost = lost
        self._is_up = self._is_killed = False
        remote = ray.remote(Actor).options(max_restarts=0, max_task_retries=0, **options)
        self._actor = remote.remote(name, dict(environment), list(sys.path), spare)

    def exchange(self, payload: bytes) -> Reply:
        """Does a packed job and waits for the reply.

        Raises:
            WorkerLost: the actor or its process died or was killed.
            InfrastructureError: it died, or found no place on the cluster in time, before it was ready.
        """
        import ray

        if not self._is_up:
            self._await_up()
        try:
            reply = ray.get(self._actor.exchange.remote(payload))
        except ray.exceptions.RayError as error:
            self._await_fate()
            raise WorkerLost(f"{self._name} died while it held a job: {_last_line(error)}") from error
        if isinstance(reply, InfrastructureError):
            if isinstance(reply, WorkerLost) and not reply.death:  # Perhaps its actor is about to die as well.
                self._await_fate()
            raise reply
        assert isinstance(reply, Reply)
        return reply

    def kill(self) -> None:
        """Ends the actor at once."""
        import ray

        self._is_killed = True
        if ray.is_initialized():  # Otherwise the call would start a cluster of its own.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)

    def bury(self) -> None:
        """Nothing to wait for: a successor starts when the cluster has got the resources back."""

    def _await_fate(self) -> None:
        """Waits until the cluster knows what it has lost: that a connection is broken is heard long before."""
        import ray

        give_up_s = time.monotonic() + _FATE_S
        while (left_s := give_up_s - time.monotonic()) > 0:
            try:
                ray.get(self._actor.ready.remote(), timeout=left_s)
                return
            except ray.exceptions.ActorUnavailableError:
                time.sleep(_POLL_S)
            except ray.exceptions.RayError:
                break
        self._lost()

    def _await_up(self) -> None:
        import ray

        try:
            ray.get(self._actor.ready.remote(), timeout=self._startup_s)
        except ray.exceptions.GetTimeoutError:
            wanted = ", ".join(
                f"{k.removeprefix('num_')}={v}" for k, v in self._options.items() if v and k.startswith("num_")
            )
            raise InfrastructureError(
                f"{self._name} did not start within {self._startup_s:g} s: it needs {wanted or 'a free process'}; "
                f"free on the cluster: {describe(ray.available_resources())}",
                hint="free the cluster, or ask for fewer workers",
            ) from None
        except ray.exceptions.RayError as error:
            if self._is_killed:
                raise WorkerLost(f"{self._name} was killed before it was ready") from error
            self._lost()
            raise InfrastructureError(f"{self._name} died before it was ready: {_last_line(error)}") from error
        self._is_up = True


class RayFleet:
    """Build workers on the CPUs of a cluster, and one measuring worker per GPU or some that replay.

    Each worker is tied to one node. On a cluster of others nodes that come are taken in, and workers of nodes that are
    gone leave. What jobs print is kept only to be shown as the last words of a process that dies. A local cluster has
    no dashboard, sends no usage statistics, and asks every caller for a token that only this process and its children
    know; it ends with the fleet. On a cluster of others a GPU is taken up with its worker's first job, so that it is
    free for them while this driver compiles; to learn which GPU that is, a process is started at once and ends again.

    Args:
        address: of a running cluster; None for a local one. If this process has joined a cluster already, that
            is used and left running.
        probe: run on each measuring worker, which then holds one GPU, to learn its device. None for measuring
            workers that replay, and hold none.
        replayed: devices whose measurements are replayed. Nodes whose label `tunefarm.dev/device` names one stand for
            it: their GPUs each get a worker that replays that device, and no other.
        warm: per role, what is run on each worker as soon as it is there, and on a spare beside each measuring
            worker: what loads there need not be waited for later. It must not touch the GPU. On a cluster of others,
            whose GPUs are not held that early, the spare alone loads.
        supply: gives a worker what a job raises `Lacking` for; it returns what people should know of that, or empty.
        num_measure: measuring workers; one per GPU, or one that replays, if left out.
        num_builders: build workers; one per CPU if left out.
        startup_s: how long a process may take to come up.
        insecure: join a cluster at `address` though it does the bidding of whoever reaches it.

    Raises:
        SpecError: the cluster cannot have as many workers as asked for, ever.
        UserError: it answers who has no token.
        InfrastructureError: the cluster cannot be reached, or has no room in time.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        probe: Callable[[], Device] | None = None,
        replayed: Sequence[Device] = (),
        warm: Mapping[str, Callable[[], None]] | None = None,
        supply: Callable[[], str] | None = None,
        num_measure: int | None = None,
        num_builders: int | None = None,
        startup_s: float = 120.0,
        insecure: bool = False,
    ) -> None:
        self._workers: tuple[Worker, ...] = ()
        self._posts: dict[str, Post] = {}
        self._homes: dict[str, Node] = {}
        self._options: dict[str, dict[str, Any]] = {}
        self._numbers = {"measure": itertools.count(), "build": itertools.count()}
        self._startup_s = startup_s
        self._warm = warm or {}
        self._probe = probe
        self._replayed = {label_of(device.name): device for device in replayed}
        self._supply = supply
        self._packed = None if supply is None else pack(supply)
        self._closing = threading.Event()
        self._moving = threading.Lock()
        self._watch: threading.Thread | None = None
        self._owns_cluster = connect(address, use_gpus=probe is not None, insecure=insecure)
        try:
            there = settled(startup_s, gpus=probe is not None and num_measure != 0 and not self._owns_cluster)
            self._take_in(there, num_measure, num_builders)
            if not self._owns_cluster:
                following = {node.id for node in there}
                measures = num_measure is None and bool(probe or self._replayed)
                self._watch = threading.Thread(
                    target=self._follow, args=(following, measures, num_builders is None), daemon=True
                )
                self._watch.start()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers there are now: measuring workers first."""
        return self._workers

    def submit(self, job: Callable[[], Any], where: str) -> Future[Any]:
        """Runs `job` on the worker named `where`, after what it already has; see `tunefarm.seams.Fleet`.

        Raises:
            InfrastructureError: the job cannot be pickled, the worker's node is gone, or the fleet is closed.
        """
        return self._posts[where].submit(job)

    def close(self) -> None:
        """Ends all actors, and the cluster if it is the fleet's own. May be called twice."""
        self._closing.set()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(_CLOSE_S)
        close_all(self._posts.values())
        if self._owns_cluster:
            import ray

            self._owns_cluster = False
            ray.shutdown()

    # ---- workers ----

    def _take_in(self, there: Sequence[Node], num_measure: int | None, num_builders: int | None) -> None:
        """Adds workers on nodes.

        Args:
            there: the nodes.
            num_measure: measuring workers, None for all there can be.
            num_builders: build workers, None for all there can be.
        """
        seats = [] if num_measure == 0 else self._seats(there, num_measure)
        measuring = [self._worker("measure", node) for node in seats]
        if measuring and self._probe is not None:
            # At the start there must be one, or as many as were asked for.
            least = 0 if self._watch is not None else 1 if num_measure is None else num_measure
            measuring = self._introduced(measuring, self._probe, least)
        own = {node.id: node.num_cpus for node in there if node.num_cpus}
        cpus = own if self._owns_cluster else usable_cpus([node for node in there if node.id in own])
        desks = [node for desk in range(max(cpus.values(), default=0)) for node in there if cpus.get(node.id, 0) > desk]
        building = [self._worker("build", node) for node in desks[: _fit(num_builders, len(desks), "CPU")]]
        self._open([*measuring, *building])

    def _seats(self, there: Sequence[Node], wanted: int | None) -> list[Node]:
        """A node for each measuring worker."""
        if self._probe is None and not self._replayed_on(there):
            home = max(there, key=lambda node: node.num_cpus)  # Who replays holds nothing, and one is enough.
            return [home] * (1 if wanted is None else wanted)
        gpus = [n for n in there for _ in range(n.num_gpus) if self._probe is not None or self._replayed_on([n])]
        return gpus[: _fit(wanted, len(gpus), "GPU")]

    def _replayed_on(self, there: Sequence[Node]) -> list[Device]:
        return [self._replayed[label] for node in there if (label := node.labels.get(LABEL, "")) in self._replayed]

    def _worker(self, role: str, node: Node) -> Worker:
        worker = Worker(
            name=f"{role}-{next(self._numbers[role])}", role=role, node=node.host,
            device=next(iter(self._replayed_on([node])), None) if role == "measure" and not self._probe else None,
        )  # fmt: skip
        holds = role == "measure" and bool(self._probe or worker.device)
        self._homes[worker.name] = node
        self._options[worker.name] = {"num_cpus": int(role == "build"), "num_gpus": int(holds), **node.place}
        return worker

    def _open(self, workers: Sequence[Worker]) -> None:
        """Lets workers be seen, once they can be given jobs."""
        for worker in workers:
            warm = self._warm.get(worker.role)
            if worker.name not in self._posts:
                self._posts[worker.name] = self._post(worker, has_spare=True)
            if warm is not None and (worker.role == "build" or self._owns_cluster):
                self.submit(warm, worker.name)
        with self._moving:
            both = (*self._workers, *workers)
            self._workers = (*(w for w in both if w.role == "measure"), *(w for w in both if w.role != "measure"))

    def _post(self, worker: Worker, *, has_spare: bool) -> Post:
        warm = self._warm.get(worker.role) if has_spare and worker.role == "measure" else None
        spare = None if warm is None else pack_spare(self._supply, warm)
        # Ray's own rule on what a process without GPUs sees has changed between releases.
        environment = {} if worker.role == "measure" and self._probe is not None else {"CUDA_VISIBLE_DEVICES": ""}
        name, options = worker.name, self._options[worker.name]
        start = partial(RayProcess, name, options, environment, self._startup_s, spare, self._look)
        return Post(name, start, self._packed)

    def _introduced(self, workers: Sequence[Worker], probe: Callable[[], Device], least: int) -> list[Worker]:
        """Measuring workers with the GPU that each holds, or is to hold; those that have none are left out."""
        posts = {worker.name: self._post(worker, has_spare=self._owns_cluster) for worker in workers}
        try:
            asked = [(f"{worker.name} on {worker.node}", posts[worker.name].submit(probe)) for worker in workers]
            told = heard(asked, least=least)
        except BaseException:
            close_all(posts.values())
            raise
        found = [replace(worker, device=device) for worker, device in zip(workers, told, strict=True) if device]
        if self._owns_cluster:
            self._posts |= {worker.name: posts.pop(worker.name) for worker in found}
        close_all(posts.values())
        return found

    # ---- nodes that come and go ----

    def _follow(self, known: set[str], measures: bool, builds: bool) -> None:
        """Takes in nodes that come and lets go of those that are gone, until the fleet closes.

        Args:
            known: ids of the nodes that the fleet has seen.
            measures: whether GPUs of new nodes are wanted.
            builds: whether their CPUs are.
        """
        while not self._closing.wait(_FOLLOW_S):
            try:
                there = nodes()
                self._let_go({node.id for node in there})
                fresh = [node for node in there if node.id not in known]
                known |= {node.id for node in fresh}
                if fresh and not self._closing.is_set():
                    logger.info("nodes have come: %s", ", ".join(node.host for node in fresh))
                    gpus = [node for node in fresh if node.num_gpus] if measures else []
                    self._take_in(fresh, None if gpus else 0, None if builds else 0)
            except Exception as error:
                # What a new node cannot do is no harm to those there are.
                if not self._closing.is_set():
                    logger.warning("nodes of the cluster that came or went are not followed: %s", error)

    def _look(self) -> None:
        """Lets go of nodes that are gone: what was lost with one is neither tried there again nor to blame for it."""
        if self._watch is not None and not self._closing.is_set():
            self._let_go({node.id for node in nodes()})

    def _let_go(self, alive: set[str]) -> None:
        with self._moving:
            gone = [worker for worker in self._workers if self._homes[worker.name].id not in alive]
            self._workers = tuple(worker for worker in self._workers if worker not in gone)
        for worker in gone:
            self._posts[worker.name].stop()


def _fit(wanted: int | None, there: int, what: str) -> int:
    if there == 0 and what == "GPU":
        raise SpecError("the cluster has no GPU", hint="replay a landscape, or join a cluster with GPUs by its address")
    if wanted is not None and wanted > there:
        raise SpecError(
            f"{wanted} workers with one {what} each were asked for, and the cluster has {there}",
            hint="ask for fewer, or let tunefarm take what there is",
        )
    return there if wanted is None else wanted


def _last_line(error: Exception) -> str:
    """What Ray says of the cause; the lines before it are ids."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
