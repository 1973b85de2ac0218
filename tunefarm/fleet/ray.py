"""The fleet of a Ray cluster: one of this machine that lives as long as the fleet, or one that is there already."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from tunefarm.device import Device
from tunefarm.errors import InfrastructureError, SpecError, UserError, WorkerLost
from tunefarm.fleet.cpus import available_cpus
from tunefarm.fleet.parcel import Reply, pack
from tunefarm.fleet.post import Post, close_all
from tunefarm.fleet.process import LocalProcess
from tunefarm.fleet.relay import Relay
from tunefarm.fleet.trust import Answer, ask_without_token
from tunefarm.seams import Worker

_TOKEN = secrets.token_hex(32)
"""What a local cluster asks of its callers; one for all, because Ray reads it once per process."""

_REACH_S = 10.0


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
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        startup_s: float,
        spare: bytes | None = None,
    ) -> None:
        import ray

        self._name = name
        self._options = options
        self._startup_s = startup_s
        self._is_up = False
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
            raise WorkerLost(f"{self._name} died while it held a job: {_last_line(error)}") from error
        if isinstance(reply, InfrastructureError):
            raise reply
        assert isinstance(reply, Reply)
        return reply

    def kill(self) -> None:
        """Ends the actor at once."""
        import ray

        if ray.is_initialized():  # Otherwise the call would start a cluster of its own.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)

    def bury(self) -> None:
        """Nothing to wait for: a successor starts when the cluster has got the resources back."""

    def _await_up(self) -> None:
        import ray

        try:
            ray.get(self._actor.ready.remote(), timeout=self._startup_s)
        except ray.exceptions.GetTimeoutError:
            wanted = ", ".join(f"{k.removeprefix('num_')}={v}" for k, v in self._options.items() if v)
            raise InfrastructureError(
                f"{self._name} did not start within {self._startup_s:g} s: it needs {wanted or 'a free process'}; "
                f"free on the cluster: {_describe(ray.available_resources())}",
                hint="free the cluster, or ask for fewer workers",
            ) from None
        except ray.exceptions.RayError as error:
            raise InfrastructureError(f"{self._name} died before it was ready: {_last_line(error)}") from error
        self._is_up = True


class RayFleet:
    """Build workers on the CPUs of a cluster, and one measuring worker per GPU or some that replay.

    What jobs print is kept only to be shown as the last words of a process that dies. A local cluster has no
    dashboard, sends no usage statistics, and asks every caller for a token that only this process and its children
    know; it ends with the fleet. On a cluster of others a GPU is taken up with its worker's first job, so that it is
    free for them while this driver compiles; to learn which GPU that is, a process is started at once and ends again.

    Args:
        address: of a running cluster; None for a local one. If this process has joined a cluster already, that
            is used and left running.
        probe: run on each measuring worker, which then holds one GPU, to learn its device. None for measuring
            workers that replay, and hold none.
        warm: per role, what is run on each worker as soon as it is there, and on a spare beside each measuring
            worker: what loads there need not be waited for later. It must not touch the GPU. On a cluster of others,
            whose GPUs are not held that early, the spare alone loads.
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
        warm: Mapping[str, Callable[[], None]] | None = None,
        num_measure: int | None = None,
        num_builders: int | None = None,
        startup_s: float = 120.0,
        insecure: bool = False,
    ) -> None:
        self._workers: list[Worker] = []
        self._posts: dict[str, Post] = {}
        self._startup_s = startup_s
        self._warm = warm or {}
        self._owns_cluster = _connect(address, use_gpus=probe is not None, insecure=insecure)
        try:
            num_cpus, num_gpus = _capacity(startup_s)
            if probe is None:
                num_measure = 1 if num_measure is None else num_measure
            else:
                num_measure = _fit(num_measure, num_gpus, "GPU")
            for number in range(num_measure):
                self._add("measure", number, {"num_cpus": 0, "num_gpus": 0 if probe is None else 1})
            for number in range(_fit(num_builders, num_cpus, "CPU")):
                self._add("build", number, {"num_cpus": 1})
            if probe is not None:
                self._introduce(probe)
        except BaseException:
            self.close()
            raise

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
        """Ends all actors, and the cluster if it is the fleet's own. May be called twice."""
        close_all(self._posts.values())
        if self._owns_cluster:
            import ray

            self._owns_cluster = False
            ray.shutdown()

    def _add(self, role: str, number: int, options: Mapping[str, Any]) -> None:
        worker = Worker(name=f"{role}-{number}", role=role, node=socket.gethostname() if self._owns_cluster else "")
        warm = self._warm.get(role)
        spare = pack(warm) if warm is not None and role == "measure" else None
        self._posts[worker.name] = self._post(worker.name, options, spare)
        self._workers.append(worker)
        if warm is not None and role == "build":
            self.submit(warm, worker.name)

    def _post(self, name: str, options: Mapping[str, Any], spare: bytes | None = None) -> Post:
        # Ray's own rule on what a process without GPUs sees has changed between releases.
        environment = {} if options.get("num_gpus") else {"CUDA_VISIBLE_DEVICES": ""}
        return Post(name, partial(RayProcess, name, options, environment, self._startup_s, spare))

    def _introduce(self, probe: Callable[[], Device]) -> None:
        """Learns where the measuring workers are and which GPU each holds."""
        meters = [worker for worker in self._workers if worker.role == "measure"]
        posts = {worker.name: self._posts[worker.name] for worker in meters}
        if not self._owns_cluster:
            posts = {name: self._post(name, {"num_cpus": 0, "num_gpus": 1}) for name in posts}
        try:
            answers = [posts[worker.name].submit(partial(_introduction, probe)) for worker in meters]
            told = [answer.result() for answer in answers]
        finally:
            if not self._owns_cluster:
                close_all(posts.values())
        self._workers[: len(meters)] = [
            replace(worker, device=device, node=node) for worker, (device, node) in zip(meters, told, strict=True)
        ]
        warm = self._warm.get("measure")
        if warm is not None and self._owns_cluster:
            for worker in meters:
                self.submit(warm, worker.name)


def _introduction(probe: Callable[[], Device]) -> tuple[Device, str]:
    return probe(), socket.gethostname()


def _connect(address: str | None, *, use_gpus: bool, insecure: bool) -> bool:
    """Joins a cluster or starts one here; True if it was started here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"address": address}
    answer = Answer.SILENT
    if address is not None:
        answer = _reach(address)
        if not insecure:
            _refuse_open(address, answer)
    else:
        # Ray would write a token into the home directory, which may be read-only and outlives the cluster.
        os.environ["RAY_AUTH_TOKEN"] = _TOKEN
        options = {
            "address": "local",
            "num_cpus": available_cpus(),
            "num_gpus": None if use_gpus else 0,
            "include_dashboard": False,
        }
    # `log_to_driver` does not cover Ray's own words on dead workers, which would go to standard output.
    ray._private.worker._worker_logs_enabled = False
    asked_to_end = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        hint = (
            "it asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as it has them"
            if answer is Answer.REFUSED
            else ""
        )
        raise InfrastructureError(f"no Ray cluster at {address or 'this machine'}: {error}", hint=hint) from error
    if address is not None and not _port(address) and not insecure:  # `auto`: only now it is known where that is
        try:
            where = ray.get_runtime_context().gcs_address
            _refuse_open(where, ask_without_token(where, _REACH_S))
        except UserError:
            ray.shutdown()
            raise
    if threading.current_thread() is threading.main_thread():
        # What happens when this process is asked to end is its own matter: Ray's answer prints a stack, and aborts.
        signal.signal(signal.SIGTERM, asked_to_end)
    return address is None


def _port(address: str) -> str:
    port = address.rpartition(":")[2]
    return port if port.isdigit() else ""


def _reach(address: str) -> Answer:
    """What a cluster tells strangers. Ray itself tries for many minutes before it says that nobody listens there."""
    if not (port := _port(address)):
        return Answer.SILENT
    try:
        host = address.removeprefix("ray://").rpartition(":")[0]
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise InfrastructureError(
            f"no Ray cluster at {address}: {error}", hint="is it up, and the port right?"
        ) from error
    return ask_without_token(address, _REACH_S)


def _refuse_open(address: str, answer: Answer) -> None:
    if answer is Answer.SERVED:
        raise UserError(
            f"the Ray cluster at {address} answers without a token: whoever reaches it can run code there",
            hint="start it, and this, with RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN; where nobody else can reach it, "
            "TUNEFARM_INSECURE_CLUSTER=1 joins it as it is",
        )


def _capacity(startup_s: float) -> tuple[int, int]:
    """(CPUs, GPUs) of the cluster; its nodes may need a moment to say what they have."""
    import ray

    give_up_s = time.monotonic() + startup_s
    while not (total := ray.cluster_resources()).get("CPU"):
        if time.monotonic() > give_up_s:
            raise InfrastructureError(f"the Ray cluster has no CPUs: {_describe(total)}")
        time.sleep(0.1)
    return int(total["CPU"]), int(total.get("GPU", 0))


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


def _describe(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={resources.get(name, 0):g}" for name in ("CPU", "GPU"))
